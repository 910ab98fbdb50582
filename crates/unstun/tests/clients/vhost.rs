//! A vhost-user client of the daemon: the gate, snapshots under it, a move, another size, and replaced content.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use export::vhost_user::protocol::request::*;
use export::vhost_user::protocol::*;

use crate::daemon::Datastore;
use crate::programs::tool;
use crate::vhost_client::*;

const MIB: u64 = 1 << 20;

fn socket(datastore: &Datastore) -> PathBuf {
    let shown = datastore.json("vm show web");
    shown["disks"][0]["vhost_user_socket"].as_str().expect("a socket").into()
}

fn attached(datastore: &Datastore) -> Client {
    let mut client = Client::connect(&socket(datastore), 64);
    client.set_up(FEATURES, 0);
    client.start();
    client
}

fn write(client: &mut Client, at: u64, byte: u8) {
    client.put_data(0, &[byte; 65536]);
    assert_eq!(client.execute(BLK_OUT, at / 512, 65536).0, STATUS_OK, "a write at {at}");
}

fn reads(client: &mut Client, at: u64, byte: u8) {
    assert_eq!(client.execute(BLK_IN, at / 512, 65536).0, STATUS_OK);
    assert!(client.get_data(0, 65536).iter().all(|read| *read == byte), "{byte} at {at}");
}

/// Compares parts of an export with patterns, through another client that only reads.
fn expect(datastore: &Datastore, export: &str, commands: [&str; 2]) {
    let uri = datastore.uri(export);
    let said = tool("qemu-io", &["-r", "-f", "raw", "-c", commands[0], "-c", commands[1], &uri]);
    assert!(!said.contains("failed"), "{export}: {said}");
}

fn operations_under_a_client(store: &str) {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json(&format!("vm create web --store {store} --disk 16M"));
    let mut client = attached(&datastore);
    write(&mut client, 0, 1);
    datastore.json("snapshot take web a");
    write(&mut client, 0, 2);
    write(&mut client, MIB, 3);
    expect(&datastore, "web/disk0@a", ["read -P 1 0 64k", "read -P 0 1M 64k"]);
    let job = datastore.json("snapshot commit web a --yes");
    assert_eq!(job["state"], "done", "{job}");
    reads(&mut client, 0, 2);
    let other = if store == "native" { "redo" } else { "native" };
    let moved = datastore.json(&format!("vm move web --store {other}"));
    assert_eq!(moved["state"], "done", "{moved}");
    reads(&mut client, MIB, 3);
    write(&mut client, 2 * MIB, 4);
    assert_eq!(client.execute(BLK_FLUSH, 0, 0).0, STATUS_OK);
    expect(&datastore, "web/disk0", ["read -P 4 2M 64k", "read -P 2 0 64k"]);
    daemon.stop();
}

#[test]
fn a_native_vm_is_snapshotted_and_moved_under_a_vhost_user_client() {
    operations_under_a_client("native");
}

#[test]
fn a_redo_vm_is_snapshotted_and_moved_under_a_vhost_user_client() {
    operations_under_a_client("redo");
}

#[test]
fn a_vm_of_another_core_moves_under_a_vhost_user_client() {
    for (store, other) in [("redo", "native"), ("native", "redo")] {
        let datastore = Datastore::new();
        let daemon = datastore.start_as(&["--cores", "2"]);
        datastore.json("vm create first --disk 16M");
        datastore.json(&format!("vm create web --disk 16M --store {store}"));
        let mut client = attached(&datastore);
        write(&mut client, 0, 1);
        for to in [other, store] {
            let moved = datastore.json(&format!("vm move web --store {to}"));
            assert_eq!(moved["state"], "done", "{moved}");
            reads(&mut client, 0, 1);
            write(&mut client, MIB, 2);
        }
        assert_eq!(client.execute(BLK_FLUSH, 0, 0).0, STATUS_OK);
        expect(&datastore, "web/disk0", ["read -P 1 0 64k", "read -P 2 1M 64k"]);
        // The same process connects again: its earlier connection is on the other core.
        drop(client);
        let mut client = attached(&datastore);
        reads(&mut client, MIB, 2);
        write(&mut client, MIB, 3);
        assert_eq!(datastore.json("vm show web")["core"], 0);
        daemon.stop();
    }
}

#[test]
fn a_vhost_user_client_is_the_only_writer_and_a_revert_ends_it_for_good() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    let before = socket(&datastore);
    let mut client = attached(&datastore);
    write(&mut client, 0, 1);
    datastore.json("snapshot take web a");
    write(&mut client, 0, 2);
    let shown = datastore.json("vm show web");
    assert_eq!(shown["clients"][0]["access"], "writes", "{shown}");
    assert_eq!(datastore.json("status")["nbd_clients"], 1, "of any protocol");

    let nbd = std::process::Command::new("qemu-io")
        .args(["-f", "raw", "-c", "write -P 9 0 64k"])
        .arg(datastore.uri("web/disk0"))
        .output()
        .unwrap();
    assert!(!nbd.status.success(), "a second writer");
    let (code, said) = datastore.fails("snapshot revert web a --yes");
    assert!(code != 0 && said.contains(&format!("pid {}", std::process::id())), "{said}");

    datastore.json("snapshot revert web a --yes --disconnect");
    assert!(client.is_closed());
    let after = socket(&datastore);
    assert_ne!(before, after, "the content has another generation");
    assert!(UnixStream::connect(&before).is_err(), "a client of before finds no socket");
    let mut client = attached(&datastore);
    reads(&mut client, 0, 1);
    write(&mut client, 0, 5);
    drop(client);
    daemon.kill();

    let daemon = datastore.start();
    assert_eq!(socket(&datastore), after, "the same content after a death of the daemon");
    let mut client = attached(&datastore);
    reads(&mut client, 0, 5);
    drop(client);
    datastore.json("vm close web");
    assert!(!after.exists(), "a closed VM has no socket");
    daemon.stop();
}

#[test]
fn a_vhost_user_client_learns_of_a_larger_disk() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 16M");
    let mut client = attached(&datastore);
    let (ours, theirs) = UnixStream::pair().unwrap();
    assert_eq!(client.acked(SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]), 0);
    datastore.json("vm disk grow web/disk0 32M");
    let mut message = [0; HEADER_BYTES];
    ours.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    std::io::Read::read_exact(&mut &ours, &mut message).unwrap();
    assert_eq!(message[..4], BACKEND_CONFIG_CHANGE.to_le_bytes());
    assert_eq!(client.config(0, 8), (32 * MIB / 512).to_le_bytes());
    write(&mut client, 31 * MIB, 7);
    reads(&mut client, 31 * MIB, 7);
    daemon.stop();
}

#[test]
fn the_limits_of_a_vm_apply_to_its_vhost_user_clients() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 16M");
    datastore.json("vm set web --iops 20");
    let mut client = attached(&datastore);
    let began = std::time::Instant::now();
    for _ in 0..22 {
        reads(&mut client, 0, 0);
    }
    // Two requests may run ahead; the other twenty take a second.
    assert!(began.elapsed().as_millis() >= 900, "{:?}", began.elapsed());
    datastore.json("vm set web --iops none");
    let began = std::time::Instant::now();
    for _ in 0..22 {
        reads(&mut client, 0, 0);
    }
    assert!(began.elapsed().as_millis() < 900, "{:?}", began.elapsed());
    daemon.stop();
}
