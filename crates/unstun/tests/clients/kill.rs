//! kill -9 under load, in takes and in commits: the next start recovers, and no acknowledged write is lost, flushed or not,
//! so that clients may reconnect.
//!
//! The machine goes on, so this says nothing about power cuts: `lab` simulates those.

use std::sync::mpsc::channel;
use std::thread;

use crate::daemon::Datastore;
use crate::guest::{Guest, seed};
use crate::random::Random;

const SIZE: u64 = 24 << 20;
const CYCLES: u64 = 5;
/// Acknowledged writes between two orders of the user, at most.
const STEP_MAX: u64 = 1500;

fn cycles() -> u64 {
    std::env::var("UNSTUN_KILL_CYCLES").ok().map_or(CYCLES, |text| text.parse().expect("a number of cycles"))
}

/// The names the user was told of: taken, and not yet given to a commit.
struct User {
    names: Vec<String>,
    random: Random,
    taken: u64,
}

impl User {
    /// One order, by chance; it may be refused while a commit is under way.
    fn order(&mut self, datastore: &Datastore) {
        if self.names.is_empty() || self.random.below(2) == 0 && self.names.len() < 4 {
            self.taken += 1;
            let name = format!("s{}", self.taken);
            let output = datastore.run(&format!("snapshot take web {name}"));
            assert!(output.status.success(), "take {name}: {}", String::from_utf8_lossy(&output.stderr));
            self.names.push(name);
        } else {
            let name = self.names.remove(self.random.below(self.names.len() as u64) as usize);
            let output = datastore.run(&format!("snapshot commit web {name} --yes --detach"));
            assert!(output.status.success(), "commit {name}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    fn check_tree(&self, datastore: &Datastore) {
        let tree = datastore.json("snapshot tree web");
        let mut found: Vec<_> = tree["snapshots"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s["name"].as_str().unwrap().to_owned())
            .collect();
        let mut expected = self.names.clone();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "what was answered is what is there after a kill");
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
    let seed = seed();
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json(&format!("vm create web --disk 24M,24M --store {store}"));
    daemon.stop();
    let mut user = User { names: Vec::new(), random: Random(seed ^ 1), taken: 0 };
    let mut guests = [Guest::new(SIZE, seed ^ 2), Guest::new(SIZE, seed ^ 3)];
    for cycle in 0..cycles() {
        let daemon = datastore.start();
        let orders = 1 + user.random.below(4);
        let mut step = || 50 + user.random.below(STEP_MAX);
        let pauses: Vec<u64> = (0..=orders).map(|_| step()).collect();
        thread::scope(|scope| {
            let (tell, progress) = channel();
            for (disk, guest) in guests.iter_mut().enumerate() {
                let (tell, socket) = (tell.clone(), datastore.nbd_socket());
                scope.spawn(move || guest.write_until_cut(&socket, &format!("web/disk{disk}"), &tell));
            }
            drop(tell);
            for (n, pause) in pauses.iter().enumerate() {
                // Progress is told in steps of both guests together, roughly.
                let mut wait = pause / 25;
                while wait > 0 && progress.recv().is_ok() {
                    wait -= 1;
                }
                if n as u64 != orders {
                    user.order(&datastore);
                }
            }
            daemon.kill();
        });
        let daemon = datastore.start();
        user.check_tree(&datastore);
        for (disk, guest) in guests.iter_mut().enumerate() {
            guest.check(&datastore.nbd_socket(), &format!("web/disk{disk}"));
        }
        println!("cycle {cycle}: {orders} orders, {} names left", user.names.len());
        // Half of the cycles meet a daemon that was killed twice, the others one that ended well.
        if cycle % 2 == 0 { daemon.stop() } else { daemon.kill() }
    }
    let (writes, flushes) = (guests[0].acknowledged, guests[0].flushes);
    assert!(writes > 1000 && flushes > 10, "{writes} writes and {flushes} flushes prove nothing");

    let daemon = datastore.start();
    if !user.names.is_empty() || datastore.json("vm show web")["needs_consolidation"] == true {
        datastore.json("snapshot commit web --all --yes");
    }
    for (disk, guest) in guests.iter_mut().enumerate() {
        guest.check(&datastore.nbd_socket(), &format!("web/disk{disk}"));
    }
    daemon.stop();
}
