//! Snapshots with the guest's memory: programs in a guest go on where they were, with the disks of the same instant.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::machine::Machine;
use crate::wire::{Ask, Gap};

const DISKS: usize = 2;
/// With it an emulated guest runs while its memory is saved, as every other does.
const RUNS_VARIABLE: &str = "UNSTUN_TEST_EMULATED_RUNS";

pub(crate) fn programs_go_on_where_they_were() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    for (store, via) in [("native", "nbd"), ("redo", "nbd"), ("native", "vhost-user")] {
        println!("{store}, over {via}");
        go_on(&datastore, store, via);
        datastore.json("vm remove shop --delete-disks --purge --yes");
    }
    daemon.stop();
}

/// QEMU's emulation of processors may lose memory that they change meanwhile, so such a guest is not resumed here.
pub(crate) fn a_guest_runs_while_its_memory_is_saved() {
    let datastore = Datastore::new();
    let daemon = datastore.start_with(&[(RUNS_VARIABLE, Path::new("1"))]);
    for (store, via) in [("native", "vhost-user"), ("redo", "nbd")] {
        let folder = tempfile::tempdir().unwrap();
        let socket = create(&datastore, store, folder.path());
        let mut machine = Machine::with_monitor(&datastore, "web", via, &socket);
        machine.ask::<()>(&Ask::StartWriters);
        for name in ["web warm", "web later"] {
            let saved = take(&datastore, &mut machine, name);
            let us = |field: &str| saved[field].as_u64().unwrap();
            assert!(us("stopped_us") < us("saved_us"), "{saved}");
        }
        assert!(machine.ask::<u64>(&Ask::StopWriters) > 0);
        machine.quit();
        datastore.json("vm remove web --delete-disks --purge --yes");
    }
    daemon.stop();
}

fn go_on(datastore: &Datastore, store: &str, via: &str) {
    let folder = tempfile::tempdir().unwrap();
    let socket = create(datastore, store, folder.path());
    let (code, said) = datastore.fails("snapshot take web early --memory");
    assert!(code == 3 && said.contains("no client is connected"), "{code}: {said}");

    let mut machine = Machine::with_monitor(datastore, "web", via, &socket);
    machine.ask::<()>(&Ask::StartWriters);
    let saved = take(datastore, &mut machine, "web warm");
    assert!(saved["ram_bytes"].as_u64().unwrap() >= 512 << 20, "{saved}");
    take(datastore, &mut machine, "web later");
    // The guest that ran on is whole.
    assert!(machine.ask::<u64>(&Ask::StopWriters) > 0);

    let (code, said) = datastore.fails("attach web --resume warm");
    assert!(code == 3 && said.contains("differs from snapshot warm"), "{code}: {said}");
    machine.power_off();
    datastore.json("snapshot revert web warm --yes");
    // Its names at the snapshot are another VM's now, whose disks the guest must not get.
    datastore.json("vm rename web shop");
    datastore.json("vm clone shop@warm web");
    resume(datastore, &mut machine);
    assert_eq!(datastore.json("vm show web")["nbd_clients"], json!(0));
    datastore.json("vm remove web --delete-disks --purge --yes");
    // The writers know what they have written last, and find it on the disks.
    writers_go_on(&mut machine);
    take(datastore, &mut machine, "shop again");
    assert!(machine.ask::<u64>(&Ask::StopWriters) > 0);

    datastore.json("snapshot discard shop later --yes");
    datastore.json("snapshot commit shop warm --yes");
    datastore.json("snapshot commit shop again --yes");
    grow(datastore, &mut machine, via == "vhost-user");
    machine.quit();
}

/// Creates the VM, whose guest has its monitor in `folder`.
fn create(datastore: &Datastore, store: &str, folder: &Path) -> PathBuf {
    let socket = folder.join("qmp.sock");
    datastore.json(&format!("vm create web --store {store} --disk {}", ["64M"; DISKS].join(",")));
    datastore.json(&format!("vm set web --qmp unix:{}", socket.display()));
    socket
}

/// Takes a snapshot with the guest's memory, beside which its writers go on.
fn take(datastore: &Datastore, machine: &mut Machine<'_>, which: &str) -> Value {
    writers_go_on(machine);
    let taken = datastore.json(&format!("snapshot take {which} --memory"));
    println!("{which}: {}, stun {} us", taken["memory"], taken["stun_us"]);
    let memory = datastore.json(&format!("snapshot memory {which}"));
    assert_eq!(memory["stored_bytes"], taken["snapshot"]["memory_bytes"], "{memory}");
    writers_go_on(machine);
    taken["memory"].clone()
}

/// Grows a disk twice while the guest writes it.
fn grow(datastore: &Datastore, machine: &mut Machine<'_>, over_vhost_user: bool) {
    machine.ask::<()>(&Ask::StartWriters);
    for mib in [96, 160] {
        writers_go_on(machine);
        // A monitor that was named wrongly is named anew, and the same command tells the guest.
        let qmp = datastore.json("vm show shop")["guest"]["qmp"].as_str().unwrap().to_owned();
        if !over_vhost_user {
            datastore.json("vm set shop --qmp unix:/run/no-such.sock");
            let grown = datastore.json(&format!("vm disk grow shop/disk1 {mib}M"));
            assert_eq!(grown["shown"], json!(false), "{grown}");
            datastore.json(&format!("vm set shop --qmp {qmp}"));
        }
        let grown = datastore.json(&format!("vm disk grow shop/disk1 {mib}M"));
        assert_eq!((&grown["shown"], &grown["cause"]), (&json!(true), &Value::Null), "{grown}");
        while machine.ask::<u64>(&Ask::Size { disk: "disk1".into() }) != mib << 20 {}
        writers_go_on(machine);
    }
    assert!(machine.ask::<u64>(&Ask::StopWriters) > 0);
}

fn resume(datastore: &Datastore, machine: &mut Machine<'_>) {
    let attach = datastore.json("attach shop --resume warm");
    assert_eq!(attach["resume_paused"], json!(true), "its processors are emulated");
    let words: Vec<String> = serde_json::from_value(attach["resume"].clone()).unwrap();
    assert_eq!(json!(words[0]), "qemu-system-x86_64");
    machine.resume(&words);
}

/// Waits until each disk was written since.
fn writers_go_on(machine: &mut Machine<'_>) {
    let mut waiting: Vec<String> = (0..DISKS).map(|disk| format!("disk{disk}")).collect();
    machine.ask::<Vec<Gap>>(&Ask::Gaps);
    while !waiting.is_empty() {
        let gaps: Vec<Gap> = machine.ask(&Ask::Gaps);
        waiting.retain(|disk| !gaps.iter().any(|gap| gap.disk == *disk && gap.writes > 0));
    }
}
