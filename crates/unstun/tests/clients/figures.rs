//! The figures of one VM agree in all commands. Each figure counts one of three things: bytes of the disk that differ
//! between two states (`snapshot diff`); bytes that a delta or a state holds (what a commit moves, what a revert
//! loses); bytes of storage that are freed (`snapshot tree`, `space`), which are the bytes held and the tables that
//! lead to them.

use serde_json::Value;

use crate::daemon::Datastore;
use crate::tools::run_script;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Maximum size of a delta's tables: 16 KiB for each 2 MiB in which something was written, its header and directory,
/// and pages of a map.
const TABLES_BYTES_MAX: u64 = 512 * KIB;

/// Queries about one VM.
struct Asked<'a> {
    datastore: &'a Datastore,
    vm: &'static str,
}

impl Asked<'_> {
    fn number(&self, line: &str, field: &str) -> u64 {
        let answer = self.datastore.json(line);
        answer[field].as_u64().unwrap_or_else(|| panic!("{line}: {field} in {answer}"))
    }

    /// Returns the bytes that `tree` shows for a snapshot; asserts that `space` shows the same.
    fn on_storage(&self, snapshot: &str) -> u64 {
        let of = |answer: Value| {
            let all = answer["snapshots"].as_array().unwrap();
            let own = all.iter().find(|own| own["name"] == snapshot).unwrap();
            own["delta_bytes"].as_u64().unwrap()
        };
        let tree = of(self.datastore.json(&format!("snapshot tree {}", self.vm)));
        let space = of(self.datastore.json(&format!("space {}", self.vm)));
        assert_eq!(tree, space, "{}@{snapshot}", self.vm);
        tree
    }

    fn differ(&self, states: &str) -> u64 {
        let answer = self.datastore.json(&format!("snapshot diff {} {states}", self.vm));
        let ranges = answer[0]["ranges"].as_array().unwrap();
        ranges.iter().map(|range| range["length_bytes"].as_u64().unwrap()).sum()
    }

    fn commit(&self, snapshot: &str, field: &str) -> u64 {
        self.number(&format!("snapshot commit {} {snapshot} --dry-run", self.vm), field)
    }

    fn lost(&self, verb: &str) -> u64 {
        self.number(&format!("snapshot {verb} --dry-run"), "bytes_lost")
    }

    fn write(&self, script: &[&str]) {
        let script: Vec<String> = script.iter().map(|&line| line.to_owned()).collect();
        run_script(&self.datastore.uri(&format!("{}/disk0", self.vm)), &script);
    }

    fn open(&self) {
        self.datastore.json(&format!("vm open {}", self.vm));
    }
}

/// Asserts that `said` is `held` bytes and at most the tables that lead to them.
fn assert_with_tables(said: u64, held: u64, what: &str) {
    assert!((held..=held + TABLES_BYTES_MAX).contains(&said), "{what}: {said}, of {held} held");
}

/// Writes pieces of various sizes, some of them twice. Returns the number of distinct bytes written.
fn write_since_a(vm: &Asked<'_>) -> u64 {
    vm.write(&["write -P 2 4M 4M", "write -P 3 5M 1M", "write -P 4 1M 4k", "write -P 5 32M 64k"]);
    4 * MIB + 4 * KIB + 64 * KIB
}

fn write_since_b(vm: &Asked<'_>) -> u64 {
    vm.write(&["write -P 6 6M 3M", "write -P 7 40M 4k", "write -P 8 40M 4k"]);
    3 * MIB + 4 * KIB
}

fn prepared<'a>(datastore: &'a Datastore, vm: &'static str) -> (Asked<'a>, u64, u64) {
    datastore.json(&format!("vm create {vm} --disk 64M --store {vm}"));
    let vm = Asked { datastore, vm };
    vm.write(&["write -P 1 0 16M"]);
    datastore.json(&format!("snapshot take {} a", vm.vm));
    let first = write_since_a(&vm);
    datastore.json(&format!("snapshot take {} b", vm.vm));
    let second = write_since_b(&vm);
    (vm, first, second)
}

#[test]
fn the_figures_of_a_redo_vm_agree() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let (vm, first, second) = prepared(&datastore, "redo");
    assert_eq!((vm.differ("a b"), vm.differ("b")), (first, second));
    for (snapshot, held) in [("a", first), ("b", second)] {
        assert_eq!(vm.commit(snapshot, "bytes_to_move"), held, "{snapshot}: all that its delta holds");
        let storage = vm.on_storage(snapshot);
        assert_with_tables(storage, held, snapshot);
        assert_eq!(vm.commit(snapshot, "bytes_freed"), storage, "{snapshot}: its delta's file");
    }
    let running = vm.on_storage("b");
    assert_eq!([vm.lost("discard redo b"), vm.lost("revert redo b"), vm.lost("revert redo a")], [running; 3]);
    assert_eq!(vm.lost("discard redo a"), running + vm.on_storage("a"));
    // On a branch, c's data are on top of b, and later writes are also on top of a.
    let kept = vm.on_storage("b");
    datastore.json("snapshot revert redo a --take-first c --yes");
    vm.open();
    vm.write(&["write -P 9 20M 2M"]);
    assert_eq!((vm.differ("a"), vm.differ("b c")), (2 * MIB, second));
    assert_eq!(vm.on_storage("b"), kept);
    assert_with_tables(vm.on_storage("a"), first + 2 * MIB, "a, both branches");
    assert_eq!(vm.lost("revert redo a") + vm.lost("discard redo b"), vm.lost("discard redo a"));
    daemon.stop();
}

#[test]
fn the_figures_of_a_native_vm_agree() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let (vm, first, second) = prepared(&datastore, "native");
    assert_eq!((vm.differ("a b"), vm.differ("b")), (first, second));
    // Only a holds the data that were overwritten later; only b holds the data that the running state overwrote.
    let over_b = 2 * MIB;
    for (snapshot, only_its_own) in [("a", 4 * MIB + 4 * KIB), ("b", over_b)] {
        assert_eq!(vm.commit(snapshot, "bytes_to_move"), 0, "{snapshot}: a native commit moves nothing");
        let storage = vm.on_storage(snapshot);
        assert_with_tables(storage, only_its_own, snapshot);
        assert_eq!(vm.commit(snapshot, "bytes_freed"), storage, "{snapshot}");
    }
    assert_eq!(
        [vm.lost("discard native b"), vm.lost("revert native b"), vm.lost("revert native a")],
        [second; 3]
    );
    assert_eq!(vm.lost("discard native a"), first + second);
    datastore.json("snapshot revert native a --take-first c --yes");
    vm.open();
    vm.write(&["write -P 9 20M 2M"]);
    assert_eq!((vm.differ("a"), vm.differ("b c")), (2 * MIB, second));
    assert_eq!(vm.lost("revert native a") + vm.lost("discard native b"), vm.lost("discard native a"));
    let discarded = datastore.json("snapshot discard native a --yes");
    assert_eq!(discarded["bytes_lost"], first + second + 2 * MIB, "{discarded}");
    daemon.stop();
}

/// Commits a snapshot. Returns the bytes moved, which are never more than the preview stated.
fn moved(datastore: &Datastore, vm: &str, snapshot: &str) -> u64 {
    let line = format!("snapshot commit {vm} {snapshot}");
    let most = datastore.json(&format!("{line} --dry-run"))["bytes_to_move"].as_u64().unwrap();
    let job = datastore.json(&format!("{line} --yes"));
    let moved = job["bytes_done"].as_u64().unwrap();
    assert!(moved <= most, "{line}: {moved} moved, at most {most} were announced");
    moved
}

#[test]
fn a_commit_moves_no_more_than_its_preview_says() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let (vm, first, second) = prepared(&datastore, "redo");
    assert_eq!(moved(&datastore, "redo", "a"), first);
    daemon.stop();
    // The new daemon has not read its tables yet.
    let daemon = datastore.start();
    assert_eq!(vm.commit("b", "bytes_to_move"), second);
    assert_eq!(moved(&datastore, "redo", "b"), second);
    daemon.stop();
}
