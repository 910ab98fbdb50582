//! A live guest whose disks are reverted under it is kept from the other content permanently.

use jiff::Timestamp;
use serde_json::Value;

use crate::daemon::Datastore;
use crate::image::copy_out;
use crate::machine::Machine;
use crate::programs::tool;
use crate::reset::{DISKS, mount, new_file_systems};
use crate::wire::Ask;

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

/// Waits until QEMU has reconnected to this daemon by itself, and was refused.
fn await_refusal(datastore: &Datastore) {
    let started = time(&datastore.json("status")["started"]);
    let is_refusal = |event: &Value| {
        let message = event["message"].as_str().unwrap_or_default();
        time(&event["time"]) > started
            && message.contains("(qemu-system-x86) was refused")
            && message.contains("must be power-cycled")
    };
    while !datastore.json("events web").as_array().unwrap().iter().any(is_refusal) {}
}

pub(crate) fn a_live_guest_never_writes_what_it_was_reverted_to() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    new_file_systems(&datastore, "redo");
    let mut machine = Machine::attached(&datastore, "web");
    mount(&mut machine);
    machine.ask::<()>(&Ask::Fill { generation: 1 });
    machine.ask::<()>(&Ask::Sync);
    datastore.json("snapshot take web before");
    let sealed: Vec<_> = DISKS
        .iter()
        .map(|(disk, _)| copy_out(&datastore, &format!("web/{disk}@before"), &format!("{disk}.before")))
        .collect();

    // With the original content, QEMU reconnects by itself.
    daemon.kill();
    let daemon = datastore.start();
    machine.ask::<()>(&Ask::Change);
    machine.ask::<()>(&Ask::Sync);

    let reverted = datastore.json("snapshot revert web before --yes --disconnect");
    assert!(!reverted["clients"].as_array().unwrap().is_empty(), "{reverted}");
    await_refusal(&datastore);
    daemon.kill();
    let daemon = datastore.start();
    await_refusal(&datastore);
    assert!(datastore.json("vm show web")["clients"].as_array().unwrap().is_empty());
    drop(machine);

    // A new guest gets the new names, and finds the old files.
    let shown = datastore.json("vm show web");
    for (at, sealed) in sealed.iter().enumerate() {
        let now = shown["disks"][at]["nbd_uri"].as_str().unwrap();
        tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", sealed.to_str().unwrap(), now]);
    }
    let mut machine = Machine::attached(&datastore, "web");
    mount(&mut machine);
    machine.ask::<()>(&Ask::Change);
    machine.ask::<()>(&Ask::Sync);
    machine.quit();
    daemon.stop();
}
