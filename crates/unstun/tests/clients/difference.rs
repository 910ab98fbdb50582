//! Differences between two snapshots as a backup reads them, and the space of a VM.

use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::programs::tool;
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

/// Returns the (offset, length) pairs that are dirty in the map of an export.
fn dirty(uri: &str, since: &str) -> Vec<(u64, u64)> {
    let map = format!("--map=qemu:dirty-bitmap:{since}");
    let map: Value = serde_json::from_str(&tool("nbdinfo", &[&map, "--json", uri])).unwrap();
    let number = |extent: &Value, name: &str| extent[name].as_u64().unwrap();
    let extents = map.as_array().unwrap().iter().filter(|extent| number(extent, "type") == 1);
    extents.map(|extent| (number(extent, "offset"), number(extent, "length"))).collect()
}

/// Returns the same as QEMU shows it: it takes the bit of a dirty range for that of a hole.
fn dirty_for_qemu(datastore: &Datastore, export: &str, since: &str) -> Vec<(u64, u64)> {
    let socket = datastore.nbd_socket();
    let options = format!(
        "driver=nbd,server.type=unix,server.path={},export={export},x-dirty-bitmap=qemu:dirty-bitmap:{since}",
        socket.display()
    );
    let map = tool("qemu-img", &["map", "--output=json", "--image-opts", &options]);
    let map: Value = serde_json::from_str(&map).unwrap();
    let extents = map.as_array().unwrap().iter().filter(|extent| extent["data"] == false);
    let number = |value: &Value| value.as_u64().unwrap();
    extents.map(|extent| (number(&extent["start"]), number(&extent["length"]))).collect()
}

#[test]
fn nbd_clients_see_what_has_changed() {
    const MIB: u64 = 1 << 20;
    let datastore = Datastore::new();
    let daemon = datastore.start_as(&["--cores", "2"]);
    let mut cores = std::collections::BTreeSet::new();
    // The second VM is not on the stores' core.
    datastore.json("vm create other --disk 16M");
    for store in ["native", "redo"] {
        datastore.json(&format!("vm create web --store {store} --disk 64M,64M"));
        cores.insert(datastore.json("vm show web")["core"].as_u64().unwrap());
        let write = |script: &str| run_script(&datastore.uri("web/disk0"), &[script.to_owned()]);
        write("write -P 1 0 8M");
        datastore.json("snapshot take web a");
        write("write -P 2 3M 1M");
        write("write -P 2 40M 64k");
        datastore.json("snapshot take web b");
        write("write -P 3 60M 64k");
        write("write -z 3M 512k");
        let (of_b, running) = (datastore.uri("web/disk0@b"), datastore.uri("web/disk0"));
        let listed = tool("nbdinfo", &[&of_b]);
        assert!(
            listed.contains("qemu:dirty-bitmap:a") && !listed.contains("qemu:dirty-bitmap:b"),
            "{listed}"
        );
        let between = [(3 * MIB, MIB), (40 * MIB, 64 << 10)];
        let since_b = [(3 * MIB, MIB / 2), (60 * MIB, 64 << 10)];
        assert_eq!(dirty(&of_b, "a"), between, "{store}");
        assert_eq!(dirty_for_qemu(&datastore, "web/disk0@b", "a"), between, "{store}");
        assert_eq!(dirty(&running, "b"), since_b, "{store}");
        let since_a = dirty(&running, "a");
        assert_eq!(since_a, [(3 * MIB, MIB), (40 * MIB, 64 << 10), (60 * MIB, 64 << 10)], "{store}");
        assert_eq!(since_a, ranges(&datastore.json("snapshot diff web a"), 0), "{store}");
        assert_eq!(dirty(&datastore.uri("web/disk1"), "b"), [], "{store}");
        let verified = datastore.json("snapshot diff web a b --verify");
        let equal = verified[0]["verified"]["equal_bytes"].as_u64().unwrap();
        let same = verified[0]["verified"]["same_bytes"].as_u64().unwrap();
        assert_eq!((equal, same), (0, 63 * MIB - (64 << 10)), "{store}: {verified}");
        let (code, said) = datastore.fails("snapshot diff web a --verify");
        assert!(code == 2 && said.contains("<B>"), "{said}");
        // The maps know it after a crash, and after a revert, too.
        write("flush");
        datastore.json("snapshot revert web a --take-first c --yes");
        let running = datastore.json("vm show web")["disks"][0]["nbd_uri"].as_str().unwrap().to_owned();
        assert_eq!(dirty(&running, "a"), [], "{store}");
        assert_eq!(dirty(&running, "c"), since_a, "{store}");
        datastore.json("vm remove web --delete-disks --purge --yes");
    }
    println!("on cores {cores:?}");
    daemon.stop();
}
