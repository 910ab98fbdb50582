//! A device that can neither discard nor zero its space without writing. Trims and freed space cause no writes there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::daemon::Datastore;
use crate::programs::tool;
use crate::space::until;
use crate::tools::run_script;

const DEVICE_BYTES: u64 = 1 << 30;
/// Time without a write other than those of the lease.
const REST: Duration = Duration::from_millis(700);
/// Maximum bytes that the lease writes meanwhile.
const HEARTBEATS_BYTES_MAX: u64 = 64 << 10;
/// Maximum bytes of metadata: a hundredth of what is trimmed, and the records and pages for it.
const WRITTEN_BYTES_MAX: u64 = 8 << 20;

/// A loop device over a file on a file system without hole punching. It is detached when dropped.
struct Keeper {
    folder: PathBuf,
    device: PathBuf,
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output().map_err(|e| format!("{program}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

impl Keeper {
    /// Returns `None`, and prints the reason, if this machine offers no loop device.
    fn new(folder: &Path) -> Option<Keeper> {
        fs::create_dir(folder).unwrap();
        let at = folder.to_str().unwrap();
        let made = run("mount", &["-t", "ramfs", "ramfs", at]).and_then(|_| {
            let image = folder.join("image");
            File::create(&image).and_then(|file| file.set_len(DEVICE_BYTES)).map_err(|e| e.to_string())?;
            run("losetup", &["--find", "--show", image.to_str().unwrap()])
        });
        match made {
            Ok(device) => Some(Keeper { folder: folder.to_path_buf(), device: device.into() }),
            Err(e) => {
                println!("no device that keeps its space: {e}");
                let _ = Command::new("umount").arg(folder).output();
                None
            }
        }
    }

    fn queue(&self, what: &str) -> String {
        let name = self.device.file_name().unwrap().to_str().unwrap();
        fs::read_to_string(format!("/sys/block/{name}/{what}")).unwrap()
    }

    /// Returns the bytes written since the device was made (Documentation/block/stat.rst: sectors of 512 bytes).
    fn written_bytes(&self) -> u64 {
        self.queue("stat").split_whitespace().nth(6).unwrap().parse::<u64>().unwrap() * 512
    }

    /// Returns the bytes written once the store has prepared the space that it will need next, which it does in the
    /// background.
    fn written_bytes_at_rest(&self) -> u64 {
        let (mut since, mut before) = (Instant::now(), self.written_bytes());
        until("the store to come to rest", || {
            let now = self.written_bytes();
            if now - before > HEARTBEATS_BYTES_MAX {
                (since, before) = (Instant::now(), now);
            }
            (since.elapsed() > REST).then_some(now)
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
        let _ = Command::new("umount").arg(&self.folder).status();
    }
}

#[test]
fn trims_and_freed_space_write_nothing_on_a_device_that_keeps_its_space() {
    let datastore = Datastore::new();
    let Some(keeper) = Keeper::new(&datastore.beside("ram")) else { return };
    assert_eq!(keeper.queue("queue/discard_max_bytes").trim(), "0");
    let at = keeper.device.display();
    datastore.json(&format!("datastore create {at}"));
    let daemon = datastore.start();
    datastore.json(&format!("datastore add raw={at}"));
    datastore.json_at("raw", "vm create web --disk 320M");
    let uri = datastore.uri("web/disk0");
    run_script(&uri, &["write -P 7 0 320M".to_owned(), "flush".to_owned()]);

    let before = keeper.written_bytes_at_rest();
    let trim = ["-f", "raw", "-d", "unmap", "-c", "discard 0 256M", "-c", "flush", &uri];
    assert!(!tool("qemu-io", &trim).contains("failed"));
    let trimmed = keeper.written_bytes_at_rest() - before;
    datastore.json("snapshot take web a");
    run_script(&uri, &["write -P 9 256M 64M".to_owned(), "flush".to_owned()]);
    let before = keeper.written_bytes_at_rest();
    datastore.json("snapshot commit web a --yes");
    run_script(&uri, &["read -P 0 0 256M".to_owned(), "read -P 9 256M 64M".to_owned()]);
    assert_eq!(datastore.json_at("raw", "check")["findings"], json!([]));
    let dropped = keeper.written_bytes_at_rest() - before;
    daemon.stop();
    println!("{trimmed} bytes written for a trim of 256 MiB, {dropped} for a drop of 64 MiB");
    assert!(trimmed < WRITTEN_BYTES_MAX && dropped < WRITTEN_BYTES_MAX, "{trimmed} {dropped}");
    let daemon = datastore.start();
    run_script(&uri, &["read -P 0 0 256M".to_owned(), "read -P 9 256M 64M".to_owned()]);
    daemon.stop();
}
