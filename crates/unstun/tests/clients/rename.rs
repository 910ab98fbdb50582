//! Renames of VMs.

use std::fs;

use serde_json::json;

use crate::daemon::Datastore;
use crate::programs::tool;
use crate::tools::{HeldOpen, run_script};

#[test]
fn a_renamed_vm_has_its_disks_snapshots_and_events() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    for store in ["native", "redo"] {
        datastore.json(&format!("vm create {store} --store {store} --disk 16M"));
        run_script(&datastore.uri(&format!("{store}/disk0")), &["write -P 1 0 1M".to_owned()]);
        datastore.json(&format!("snapshot take {store} a"));
        run_script(&datastore.uri(&format!("{store}/disk0")), &["write -P 2 0 1M".to_owned()]);
        datastore.json(&format!("vm set {store} --note precious"));
        datastore.json(&format!(
            "policy create {store} --schedule daily --keep-last 3 --vm {store} --vm {store}*"
        ));

        let guest = HeldOpen::new(&datastore, store);
        let (code, said) = datastore.fails(&format!("vm rename {store} shop-{store}"));
        assert!(code == 3 && said.contains("qemu-io"), "{code}: {said}");
        drop(guest);

        let renamed = datastore.json(&format!("vm rename {store} shop-{store}"));
        assert_eq!(renamed["note"], "precious");
        assert!(
            !datastore.path().join(store).exists() && datastore.path().join(format!("shop-{store}")).is_dir()
        );
        assert_eq!(datastore.fails(&format!("vm show {store}")).0, 4);
        // A pattern does not follow: it is not about this VM alone.
        let policy = datastore.json(&format!("policy show {store}"))["policy"].clone();
        assert_eq!(policy["vms"], json!([format!("{store}*"), format!("shop-{store}")]), "{policy}");
    }
    daemon.stop();
    let daemon = datastore.start();
    for vm in ["shop-native", "shop-redo"] {
        run_script(&datastore.uri(&format!("{vm}/disk0")), &["read -P 2 0 1M".to_owned()]);
        let said = tool(
            "qemu-io",
            &["-r", "-f", "raw", "-c", "read -P 1 0 1M", &datastore.uri(&format!("{vm}/disk0@a"))],
        );
        assert!(!said.contains("failed"), "{said}");
        let (_, said) = datastore.fails(&format!("snapshot take {vm} a"));
        // The files of a redo VM keep the name with which they were made.
        assert!(vm != "shop-native" || said.contains(vm), "{said}");
        let events = datastore.json(&format!("events {vm}")).to_string();
        assert!(events.contains("\"take\"") && events.contains("renamed from"), "{events}");
    }
    // The old name is free again.
    datastore.json("vm create native --disk 16M");
    run_script(&datastore.uri("native/disk0"), &["read -P 0 0 1M".to_owned()]);
    let (code, said) = datastore.fails("vm rename native shop-redo");
    assert!(code != 0 && said.contains("exists already"), "{said}");
    daemon.stop();
}

#[test]
fn a_folder_to_which_others_refer_keeps_its_name() {
    let datastore = Datastore::new();
    let fast = datastore.beside("fast");
    fs::create_dir(&fast).unwrap();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 16M");
    datastore.json("snapshot take web a");
    datastore.json("vm clone web@a test");
    let (code, said) = datastore.fails("vm rename web shop");
    assert!(code == 3 && said.contains("test"), "{code}: {said}");
    // The clone itself may have another name.
    datastore.json("vm rename test trial");
    run_script(&datastore.uri("trial/disk0"), &["read -P 0 0 1M".to_owned()]);
    datastore.json("vm remove trial --delete-disks --purge --yes");
    datastore.json(&format!("vm set web --snapshot-dir {}", fast.display()));
    datastore.json("snapshot take web b");
    let (code, said) = datastore.fails("vm rename web shop");
    assert!(code == 3 && said.contains("in another folder"), "{code}: {said}");
    run_script(&datastore.uri("web/disk0"), &["read -P 0 0 1M".to_owned()]);
    daemon.stop();
}
