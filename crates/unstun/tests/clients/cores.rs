//! A daemon on two cores: VMs with files and native VMs on both, and clients of all of them over one listener.

use std::path::PathBuf;
use std::{fs, thread};

use serde_json::json;

use crate::daemon::{Daemon, Datastore, copy};
use crate::guest::seed;
use crate::load::{Fio, wait_for_writes};
use crate::nbd::Nbd;
use crate::programs::{tool, try_tool};
use crate::space::until;
use crate::tools::{Twin, assert_same, run_script};

const SIZE: u64 = 24 << 20;
/// VMs, their stores and the cores that two cores give them, in the order of their creation.
const VMS: [(&str, &str, u64); 6] = [
    ("a", "redo", 0),
    ("b", "native", 1),
    ("n", "native", 0),
    ("c", "redo", 1),
    ("d", "redo", 0),
    ("m", "native", 1),
];

fn start_on<'a>(cores: &str, datastore: &'a Datastore) -> Daemon<'a> {
    datastore.start_as(&["--cores", cores])
}

fn core_of(datastore: &Datastore, vm: &str) -> u64 {
    datastore.json(&format!("vm show {vm}"))["core"].as_u64().unwrap()
}

fn create(datastore: &Datastore, (vm, store, core): (&str, &str, u64)) -> Twin {
    datastore.json(&format!("vm create {vm} --disk 24M --store {store}"));
    assert_eq!(core_of(datastore, vm), core, "{vm}");
    Twin::called(&format!("{vm}.raw"), datastore, SIZE, seed())
}

/// Creates a VM on each of two cores: `a` on the first, `b` on the other one.
fn create_on_two_cores(datastore: &Datastore, size: &str, store: &str) {
    for (vm, core) in [("a", 0), ("b", 1)] {
        datastore.json(&format!("vm create {vm} --disk {size} --store {store}"));
        assert_eq!(core_of(datastore, vm), core, "{vm}");
    }
}

/// Takes a snapshot, writes on, takes another one and commits it, while clients of the other VMs do the same.
fn snapshot_and_write(datastore: &Datastore, vm: &str, twin: &mut Twin) {
    let uri = datastore.uri(&format!("{vm}/disk0"));
    twin.scribble(&uri, 20);
    datastore.json(&format!("snapshot take {vm} kept"));
    copy(&twin.path, &datastore.beside(&format!("{vm}.kept.raw")));
    twin.scribble(&uri, 20);
    datastore.json(&format!("snapshot take {vm} gone"));
    twin.scribble(&uri, 20);
    let job = datastore.json(&format!("snapshot commit {vm}@gone --yes"));
    assert_eq!(job["state"], "done", "{job}");
    twin.scribble(&uri, 20);
    let events = datastore.json(&format!("events {vm}"));
    let operations: Vec<_> = events.as_array().unwrap().iter().map(|event| &event["operation"]).collect();
    assert_eq!(operations, ["take", "take", "commit_start", "commit"], "{vm}");
}

fn assert_content(datastore: &Datastore, vm: &str, twin: &Twin) {
    twin.assert_same_as("raw", &datastore.uri(&format!("{vm}/disk0")));
    let kept = datastore.beside(&format!("{vm}.kept.raw"));
    assert_same(&kept, "raw", &datastore.uri(&format!("{vm}/disk0@kept")));
}

#[test]
fn vms_on_two_cores_keep_every_write_through_takes_commits_kills_and_other_numbers_of_cores() {
    let datastore = Datastore::new();
    let daemon = start_on("2", &datastore);
    let mut twins = VMS.map(|vm| create(&datastore, vm));
    thread::scope(|scope| {
        for ((vm, ..), twin) in VMS.iter().zip(&mut twins) {
            let datastore = &datastore;
            scope.spawn(move || snapshot_and_write(datastore, vm, twin));
        }
    });
    let status = datastore.json("status");
    let cores: Vec<_> = status["cores"].as_array().unwrap().iter().map(|core| &core["vms"]).collect();
    assert_eq!((cores, &status["snapshots"]), (vec![&json!(3), &json!(3)], &json!(6)), "{status}");
    let check = |datastore: &Datastore| {
        VMS.iter().zip(&twins).for_each(|((vm, ..), twin)| assert_content(datastore, vm, twin));
    };
    check(&datastore);
    // Writes that no flush has covered outlive the process on every core.
    daemon.kill();
    for cores in ["2", "1", "3"] {
        let daemon = start_on(cores, &datastore);
        check(&datastore);
        daemon.stop();
    }
}

#[test]
fn fio_verifies_vms_with_files_on_both_cores_at_once() {
    verify_on_both_cores("redo");
}

#[test]
fn fio_verifies_native_vms_on_both_cores_at_once() {
    verify_on_both_cores("native");
}

fn verify_on_both_cores(store: &str) {
    let datastore = Datastore::new();
    let daemon = start_on("2", &datastore);
    create_on_two_cores(&datastore, "256M", store);
    let mut all = ["a", "b"].map(|vm| (vm, Fio::verify(&datastore.uri(&format!("{vm}/disk0")), 96)));
    let mut round = 0;
    while all.iter_mut().any(|(_, fio)| fio.is_running()) {
        round += 1;
        for (vm, _) in &all {
            datastore.json(&format!("snapshot take {vm} s{round}"));
            datastore.json(&format!("snapshot commit {vm}@s{round} --yes"));
        }
    }
    all.into_iter().for_each(|(_, fio)| fio.finish());
    daemon.stop();
}

#[test]
fn a_client_of_another_core_is_shown_refused_and_disconnected() {
    for store in ["redo", "native"] {
        show_refuse_and_disconnect(store);
    }
}

fn show_refuse_and_disconnect(store: &str) {
    let datastore = Datastore::new();
    let daemon = start_on("2", &datastore);
    create_on_two_cores(&datastore, "16M", store);
    run_script(&datastore.uri("b/disk0"), &["write -P 7 0 64k".to_owned()]);
    datastore.json("snapshot take b s");
    let guest = Nbd::attach(&datastore.nbd_socket(), "b/disk0").unwrap();
    let status = datastore.json("status");
    assert_eq!(
        (&status["nbd_clients"], &status["cores"][1]["nbd_clients"]),
        (&json!(1), &json!(1)),
        "{status}"
    );
    assert_eq!(datastore.json("vm show b")["nbd_clients"], 1);
    for line in ["snapshot revert b s --yes", "vm close b"] {
        let (code, said) = datastore.fails(line);
        assert!(code == 3 && said.contains("disk0"), "{line}: {said}");
    }
    let loss = datastore.json("snapshot revert b s --yes --disconnect");
    assert_eq!(loss["clients"].as_array().unwrap().len(), 1, "{loss}");
    drop(guest);
    for (export, cause) in [("b/disk0", "the disk's content was replaced"), ("absent/disk0", "no VM")] {
        let output = try_tool("qemu-img", &["info", &datastore.uri(export)]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(cause), "{export}: {said}");
    }
    daemon.stop();
}

#[test]
fn a_native_vm_of_another_core_goes_through_its_operations() {
    let datastore = Datastore::new();
    let daemon = start_on("2", &datastore);
    datastore.json("vm create a --disk 24M --store native");
    let mut twin = create(&datastore, ("b", "native", 1));
    snapshot_and_write(&datastore, "b", &mut twin);
    let shown = datastore.json("vm show b");
    let io = &shown["disks"][0]["io"];
    assert!(io["guest_writes"].as_u64().unwrap() > 0 && io["first_writes"].as_u64().unwrap() > 0, "{io}");
    datastore.json("snapshot revert b kept --yes");
    twin.path = datastore.beside("b.kept.raw");
    let uri_now = datastore.json("vm show b")["disks"][0]["nbd_uri"].as_str().unwrap().to_owned();
    twin.assert_same_as("raw", &uri_now);
    twin.scribble(&uri_now, 20);
    datastore.json("snapshot take b again");
    datastore.json("vm disk grow b/disk0 32M");
    datastore.json("snapshot discard b@again --yes");
    let clone = datastore.json("vm clone b@kept c");
    assert_eq!(clone["core"], 0, "{clone}");
    datastore.json("vm close b");
    datastore.json("vm open b");
    assert_eq!(core_of(&datastore, "b"), 1);
    datastore.json("vm remove b --delete-disks --yes");
    daemon.stop();
}

#[test]
fn a_vm_of_another_core_moves_to_the_native_store_and_back() {
    let datastore = Datastore::new();
    let daemon = start_on("2", &datastore);
    datastore.json("vm create a --disk 24M --store redo");
    let mut twin = create(&datastore, ("b", "redo", 1));
    let uri = datastore.uri("b/disk0");
    snapshot_and_write(&datastore, "b", &mut twin);
    for store in ["native", "redo"] {
        let job = datastore.json(&format!("vm move b --store {store}"));
        assert_eq!(job["state"], "done", "{job}");
        assert_eq!(core_of(&datastore, "b"), 0, "moves run on the first core");
        twin.scribble(&uri, 20);
        assert_content(&datastore, "b", &twin);
    }
    datastore.json("vm close b");
    datastore.json("vm open b");
    assert_eq!(core_of(&datastore, "b"), 1, "a VM gets its core when it is opened");
    assert_content(&datastore, "b", &twin);
    let clone = datastore.json("vm clone b@kept c");
    assert_eq!(clone["core"], 0, "{clone}");
    let kept = datastore.beside("b.kept.raw");
    assert_same(&kept, "raw", &datastore.uri("c/disk0"));
    daemon.stop();
}

#[test]
fn a_native_vm_of_another_core_is_served_under_its_new_name_alone() {
    let datastore = Datastore::new();
    let daemon = start_on("2", &datastore);
    let a = create(&datastore, ("a", "native", 0));
    let mut b = create(&datastore, ("b", "native", 1));
    b.scribble(&datastore.uri("b/disk0"), 20);
    let removed = datastore.beside("removed.raw");
    copy(&b.path, &removed);
    datastore.json("vm remove b --delete-disks --yes");
    let b = create(&datastore, ("b", "native", 1));
    datastore.json("vm create d --disk 1M --store native");
    datastore.json("bin restore b --name e");
    assert_eq!(core_of(&datastore, "e"), 1);
    let uri = datastore.json("vm show e")["disks"][0]["nbd_uri"].as_str().unwrap().to_owned();
    assert_same(&removed, "raw", &uri);
    for (vm, twin) in [("a", a), ("b", b)] {
        twin.assert_same_as("raw", &datastore.uri(&format!("{vm}/disk0")));
    }
    daemon.stop();
}

/// Moves a VM of the other core to another store and back while fio writes and verifies.
fn move_under_fio(store: &str, other: &str) {
    let datastore = Datastore::new();
    let daemon = start_on("2", &datastore);
    create_on_two_cores(&datastore, "256M", store);
    datastore.json("snapshot take b s");
    let mut fio = Fio::verify(&datastore.uri("b/disk0"), 256);
    // fio asks for the size with a connection of its own first.
    wait_for_writes(&datastore, "b", &mut fio, 100);
    datastore.json(&format!("vm move b --store {other} --detach"));
    assert_eq!(core_of(&datastore, "b"), 0, "moves run on the first core");
    assert!(fio.is_running(), "the load was over too soon to prove anything");
    fio.finish();
    let job = || datastore.json("job list")[0].clone();
    while job()["state"] == "running" {}
    assert_eq!(job()["state"], "done", "{}", job());
    assert_eq!(datastore.json("vm show b")["store"], other);
    let events = datastore.json("events b").to_string();
    assert!(events.contains("went from core 1 to core 0 with 1 clients"), "{events}");
    daemon.stop();
}

#[test]
fn a_redo_vm_of_another_core_moves_under_its_guest() {
    move_under_fio("redo", "native");
}

#[test]
fn a_native_vm_of_another_core_moves_under_its_guest() {
    move_under_fio("native", "redo");
}

#[test]
fn a_client_whose_vm_has_left_its_core_is_counted_refused_limited_and_disconnected() {
    let datastore = Datastore::new();
    let daemon = start_on("2", &datastore);
    create_on_two_cores(&datastore, "16M", "native");
    datastore.json("snapshot take b s");
    let mut guest = Nbd::attach(&datastore.nbd_socket(), "b/disk0").unwrap();
    assert_eq!(guest.write(0, &[7; 4096]).unwrap(), 0);
    datastore.json("vm move b --store redo");
    assert_eq!(guest.read(0, 4096).unwrap(), [7; 4096]);
    assert_eq!(guest.write(4096, &[8; 4096]).unwrap(), 0);
    guest.flush().unwrap();
    let shown = datastore.json("vm show b");
    assert_eq!((&shown["core"], &shown["clients"][0]["access"]), (&json!(0), &json!("writes")), "{shown}");
    let uri = datastore.uri("b/disk0");
    let second = try_tool("qemu-io", &["-f", "raw", "-c", "write -P 9 0 64k", &uri]);
    assert!(!second.status.success(), "a second writer");
    datastore.json("vm set b --iops 100");
    datastore.json("vm set b --iops none");
    let reader = ["-r", "-f", "raw", "-c", "read -P 7 0 4k", "-c", "read -P 8 4k 4k", &uri];
    assert!(!tool("qemu-io", &reader).contains("failed"));
    let (code, said) = datastore.fails("snapshot revert b s --yes");
    assert!(code == 3 && said.contains("disk0"), "the client is still one: {said}");
    datastore.json("snapshot revert b s --yes --disconnect");
    assert!(guest.read(0, 4096).is_err(), "it was disconnected");
    assert_eq!(datastore.json("vm show b")["nbd_clients"], 0);
    daemon.stop();
}

/// Files of datastores that are deleted, and that the daemon has open.
fn deleted_files_open(daemon: &Daemon<'_>) -> Vec<PathBuf> {
    let handles = fs::read_dir(format!("/proc/{}/fd", daemon.id())).unwrap();
    let paths = handles.filter_map(|handle| fs::read_link(handle.ok()?.path()).ok());
    let is_deleted = |path: &PathBuf| path.to_string_lossy().ends_with(".vmdk (deleted)");
    paths.filter(is_deleted).collect()
}

#[test]
fn a_daemon_ends_with_a_client_whose_vm_has_left_its_core() {
    let datastore = Datastore::new();
    let daemon = start_on("2", &datastore);
    create_on_two_cores(&datastore, "16M", "redo");
    let mut guest = Nbd::attach(&datastore.nbd_socket(), "b/disk0").unwrap();
    datastore.json("vm move b --store native");
    assert_eq!(guest.write(8192, &[6; 4096]).unwrap(), 0, "its first write comes after the change");
    while datastore.json("job list")[0]["state"] == "running" {}
    // Closing a large file is left to another thread.
    until("the old copy's files to be closed", || deleted_files_open(&daemon).is_empty().then_some(()));
    daemon.stop();
    drop(guest);
    let daemon = start_on("2", &datastore);
    run_script(&datastore.uri("b/disk0"), &["read -P 6 8k 4k".to_owned()]);
    daemon.stop();
}
