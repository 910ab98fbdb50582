//! `lab compare` on real storage: real stacks and real operations; failures are results.

use std::process::{Command, Output};

use serde_json::Value;

use crate::daemon::Datastore;
use crate::skip::skip;
use crate::space::until;

const SHORT: &str = "--rounds 1 --seconds 1 --size 64M --depth 8 --json";

fn compare(datastore: &Datastore, arguments: &str) -> Output {
    let folder = datastore.beside("compared");
    let mut command = Command::new(env!("CARGO_BIN_EXE_unstun"));
    command.args(["lab", "compare", "--real"]).arg(&folder).args(SHORT.split(' '));
    command.args(arguments.split(' ')).output().unwrap()
}

fn of<'a>(summaries: &'a Value, subject: &str) -> &'a Value {
    let found = summaries.as_array().unwrap().iter().find(|summary| summary["subject"] == subject);
    found.unwrap_or_else(|| panic!("{subject} is missing in {summaries}"))
}

/// Returns the median of a figure.
fn figure(summary: &Value, phase: &str, quantity: &str) -> f64 {
    let cells = summary["cells"].as_array().unwrap();
    let cell = cells.iter().find(|cell| cell["phase"] == phase && cell["quantity"] == quantity);
    let cell = cell.unwrap_or_else(|| panic!("no {quantity} of {phase} in {summary}"));
    cell["value"]["median"].as_f64().unwrap()
}

#[test]
fn stacks_are_measured_in_turns() {
    let datastore = Datastore::new();
    let output = compare(&datastore, "native redo redo:mirror qemu");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let summaries: Value = serde_json::from_slice(&output.stdout).unwrap();
    for subject in ["native", "redo", "redo:mirror", "qemu"] {
        let summary = of(&summaries, subject);
        for phase in ["baseline", "snapshot", "after"] {
            assert!(figure(summary, phase, "iops") > 0.0, "{subject}, {phase}: {summary}");
        }
    }
    // Our commits end under load; those of the other subjects may or may not within the time.
    for subject in ["native", "redo"] {
        assert_eq!(figure(of(&summaries, subject), "commit", "converged"), 1.0, "{summaries}");
    }
    let left = std::fs::read_dir(datastore.beside("compared")).unwrap().count();
    assert_eq!(left, 0, "the runs' folders are gone");
}

#[test]
fn a_stack_whose_commit_fails_is_reported_with_its_output() {
    let datastore = Datastore::new();
    let disk = datastore.beside("theirs.img");
    std::fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let folder = datastore.beside("compared");
    let output = Command::new(env!("CARGO_BIN_EXE_unstun"))
        .args(["lab", "compare", "--real"])
        .arg(&folder)
        .args(SHORT.split(' '))
        .arg("--target")
        .arg(&disk)
        .args(["--take", "true", "--commit", "echo the array is busy >&2; exit 7"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let summaries: Value = serde_json::from_slice(&output.stdout).unwrap();
    let failures = of(&summaries, "hooks")["failures"].to_string();
    assert!(failures.contains("the array is busy"), "{failures}");
}

#[test]
fn a_stack_of_the_machine_is_taken_down_after_a_kill() {
    let datastore = Datastore::new();
    let folder = datastore.beside("compared");
    let compare = |seconds: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unstun"));
        command.args(["lab", "compare", "btrfs", "--real"]).arg(&folder).args(["--size", "64M"]);
        command.args(["--rounds", "1", "--seconds", seconds, "--json"]);
        command
    };
    let first = compare("1").output().unwrap();
    let said = String::from_utf8_lossy(&first.stderr);
    if said.contains("this machine lacks") {
        return skip(&said);
    }
    assert!(first.status.success(), "{said}");
    let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
    let is_mounted = || mounts().contains(folder.to_str().unwrap());
    assert!(!is_mounted());
    let mut running = compare("600").spawn().unwrap();
    until("btrfs is mounted", || is_mounted().then_some(()));
    running.kill().unwrap();
    running.wait().unwrap();
    until("it is taken down", || (!is_mounted()).then_some(()));
    let file = folder.join("unstun-compare-btrfs-0/pool.img");
    until("its file is removed", || (!file.exists()).then_some(()));
    let again = compare("1").output().unwrap();
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(said.contains("unstun-compare-btrfs-0"), "the folder that remained is named: {said}");
}

#[test]
fn what_is_no_subject_is_refused_before_anything_is_made() {
    let datastore = Datastore::new();
    let output = compare(&datastore, "vsan");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("redo:mirror"), "the subjects there are");
    assert!(!datastore.beside("compared").exists());
}
