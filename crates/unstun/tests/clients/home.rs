//! The folder of a VM, read by other programs: with the daemon stopped it is a chain of VMware's files.

use std::path::Path;

use crate::daemon::Datastore;
use crate::guest::seed;
use crate::tools::Twin;

const SIZE: u64 = 40 << 20;

/// Runs the command `order` (if any), writes, stops the daemon, and has QEMU and `convert` read the chain from its last
/// link.
fn step(datastore: &Datastore, twin: &mut Twin, order: &str) {
    let daemon = datastore.start();
    if !order.is_empty() {
        datastore.json(order);
    }
    twin.scribble(&datastore.uri("web/disk0"), 20);
    let top = datastore.descriptor("web");
    daemon.stop();
    twin.assert_same_as("vmdk", top.to_str().unwrap());

    let out = datastore.beside("converted.raw");
    let line = format!("convert {} {}", top.display(), out.display());
    let result = datastore.json(&line);
    assert_eq!(result["size_bytes"], SIZE, "{result}");
    twin.assert_same_as("raw", out.to_str().unwrap());
    assert_eq!(datastore.fails(&line).0, 3, "an output that exists is not overwritten");
    std::fs::remove_file(out).unwrap();
}

fn links(home: &Path) -> usize {
    let names =
        std::fs::read_dir(home).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| {
            name.ends_with(".vmdk") && !name.ends_with("-flat.vmdk") && !name.ends_with("-delta.vmdk")
        })
        .count()
}

#[test]
fn qemu_reads_the_chain_after_each_step() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 40M");
    daemon.stop();
    let mut twin = Twin::new(&datastore, SIZE, seed());
    let home = datastore.path().join("web");
    let mut step = |order: &str, expected: usize| {
        step(&datastore, &mut twin, order);
        assert_eq!(links(&home), expected, "after `{order}`");
    };
    step("", 1);
    step("snapshot take web a", 2);
    step("snapshot take web b", 3);
    step("", 3);
    step("snapshot take web c", 4);
    // The commits are in the middle of the chain, at its end, and of the rest.
    step("snapshot commit web b --yes", 3);
    step("snapshot commit web c --yes", 2);
    step("snapshot commit web --all --yes", 1);
    step("", 1);
}
