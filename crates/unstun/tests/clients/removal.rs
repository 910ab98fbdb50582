//! Removal of VMs: a refusal comes before any change, and only the VM's own files are removed.

use std::fs;
use std::path::Path;

use crate::daemon::Datastore;
use crate::import::foreign_vm;
use crate::tools::run_script;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_removal_that_is_refused_leaves_the_vm_served() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 16M");
    let uri = datastore.uri("web/disk0");
    run_script(&uri, &["write -P 1 0 1M".to_owned()]);
    datastore.json("snapshot take web a");
    // A delta that VMware left behind: no descriptor refers to it, and it is on top of a layer of the VM.
    let home = datastore.path().join("web");
    let orphan = fs::read_to_string(home.join("web-000001.vmdk")).unwrap();
    fs::write(home.join("lost.vmdk"), orphan.replace("web-000001-delta", "lost-delta")).unwrap();
    fs::copy(home.join("web-000001-delta.vmdk"), home.join("lost-delta.vmdk")).unwrap();
    let before = names(&home);
    let (code, said) = datastore.fails("vm remove web --delete-disks --purge --yes");
    assert!(code == 3 && said.contains("lost.vmdk"), "{code}: {said}");
    assert_eq!(names(&home), before);
    run_script(&uri, &["read -P 1 0 1M".to_owned(), "write -P 2 0 1M".to_owned()]);
    datastore.json("snapshot take web b");
    for name in ["lost.vmdk", "lost-delta.vmdk"] {
        fs::remove_file(home.join(name)).unwrap();
    }

    // The base of a clone is also kept when its VM is closed.
    datastore.json("vm clone web@a test");
    datastore.json("vm close web");
    let (code, said) = datastore.fails("vm remove web --delete-disks --purge --yes");
    assert!(code == 3 && said.contains("test"), "{code}: {said}");
    datastore.json("vm open web");
    run_script(&uri, &["read -P 2 0 1M".to_owned()]);
    run_script(&datastore.uri("test/disk0"), &["read -P 1 0 1M".to_owned()]);
    datastore.json("vm close web");
    datastore.json("vm remove test --delete-disks --purge --yes");
    datastore.json("vm remove web --delete-disks --purge --yes");
    assert_eq!(names(&datastore.path()), [".unstun"]);
    daemon.stop();
}

#[test]
fn the_users_own_files_stay() {
    let datastore = Datastore::new();
    let (folder, _twin) = foreign_vm(&datastore);
    let inside = datastore.path().join("esx");
    fs::rename(&folder, &inside).unwrap();
    for name in ["esx.nvram", "esx-Snapshot9.vmsn", "vmware.log", "notes.txt", "other.nvram"] {
        fs::write(inside.join(name), b"here before").unwrap();
    }
    let daemon = datastore.start();
    datastore.json(&format!("vm import {} --in-place", inside.display()));
    datastore.json("vm create web --store redo --disk 16M");
    let own = datastore.path().join("web");
    fs::write(own.join("notes.txt"), b"mine").unwrap();
    datastore.json("vm remove esx --delete-disks --purge --yes");
    datastore.json("vm remove web --delete-disks --purge --yes");
    assert_eq!(names(&inside), ["notes.txt", "other.nvram", "vmware.log"]);
    assert_eq!(names(&own), ["notes.txt"]);
    assert_eq!(datastore.json("vm list"), serde_json::json!([]));
    daemon.stop();
}

#[test]
fn layers_without_their_vmx_are_not_removed_on_a_guess() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 16M");
    daemon.stop();
    let home = datastore.path().join("web");
    let (vmx, away) = (home.join("web.vmx"), datastore.beside("web.vmx"));
    fs::rename(&vmx, &away).unwrap();
    let daemon = datastore.start();
    let (code, said) = datastore.fails("vm remove web --delete-disks --purge --yes");
    assert!(code == 3 && said.contains(".vmx is missing"), "{code}: {said}");
    assert!(home.join("web-flat.vmdk").exists());
    fs::rename(&away, &vmx).unwrap();
    datastore.json("vm open web");
    datastore.json("vm remove web --delete-disks --purge --yes");
    assert!(!home.exists());
    daemon.stop();
}
