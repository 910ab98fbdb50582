//! Differences between two snapshots as a backup reads them, and the space of a VM.

use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::tools::run_script;

fn ranges(answer: &Value, disk: usize) -> Vec<(u64, u64)> {
    let ranges = answer[disk]["ranges"].as_array().unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    ranges.iter().map(|range| (number(&range["start_bytes"]), number(&range["length_bytes"]))).collect()
}

#[test]
fn the_ranges_written_between_two_snapshots_are_named() {
    const MIB: u64 = 1 << 20;
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 64M,64M");
    let write = |script: &str| run_script(&datastore.uri("web/disk0"), &[script.to_owned()]);
    write("write -P 1 0 8M");
    datastore.json("snapshot take web a");
    write("write -P 2 3M 1M");
    write("write -P 2 4M 1M");
    datastore.json("snapshot take web b");
    write("write -P 3 60M 64k");
    let between = datastore.json("snapshot diff web a b");
    assert_eq!((ranges(&between, 0), ranges(&between, 1)), (vec![(3 * MIB, 2 * MIB)], vec![]));
    assert_eq!(ranges(&datastore.json("snapshot diff web b"), 0), [(60 * MIB, 64 << 10)]);
    let both = [(3 * MIB, 2 * MIB), (60 * MIB, 64 << 10)];
    assert_eq!(ranges(&datastore.json("snapshot diff web a"), 0), both);
    assert_eq!(ranges(&datastore.json("snapshot diff web b a"), 0), [(3 * MIB, 2 * MIB)]);
    let (code, said) = datastore.fails("snapshot diff web nope");
    assert!(code == 4 && said.contains("nope"), "{said}");

    let space = datastore.json("space web");
    assert_eq!((&space["logical_bytes"], &space["shared_bytes"]), (&json!(128 * MIB), &json!(0)));
    let held = |n: usize| space["snapshots"][n]["delta_bytes"].as_u64().unwrap();
    assert!(held(0) >= 2 * MIB && held(1) < held(0), "{space}");
    daemon.stop();
}
