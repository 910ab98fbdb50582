//! Native disks with the same commands: snapshots, a clone, a restart and their removal.

use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::nbd::Nbd;
use crate::tools::run_script;

fn io(datastore: &Datastore, export: &str, script: &[&str]) {
    let script: Vec<String> = script.iter().map(|line| (*line).to_owned()).collect();
    run_script(&datastore.uri(export), &script);
}

fn names(datastore: &Datastore, vm: &str) -> Vec<String> {
    let tree = datastore.json(&format!("snapshot tree {vm}"));
    let name = |snapshot: &Value| snapshot["name"].as_str().unwrap().to_owned();
    tree["snapshots"].as_array().unwrap().iter().map(name).collect()
}

#[test]
fn any_node_of_the_tree_can_be_gone_to_and_a_restart_finds_all_of_it() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let made = datastore.json("vm create web --disk 64M,16M");
    assert_eq!(
        (&made["store"], &made["disks"][0]["layers"][0]["format"]),
        (&json!("native"), &json!("native"))
    );
    io(&datastore, "web/disk0", &["write -P 1 0 8M", "flush"]);
    datastore.json("snapshot take web a");
    io(&datastore, "web/disk0", &["write -P 2 1M 1M", "write -P 2 3584 1024", "flush"]);
    datastore.json("snapshot take web b");
    datastore.json("snapshot revert web a --take-first c --yes");
    datastore.json("vm open web");
    io(&datastore, "web/disk0", &["read -P 1 0 8M", "write -P 3 2M 1M"]);
    datastore.json("snapshot revert web b --yes");
    datastore.json("vm open web");
    io(
        &datastore,
        "web/disk0",
        &["read -P 2 1M 1M", "read -P 1 2M 6M", "read -P 2 3584 1024", "read -P 1 0 3584"],
    );
    datastore.json("vm clone web@a test1");
    io(&datastore, "test1/disk0", &["read -P 1 0 8M", "write -P 4 0 1M"]);
    let mut sealed = Nbd::attach(&datastore.nbd_socket(), "web/disk0@a").unwrap();
    assert_eq!(sealed.read(1 << 20, 512).unwrap(), [1; 512]);
    drop(sealed);
    daemon.stop();

    let daemon = datastore.start();
    assert_eq!(names(&datastore, "web"), ["a", "b", "c"]);
    io(&datastore, "test1/disk0", &["read -P 4 0 1M", "read -P 1 1M 7M"]);
    io(&datastore, "web/disk0", &["read -P 2 1M 1M", "read -P 1 2M 6M"]);
    let diff = datastore.json("snapshot diff web a b");
    let ranges = json!([{ "start_bytes": 0, "length_bytes": 8192 }, { "start_bytes": 1 << 20, "length_bytes": 1 << 20 }]);
    assert_eq!(diff[0]["ranges"], ranges, "{diff}");
    datastore.json("snapshot discard web c --yes");
    datastore.json("vm open web");
    assert_eq!(datastore.json("snapshot commit web --all --yes")["state"], "done");
    io(&datastore, "web/disk0", &["read -P 2 1M 1M", "read -P 1 2M 6M"]);
    // The clone keeps the data that it reads.
    datastore.json("vm remove web --delete-disks --purge --yes");
    io(&datastore, "test1/disk0", &["read -P 4 0 1M", "read -P 1 1M 7M"]);
    daemon.stop();
}

#[test]
fn disks_come_grow_and_are_reset() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    datastore.json("vm disk add web 16M,mode=independent-nonpersistent");
    io(&datastore, "web/disk1", &["write -P 5 0 1M"]);
    datastore.json("vm reset web --yes");
    datastore.json("vm open web");
    io(&datastore, "web/disk1", &["read -P 0 0 16M"]);
    io(&datastore, "web/disk0", &["write -P 1 0 1M"]);
    let mut guest = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    let grown = datastore.json("vm disk grow web/disk0 32M");
    assert_eq!(grown["disk"]["size_bytes"], 32 << 20, "{grown}");
    assert_eq!(guest.read(0, 512).unwrap(), [1; 512]);
    drop(guest);
    io(&datastore, "web/disk0", &["read -P 1 0 1M", "read -P 0 1M 31M", "write -P 6 31M 1M"]);
    for (line, code, word) in [
        ("vm disk add web 16M,dir=/tmp", 3, "native"),
        ("vm set web --snapshot-dir /tmp", 3, "native"),
        ("vm create odd --disk 512", 2, "4096"),
        ("vm remove web", 3, "--delete-disks"),
    ] {
        let (found, said) = datastore.fails(line);
        assert!(found == code && said.contains(word), "{line}: {found}: {said}");
    }
    assert!(!datastore.path().join("odd").exists(), "no half VM is left");
    daemon.stop();
}

#[test]
fn a_closed_vm_rests_and_one_whose_folder_is_gone_comes_back_at_a_start() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    datastore.json("vm create gone --disk 16M");
    io(&datastore, "web/disk0", &["write -P 1 0 1M"]);
    io(&datastore, "gone/disk0", &["write -P 2 0 1M"]);
    datastore.json("vm close web");
    let listed = datastore.json("vm list");
    assert_eq!(
        (&listed[1]["condition"], &listed[1]["store"]),
        (&json!("closed"), &json!("native")),
        "{listed}"
    );
    daemon.stop();
    std::fs::remove_dir_all(datastore.path().join("gone")).unwrap();

    let daemon = datastore.start();
    assert_eq!(datastore.fails("snapshot take web a").0, 3);
    datastore.json("vm open web");
    io(&datastore, "web/disk0", &["read -P 1 0 1M"]);
    io(&datastore, "gone/disk0", &["read -P 2 0 1M"]);
    datastore.json("vm close web");
    std::fs::remove_dir_all(datastore.path().join("gone")).unwrap();
    for vm in ["web", "gone"] {
        datastore.json(&format!("vm remove {vm} --delete-disks --purge --yes"));
    }
    assert_eq!(datastore.json("vm list"), json!([]));
    daemon.stop();
    let daemon = datastore.start();
    assert_eq!(datastore.json("vm list"), json!([]), "what was removed stays away");
    daemon.stop();
}

/// A check finds damage in the store's file while a guest runs, and names the VM concerned.
#[test]
fn check_and_scrub_look_at_the_store_in_use() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    assert_eq!(datastore.json("check")["findings"], json!([]));
    let (code, said) = datastore.fails("scrub");
    assert!(code == 4 && said.contains("no native disks"), "{said}");
    datastore.json("vm create files --disk 16M --store redo");
    let checked = datastore.json("check");
    assert_eq!(checked["findings"].as_array().map(Vec::len), Some(1), "{checked}");
    let remedy = checked["findings"][0]["remedy"].as_str().unwrap();
    assert!(
        remedy.contains(&format!("`unstun check {}", datastore.path().join("files").display())),
        "{remedy}"
    );
    datastore.json("vm remove files --delete-disks --purge --yes");
    datastore.json("vm create web --disk 16M");
    io(&datastore, "web/disk0", &["write -P 1 0 8M", "flush"]);
    datastore.json("snapshot take web a");
    for line in ["check", "scrub"] {
        let checked = datastore.json(line);
        let path = datastore.path().join("store.unstun");
        assert_eq!((&checked["path"], &checked["findings"]), (&json!(path), &json!([])), "{line}");
    }
    let jobs = datastore.json("job list");
    let job = &jobs[0];
    assert_eq!(
        (&job["operation"], &job["vm"], &job["state"]),
        (&json!("scrub"), &json!(null), &json!("done"))
    );
    assert_eq!(job["bytes_done"], job["bytes_total"], "{job}");
    io(&datastore, "web/disk0", &["read -P 1 0 8M"]);
    daemon.stop();
}

/// The store's VMs continue in a file without a name. No other store may be created in its place.
#[test]
fn a_missing_store_is_reported_and_not_replaced() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    datastore.json("vm create db --disk 16M");
    io(&datastore, "web/disk0", &["write -P 1 0 1M", "flush"]);
    datastore.json("snapshot take web a");
    let (store, aside) = (datastore.path().join("store.unstun"), datastore.beside("aside"));
    std::fs::rename(&store, &aside).unwrap();
    for line in ["vm create new --disk 16M", "vm clone web@a new"] {
        let (code, said) = datastore.fails(line);
        assert!(code == 6 && said.contains("store.unstun") && said.contains("vm move"), "{line}: {said}");
    }
    let notices = datastore.json("vm show web")["notices"].to_string();
    assert!(notices.contains("removed or replaced"), "{notices}");
    let notices = datastore.json("datastore list")[0]["notices"].to_string();
    assert!(notices.contains("removed or replaced"), "{notices}");
    // The notice recommends this command.
    datastore.json("vm move web --store redo");
    io(&datastore, "web/disk0", &["read -P 1 0 1M"]);
    assert!(!store.exists() && !datastore.path().join("new").exists());
    daemon.stop();

    let daemon = datastore.start();
    let (code, said) = datastore.fails("vm create new --disk 16M");
    assert!(code == 6 && said.contains("missing") && said.contains("db"), "{said}");
    assert!(!store.exists() && !datastore.path().join("new").exists());
    io(&datastore, "web/disk0", &["read -P 1 0 1M"]);
    daemon.stop();

    std::fs::rename(&aside, &store).unwrap();
    let daemon = datastore.start();
    io(&datastore, "db/disk0", &["read -P 0 0 16M"]);
    datastore.json("vm create new --disk 16M");
    daemon.stop();
    std::fs::remove_file(&store).unwrap();

    let daemon = datastore.start();
    for vm in ["db", "new"] {
        datastore.json(&format!("vm remove {vm} --delete-disks --purge --yes"));
    }
    datastore.json("vm create other --disk 16M");
    daemon.stop();
}
