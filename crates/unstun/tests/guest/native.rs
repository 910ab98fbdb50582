//! A native VM whose file systems are written through takes, a clone, a commit and moves of the whole VM, until guest
//! and daemon are killed at once.

use serde_json::json;

use crate::daemon::Datastore;
use crate::image::assert_clean;
use crate::machine::Machine;
use crate::reset::{DISKS, churn_on, mount, new_file_systems, unmount};
use crate::reverted::revert;
use crate::wire::{Ask, Durable};

/// Data that were flushed when each state was created.
struct Flushed {
    /// Data of the clone, which is snapshot `a`.
    cloned: Durable,
    /// Data of snapshot `b`.
    kept: Durable,
    running: Durable,
}

fn done(datastore: &Datastore, line: &str) {
    let job = datastore.json(line);
    assert_eq!(job["state"], "done", "{line}: {job}");
}

/// Runs all operations. At the end the VM is in the store again, with snapshot `b` and without `a`.
fn live_through_it_all(datastore: &Datastore, machine: &mut Machine<'_>) -> Flushed {
    machine.ask::<()>(&Ask::StartChurn);
    let cloned = churn_on(machine);
    datastore.json("snapshot take web a");
    let kept = churn_on(machine);
    datastore.json("snapshot take web b");
    datastore.json("vm clone web@a copy");
    churn_on(machine);
    done(datastore, "snapshot commit web a --yes");
    churn_on(machine);
    for store in ["redo", "native"] {
        done(datastore, &format!("vm move web --store {store}"));
        assert_eq!(datastore.json("vm show web")["store"], store);
        churn_on(machine);
    }
    Flushed { cloned, kept, running: churn_on(machine) }
}

/// Checks the mounted file systems. Mounting replays the journals, so that the file systems are clean afterwards.
fn check_mounted(machine: &mut Machine<'_>, flushed: Durable) {
    mount(machine);
    let files: u64 = machine.ask(&Ask::CheckChurn(flushed));
    println!("{files} files found whole");
    unmount(machine);
}

fn check_vm(datastore: &Datastore, vm: &str, flushed: Durable) {
    let mut machine = Machine::start(datastore, vm, DISKS.len());
    check_mounted(&mut machine, flushed);
    machine.quit();
    for (disk, kind) in DISKS {
        assert_clean(datastore, &format!("{vm}/{disk}"), kind);
    }
}

fn check_store(datastore: &Datastore) {
    let checked = datastore.json("check");
    assert_eq!(checked["findings"], json!([]), "{checked}");
}

pub(crate) fn a_native_vm_survives_moves_and_a_crash_of_all() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    new_file_systems(&datastore, "native");
    let mut machine = Machine::start(&datastore, "web", DISKS.len());
    mount(&mut machine);
    let flushed = live_through_it_all(&datastore, &mut machine);
    daemon.kill();
    drop(machine);

    let daemon = datastore.start();
    check_store(&datastore);
    check_vm(&datastore, "web", flushed.running);
    revert(&datastore, "b");
    check_vm(&datastore, "web", flushed.kept);
    check_vm(&datastore, "copy", flushed.cloned);
    check_store(&datastore);
    daemon.stop();
}
