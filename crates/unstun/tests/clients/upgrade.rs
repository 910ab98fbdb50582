//! Datastores that earlier versions wrote (`scripts/make-fixture.sh`): this one opens each, and all that is in it is there.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::programs::tool;
use crate::tools::run_script;

fn fixtures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/fixtures");
    let mut all: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

fn shows(datastore: &Datastore, export: &str, byte: u8) {
    let (uri, read) = (datastore.uri(export), format!("read -P {byte} 0 1M"));
    let said = tool("qemu-io", &["-r", "-f", "raw", "-c", &read, &uri]);
    assert!(!said.contains("failed") && !said.contains("error"), "{export}: {said}");
}

#[test]
fn datastores_of_earlier_versions_are_served_with_all_that_they_have() {
    let all = fixtures();
    assert!(!all.is_empty());
    for fixture in all {
        println!("{}", fixture.display());
        let datastore = Datastore::called("ds");
        fs::remove_dir(datastore.path()).unwrap();
        let beside = datastore.beside("");
        tool("tar", &["-xzf", fixture.to_str().unwrap(), "-C", beside.to_str().unwrap()]);
        // Nothing in the bin is too old.
        let daemon = datastore.start_as(&["--bin-hours", "1000000"]);
        for vm in ["native", "redo"] {
            check(&datastore, vm);
        }
        shows(&datastore, "clone/disk0", 1);
        let policies = datastore.json("policy list");
        assert_eq!(
            (&policies[0]["policy"]["name"], &policies[0]["policy"]["tags"]),
            (&json!("nightly"), &json!(["prod"]))
        );
        assert_eq!(datastore.json("token list")[0]["name"], "ci");
        assert!(datastore.json("alarm rules").to_string().contains("100"));
        assert_eq!(datastore.json("bin list").as_array().unwrap().len(), 2);
        assert!(datastore.run("check").status.success());
        daemon.stop();
    }
}

fn check(datastore: &Datastore, vm: &str) {
    let shown = datastore.json(&format!("vm show {vm}"));
    assert_eq!((&shown["note"], &shown["tags"]), (&json!("the shop"), &json!(["prod"])), "{shown}");
    assert_eq!((&shown["limits"]["iops"], &shown["limits"]["weight"]), (&json!(20_000), &json!(200)));
    assert_eq!(shown["guest"], json!({"access": "libvirt:shop", "frozen_ms_max": 500, "qmp": null}));
    assert_eq!(shown["notices"], json!([]));
    let tree = datastore.json(&format!("snapshot tree {vm}"));
    let who =
        |snapshot: &Value| snapshot["created_by"].as_str().unwrap().split(' ').next().unwrap().to_owned();
    let snapshots = tree["snapshots"].as_array().unwrap();
    assert_eq!((snapshots[0]["name"].as_str(), snapshots[0]["message"].as_str()), (Some("a"), Some("first")));
    assert_eq!(snapshots.iter().map(who).collect::<Vec<_>>(), ["user", "user", "policy"]);
    assert!(datastore.json(&format!("events {vm}")).to_string().contains("\"take\""));
    for (export, byte) in [("disk0@a", 1), ("disk0@b", 2), ("disk0", 3)] {
        shows(datastore, &format!("{vm}/{export}"), byte);
    }
    // What it has can be changed.
    datastore.json(&format!("bin restore {vm}-binned"));
    datastore.json(&format!("vm open {vm}-binned"));
    shows(datastore, &format!("{vm}-binned/disk0"), 4);
    datastore.json(&format!("vm remove {vm}-binned --delete-disks --yes"));
    run_script(&datastore.uri(&format!("{vm}/disk0")), &["write -P 5 0 1M".to_owned()]);
    datastore.json(&format!("snapshot take {vm} now"));
    datastore.json(&format!("snapshot commit {vm} b --yes"));
    datastore.json(&format!("snapshot revert {vm} a --take-first then --yes"));
    datastore.json(&format!("vm open {vm}"));
    shows(datastore, &format!("{vm}/disk0"), 1);
    shows(datastore, &format!("{vm}/disk0@then"), 5);
}
