//! Import of a foreign VM: without a change of its files, or in place.
//!
//! The folder is made by the test, with a chain of three links. Other tests read copies of VMware's own folders.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::daemon::Datastore;
use crate::guest::seed;
use crate::skip::skip;
use crate::tools::{Twin, run_script};

const SIZE: u64 = 48 << 20;
/// User ID that no user of this machine has.
const STRANGER: u32 = 61_235;

/// Returns the name, SHA-256 and modification time of every file. The time reveals a write that restored the previous
/// content.
pub(crate) fn contents(folder: &Path) -> BTreeMap<String, (String, std::time::SystemTime)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| {
            let sum = crate::programs::tool("sha256sum", &[path.to_str().unwrap()]);
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, (sum, path.metadata().unwrap().modified().unwrap()))
        })
        .collect()
}

/// Creates a VM's folder that belongs to no datastore, and a twin of its disk.
pub(crate) fn foreign_vm(datastore: &Datastore) -> (PathBuf, Twin) {
    let daemon = datastore.start();
    datastore.json("vm create esx --store redo --disk 48M");
    let mut twin = Twin::new(datastore, SIZE, seed());
    for name in ["one", "two"] {
        twin.scribble(&datastore.uri("esx/disk0"), 15);
        datastore.json(&format!("snapshot take esx {name}"));
    }
    twin.scribble(&datastore.uri("esx/disk0"), 15);
    datastore.json("vm remove esx");
    daemon.stop();
    let folder = datastore.beside("vmware");
    std::fs::rename(datastore.path().join("esx"), &folder).unwrap();
    (folder, twin)
}

#[test]
fn an_import_leaves_the_folder_as_it_was() {
    let datastore = Datastore::new();
    let (folder, mut twin) = foreign_vm(&datastore);
    let before = contents(&folder);
    let daemon = datastore.start();
    let vm = datastore.json(&format!("vm import {} --name web", folder.display()));
    assert_eq!((&vm["name"], &vm["current_snapshot"]), (&"web".into(), &"as-imported".into()), "{vm}");
    assert_eq!(vm["home"], datastore.path().join("web").to_str().unwrap());
    let layers = vm["disks"][0]["layers"].as_array().unwrap();
    let foreign: Vec<bool> = layers.iter().map(|layer| layer["foreign"].as_bool().unwrap()).collect();
    assert_eq!(foreign, [true, true, true, false], "{vm}");
    let uri = datastore.uri("web/disk0");
    twin.assert_same_as("raw", &uri);
    twin.scribble(&uri, 20);
    datastore.json("snapshot take web ours");
    twin.scribble(&uri, 20);
    // A commit into the foreign folder is refused; a revert to its snapshots is not.
    let (code, said) = datastore.fails("snapshot commit web as-imported --yes");
    assert_eq!(code, 3, "{said}");
    datastore.json("snapshot revert web one --take-first here --yes");
    datastore.json("snapshot revert web here --yes");
    datastore.json("vm open web");
    datastore.json("snapshot commit web ours --yes");
    twin.assert_same_as("raw", &uri);
    daemon.stop();
    assert_eq!(contents(&folder), before);

    let daemon = datastore.start();
    let top = datastore.descriptor("web");
    twin.scribble(&uri, 10);
    daemon.stop();
    twin.assert_same_as("vmdk", top.to_str().unwrap());
    let daemon = datastore.start();
    datastore.json("vm remove web --delete-disks --purge --yes");
    daemon.stop();
    assert_eq!(contents(&folder), before);
}

#[test]
fn in_place_the_folder_itself_is_the_home() {
    let datastore = Datastore::new();
    let (folder, mut twin) = foreign_vm(&datastore);
    let daemon = datastore.start();
    let reader = datastore.json(&format!("vm import {} --name reader", folder.display()));
    assert_eq!(reader["name"], "reader");
    let line = format!("vm import {} --in-place --name web", folder.display());
    let (code, said) = datastore.fails(&line);
    assert!(code == 3 && said.contains("reader"), "who reads the folder is named: {said}");
    datastore.json("vm remove reader --delete-disks --purge --yes");
    let vm = datastore.json(&line);
    assert_eq!((vm["home"].as_str(), vm["snapshots"].as_u64()), (folder.to_str(), Some(2)), "{vm}");
    assert_eq!(datastore.fails(&line).0, 3, "once is enough");
    twin.scribble(&datastore.uri("web/disk0"), 20);
    daemon.stop();

    // The daemon serves it again after a restart, unless it was closed.
    let daemon = datastore.start();
    let top = datastore.descriptor("web");
    assert_eq!(top.parent(), Some(folder.as_path()));
    twin.assert_same_as("raw", &datastore.uri("web/disk0"));
    datastore.json("vm close web");
    twin.assert_same_as("vmdk", top.to_str().unwrap());
    daemon.stop();
    let daemon = datastore.start();
    assert_eq!(datastore.json("vm list")[0]["condition"], "closed");
    let (code, said) = datastore.fails("vm show web");
    assert!(code == 3 && said.contains("vm open web"), "{said}");
    datastore.json("vm open web");
    twin.assert_same_as("raw", &datastore.uri("web/disk0"));
    datastore.json("vm remove web");
    daemon.stop();
    twin.assert_same_as("vmdk", top.to_str().unwrap());
    assert!(!folder.join(".unstun").exists(), "nothing of ours is left");
}

#[test]
fn a_folder_that_brings_our_own_folder_is_not_taken_in_place() {
    let datastore = Datastore::new();
    let (folder, twin) = foreign_vm(&datastore);
    let (brought, outside) = (folder.join(".unstun"), datastore.beside("outside"));
    let before = contents(&folder);
    std::fs::create_dir(&brought).unwrap();
    std::os::unix::fs::symlink(&outside, brought.join("events")).unwrap();
    std::fs::write(brought.join("roots"), "own /etc\n").unwrap();
    let daemon = datastore.start();
    let line = format!("vm import {} --in-place --name web", folder.display());
    let (code, said) = datastore.fails(&line);
    assert!(code == 3 && said.contains("vmware/.unstun") && said.contains("move it away"), "{code}: {said}");
    // Opening a pipe would block.
    std::fs::remove_dir_all(&brought).unwrap();
    let made = Command::new("mkfifo").arg(&brought).status().unwrap();
    assert!(made.success());
    assert_ne!(datastore.fails(&line).0, 0);
    std::fs::remove_file(&brought).unwrap();
    assert_eq!(contents(&folder), before);
    assert!(!outside.exists(), "nothing is written through a link");
    datastore.json(&line);
    twin.assert_same_as("raw", &datastore.uri("web/disk0"));
    daemon.stop();
}

/// The owner of the folder of an import in place can replace `.unstun` in it, while the daemon is down or up.
#[test]
fn what_another_user_put_into_a_home_decides_nothing() {
    if !rustix::process::geteuid().is_root() {
        skip("not root: cannot give files to another user");
        return;
    }
    let datastore = Datastore::new();
    let (folder, twin) = foreign_vm(&datastore);
    let (own, kept) = (folder.join(".unstun"), datastore.beside("kept"));
    let owned_by = |user: u32| {
        let chown = Command::new("chown").arg("-R").arg(user.to_string()).arg(&own).status().unwrap();
        assert!(chown.success());
    };
    let daemon = datastore.start();
    datastore.json(&format!("vm import {} --in-place --name web", folder.display()));
    daemon.stop();
    std::fs::rename(&own, &kept).unwrap();
    std::fs::create_dir(&own).unwrap();
    for entry in std::fs::read_dir(&kept).unwrap() {
        let name = entry.unwrap().file_name();
        std::fs::copy(kept.join(&name), own.join(&name)).unwrap();
    }
    owned_by(STRANGER);

    let daemon = datastore.start();
    let vm = &datastore.json("vm list")[0];
    assert!(vm["condition"] == "broken" && vm["message"].to_string().contains("another user owns"), "{vm}");
    let (code, said) = datastore.fails("vm open web");
    assert!(code == 3 && said.contains("vmware/.unstun") && said.contains("chown -R"), "{code}: {said}");
    owned_by(rustix::process::geteuid().as_raw());
    datastore.json("vm open web");
    twin.assert_same_as("raw", &datastore.uri("web/disk0"));
    daemon.stop();
}

/// QEMU with an image open. It ends when dropped.
pub(crate) struct Qemu(Child);

impl Qemu {
    pub(crate) fn open(image: &Path) -> Self {
        let mut child = Command::new("qemu-io")
            .args(["-f", "raw", image.to_str().unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // QEMU answers once the image is open.
        use std::io::{Read, Write};
        child.stdin.as_mut().unwrap().write_all(b"length\n").unwrap();
        let mut answer = [0; 16];
        child.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
        Self(child)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn a_folder_that_is_open_elsewhere_is_refused() {
    let datastore = Datastore::new();
    let (folder, _twin) = foreign_vm(&datastore);
    let daemon = datastore.start();
    let before = contents(&folder);
    let lines = ["", " --in-place"].map(|how| format!("vm import {}{how}", folder.join("esx.vmx").display()));
    let qemu = Qemu::open(&folder.join("esx-flat.vmdk"));
    for line in &lines {
        let (code, said) = datastore.fails(line);
        assert_eq!(code, 5, "{said}");
        assert!(said.contains("esx-flat.vmdk") && said.contains(&qemu.0.id().to_string()), "{said}");
    }
    drop(qemu);
    let lock = folder.join("esx.vmdk.lck");
    File::create(&lock).unwrap();
    for line in &lines {
        let (code, said) = datastore.fails(line);
        assert!(code == 5 && said.contains("esx.vmdk.lck"), "{code}: {said}");
    }
    std::fs::remove_file(lock).unwrap();
    assert_eq!(contents(&folder), before);
    assert_eq!(datastore.json("vm list"), serde_json::json!([]));
    assert!(!datastore.path().join("esx").exists(), "nothing is left behind");
    datastore.json(&lines[0]);
    daemon.stop();
}

#[test]
fn names_that_lead_outside_need_their_root() {
    let datastore = Datastore::new();
    let fast = datastore.beside("fast");
    std::fs::create_dir(&fast).unwrap();
    let daemon = datastore.start();
    datastore.json(&format!("vm create web --store redo --disk 16M,dir={}", fast.display()));
    let uri = datastore.uri("web/disk0");
    run_script(&uri, &["write -P 5 0 1M".to_owned()]);
    datastore.json("vm remove web");
    let folder = datastore.beside("moved");
    std::fs::rename(datastore.path().join("web"), &folder).unwrap();
    let line = format!("vm import {}", folder.display());
    let (code, said) = datastore.fails(&line);
    assert!(code == 3 && said.contains("--allow-root"), "{code}: {said}");
    let before = contents(&fast);
    datastore.json(&format!("{line} --allow-root {}", fast.display()));
    run_script(&uri, &["read -P 5 0 1M".to_owned(), "write -P 6 0 1M".to_owned()]);
    assert_eq!(contents(&fast), before);
    daemon.stop();
}

#[test]
fn a_top_that_can_only_be_read_is_not_taken_in_place() {
    let datastore = Datastore::new();
    let (folder, _twin) = foreign_vm(&datastore);
    let daemon = datastore.start();
    // The running layer as ESXi 6.5 and later would have made it; its content does not matter here.
    let top = folder.join("esx-000002.vmdk");
    let text = std::fs::read_to_string(&top).unwrap();
    let text = text.replace("vmfsSparse", "seSparse").replace("VMFSSPARSE", "SESPARSE");
    let lines = text.lines().filter(|line| !line.starts_with("# unstun"));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    std::fs::write(&top, text).unwrap();
    let before = contents(&folder);
    let (code, said) = datastore.fails(&format!("vm import {} --in-place", folder.display()));
    assert!(
        code == 3 && said.contains("esx-000002.vmdk") && said.contains("without --in-place"),
        "{code}: {said}"
    );
    assert_eq!(contents(&folder), before);
    daemon.stop();
}

#[test]
fn what_cannot_be_opened_is_listed_with_its_cause_mended_or_removed() {
    let datastore = Datastore::new();
    // An import that a crash interrupted: our folder exists, the VM does not.
    std::fs::create_dir_all(datastore.path().join("half/.unstun")).unwrap();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 16M");
    daemon.stop();
    let (extent, away) = (datastore.path().join("web/web-flat.vmdk"), datastore.beside("away"));
    std::fs::rename(&extent, &away).unwrap();

    let daemon = datastore.start();
    let list = datastore.json("vm list");
    for (at, name, cause) in [(0, "half", "no .vmx"), (1, "web", "web-flat.vmdk")] {
        assert_eq!((&list[at]["name"], &list[at]["condition"]), (&name.into(), &"broken".into()), "{list}");
        assert!(list[at]["message"].as_str().unwrap().contains(cause), "{list}");
    }
    assert_eq!(datastore.fails("vm show web").0, 6);
    assert_ne!(datastore.fails("vm open web").0, 0);
    std::fs::rename(&away, &extent).unwrap();
    datastore.json("vm open web");
    run_script(&datastore.uri("web/disk0"), &["write -P 1 0 1M".to_owned()]);
    datastore.json("vm remove half --delete-disks --purge --yes");
    assert!(!datastore.path().join("half").exists());
    assert_eq!(datastore.json("vm list").as_array().unwrap().len(), 1);
    daemon.stop();
}

/// Offsets in a VMFSsparse header: sectors of the disk, grainSize, entries of the grain directory.
const CAPACITY: usize = 12;
const GRAIN: usize = 16;
const DIRECTORY_ENTRIES: usize = 24;
/// Number of grains in a table.
const TABLE: u32 = 4096;

/// Sets another grain size in an empty delta, as other products choose it.
fn set_grain(delta: &Path, sectors: u32) {
    let mut bytes = std::fs::read(delta).unwrap();
    let capacity = u32::from_le_bytes(bytes[CAPACITY..CAPACITY + 4].try_into().unwrap());
    for (at, value) in [(GRAIN, sectors), (DIRECTORY_ENTRIES, capacity.div_ceil(TABLE * sectors))] {
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    std::fs::write(delta, bytes).unwrap();
}

#[test]
fn deltas_with_large_grains_are_written_taken_and_committed_into() {
    for sectors in [8, 128, 2048] {
        let datastore = Datastore::new();
        let daemon = datastore.start();
        datastore.json("vm create esx --store redo --disk 48M");
        let mut twin = Twin::new(&datastore, SIZE, seed());
        let uri = datastore.uri("esx/disk0");
        twin.scribble(&uri, 15);
        datastore.json("snapshot take esx theirs");
        let top = datastore.descriptor("esx");
        daemon.stop();
        set_grain(Path::new(&top.to_str().unwrap().replace(".vmdk", "-delta.vmdk")), sectors);

        let daemon = datastore.start();
        twin.scribble(&uri, 3);
        datastore.json("snapshot take esx ours");
        twin.scribble(&uri, 20);
        datastore.json("snapshot commit esx ours --yes");
        twin.assert_same_as("raw", &uri);
        twin.scribble(&uri, 5);
        daemon.stop();
        twin.assert_same_as("vmdk", top.to_str().unwrap());
        let daemon = datastore.start();
        assert_eq!(datastore.json(&format!("check {}", top.display()))["findings"], serde_json::json!([]));
        datastore.json("snapshot commit esx --all --yes");
        twin.assert_same_as("raw", &uri);
        daemon.stop();
    }
}
