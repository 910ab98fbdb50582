//! A sealed state never changes, whatever the guest writes meanwhile.

use std::thread;

use crate::daemon::{Datastore, copy};
use crate::guest::seed;
use crate::nbd::Nbd;
use crate::programs::{tool, try_tool};
use crate::tools::{Twin, assert_same, run_script};

const SIZE: u64 = 64 << 20;

#[test]
fn a_snapshot_is_served_read_only_while_writes_go_on() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 64M");
    let uri = datastore.uri("web/disk0");
    let mut twin = Twin::new(&datastore, SIZE, seed());
    twin.scribble(&uri, 40);
    let then = datastore.beside("then.raw");
    copy(&twin.path, &then);
    datastore.json("snapshot take web then");

    let sealed = datastore.uri("web/disk0@then");
    thread::scope(|scope| {
        let writer = scope.spawn(|| twin.scribble(&uri, 80));
        while !writer.is_finished() {
            assert_same(&then, "raw", &sealed);
        }
        writer.join().unwrap();
    });
    assert_same(&then, "raw", &sealed);
    twin.assert_same_as("raw", &uri);

    let refused = try_tool("qemu-io", &["-f", "raw", "-c", "write 0 4k", &sealed]);
    assert!(!refused.status.success(), "a sealed state was written");
    assert_same(&then, "raw", &sealed);
    daemon.stop();
}

#[test]
fn a_state_with_a_reader_is_not_committed() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 64M");
    run_script(&datastore.uri("web/disk0"), &["write -P 1 0 1M".to_owned()]);
    datastore.json("snapshot take web then");
    let mut reader = Nbd::attach(&datastore.nbd_socket(), "web/disk0@then").unwrap();
    assert_eq!(reader.read(0, 512).unwrap(), [1; 512]);
    let (code, said) = datastore.fails("snapshot commit web then --yes");
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("then"), "{said}");
    drop(reader);
    tool("nbdinfo", &[&datastore.uri("web/disk0")]);
    // The daemon notices the reader's end asynchronously, so the test retries.
    while datastore.run("snapshot commit web then --yes").status.code() == Some(3) {}
    assert_eq!(datastore.json("snapshot tree web")["snapshots"], serde_json::json!([]));
    daemon.stop();
}

#[test]
fn twelve_disks_are_taken_at_one_instant_and_committed() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let sizes = ["8M"; 12].join(",");
    datastore.json(&format!("vm create many --store redo --disk {sizes}"));
    for disk in 0..12 {
        let pattern = format!("write -P {} 0 8M", disk + 1);
        run_script(&datastore.uri(&format!("many/disk{disk}")), &[pattern]);
    }
    datastore.json("snapshot take many a");
    for disk in 0..12 {
        let script = ["write -P 200 1M 1M".to_owned(), format!("read -P {} 2M 1M", disk + 1)];
        run_script(&datastore.uri(&format!("many/disk{disk}")), &script);
    }
    let job = datastore.json("snapshot commit many a --yes");
    assert_eq!((&job["state"], &job["bytes_done"]), (&"done".into(), &(12 << 20).into()));
    for disk in 0..12 {
        let script = [
            format!("read -P {} 0 1M", disk + 1),
            "read -P 200 1M 1M".into(),
            format!("read -P {} 2M 6M", disk + 1),
        ];
        run_script(&datastore.uri(&format!("many/disk{disk}")), &script);
    }
    let events = datastore.json("events many");
    let take = events.as_array().unwrap().iter().find(|e| e["operation"] == "take").unwrap();
    assert_eq!(take["disks"].as_array().unwrap().len(), 12, "{take}");
    daemon.stop();
}

#[test]
fn a_snapshot_is_renamed_under_its_guest_and_stays_what_it_is() {
    let datastore = Datastore::new();
    let mut daemon = datastore.start();
    for store in ["redo", "native"] {
        datastore.json(&format!("vm create {store} --disk 16M --store {store}"));
        run_script(&datastore.uri(&format!("{store}/disk0")), &["write -P 1 0 1M".to_owned()]);
        let taken = datastore.json(&format!("snapshot take {store} a"))["snapshot"].clone();
        datastore.json(&format!("snapshot take {store} other"));
        // A guest writes, and a reader has the sealed state open.
        let mut nbd = Nbd::attach(&datastore.nbd_socket(), &format!("{store}/disk0")).unwrap();
        let mut sealed = Nbd::attach(&datastore.nbd_socket(), &format!("{store}/disk0@a")).unwrap();
        let renamed = datastore.json(&format!("snapshot rename {store} a before-2.0 --message why"));
        assert_eq!(
            (&renamed["id"], &renamed["name"], &renamed["message"], &renamed["created_by"]),
            (&taken["id"], &"before-2.0".into(), &"why".into(), &taken["created_by"])
        );
        assert_eq!(nbd.write(0, &[2; 4096]).unwrap(), 0);
        assert_eq!(sealed.read(0, 4096).unwrap(), [1; 4096]);
        nbd.flush().unwrap();
        drop((nbd, sealed));
        let (code, said) = datastore.fails(&format!("snapshot rename {store} before-2.0 other"));
        assert!(code == 3 && said.contains("exists"), "{code}: {said}");
        let (code, said) = datastore.fails(&format!("snapshot rename {store} a b"));
        assert!(code == 4 && said.contains("before-2.0"), "{code}: {said}");
        // Another description alone.
        datastore.json(&format!("snapshot rename {store} before-2.0 --message because"));
        daemon.kill();
        daemon = datastore.start();
        let tree = datastore.json(&format!("snapshot tree {store}"));
        let shown = &tree["snapshots"][0];
        assert_eq!((&shown["name"], &shown["message"]), (&"before-2.0".into(), &"because".into()));
        let mut sealed = Nbd::attach(&datastore.nbd_socket(), &format!("{store}/disk0@before-2.0")).unwrap();
        assert_eq!(sealed.read(0, 4096).unwrap(), [1; 4096]);
        drop(sealed);
        let events = datastore.json(&format!("events {store}"));
        let of_renames = events.as_array().unwrap().iter().filter(|event| event["operation"] == "rename");
        assert_eq!(of_renames.count(), 2);
        datastore.json(&format!("snapshot revert {store} before-2.0 --yes"));
    }
    let vmsd = std::fs::read_to_string(datastore.path().join("redo/redo.vmsd")).unwrap();
    assert!(vmsd.contains("displayName = \"before-2.0\"") && vmsd.contains("because"), "{vmsd}");
    daemon.stop();
}
