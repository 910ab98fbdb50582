//! One served disk: patterns, copies, maps, and the export's description of itself.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::daemon::Datastore;
use crate::guest::seed;
use crate::programs::tool;
use crate::tools::{Twin, assert_same};

const MIB: u64 = 1 << 20;

#[test]
fn random_patterns_read_back_alike() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 96M");
    let uri = datastore.uri("web/disk0");
    let mut twin = Twin::new(&datastore, 96 * MIB, seed());
    twin.scribble(&uri, 60);
    twin.assert_same_as("raw", &uri);
    datastore.json("snapshot take web a");
    twin.scribble(&uri, 60);
    twin.assert_same_as("raw", &uri);
    daemon.stop();

    // The disk reads the same after a clean end and a new start.
    let daemon = datastore.start();
    twin.assert_same_as("raw", &uri);
    daemon.stop();
}

#[test]
fn a_map_shows_what_was_written() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 64M");
    let uri = datastore.uri("web/disk0");
    tool("qemu-io", &["-f", "raw", "-c", "write -P 5 16M 1M", &uri]);
    datastore.json("snapshot take web a");
    tool("qemu-io", &["-f", "raw", "-c", "write -P 6 32M 1M", &uri]);
    let map = tool("qemu-img", &["map", "-f", "raw", "--output=json", &uri]);
    let map: Vec<Value> = serde_json::from_str(&map).unwrap();
    let data_at = |offset: u64| {
        let covers = |run: &&Value| {
            let start = run["start"].as_u64().unwrap();
            (start..start + run["length"].as_u64().unwrap()).contains(&offset)
        };
        map.iter().find(covers).expect("the map covers the disk")["data"].as_bool().unwrap()
    };
    assert!(data_at(16 * MIB) && data_at(33 * MIB - 1), "{map:?}");
    assert!(!data_at(8 * MIB) && !data_at(60 * MIB), "{map:?}");
    assert_eq!(map.iter().map(|run| run["length"].as_u64().unwrap()).sum::<u64>(), 64 * MIB);
    daemon.stop();
}

#[test]
fn qemu_img_and_nbdcopy_copy_both_ways() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 48M,48M");
    let (first, second) = (datastore.uri("web/disk0"), datastore.uri("web/disk1"));
    let mut twin = Twin::new(&datastore, 48 * MIB, seed());
    twin.scribble(&first, 40);

    let out = datastore.beside("out.raw");
    tool("nbdcopy", &[&first, out.to_str().unwrap()]);
    assert!(fs::read(&out).unwrap() == fs::read(&twin.path).unwrap(), "nbdcopy out of the disk");
    tool("nbdcopy", &["--flush", out.to_str().unwrap(), &second]);
    twin.assert_same_as("raw", &second);
    fs::remove_file(&out).unwrap();

    tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", &first, out.to_str().unwrap()]);
    twin.assert_same_as("raw", out.to_str().unwrap());
    twin.scribble(&first, 10);
    tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", twin.path.to_str().unwrap(), &second]);
    twin.assert_same_as("raw", &second);
    // The copy is from disk to disk, both served by us.
    tool("nbdcopy", &["--connections=2", &first, &second]);
    assert_same(&twin.path, "raw", &second);
    daemon.stop();
}

#[test]
fn nbdinfo_sees_sizes_flags_and_every_export() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 48M,1000448");
    datastore.json("snapshot take web before");
    let info: Value =
        serde_json::from_str(&tool("nbdinfo", &["--json", &datastore.uri("web/disk0")])).unwrap();
    let export = &info["exports"][0];
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    assert_eq!(export["export-size"], 48 * MIB);
    for flag in ["can_multi_conn", "can_fua", "can_flush", "can_trim", "can_zero", "can_cache", "can_df"] {
        assert_eq!(export[flag], true, "{flag}: {info}");
    }
    assert_eq!(export["is_read_only"], false);
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation", "qemu:dirty-bitmap:before"]));
    assert_eq!(tool("nbdinfo", &["--size", &datastore.uri("web/disk1")]).trim(), "1000448");

    let sealed: Value =
        serde_json::from_str(&tool("nbdinfo", &["--json", &datastore.uri("web/disk0@before")])).unwrap();
    assert_eq!(sealed["exports"][0]["is_read_only"], true, "{sealed}");

    let list: Value =
        serde_json::from_str(&tool("nbdinfo", &["--list", "--json", &datastore.uri("")])).unwrap();
    let mut names: Vec<_> =
        list["exports"].as_array().unwrap().iter().map(|e| e["export-name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["web/disk0", "web/disk0@before", "web/disk1", "web/disk1@before"]);
    let export =
        &list["exports"].as_array().unwrap().iter().find(|e| e["export-name"] == "web/disk1").unwrap();
    assert_eq!(export["description"], "scsi0:1 of web, 1000448 bytes");
    daemon.stop();
}

#[test]
fn the_log_says_who_opens_what() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 4M");
    tool("nbdinfo", &["--size", &datastore.uri("web/disk0")]);
    let refused = Command::new("nbdinfo").args(["--size", &datastore.uri("web/disk7")]).output().unwrap();
    assert!(!refused.status.success());
    daemon.stop();
    let log = std::fs::read_to_string(datastore.beside("daemon.log")).unwrap();
    assert!(log.contains("(nbdinfo) opens web/disk0\n"), "{log}");
    assert!(log.contains("(nbdinfo) leaves web/disk0\n"), "{log}");
    assert!(log.contains("(nbdinfo) is refused web/disk7: "), "{log}");
}
