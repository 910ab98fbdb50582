//! Datastores without a folder: a block device if root can have one, and a file of fixed size in any case.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::between::{io, place, slow_move};
use crate::daemon::Datastore;
use crate::guest::seed;
use crate::programs::tool;
use crate::skip::skip;
use crate::space::until;
use crate::tools::{Twin, assert_same, run_script};

const DEVICE_BYTES: u64 = 1 << 30;
/// More writes than a disk completes before its daemon is stopped.
const LATE_WRITES: u64 = 200_000;

pub(crate) fn image(datastore: &Datastore, name: &str) -> PathBuf {
    let path = datastore.beside(name);
    File::create(&path).unwrap().set_len(DEVICE_BYTES).unwrap();
    path
}

/// Creates a file of fixed size as a datastore, and adds it to this one's daemon as `raw`.
fn known_image(datastore: &Datastore) -> PathBuf {
    let file = image(datastore, "device");
    datastore.json(&format!("datastore create {}", file.display()));
    let daemon = datastore.start();
    datastore.json(&format!("datastore add raw={}", file.display()));
    daemon.stop();
    file
}

/// A loop device over a file. It is detached when dropped.
pub(crate) struct Loop {
    pub(crate) device: PathBuf,
}

impl Loop {
    /// Returns `None`, and prints the reason, if this machine offers no loop device.
    fn over(image: &Path) -> Option<Loop> {
        let made = Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(image).output();
        match made {
            Ok(output) if output.status.success() => {
                let device = String::from_utf8_lossy(&output.stdout).trim().into();
                Some(Loop { device })
            }
            Ok(output) => {
                println!("no loop device: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(e) => {
                println!("no loop device: losetup: {e}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

fn lives_there(datastore: &Datastore, device: &Path) {
    let at = device.display();
    datastore.json(&format!("datastore create {at}"));
    let (code, said) = datastore.fails(&format!("datastore create {at}"));
    assert!(code == 3 && said.contains("a store of unstun"), "{said}");
    let daemon = datastore.start();
    let added = datastore.json(&format!("datastore add raw={at}"));
    assert_eq!((&added["is_device"], &added["total_bytes"]), (&json!(true), &json!(DEVICE_BYTES)), "{added}");
    let (code, said) = datastore.fails(&format!("datastore create {at} --force"));
    assert!(code == 5, "it is in use: {said}");
    for line in ["vm create web --disk 16M --store redo", "vm import /nowhere"] {
        let (code, said) = datastore.at("raw", line);
        assert!(code == 3 && said.contains("device") || code == 4, "{line}: {said}");
    }
    datastore.json_at("raw", "vm create web --disk 64M");
    let uri = datastore.uri("web/disk0");
    let mut twin = Twin::new(datastore, 64 << 20, seed());
    twin.scribble(&uri, 30);
    datastore.json("snapshot take web a");
    datastore.json("vm clone web@a twin");
    twin.scribble(&uri, 30);
    let (code, said) = datastore.fails("vm move web --store redo");
    assert!(code == 3 && said.contains("device"), "{said}");
    assert_eq!(datastore.json_at("raw", "check")["findings"], json!([]));
    daemon.kill();

    let daemon = datastore.start();
    twin.assert_same_as("raw", &uri);
    assert_eq!(datastore.json("vm show twin")["datastore"], "raw");
    datastore.json("vm move web --to ds --store redo");
    twin.assert_same_as("raw", &uri);
    datastore.json("vm move web --to raw --store native");
    twin.assert_same_as("raw", &uri);
    // The daemon may see the end of a client after the client's process has ended.
    until("the last qemu-img has left", || {
        let preview = datastore.json("datastore remove raw --dry-run");
        (preview["clients"] == json!([])).then_some(())
    });
    // The device's VMs are in its store, where another daemon finds them.
    datastore.json("datastore remove raw --yes");
    let other = Datastore::called("other");
    let apart = other.start();
    other.json(&format!("datastore add raw={at}"));
    twin.assert_same_as("raw", &other.uri("web/disk0"));
    let (code, said) = datastore.fails(&format!("datastore add raw={at}"));
    assert!(code == 5 && said.contains("another unstun"), "{said}");
    apart.stop();
    daemon.stop();
}

#[test]
fn a_file_of_fixed_size_is_a_datastore() {
    let datastore = Datastore::new();
    let file = image(&datastore, "device");
    lives_there(&datastore, &file);
    assert_eq!(fs::metadata(&file).unwrap().len(), DEVICE_BYTES, "it has not grown");

    // The file may become larger while no daemon has it, but not smaller.
    let grow = |bytes: u64| File::options().write(true).open(&file).unwrap().set_len(bytes).unwrap();
    let room = |datastore: &Datastore| {
        let listed = datastore.json("datastore list");
        listed.as_array().unwrap().iter().find(|one| one["name"] == "raw").unwrap().clone()
    };
    let daemon = datastore.start();
    datastore.json(&format!("datastore add raw={}", file.display()));
    let before = room(&datastore)["free_bytes"].as_u64().unwrap();
    daemon.stop();
    grow(DEVICE_BYTES * 3 / 2);
    let daemon = datastore.start();
    let after = room(&datastore)["free_bytes"].as_u64().unwrap();
    assert!(after > before + (256 << 20), "{before} {after}");
    run_script(&datastore.uri("web/disk0"), &["write -P 9 0 1M".to_owned()]);
    daemon.stop();
    grow(DEVICE_BYTES / 2);
    let daemon = datastore.start();
    let cut = room(&datastore);
    assert!(cut["condition"] == "broken" && cut["message"].as_str().unwrap().contains("cut"), "{cut}");
    daemon.stop();
    grow(DEVICE_BYTES * 3 / 2);
}

#[test]
fn a_block_device_is_a_datastore() {
    let datastore = Datastore::new();
    let file = image(&datastore, "device");
    if let Some(device) = Loop::over(&file) {
        lives_there(&datastore, &device.device);
    }
}

#[test]
fn what_is_on_a_device_is_named_and_stays() {
    let datastore = Datastore::new();
    let file = image(&datastore, "device");
    let at = file.display();
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&file).output();
    let expected = match made {
        Ok(made) if made.status.success() => "ext4",
        _ => {
            File::options().write(true).open(&file).unwrap().write_all_at(b"mine", 5000).unwrap();
            "byte 5000"
        }
    };
    let (code, said) = datastore.fails(&format!("datastore create {at}"));
    assert!(code == 3 && said.contains(expected) && said.contains("--force"), "{said}");
    let made = datastore.json(&format!("datastore create {at} --force"));
    assert!(made["overwritten"].as_str().unwrap().contains(expected), "{made}");
    File::options().write(true).open(&file).unwrap().set_len(64 << 20).unwrap();
    let (code, said) = datastore.fails(&format!("datastore create {at} --force"));
    assert!(code == 3 && said.contains("512 MiB"), "{said}");
    let (code, said) = datastore.fails("datastore create /nowhere/at/all");
    assert!(code == 4 && said.contains("/nowhere"), "{said}");
    let empty = image(&datastore, "empty");
    let daemon = datastore.start();
    let (code, said) = datastore.fails(&format!("datastore add {}", empty.display()));
    assert!(code == 2 && said.contains("datastore create"), "{said}");
    daemon.stop();
}

#[test]
fn the_store_of_a_served_folder_cannot_be_another_datastore() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    run_script(&datastore.uri("web/disk0"), &["write -P 7 0 16M".to_owned()]);
    // The file is named by a path that is not in the datastore.
    let same = datastore.beside("same");
    fs::hard_link(datastore.path().join("store.unstun"), &same).unwrap();
    let at = same.display();
    for line in [format!("datastore add twice={at}"), format!("datastore create {at} --force")] {
        let (_, said) = datastore.fails(&line);
        assert!(said.contains("another unstun"), "{line}: {said}");
    }
    run_script(&datastore.uri("web/disk0"), &["read -P 7 0 16M".to_owned()]);
    daemon.stop();
}

#[test]
fn a_copy_of_a_device_is_not_served_beside_it() {
    let datastore = Datastore::new();
    let raw = image(&datastore, "raw");
    datastore.json(&format!("datastore create {}", raw.display()));
    let copy = datastore.beside("copy");
    fs::copy(&raw, &copy).unwrap();
    let daemon = datastore.start();
    datastore.json(&format!("datastore add {}", raw.display()));
    let (code, said) = datastore.fails(&format!("datastore add {}", copy.display()));
    assert!(code == 3 && said.contains("copy of datastore raw"), "{said}");
    datastore.json("datastore remove raw --yes");
    datastore.json(&format!("datastore add {}", copy.display()));
    daemon.stop();
}

/// The guest's tests have a device with reservations.
#[test]
fn what_has_no_reservations_says_so() {
    let datastore = Datastore::new();
    let (file, lun) = (image(&datastore, "device"), image(&datastore, "lun"));
    let folder = datastore.beside("folder");
    fs::create_dir(&folder).unwrap();
    datastore.json(&format!("datastore create {}", file.display()));
    let daemon = datastore.start();
    for (path, why) in [(&folder, "a folder has no reservations"), (&file, "no other host reaches it")] {
        let (code, said) = datastore.fails(&format!("datastore add {} --reservations on", path.display()));
        assert!(code == 2 && said.contains(why), "{said}");
    }
    let added = datastore.json(&format!("datastore add {} --reservations off", file.display()));
    assert_eq!(added["reservations"], json!(false));
    if let Some(device) = Loop::over(&lun) {
        let at = device.device.display();
        datastore.json(&format!("datastore create {at}"));
        let (_, said) = datastore.fails(&format!("datastore add lun={at} --reservations on"));
        assert!(
            said.contains("demands persistent reservations") && said.contains("--reservations off"),
            "{said}"
        );
        assert_eq!(datastore.json(&format!("datastore add lun={at}"))["reservations"], json!(false));
    }
    daemon.stop();
}

/// Kills the daemon while a VM moves to or from a device, and gives the device to another daemon.
fn elsewhere(datastore: &Datastore, file: &Path, (from, to): (&str, &str), then: impl FnOnce(&Datastore)) {
    let daemon = datastore.start();
    datastore.json_at(from, "vm create web --disk 64M");
    io(datastore, "write -P 1 0 32M");
    slow_move(datastore, to);
    daemon.kill();
    let other = Datastore::called("other");
    let apart = other.start();
    other.json(&format!("datastore add raw={}", file.display()));
    let listed = other.json("vm list");
    let said = listed[0]["message"].as_str().unwrap_or_default();
    assert!(listed[0]["condition"] == "broken" && said.contains("one side of a move"), "{listed}");
    assert_ne!(other.fails("vm open web").0, 0);
    then(&other);
    apart.stop();
}

/// Declares this side of the move to be the VM, as its user would.
fn vouch(other: &Datastore) {
    other.json("vm open web --take-over");
}

/// Returns the device to the daemon that has the record of the move.
fn ends_at_home(datastore: &Datastore, at: &str) {
    let daemon = datastore.start();
    assert_eq!(datastore.json("vm list").as_array().unwrap().len(), 1);
    assert_eq!(place(datastore), (at.to_owned(), "native".to_owned()));
    io(datastore, "read -P 1 0 32M");
    for one in datastore.json("datastore list").as_array().unwrap() {
        assert_eq!(one["notices"], json!([]), "{one}");
    }
    datastore.json("vm remove web --delete-disks --purge --yes");
    daemon.stop();
}

#[test]
fn one_side_of_a_move_is_reported_and_not_served_by_another_daemon() {
    let datastore = Datastore::new();
    let file = known_image(&datastore);

    elsewhere(&datastore, &file, ("ds", "raw"), |_| {});
    ends_at_home(&datastore, "ds");
    elsewhere(&datastore, &file, ("ds", "raw"), |other| {
        other.json("vm remove web --delete-disks --purge --yes");
        assert_eq!(other.json("vm list"), json!([]));
    });
    ends_at_home(&datastore, "ds");
    elsewhere(&datastore, &file, ("raw", "ds"), |_| {});
    ends_at_home(&datastore, "raw");
    // The user's declaration overrides the store's record.
    elsewhere(&datastore, &file, ("raw", "ds"), |other| {
        vouch(other);
        io(other, "read -P 1 0 32M");
    });
    ends_at_home(&datastore, "raw");
}

/// Both sides have been used as the VM, so neither is removed automatically.
#[test]
fn a_side_that_was_said_to_be_whole_stays_though_the_other_one_is_the_vm() {
    let datastore = Datastore::new();
    let file = known_image(&datastore);
    elsewhere(&datastore, &file, ("ds", "raw"), |other| {
        vouch(other);
        io(other, "write -P 5 0 1M");
    });
    let daemon = datastore.start();
    assert_eq!(place(&datastore), ("ds".to_owned(), "native".to_owned()));
    io(&datastore, "read -P 1 0 32M");
    daemon.stop();
    let other = Datastore::called("other");
    let apart = other.start();
    other.json(&format!("datastore add raw={}", file.display()));
    io(&other, "read -P 5 0 1M");
    apart.stop();
}

/// Returns two nodes of one device. A flock or O_EXCL at one node is not visible at the other.
pub(crate) fn two_nodes(image: &Path) -> Option<(Loop, Loop)> {
    Loop::over(image).zip(Loop::over(image))
}

/// Writes to a disk until a write fails, so that requests are in flight whenever the daemon stops.
fn write_on(uri: &str) -> Child {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw", uri]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut script = child.stdin.take().unwrap();
    std::thread::spawn(move || {
        for n in 0..LATE_WRITES {
            let write = format!("aio_write -q -P {} {} 64k\n", 1 + n % 250, n * 65_536 % (60 << 20));
            let line = if n % 8 == 7 { write + "aio_flush\n" } else { write };
            if script.write_all(line.as_bytes()).is_err() {
                return;
            }
        }
    });
    child
}

fn copy_of(datastore: &Datastore, uri: &str, name: &str) -> PathBuf {
    let path = datastore.beside(name);
    tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", uri, path.to_str().unwrap()]);
    path
}

#[test]
fn of_two_daemons_on_one_device_one_writes_and_the_other_stops() {
    let datastore = Datastore::new();
    let file = image(&datastore, "lun.img");
    let Some((one, two)) = two_nodes(&file) else {
        skip("no loop devices");
        return;
    };
    let (one, two) = (one.device.display(), two.device.display());
    datastore.json(&format!("datastore create {one}"));
    let daemon = datastore.start();
    datastore.json(&format!("datastore add lun={one}"));
    datastore.json_at("lun", "vm create web --disk 64M");
    datastore.json_at("lun", "vm create late --disk 64M");
    let mut twin = Twin::new(&datastore, 64 << 20, seed());
    twin.scribble(&datastore.uri("web/disk0"), 30);

    // On one host, the lock by the store's ID refuses at once. A separate host has a folder of its own for locks.
    let other = Datastore::called("other");
    let add = format!("datastore add lun={two}");
    let near = other.start();
    let (code, said) = other.fails(&add);
    assert!(code == 5 && said.contains("another unstun daemon on this host"), "{said}");
    near.stop();
    let apart = other.start_with(&[("RUNTIME_DIRECTORY", &other.beside("run"))]);
    let take_over = format!("datastore take-over lun={two}");
    for line in [&add, &format!("{take_over} --yes")] {
        let (code, said) = other.fails(line);
        let owner = format!("pid {}", daemon.id());
        assert!(code == 5 && said.contains(&owner) && said.contains("serves it"), "{said}");
    }

    let writer = write_on(&datastore.uri("late/disk0"));
    while datastore.json("vm show late")["disks"][0]["io"]["guest_writes"] == json!(0) {}
    daemon.pause();
    let (code, said) = other.fails(&add);
    assert!(code == 3 && said.contains("has sent no heartbeat") && said.contains("take-over"), "{said}");
    let (code, said) = other.fails(&take_over);
    assert!(code == 3 && said.contains("dead or cut off") && said.contains("--yes"), "{said}");
    other.json(&format!("{take_over} --yes"));
    let (web, late) = (other.uri("web/disk0"), other.uri("late/disk0"));
    // Clients of the other host may reconnect. Their names are refused until the user confirms with `vm open` that they
    // have ended.
    let refused = Command::new("qemu-img").args(["info", "-f", "raw", &web]).output().unwrap();
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("may be missing"));
    for vm in ["web", "late"] {
        other.json(&format!("vm open {vm}"));
    }
    twin.assert_same_as("raw", &web);
    let found = copy_of(&other, &late, "late.raw");
    twin.scribble(&web, 30);

    daemon.resume();
    let said = writer.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&said.stdout).contains("failed"), "its writes went on");
    let listed = datastore.json("datastore list").to_string();
    assert!(listed.contains("serves the store now"), "{listed}");
    twin.assert_same_as("raw", &web);
    assert_same(&found, "raw", &late);
    assert_eq!(other.json_at("lun", "check")["findings"], json!([]));
    datastore.json("datastore remove lun --yes");

    // A device is free once it was released, and so is one that a killed daemon of this host held.
    other.json("datastore remove lun --yes");
    datastore.json(&format!("datastore add lun={one}"));
    twin.assert_same_as("raw", &datastore.uri("web/disk0"));
    daemon.kill();
    let again = datastore.start();
    twin.assert_same_as("raw", &datastore.uri("web/disk0"));
    again.stop();
    apart.stop();
}
