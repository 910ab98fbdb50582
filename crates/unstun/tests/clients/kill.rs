//! kill -9 under load, in takes, commits, clones and removals. The next start recovers, and no acknowledged write is
//! lost, flushed or not, so that clients may reconnect.
//!
//! `UNSTUN_KILL_CYCLES` sets the number of cycles, `UNSTUN_KILL_FS` a separate file system: `ext4` or `xfs`.
//!
//! The machine keeps running, so these tests do not cover power cuts: `lab` simulates those.

use std::collections::BTreeSet;
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::daemon::Datastore;
use crate::guest::{Guest, seed};
use crate::random::Random;
use crate::space::Mounted;

const SIZE: u64 = 24 << 20;
const CYCLES: u64 = 5;
/// Maximum number of acknowledged writes between two orders of the user.
const STEP_MAX: u64 = 1500;
const NAMES_MAX: usize = 4;
const COPIES_MAX: usize = 2;
/// Many times the space of two disks, their snapshots and the clones.
const FILE_SYSTEM_BYTES: u64 = 2 << 30;
/// Exit code of a refused command.
const REFUSED: i32 = 3;

fn cycles() -> u64 {
    std::env::var("UNSTUN_KILL_CYCLES").ok().map_or(CYCLES, |text| text.parse().expect("a number of cycles"))
}

/// An order, with the state before it and the state once it was carried out.
struct Order {
    line: String,
    names: BTreeSet<String>,
    copies: BTreeSet<String>,
}

/// Answers that the user received: snapshots that were taken and not yet committed, and clones.
struct User {
    names: BTreeSet<String>,
    copies: BTreeSet<String>,
    random: Random,
    /// Last number of a name or a clone.
    last: u64,
}

impl User {
    fn new(seed: u64) -> User {
        User { names: BTreeSet::new(), copies: BTreeSet::new(), random: Random(seed), last: 0 }
    }

    fn any(&mut self, of: &BTreeSet<String>) -> Option<String> {
        let at = self.random.below(of.len().max(1) as u64) as usize;
        of.iter().nth(at).cloned()
    }

    fn draw(&mut self) -> Order {
        let (mut names, mut copies) = (self.names.clone(), self.copies.clone());
        let (name, copy) = (self.any(&names), self.any(&copies));
        self.last += 1;
        let line = match (self.random.below(6), name, copy) {
            (0, Some(name), _) if copies.len() < COPIES_MAX => {
                copies.insert(format!("copy{}", self.last));
                format!("vm clone web@{name} copy{}", self.last)
            }
            (0 | 1, _, Some(copy)) => {
                copies.remove(&copy);
                let purge = if self.random.below(2) == 0 { " --purge" } else { "" };
                format!("vm remove {copy} --delete-disks --yes{purge}")
            }
            (_, Some(name), _) if names.len() >= NAMES_MAX || self.random.below(2) == 0 => {
                names.remove(&name);
                format!("snapshot commit web {name} --yes --detach")
            }
            _ => {
                names.insert(format!("s{}", self.last));
                format!("snapshot take web s{}", self.last)
            }
        };
        Order { line, names, copies }
    }

    /// Runs one random order. A commit or a clone is refused while another commit runs, or if a clone needs the layer.
    fn order(&mut self, datastore: &Datastore) {
        let order = self.draw();
        let (code, said) = datastore.fails(&order.line);
        let may_be_refused = ["snapshot commit", "vm clone"].iter().any(|verb| order.line.starts_with(verb));
        if code == REFUSED && may_be_refused {
            return;
        }
        assert_eq!(code, 0, "{}: {said}", order.line);
        (self.names, self.copies) = (order.names, order.copies);
    }

    /// Starts a random order, which the kill interrupts.
    fn begin(&mut self, datastore: &Datastore) -> (Order, Child) {
        let order = self.draw();
        let child = datastore.begin(&order.line);
        (order, child)
    }

    /// Asserts that the answered orders hold after a kill. The interrupted order happened as a whole, or not at all.
    fn check(&mut self, datastore: &Datastore, order: Option<Order>) {
        let vms = datastore.json("vm list");
        let vms = vms.as_array().unwrap();
        assert!(vms.iter().all(|vm| vm["condition"] == "open"), "{vms:?}");
        let named = |items: &[serde_json::Value]| -> BTreeSet<String> {
            items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
        };
        let tree = datastore.json("snapshot tree web");
        let names = named(tree["snapshots"].as_array().unwrap());
        let mut copies = named(vms);
        assert!(copies.remove("web"), "{vms:?}");
        let found = (&names, &copies);
        let after = order.as_ref().map(|order| (&order.names, &order.copies));
        let what = order.as_ref().map_or("no order was under way", |order| &order.line);
        assert!(
            found == (&self.names, &self.copies) || Some(found) == after,
            "{what}: found {found:?}, before it {:?}, after it {after:?}",
            (&self.names, &self.copies),
        );
        (self.names, self.copies) = (names, copies);
    }

    /// Removes the clones, so that the last commit finds every layer free.
    fn clear(&mut self, datastore: &Datastore) {
        for copy in std::mem::take(&mut self.copies) {
            datastore.json(&format!("vm remove {copy} --delete-disks --purge --yes"));
        }
        datastore.json("bin empty --yes");
    }
}

/// Waits until the guests have roughly so many more acknowledged writes, or are cut off.
fn after(writes: u64, progress: &Receiver<u64>) {
    // Each of two guests sends a message once in 50 writes.
    for _ in 0..writes / 25 {
        if progress.recv().is_err() {
            return;
        }
    }
}

#[test]
fn no_acknowledged_write_to_deltas_is_lost_to_kill_9() {
    no_acknowledged_write_is_lost("redo");
}

#[test]
fn no_acknowledged_write_to_a_native_store_is_lost_to_kill_9() {
    no_acknowledged_write_is_lost("native");
}

fn no_acknowledged_write_is_lost(store: &str) {
    match std::env::var("UNSTUN_KILL_FS").ok().filter(|kind| !kind.is_empty()) {
        None => kill_and_look(&Datastore::new(), store),
        Some(kind) => {
            let mounted = Mounted::empty(&kind, FILE_SYSTEM_BYTES)
                .expect("UNSTUN_KILL_FS needs root and a loop device");
            kill_and_look(mounted.datastore(), store);
        }
    }
}

fn kill_and_look(datastore: &Datastore, store: &str) {
    let seed = seed();
    let daemon = datastore.start();
    datastore.json(&format!("vm create web --disk 24M,24M --store {store}"));
    daemon.stop();
    let mut user = User::new(seed ^ 1);
    let mut guests = [Guest::new(SIZE, seed ^ 2), Guest::new(SIZE, seed ^ 3)];
    for cycle in 0..cycles() {
        let begun = kill_under_load(datastore, &mut user, &mut guests);
        let daemon = datastore.start();
        let line = begun.line.clone();
        user.check(datastore, Some(begun));
        println!("cycle {cycle}: {line}, {} names, {} clones", user.names.len(), user.copies.len());
        check_guests(datastore, &mut guests);
        // Half of the cycles start a daemon that was killed twice, the others one that ended normally.
        if cycle % 2 == 0 { daemon.stop() } else { daemon.kill() }
    }
    let (writes, flushes) = (guests[0].acknowledged, guests[0].flushes);
    assert!(writes > 1000 && flushes > 10, "{writes} writes and {flushes} flushes prove nothing");

    let daemon = datastore.start();
    user.check(datastore, None);
    user.clear(datastore);
    if !user.names.is_empty() || datastore.json("vm show web")["needs_consolidation"] == true {
        datastore.json("snapshot commit web --all --yes");
    }
    check_guests(datastore, &mut guests);
    let what =
        if store == "native" { String::new() } else { datastore.path().join("web").display().to_string() };
    assert_eq!(datastore.json(&format!("check {what}"))["findings"], serde_json::json!([]));
    daemon.stop();
}

/// Kills the daemon under load. Returns the order that the kill interrupted, or that was just answered.
fn kill_under_load(datastore: &Datastore, user: &mut User, guests: &mut [Guest]) -> Order {
    let daemon = datastore.start();
    thread::scope(|scope| {
        let (tell, progress) = channel();
        for (disk, guest) in guests.iter_mut().enumerate() {
            let (tell, socket) = (tell.clone(), datastore.nbd_socket());
            scope.spawn(move || guest.write_until_cut(&socket, &format!("web/disk{disk}"), &tell));
        }
        drop(tell);
        for _ in 0..=user.random.below(4) {
            after(50 + user.random.below(STEP_MAX), &progress);
            user.order(datastore);
        }
        after(50 + user.random.below(STEP_MAX), &progress);
        let (order, mut child) = user.begin(datastore);
        after(user.random.below(4) * 25, &progress);
        daemon.kill();
        let answered = child.wait().unwrap().success();
        if answered {
            (user.names, user.copies) = (order.names.clone(), order.copies.clone());
        }
        order
    })
}

fn check_guests(datastore: &Datastore, guests: &mut [Guest]) {
    for (disk, guest) in guests.iter_mut().enumerate() {
        guest.check(&datastore.nbd_socket(), &format!("web/disk{disk}"));
    }
}
