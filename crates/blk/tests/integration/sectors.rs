//! The contract on storage of other kinds: 4 KiB sectors, no fallocate, no space left. File systems of our own on
//! loop devices, which takes root; skipped where there are none.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use crate::conformance::{self, pattern};
use blk::uring::UringReactor;
use blk::{Buf, Executor};

const IMAGE_BYTES: u64 = 256 << 20;

/// A mounted file system on a loop device; taken down again when dropped.
struct Mount {
    folder: PathBuf,
    device: String,
    mounted: bool,
}

impl Mount {
    fn new(name: &str, sector: &str, file_system: &str) -> Result<Mount, String> {
        let folder =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let (image, point) = (folder.join("image"), folder.join("mnt"));
        std::fs::create_dir_all(&point).map_err(|e| e.to_string())?;
        std::fs::File::create(&image).and_then(|f| f.set_len(IMAGE_BYTES)).map_err(|e| e.to_string())?;
        let mut mount = Mount { folder, device: String::new(), mounted: false };
        let image = image.to_string_lossy();
        mount.device = run("losetup", &["--sector-size", sector, "--find", "--show", &image])?;
        run(&format!("mkfs.{file_system}"), &["-q", &mount.device])?;
        run("mount", &[&mount.device, &point.to_string_lossy()])?;
        mount.mounted = true;
        Ok(mount)
    }

    fn point(&self) -> PathBuf {
        self.folder.join("mnt")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            let _ = run("umount", &[&self.point().to_string_lossy()]);
        }
        if !self.device.is_empty() {
            let _ = run("losetup", &["--detach", &self.device]);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn run(command: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(command).args(args).output().map_err(|e| format!("{command}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_string()),
        false => Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn on_core<F: Future<Output = ()> + 'static>(
    folder: &Path,
    test: impl FnOnce(blk::Env, blk::Dir) -> F + 'static,
) {
    let executor = Executor::new(Rc::new(UringReactor::new().unwrap()));
    let env = executor.env();
    let dir = env.open_root(folder.to_str().unwrap()).unwrap();
    executor.run(test(env, dir)).unwrap();
}

/// Reports that the running test cannot run here. `scripts/test.sh` counts it as skipped, and not as passed.
fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("main").to_owned();
    // Unlike `println!`, this is not captured. With one test at a time the line has the test's name before it.
    let _ = writeln!(std::io::stdout(), "SKIPPED {test}: {reason}");
}

fn mounted(name: &str, sector: &str, file_system: &str) -> Option<Mount> {
    let mount = Mount::new(name, sector, file_system);
    let mount = mount.map_err(|why| skip(&format!("cannot mount a file system: {why}"))).ok()?;
    // The script wants an empty directory.
    let _ = std::fs::remove_dir(mount.point().join("lost+found"));
    Some(mount)
}

/// ext2 has neither fallocate nor zeroing of ranges: lengths and written zeros take their place.
#[test]
fn a_file_system_without_fallocate_keeps_the_contract() {
    let Some(mount) = mounted("ext2", "512", "ext2") else { return };
    on_core(&mount.point(), |env, dir| async move {
        conformance::script(&env, &dir).await;
        let file = dir.create_new("large").await.unwrap();
        const LEN: usize = 5 << 20;
        file.write(0, pattern(1, LEN)).await.unwrap();
        file.zero(8192, (4 << 20) + 512, false).await.unwrap();
        let (read, result) = file.read(0, Buf::alloc(LEN)).await;
        result.unwrap();
        let mut model = pattern(1, LEN).to_vec();
        model[8192..8192 + (4 << 20) + 512].fill(0);
        assert!(read[..] == model[..]);
    });
}

#[test]
fn four_kib_sectors_are_found_and_served() {
    let Some(mount) = mounted("sectors", "4096", "ext4") else { return };
    on_core(&mount.point(), |env, dir| async move {
        conformance::script(&env, &dir).await;
        let file = dir.create_new("disk").await.unwrap();
        let limits = file.limits();
        assert_eq!((limits.logical_block, limits.direct), (4096, true));

        // Neighbouring sectors written at the same time share a device block, and none may be lost.
        const SECTORS: u64 = 256;
        file.set_len(SECTORS * 512).await.unwrap();
        let writers: Vec<_> = (0..SECTORS)
            .map(|i| {
                let file = file.clone();
                env.spawn(async move { file.write(i * 512, pattern(i as u8, 512)).await })
            })
            .collect();
        for writer in writers {
            writer.join().await.unwrap();
        }
        file.flush().await.unwrap();
        let (read, result) = file.read(0, Buf::alloc(SECTORS as usize * 512)).await;
        result.unwrap();
        for i in 0..SECTORS as usize {
            assert!(read[i * 512..][..512] == pattern(i as u8, 512)[..], "sector {i}");
        }
    });
}

/// A full file system: what fails with NoSpace changes nothing, and goes on once there is room.
#[test]
fn running_out_of_space_loses_nothing_and_writes_work_again_afterwards() {
    let Some(mount) = mounted("full", "512", "ext4") else { return };
    on_core(&mount.point(), |_, dir| async move {
        let filler = dir.create_new("filler").await.unwrap();
        let file = dir.create_new("file").await.unwrap();
        file.write(0, pattern(1, 8192)).await.unwrap();
        file.flush().await.unwrap();
        let free = dir.space().await.unwrap().free_bytes;
        let most = (free - (16 << 20)).next_multiple_of(1 << 20);
        filler.allocate(0, most).await.unwrap();

        let before = dir.space().await.unwrap().free_bytes;
        let error = file.allocate(8192, 1 << 30).await.unwrap_err();
        assert!(error.is_no_space(), "{error}");
        assert!(file.latched().is_none());
        assert_eq!(file.size().await.unwrap(), 8192, "the size stays");
        let after = dir.space().await.unwrap().free_bytes;
        assert!(
            after + (1 << 20) >= before,
            "what was reserved came back: {before} free before, {after} after"
        );

        filler.set_len(0).await.unwrap();
        filler.flush().await.unwrap();
        file.allocate(8192, 64 << 20).await.unwrap();
        let (read, result) = file.read(0, Buf::alloc(8192)).await;
        result.unwrap();
        assert_eq!(&read[..], &pattern(1, 8192)[..]);
    });
}
