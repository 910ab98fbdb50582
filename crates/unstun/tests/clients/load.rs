//! Takes and commits while fio writes and verifies every block it wrote.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::daemon::Datastore;

/// A running fio; its result is checked when it has ended.
pub(crate) struct Fio {
    child: Child,
}

impl Fio {
    /// Writes `megabytes` at random, each block with its checksum. It reads older blocks back while it writes, and
    /// everything at the end.
    pub(crate) fn verify(uri: &str, megabytes: u64) -> Fio {
        let child = Command::new("fio")
            .args([
                "--name=verify",
                "--ioengine=nbd",
                "--thread=1",
                "--rw=randwrite",
                "--bs=4k",
                "--iodepth=16",
            ])
            .args([
                "--verify=crc32c",
                "--verify_backlog=2048",
                "--do_verify=1",
                "--verify_state_save=0",
                "--verify_fatal=1",
                "--fsync=500",
            ])
            .args(["--rate_iops=8000", "--randrepeat=1"])
            .arg(format!("--uri={uri}"))
            .arg(format!("--size={megabytes}M"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("fio: `make setup` installs it");
        Fio { child }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn finish(self) {
        let output = self.child.wait_with_output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("err= 0"), "{said}");
    }
}

fn guest_writes(datastore: &Datastore, vm: &str) -> u64 {
    datastore.json(&format!("vm show {vm}"))["disks"][0]["io"]["guest_writes"].as_u64().unwrap()
}

/// Waits until the guest has written `more` blocks, or its load has ended.
pub(crate) fn wait_for_writes(datastore: &Datastore, vm: &str, fio: &mut Fio, more: u64) {
    let goal = guest_writes(datastore, vm) + more;
    while fio.is_running() && guest_writes(datastore, vm) < goal {}
}

#[test]
fn fio_verifies_through_takes_and_commits() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 256M");
    let mut fio = Fio::verify(&datastore.uri("web/disk0"), 256);
    let mut commits = 0;
    while fio.is_running() {
        let name = format!("s{commits}");
        datastore.json(&format!("snapshot take web {name}"));
        wait_for_writes(&datastore, "web", &mut fio, 4000);
        let job = datastore.json(&format!("snapshot commit web {name} --yes"));
        assert_eq!(job["state"], "done", "{job}");
        let (done, total) = (job["bytes_done"].as_u64().unwrap(), job["bytes_total"].as_u64().unwrap());
        assert!(done <= total, "a commit moved more than its delta held: {job}");
        commits += 1;
    }
    fio.finish();
    assert!(commits >= 2, "only {commits} commits: the load was over too soon to prove anything");
    let events = datastore.json("events web");
    let count =
        |operation: &str| events.as_array().unwrap().iter().filter(|e| e["operation"] == operation).count();
    assert_eq!((count("take"), count("commit")), (commits, commits));
    daemon.stop();
}

/// Pauses, limits, resumes and cancels a commit while a guest writes. The next `--all` commits the rest.
#[test]
fn a_commit_is_paused_limited_cancelled_and_finished_later() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --store redo --disk 256M");
    let mut fio = Fio::verify(&datastore.uri("web/disk0"), 192);
    datastore.json("snapshot take web a");
    wait_for_writes(&datastore, "web", &mut fio, 20_000);
    let job = datastore.json("snapshot commit web a --yes --detach")["id"].clone();
    // The limit is so low that the job cannot end during these commands; the cancel below does not wait for it.
    datastore.json(&format!("job limit {job} 2K"));
    assert_eq!(datastore.json(&format!("job pause {job}"))["state"], "paused");
    datastore.json(&format!("job resume {job}"));
    datastore.json(&format!("job cancel {job}"));
    let state = || -> Value {
        let jobs = datastore.json("job list");
        jobs.as_array().unwrap().iter().find(|j| j["id"] == job).unwrap()["state"].clone()
    };
    while state() == "running" || state() == "paused" {}
    assert_eq!(state(), "cancelled");
    let shown = datastore.json("vm show web");
    assert_eq!(shown["needs_consolidation"], true, "{shown}");
    assert_eq!(
        datastore.json("snapshot tree web")["snapshots"],
        serde_json::json!([]),
        "the name is gone all the same"
    );
    datastore.json("snapshot commit web --all --yes");
    assert_eq!(datastore.json("vm show web")["needs_consolidation"], false);
    fio.finish();
    daemon.stop();
}
