//! Folders of VMs that a user copied or renamed while the daemon was down. Exactly one of them is the VM.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::daemon::Datastore;
use crate::tools::run_script;

fn io(datastore: &Datastore, export: &str, script: &str) {
    run_script(&datastore.uri(export), &[script.to_owned()]);
}

pub(crate) fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").args(["-r", "--sparse=always"]).args([from, to]).status().unwrap();
    assert!(copied.success(), "{}: {copied}", from.display());
}

/// Returns the name and condition of each VM.
fn listed(datastore: &Datastore) -> Vec<(String, String)> {
    let list = datastore.json("vm list");
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    list.as_array().unwrap().iter().map(|vm| (text(&vm["name"]), text(&vm["condition"]))).collect()
}

fn pair(name: &str, condition: &str) -> (String, String) {
    (name.to_owned(), condition.to_owned())
}

#[test]
fn a_folder_that_was_copied_while_the_daemon_runs_is_broken_once_it_is_opened() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    for store in ["native", "redo"] {
        datastore.json(&format!("vm create {store} --store {store} --disk 16M"));
        let name = format!("{store}-copy");
        copy(&datastore.path().join(store), &datastore.path().join(&name));
        let (code, said) = datastore.fails(&format!("vm open {name}"));
        assert!(code == 3 && said.contains("this folder is a copy of"), "{code}: {said}");
        assert!(listed(&datastore).contains(&pair(&name, "broken")), "{store}");
    }
    let checked = datastore.run("check");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(said.contains("the folder is a copy of"), "{said}");
    daemon.stop();
}

#[test]
fn a_copied_folder_is_refused_by_name_and_goes_without_harm() {
    for store in ["native", "redo"] {
        let datastore = Datastore::new();
        let daemon = datastore.start();
        datastore.json(&format!("vm create a --store {store} --disk 16M"));
        io(&datastore, "a/disk0", "write -P 1 0 1M");
        daemon.stop();
        copy(&datastore.path().join("a"), &datastore.path().join("b"));

        for _ in 0..2 {
            let daemon = datastore.start();
            assert_eq!(listed(&datastore), [pair("a", "open"), pair("b", "broken")], "{store}");
            let (code, said) = datastore.fails("vm open b");
            assert!(
                code == 3 && said.contains("is a copy of") && said.contains("vm clone"),
                "{code}: {said}"
            );
            let checked = datastore.run("check --json");
            assert_eq!(checked.status.code(), Some(6), "{store}");
            assert!(String::from_utf8_lossy(&checked.stdout).contains("\"a copy of"));
            io(&datastore, "a/disk0", "read -P 1 0 1M");
            daemon.kill();
        }
        let daemon = datastore.start();
        datastore.json("vm remove b");
        assert_eq!(listed(&datastore), [pair("a", "open")]);
        io(&datastore, "a/disk0", "read -P 1 0 1M");
        // The folder of a native VM holds no files of its own; the user must remove those of a redo VM.
        assert_eq!(datastore.path().join("b").exists(), store == "redo");
        let _ = fs::remove_dir_all(datastore.path().join("b"));
        datastore.json("snapshot take a s");
        datastore.json("vm clone a@s b");
        io(&datastore, "b/disk0", "write -P 2 0 1M");
        io(&datastore, "a/disk0", "read -P 1 0 1M");
        daemon.stop();
    }
}

#[test]
fn a_renamed_folder_is_the_vm_under_its_new_name() {
    for store in ["native", "redo"] {
        let datastore = Datastore::new();
        let daemon = datastore.start();
        datastore.json(&format!("vm create a --store {store} --disk 16M"));
        io(&datastore, "a/disk0", "write -P 1 0 1M");
        daemon.stop();
        let (a, b, c) = (datastore.path().join("a"), datastore.path().join("b"), datastore.path().join("c"));
        fs::rename(&a, &c).unwrap();
        let daemon = datastore.start();
        assert_eq!(listed(&datastore), [pair("c", "open")], "{store}");
        daemon.stop();
        // A copy does not become the VM by having the VM's former name.
        copy(&c, &a);
        let daemon = datastore.start();
        assert_eq!(listed(&datastore), [pair("a", "broken"), pair("c", "open")], "{store}");
        daemon.stop();
        // Both have been renamed, so no record says which one is the VM.
        fs::rename(&c, &b).unwrap();
        fs::rename(&a, datastore.path().join("d")).unwrap();
        let daemon = datastore.start();
        assert_eq!(listed(&datastore), [pair("b", "broken"), pair("d", "broken")], "{store}");
        datastore.json("vm remove d");
        datastore.json("vm open b");
        io(&datastore, "b/disk0", "read -P 1 0 1M");
        daemon.stop();
        let _ = fs::remove_dir_all(datastore.path().join("d"));
        let daemon = datastore.start();
        assert_eq!(datastore.json("vm list")[0]["name"], json!("b"), "{store}");
        daemon.stop();
    }
}
