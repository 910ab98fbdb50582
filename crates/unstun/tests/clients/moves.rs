//! Moves of a VM from its own files into the store and back while clients stay attached: every state of it reads the
//! same.

use std::thread;

use serde_json::json;

use crate::daemon::Datastore;
use crate::nbd::Nbd;
use crate::tools::{Branched, assert_same, run_script, snapshots};

#[test]
fn a_guest_writes_on_while_its_chain_is_absorbed_and_written_out_again() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let Branched { mut twin, then, uri } = Branched::web(&datastore);
    let tree = snapshots(&datastore, "web");
    for (store, format) in [("native", "native"), ("redo", "vmfssparse")] {
        thread::scope(|scope| {
            let writer = scope.spawn(|| twin.scribble(&uri, 60));
            let job = datastore.json(&format!("vm move web --store {store}"));
            assert_eq!((&job["operation"], &job["state"]), (&json!("move"), &json!("done")), "{job}");
            writer.join().unwrap();
        });
        let shown = datastore.json("vm show web");
        let layer = shown["disks"][0]["layers"].as_array().unwrap().last().unwrap();
        assert_eq!((&shown["store"], &layer["format"]), (&json!(store), &json!(format)), "{shown}");
        assert_eq!(snapshots(&datastore, "web"), tree);
        twin.assert_same_as("raw", &uri);
        assert_same(&then, "raw", &datastore.uri("web/disk0@a"));
    }
    daemon.stop();
    let daemon = datastore.start();
    twin.assert_same_as("raw", &uri);
    assert_same(&then, "raw", &datastore.uri("web/disk0@a"));
    daemon.stop();
}

#[test]
fn one_client_stays_attached_and_is_counted_on_the_other_side() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M --store redo");
    let mut guest = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    let write = |line: &str| run_script(&datastore.uri("web/disk0"), &[line.to_owned()]);
    write("write -P 7 4k 4k");
    datastore.json("vm move web/disk0 --store native");
    assert_eq!(guest.read(4096, 4096).unwrap(), [7; 4096]);
    write("write -P 8 8k 4k");
    assert_eq!(guest.read(8192, 4096).unwrap(), [8; 4096]);
    guest.flush().unwrap();
    let files = std::fs::read_dir(datastore.path().join("web")).unwrap();
    let left: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(left, [".unstun"], "its files are gone");
    datastore.json("snapshot take web a");
    let (code, said) = datastore.fails("snapshot revert web a --yes");
    assert!(code == 3 && said.contains("disk0"), "the client is still one: {said}");
    drop(guest);
    daemon.kill();

    let daemon = datastore.start();
    run_script(&datastore.uri("web/disk0"), &["read -P 7 4k 4k".to_owned(), "read -P 8 8k 4k".to_owned()]);
    let reader = Nbd::attach(&datastore.nbd_socket(), "web/disk0@a").unwrap();
    for (line, code, word) in [
        ("vm move web --store native", 3, "already"),
        ("vm move web --store redo", 3, "reads a"),
        ("vm move web/disk1 --store redo", 4, "disk1"),
        ("vm move absent --store redo", 4, "absent"),
    ] {
        let (found, said) = datastore.fails(line);
        assert!(found == code && said.contains(word), "{line}: {found}: {said}");
    }
    drop(reader);
    let settings = datastore.path().join("web").join("web.nvram");
    std::fs::write(&settings, b"mine").unwrap();
    let (code, said) = datastore.fails("vm move web --store redo");
    assert!(code == 3 && said.contains("web.nvram"), "{said}");
    assert_eq!(std::fs::read(&settings).unwrap(), b"mine");
    assert_eq!(datastore.json("vm show web")["store"], "native");
    daemon.stop();
}

#[test]
fn a_move_that_is_cancelled_or_killed_leaves_the_vm_where_it_was() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 64M --store redo");
    let uri = datastore.uri("web/disk0");
    run_script(&uri, &["write -P 1 0 32M".to_owned()]);
    let job = datastore.json("vm move web --store native --detach")["id"].clone();
    datastore.json(&format!("job limit {job} 1M"));
    let (code, said) = datastore.fails("snapshot take web a");
    assert!(code == 3 && said.contains("moved"), "{said}");
    assert_eq!(datastore.json(&format!("job cancel {job}"))["state"], "cancelled");
    assert_eq!(datastore.json("vm show web")["store"], "redo");
    run_script(&uri, &["read -P 1 0 32M".to_owned(), "write -P 2 0 1M".to_owned()]);

    let job = datastore.json("vm move web --store native --detach")["id"].clone();
    datastore.json(&format!("job limit {job} 1M"));
    daemon.kill();
    let daemon = datastore.start();
    assert_eq!(datastore.json("vm show web")["store"], "redo");
    assert_eq!(datastore.json("vm list").as_array().unwrap().len(), 1, "no half VM is left");
    run_script(&uri, &["read -P 2 0 1M".to_owned(), "read -P 1 1M 31M".to_owned()]);
    datastore.json("vm move web --store native");
    run_script(&uri, &["read -P 2 0 1M".to_owned(), "read -P 1 1M 31M".to_owned()]);

    let job = datastore.json("vm move web --store redo --detach")["id"].clone();
    datastore.json(&format!("job limit {job} 1M"));
    daemon.kill();
    let daemon = datastore.start();
    assert_eq!(datastore.json("vm show web")["store"], "native");
    run_script(&uri, &["read -P 2 0 1M".to_owned(), "read -P 1 1M 31M".to_owned()]);
    datastore.json("vm move web --store redo");
    run_script(&uri, &["read -P 2 0 1M".to_owned(), "read -P 1 1M 31M".to_owned()]);
    daemon.stop();
}
