//! Datastores whose paths have something else at the start: an empty mount point, another datastore, or a copy.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::copies::copy;
use crate::daemon::Datastore;
use crate::datastores::folder;
use crate::space::until;
use crate::tools::run_script;

const STORES: [&str; 2] = ["native", "redo"];

fn io(datastore: &Datastore, script: &str) {
    run_script(&datastore.uri("bank/disk0"), &[script.to_owned()]);
}

/// Starts and ends a daemon with the datastore `fast`, which has the VM `bank`.
fn with_bank(datastore: &Datastore, store: &str) -> PathBuf {
    let second = folder(datastore, "second");
    let daemon = datastore.start();
    datastore.json(&format!("datastore add fast={}", second.display()));
    datastore.json_at("fast", &format!("vm create bank --disk 16M --store {store}"));
    io(datastore, "write -P 1 0 1M");
    daemon.stop();
    second
}

/// Returns why the datastore `fast` is not served, in the list and for an operation.
fn why_not_served(datastore: &Datastore) -> String {
    let listed = datastore.json("datastore list");
    let row = listed.as_array().unwrap().iter().find(|row| row["name"] == "fast").unwrap();
    assert_eq!(row["condition"], "broken", "{listed}");
    assert_eq!(datastore.json("vm list"), Value::Array(Vec::new()));
    let (code, said) = datastore.at("fast", "vm create bank --disk 16M");
    assert!(code == 4 && said.contains("is not served"), "{code}: {said}");
    row["message"].as_str().unwrap().to_owned()
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn an_empty_mount_point_is_not_served_as_the_datastore() {
    for store in STORES {
        let datastore = Datastore::new();
        let second = with_bank(&datastore, store);
        let hidden = datastore.beside("hidden");
        fs::rename(&second, &hidden).unwrap();
        fs::create_dir(&second).unwrap();

        let daemon = datastore.start();
        let said = why_not_served(&datastore);
        assert!(said.contains("is its file system mounted?"), "{said}");
        until("its alarm", || datastore.json("alarm list").to_string().contains("mounted").then_some(()));
        for (line, reason) in [("fast", "mounted"), ("other", "datastore fast of this daemon")] {
            let (code, said) = datastore.fails(&format!("datastore add {line}={}", second.display()));
            assert!(code != 0 && said.contains(reason), "{code}: {said}");
        }
        assert!(is_empty(&second), "something was created in the mount point");
        fs::remove_dir(&second).unwrap();
        fs::rename(&hidden, &second).unwrap();
        datastore.json(&format!("datastore add fast={}", second.display()));
        io(&datastore, "read -P 1 0 1M");
        daemon.kill();
        let daemon = datastore.start();
        io(&datastore, "read -P 1 0 1M");
        daemon.stop();
    }
}

#[test]
fn another_datastore_at_the_path_is_served_only_once_the_former_one_is_removed() {
    let datastore = Datastore::new();
    let second = with_bank(&datastore, "redo");
    let (hidden, moved) = (datastore.beside("hidden"), datastore.beside("moved"));
    fs::rename(&second, &hidden).unwrap();
    let other = Datastore::called("other");
    other.start().stop();
    fs::rename(other.path(), &second).unwrap();

    let daemon = datastore.start();
    assert!(why_not_served(&datastore).contains("datastore remove fast"));
    // The datastore itself may be at another path.
    fs::rename(&hidden, &moved).unwrap();
    datastore.json(&format!("datastore add fast={}", moved.display()));
    io(&datastore, "read -P 1 0 1M");
    daemon.kill();
    let daemon = datastore.start();
    io(&datastore, "read -P 1 0 1M");
    datastore.json("datastore remove fast --yes");
    datastore.json(&format!("datastore add {}", second.display()));
    daemon.stop();
}

/// A version without IDs has added it.
#[test]
fn a_datastore_without_an_id_gets_one_at_the_start() {
    let datastore = Datastore::new();
    let second = with_bank(&datastore, "native");
    let (hidden, ids) = (datastore.beside("hidden"), datastore.path().join(".unstun/datastore-ids"));
    let id = second.join(".unstun/datastore-id");
    let forget = || [&ids, &id].map(|file| fs::remove_file(file).unwrap());

    forget();
    fs::rename(&second, &hidden).unwrap();
    fs::create_dir(&second).unwrap();
    let daemon = datastore.start();
    assert!(why_not_served(&datastore).contains("mounted"));
    daemon.stop();
    fs::remove_dir(&second).unwrap();
    fs::rename(&hidden, &second).unwrap();

    let daemon = datastore.start();
    io(&datastore, "read -P 1 0 1M");
    daemon.stop();
    let recorded = fs::read_to_string(&ids).unwrap();
    let expected = format!("{} {}\n", fs::read_to_string(&id).unwrap().trim(), second.display());
    assert_eq!(recorded, expected);
}

/// Refuses the copy whatever its path and name, and whether or not the original is served.
#[test]
fn a_copy_of_a_datastore_is_not_served_beside_it_or_in_its_place() {
    for store in STORES {
        let datastore = Datastore::new();
        let second = with_bank(&datastore, store);
        let (twin, hidden) = (datastore.beside("twin"), datastore.beside("hidden"));
        copy(&second, &twin);

        let daemon = datastore.start();
        io(&datastore, "write -P 2 0 1M");
        let add = format!("datastore add {}", twin.display());
        let refused = |reason: &str| {
            let (code, said) = datastore.fails(&add);
            assert!(
                code == 3 && said.contains("is a copy of datastore fast") && said.contains(reason),
                "{said}"
            );
        };
        refused("datastore remove fast");
        daemon.stop();
        fs::rename(&second, &hidden).unwrap();
        let daemon = datastore.start();
        refused(&format!("datastore add fast={}", twin.display()));
        assert_eq!(datastore.json("vm list"), Value::Array(Vec::new()));
        fs::rename(&hidden, &second).unwrap();
        datastore.json(&format!("datastore add fast={}", second.display()));
        io(&datastore, "read -P 2 0 1M");
        // The user decides for the copy.
        datastore.json("datastore remove fast --yes");
        datastore.json(&add);
        io(&datastore, "read -P 1 0 1M");
        daemon.stop();
    }
}

/// The copies are older than the IDs of datastores, or a register names both.
#[test]
fn a_copy_of_a_store_is_left_out_at_the_start() {
    let datastore = Datastore::new();
    let second = with_bank(&datastore, "native");
    let twin = datastore.beside("twin");
    copy(&second, &twin);
    fs::remove_file(twin.join(".unstun/datastore-id")).unwrap();
    let register = datastore.path().join(".unstun/datastores");
    let mut register = fs::OpenOptions::new().append(true).open(register).unwrap();
    writeln!(register, "twin {}", twin.display()).unwrap();

    let daemon = datastore.start();
    let listed = datastore.json("datastore list");
    let row = listed.as_array().unwrap().iter().find(|row| row["name"] == "twin").unwrap();
    assert!(row["message"].as_str().unwrap_or_default().contains("is a copy of datastore fast"), "{listed}");
    io(&datastore, "read -P 1 0 1M");
    assert_eq!(datastore.json("vm list").as_array().unwrap().len(), 1);
    // A copy of the main datastore is one, too.
    let own = datastore.beside("own");
    daemon.stop();
    copy(&datastore.path(), &own);
    let daemon = datastore.start();
    let (code, said) = datastore.fails(&format!("datastore add {}", own.display()));
    assert!(code == 3 && said.contains("main datastore"), "{said}");
    daemon.stop();
}
