//! Several datastores in one daemon: added at run time, remembered, and independent of each other.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Datastore};
use crate::nbd::Nbd;
use crate::space::until;
use crate::tools::run_script;

/// Creates a folder for a second datastore.
pub(crate) fn folder(datastore: &Datastore, name: &str) -> PathBuf {
    let folder = datastore.beside(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Starts a daemon with a second datastore, `second`.
pub(crate) fn two(datastore: &Datastore) -> (Daemon<'_>, PathBuf) {
    let second = folder(datastore, "second");
    let daemon = datastore.start();
    datastore.json(&format!("datastore add {}", second.display()));
    (daemon, second)
}

/// Starts a daemon as `two` does, with the VM web in the main datastore and db in the second one.
fn two_inhabited(datastore: &Datastore) -> (Daemon<'_>, PathBuf) {
    let (daemon, second) = two(datastore);
    datastore.json("vm create web --disk 16M");
    datastore.json_at("second", "vm create db --disk 16M");
    (daemon, second)
}

fn io(datastore: &Datastore, export: &str, line: &str) {
    run_script(&datastore.uri(export), &[line.to_owned()]);
}

fn row<'a>(list: &'a Value, name: &str) -> &'a Value {
    list.as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == name)
        .unwrap_or_else(|| panic!("{name}: {list}"))
}

#[test]
fn datastores_are_added_used_and_remembered() {
    let datastore = Datastore::new();
    let second = folder(&datastore, "second");
    let daemon = datastore.start();
    let added = datastore.json(&format!("datastore add fast={}", second.display()));
    assert_eq!(
        (&added["name"], &added["path"], &added["is_main"]),
        (&json!("fast"), &json!(second), &json!(false))
    );
    // A command names a datastore by its name or by its folder.
    datastore.json("vm create web --disk 16M");
    datastore.json_at("fast", "vm create db --disk 16M");
    datastore.json_at(second.to_str().unwrap(), "vm create old --disk 16M --store redo");
    for (vm, pattern) in [("web", 1), ("db", 2), ("old", 3)] {
        io(&datastore, &format!("{vm}/disk0"), &format!("write -P {pattern} 0 1M"));
        datastore.json(&format!("snapshot take {vm} a"));
    }
    let shown = datastore.json("vm show db");
    assert_eq!((&shown["datastore"], &shown["home"]), (&json!("fast"), &json!(second.join("db"))));
    assert_eq!(shown["disks"][0]["descriptor"], json!(second.join("store.unstun")));
    let clone = datastore.json("vm clone db@a twin");
    assert_eq!((&clone["datastore"], &clone["home"]), (&json!("fast"), &json!(second.join("twin"))));
    let listed = datastore.json_at("fast", "vm list");
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|vm| vm["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["db", "old", "twin"]);
    assert_eq!(datastore.json("vm list").as_array().unwrap().len(), 4);
    let space = datastore.json("space db");
    assert_eq!(
        (&space["datastore"], &space["shared_bytes"]),
        (&json!("fast"), &json!(1 << 20)),
        "the clone reads it"
    );
    for line in ["check", "scrub"] {
        let both = datastore.json(line);
        let fields = both["findings"].as_array().unwrap().iter().map(|one| one["field"].as_str().unwrap());
        // A check of stores reports that it has not read the files of VM old.
        let expected: &[&str] = if line == "check" { &["check"] } else { &[] };
        assert_eq!(fields.collect::<Vec<_>>(), expected, "{both}");
        assert_eq!(both["path"], json!(datastore.path()));
        assert_eq!(datastore.json_at("fast", line)["path"], json!(second.join("store.unstun")));
    }
    let status = datastore.json("status");
    assert_eq!((&status["vms"], &row(&status["datastores"], "fast")["vms"]), (&json!(4), &json!(3)));
    for (line, code, word) in [
        ("vm create db --disk 16M".to_owned(), 3, "db"),
        (format!("datastore add {}", second.display()), 3, "already"),
        (
            format!("datastore add inner={}", folder(&datastore, "second/inner").display()),
            3,
            "one contains the other",
        ),
        ("datastore add none=/nowhere/at/all".to_owned(), 4, "no such folder"),
        ("datastore remove ds --yes".to_owned(), 3, "main datastore"),
        ("datastore remove slow --yes".to_owned(), 4, "slow"),
    ] {
        let (found, said) = datastore.fails(&line);
        assert!(found == code && said.contains(word), "{line}: {found}: {said}");
    }
    daemon.kill();
    let daemon = datastore.start();
    for (vm, pattern) in [("web", 1), ("db", 2), ("twin", 2), ("old", 3)] {
        io(&datastore, &format!("{vm}/disk0"), &format!("read -P {pattern} 0 1M"));
    }
    daemon.stop();
}

#[test]
fn one_that_is_removed_is_another_daemons_to_serve() {
    let (datastore, other) = (Datastore::new(), Datastore::called("two"));
    let daemon = datastore.start();
    datastore.json(&format!("datastore add {}", other.path().display()));
    datastore.json_at("two", "vm create web --disk 16M");
    io(&datastore, "web/disk0", "write -P 1 0 1M");
    let (code, said) = other.fails("up");
    assert!(code == 5 && said.contains(".unstun/lock"), "{said}");
    // The daemon that serves the datastore answers commands that name it.
    assert_eq!(other.json("vm list")[0]["name"], "web");
    let guest = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    let (code, said) = datastore.fails("datastore remove two --yes");
    assert!(code == 3 && said.contains("disk0"), "{said}");
    drop(guest);
    datastore.json("datastore remove two --yes");
    assert_eq!(datastore.json("vm list"), json!([]));
    let apart = other.start();
    io(&other, "web/disk0", "read -P 1 0 1M");
    // Both daemons want it at their next start. The second one reports which daemon has it, and serves the rest.
    let (code, said) = datastore.fails(&format!("datastore add {}", other.path().display()));
    assert!(code == 5 && said.contains("another unstun"), "{said}");
    apart.stop();
    datastore.json(&format!("datastore add {}", other.path().display()));
    daemon.stop();
    let apart = other.start();
    let daemon = datastore.start();
    let listed = datastore.json("datastore list");
    let two = row(&listed, "two");
    assert!(
        two["condition"] == "broken" && two["message"].as_str().unwrap().contains("another unstun"),
        "{listed}"
    );
    datastore.json("vm create db --disk 16M");
    let (code, said) = datastore.at("two", "vm create x --disk 16M");
    assert!(code == 5 && said.contains("not served"), "{said}");
    apart.stop();
    datastore.json(&format!("datastore add {}", other.path().display()));
    io(&datastore, "web/disk0", "read -P 1 0 1M");
    daemon.stop();
}

/// An administrator moves the VMs away, removes the datastore, and unmounts its file system.
#[test]
fn one_that_is_removed_has_no_open_file_even_after_a_move_or_a_scrub() {
    let datastore = Datastore::new();
    let (daemon, second) = two_inhabited(&datastore);
    let open = || {
        let handles = fs::read_dir(format!("/proc/{}/fd", daemon.id())).unwrap();
        let paths = handles.filter_map(|handle| fs::read_link(handle.unwrap().path()).ok());
        paths.filter(|path| path.starts_with(&second)).collect::<Vec<_>>()
    };
    datastore.json_at("second", "scrub");
    datastore.json("vm move db --to ds");
    assert!(!open().is_empty());
    datastore.json("datastore remove second --yes");
    // Closing a large file is left to another thread.
    until("its files to be closed", || open().is_empty().then_some(()));
    assert_eq!(datastore.json("vm list").as_array().unwrap().len(), 2);
    daemon.stop();
}

#[test]
fn one_that_is_missing_or_has_a_taken_name_in_it_keeps_no_other_from_being_served() {
    let datastore = Datastore::new();
    let (daemon, second) = two_inhabited(&datastore);
    daemon.stop();
    fs::rename(second.join("db"), datastore.beside("db")).unwrap();
    let hidden = datastore.beside("hidden");
    fs::rename(&second, &hidden).unwrap();

    let daemon = datastore.start();
    let listed = datastore.json("datastore list");
    assert!(row(&listed, "second")["message"].as_str().unwrap().contains("second"), "{listed}");
    io(&datastore, "web/disk0", "write -P 1 0 1M");
    daemon.stop();

    // Two datastores have the same name: the main one is served, the other one is reported.
    fs::rename(&hidden, &second).unwrap();
    fs::create_dir_all(second.join("web/.unstun")).unwrap();
    let daemon = datastore.start();
    let listed = datastore.json("datastore list");
    let notices = row(&listed, "second")["notices"].to_string();
    assert!(notices.contains("VM web"), "{listed}");
    io(&datastore, "web/disk0", "read -P 1 0 1M");
    // A native VM without a folder gets one in its own datastore.
    assert_eq!(datastore.json("vm show db")["home"], json!(second.join("db")));
    daemon.stop();
}

#[test]
fn a_damaged_store_is_reported_and_the_other_datastores_are_served() {
    let datastore = Datastore::new();
    let (daemon, second) = two_inhabited(&datastore);
    daemon.stop();
    let store = second.join("store.unstun");
    let bytes = fs::read(&store).unwrap();
    fs::write(&store, [&[0xff; 65536], &bytes[65536..]].concat()).unwrap();

    let daemon = datastore.start();
    io(&datastore, "web/disk0", "write -P 1 0 1M");
    let listed = datastore.json("vm list");
    let db = row(&listed, "db");
    assert!(
        db["condition"] == "broken" && db["message"].as_str().unwrap().contains("superblock"),
        "{listed}"
    );
    let (code, said) = datastore.at("second", "check");
    assert!(code != 0 && said.contains("superblock"), "{said}");
    daemon.stop();
}
