//! A datastore without a free byte, on which guest writes wait: its messages, and every command that frees space.
//!
//! The tests need root and a loop device; without them they say so and pass.

use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Datastore};
use crate::nbd::Nbd;
use crate::space::{DEADLINE, Mounted, until};

const MIB: u32 = 1 << 20;
/// Size of the file system. The guest writes more than is free inside a new store, and less than fits: a store grows by
/// groups of 128 MiB.
const IMAGE_BYTES: u64 = 1 << 30;
const WRITTEN_MIB: u64 = 300;

/// VM `web` in the full datastore `small`, and a guest that writes more than is free.
struct Full {
    small: Mounted,
    datastore: Datastore,
}

impl Full {
    fn new() -> Option<Full> {
        Some(Full { small: Mounted::of(IMAGE_BYTES)?, datastore: Datastore::new() })
    }

    /// Writes 8 MiB before a snapshot and 2 MiB after it, and then fills the datastore to the last byte.
    fn start(&self, store: &str) -> Daemon<'_> {
        let daemon = self.datastore.start();
        self.json(&format!("datastore add small={}", self.small.path().display()));
        self.datastore.json_at("small", &format!("vm create web --disk 512M --store {store}"));
        let mut nbd = self.attach();
        for at in 0..8 {
            assert_eq!(nbd.write(at * u64::from(MIB), &[1; MIB as usize]).unwrap(), 0);
        }
        nbd.flush().unwrap();
        self.json("snapshot take web before");
        for at in 0..2 {
            assert_eq!(nbd.write(at * u64::from(MIB), &[2; MIB as usize]).unwrap(), 0);
        }
        nbd.flush().unwrap();
        self.small.fill();
        daemon
    }

    fn json(&self, line: &str) -> Value {
        self.datastore.json(line)
    }

    fn attach(&self) -> Nbd {
        Nbd::attach(&self.datastore.nbd_socket(), "web/disk0").unwrap()
    }

    /// Writes from 3 to 8 MiB. The answer arrives when all of it is written, or when the connection is cut.
    fn write_beyond(&self) -> Receiver<bool> {
        let (done, result) = channel();
        let socket = self.datastore.nbd_socket();
        thread::spawn(move || {
            let written = Nbd::attach(&socket, "web/disk0").and_then(|mut nbd| {
                for at in 8..WRITTEN_MIB {
                    nbd.write(at * u64::from(MIB), &[3; MIB as usize])?;
                }
                nbd.flush()
            });
            let _ = done.send(written.is_ok());
        });
        until("a write that waits", || {
            (self.json("vm show web")["waiting_writes"] != json!(0)).then_some(())
        });
        result
    }

    fn check(&self, beyond: u8) {
        let mut nbd = self.attach();
        for (mib, expected) in [(0, 2), (1, 2), (2, 1), (7, 1), (8, beyond), (WRITTEN_MIB - 1, beyond)] {
            let data = nbd.read(mib * u64::from(MIB), MIB).unwrap();
            assert!(
                data.iter().all(|byte| *byte == expected),
                "MiB {mib} is not {expected}: {:?}",
                &data[..8]
            );
        }
    }
}

fn what_is_said_of_it(store: &str) {
    let Some(full) = Full::new() else { return };
    let daemon = full.start(store);
    let result = full.write_beyond();
    let status = full.json("status");
    let row = &status["full"][0];
    assert_eq!((&row["datastore"], &row["waiting"][0]["vm"]), (&json!("small"), &json!("web")), "{status}");
    let first = String::from_utf8(full.datastore.run("status").stdout).unwrap();
    assert!(first.starts_with("FULL") && first.contains("snapshot commit web before"), "{first}");
    let list = String::from_utf8(full.datastore.run("vm list").stdout).unwrap();
    assert!(list.contains("web: guest writes wait"), "{list}");
    let (code, refused) = full.datastore.at("small", "vm create more --disk 1G");
    assert!(code == 1 && refused.contains("snapshot commit web before"), "{refused}");
    // When space is freed elsewhere, the writes continue automatically.
    full.small.give_back();
    assert!(result.recv_timeout(DEADLINE).unwrap(), "the waiting writes succeed");
    assert_eq!(full.json("status")["full"], json!([]));
    full.check(3);
    daemon.stop();
}

#[test]
fn with_deltas_it_says_who_waits_and_what_frees_space() {
    what_is_said_of_it("redo");
}

#[test]
fn with_a_native_store_it_says_who_waits_and_what_frees_space() {
    what_is_said_of_it("native");
}

fn clients_that_wait_can_go(store: &str) {
    let Some(full) = Full::new() else { return };
    let daemon = full.start(store);
    let socket = full.datastore.nbd_socket();
    let uri = full.datastore.uri("web/disk0");
    let mut guest = Command::new("qemu-io")
        .args(["-f", "raw", "-c", &format!("write -P 3 8M {}M", WRITTEN_MIB - 8), &uri])
        .stdout(Stdio::null())
        .spawn()
        .expect("qemu-io; `make setup` installs it");
    until("a write that waits", || (full.json("vm show web")["waiting_writes"] != json!(0)).then_some(()));
    guest.kill().unwrap();
    guest.wait().unwrap();
    until("the client to be gone", || (full.json("vm show web")["nbd_clients"] == json!(0)).then_some(()));
    assert_eq!(full.json("vm show web")["waiting_writes"], json!(0));
    // Another client writes blocks that are already allocated.
    let mut other = Nbd::attach(&socket, "web/disk0").unwrap();
    assert_eq!(other.write(0, &[2; 4096]).unwrap(), 0);
    drop(other);
    let result = full.write_beyond();
    full.json("vm close web --disconnect");
    assert!(!result.recv_timeout(DEADLINE).unwrap(), "its connection was cut");
    full.json("vm open web");
    let result = full.write_beyond();
    daemon.stop();
    assert!(!result.recv_timeout(DEADLINE).unwrap(), "its connection was cut");
    let daemon = full.datastore.start();
    full.json("vm open web");
    full.attach();
    daemon.stop();
}

#[test]
fn clients_whose_writes_to_deltas_wait_can_go() {
    clients_that_wait_can_go("redo");
}

#[test]
fn clients_whose_writes_to_a_native_store_wait_can_go() {
    clients_that_wait_can_go("native");
}

fn a_vm_leaves_while_its_guest_waits(store: &str) {
    let Some(full) = Full::new() else { return };
    let daemon = full.start(store);
    let result = full.write_beyond();
    let job = full.json(&format!("vm move web --to ds --store {store} --detach"))["id"].clone();
    let ended = until("the move", || {
        let jobs = full.json("job list");
        let job = jobs.as_array().unwrap().iter().find(|one| one["id"] == job).unwrap().clone();
        (!["running", "waiting_for_space"].contains(&job["state"].as_str().unwrap())).then_some(job)
    });
    assert_eq!(ended["state"], "done", "{ended}");
    assert!(result.recv_timeout(DEADLINE).unwrap(), "the waiting writes succeed on the other side");
    assert_eq!(full.json("vm show web")["datastore"], "ds");
    full.check(3);
    full.json("snapshot revert web before --yes --disconnect");
    full.json("vm open web");
    assert!(full.attach().read(0, MIB).unwrap().iter().all(|byte| *byte == 1));
    daemon.stop();
}

#[test]
fn a_vm_with_deltas_leaves_while_its_guest_waits() {
    a_vm_leaves_while_its_guest_waits("redo");
}

#[test]
fn a_native_vm_leaves_while_its_guest_waits() {
    a_vm_leaves_while_its_guest_waits("native");
}

/// Each command frees space, or at least does not prevent others from doing so.
fn verbs_that_free_space(store: &str) {
    let Some(full) = Full::new() else { return };
    let daemon = full.start(store);
    full.small.give_back();
    for name in ["old", "rested", "idle"] {
        full.datastore.json_at("small", &format!("vm create {name} --disk 1M --store {store}"));
    }
    full.json("snapshot take idle one");
    full.json("snapshot take idle two");
    full.json("vm close rested");
    full.small.fill();
    let result = full.write_beyond();
    full.json("vm remove old --delete-disks --purge --yes");
    full.json("vm remove rested --delete-disks --purge --yes");
    full.json("snapshot commit idle two --yes");
    full.json("snapshot discard idle one --yes");
    full.json("vm close idle");
    full.json("vm open idle");
    full.json("snapshot commit web --all --yes --detach");
    full.small.give_back();
    assert!(result.recv_timeout(DEADLINE).unwrap(), "the waiting writes succeed");
    full.check(3);
    daemon.stop();
    let daemon = full.datastore.start();
    full.json("vm open web");
    full.check(3);
    daemon.stop();
}

#[test]
fn verbs_that_free_space_of_deltas_work_without_any() {
    verbs_that_free_space("redo");
}

#[test]
fn verbs_that_free_space_of_a_native_store_work_without_any() {
    verbs_that_free_space("native");
}

/// The commit has to place 14 MiB of one table of an SEsparse delta into a thin base, and no byte is free: they fit into the
/// space that the VM has set aside.
#[test]
fn a_commit_of_an_sesparse_delta_ends_without_a_free_byte() {
    let Some(full) = Full::new() else { return };
    let daemon = full.datastore.start();
    full.json(&format!("datastore add small={}", full.small.path().display()));
    full.datastore.json_at("small", "vm create web --disk 512M --store redo");
    full.json("snapshot take web before --delta sesparse");
    let mut nbd = full.attach();
    for at in 17..31 {
        assert_eq!(nbd.write(at * u64::from(MIB), &[at as u8; MIB as usize]).unwrap(), 0);
    }
    nbd.flush().unwrap();
    full.small.fill();
    full.json("snapshot commit web before --yes");
    full.small.fill();
    for at in 17..31 {
        let data = nbd.read(at * u64::from(MIB), MIB).unwrap();
        assert!(data.iter().all(|byte| u64::from(*byte) == at), "MiB {at}: {:?}", &data[..8]);
    }
    drop(nbd);
    daemon.stop();
}

#[test]
fn a_vm_leaves_the_full_main_datastore_for_one_that_is_added_then() {
    let Some(small) = Mounted::of(IMAGE_BYTES) else { return };
    let datastore = Datastore::new();
    std::fs::remove_dir(datastore.path()).unwrap();
    std::os::unix::fs::symlink(small.path(), datastore.path()).unwrap();
    let daemon = datastore.start_as(&["--cores", "2"]);
    datastore.json("vm create first --disk 16M --store redo");
    datastore.json("vm create web --disk 512M --store redo");
    assert_eq!(datastore.json("vm show web")["core"], 1);
    let mut nbd = Nbd::attach(&datastore.nbd_socket(), "web/disk0").unwrap();
    assert_eq!(nbd.write(0, &[1; MIB as usize]).unwrap(), 0);
    small.fill();
    let socket = datastore.nbd_socket();
    let writing = thread::spawn(move || {
        (1..4).all(|at| nbd.write(at * u64::from(MIB), &[2; MIB as usize]).is_ok_and(|errno| errno == 0))
            && nbd.flush().is_ok()
    });
    until("a write that waits", || {
        (datastore.json("vm show web")["waiting_writes"] != json!(0)).then_some(())
    });
    let other = datastore.beside("other");
    std::fs::create_dir(&other).unwrap();
    datastore.json(&format!("datastore add other={}", other.display()));
    let job = datastore.json("vm move web --to other");
    assert_eq!(job["state"], "done", "{job}");
    assert!(writing.join().unwrap(), "the writes that waited are answered");
    let mut nbd = Nbd::attach(&socket, "web/disk0").unwrap();
    for (at, expected) in [(0, 1), (1, 2), (3, 2)] {
        assert_eq!(nbd.read(at * u64::from(MIB), MIB).unwrap(), [expected; MIB as usize], "MiB {at}");
    }
    drop(nbd);
    daemon.stop();
}
