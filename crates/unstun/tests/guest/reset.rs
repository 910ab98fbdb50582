//! File systems that are written through a take and a commit, and lose power during the commit.

use crate::daemon::Datastore;
use crate::image::{assert_clean, make_file_system};
use crate::machine::Machine;
use crate::wire::{Ask, Durable};

pub(crate) const DISKS: [(&str, &str); 2] = [("disk0", "ext4"), ("disk1", "xfs")];
const SIZE_BYTES: u64 = 512 << 20;
/// Rate so low that the reset comes in the middle of the commit.
const COMMIT_RATE: &str = "1M";
/// Size of every disk's delta: half a second's work for a commit without a limit.
const WEIGHT_BYTES: u64 = 96 << 20;
const TRIES_MAX: usize = 5;
/// Number of steps of every churn between two events.
const STEPS: u64 = 60;

/// Creates file systems on the disks of a VM `web` in `store`.
pub(crate) fn new_file_systems(datastore: &Datastore, store: &str) {
    datastore.json(&format!("vm create web --store {store} --disk 512M,512M"));
    for (disk, kind) in DISKS {
        make_file_system(datastore, &format!("web/{disk}"), kind, SIZE_BYTES);
    }
}

pub(crate) fn mount(machine: &mut Machine<'_>) {
    for (disk, kind) in DISKS {
        machine.ask::<()>(&Ask::Mount { disk: disk.into(), kind: kind.into() });
    }
}

pub(crate) fn unmount(machine: &mut Machine<'_>) {
    for (disk, _) in DISKS {
        machine.ask::<()>(&Ask::Unmount { disk: disk.into() });
    }
}

/// Waits until every churn has made so many more files.
pub(crate) fn churn_on(machine: &mut Machine<'_>) -> Durable {
    let before: Durable = machine.ask(&Ask::Churned);
    loop {
        let now: Durable = machine.ask(&Ask::Churned);
        if now.iter().all(|(disk, number)| *number >= before[disk] + STEPS) {
            return now;
        }
    }
}

fn state_of(datastore: &Datastore, job: u64) -> String {
    let jobs = datastore.json("job list");
    let found = jobs.as_array().unwrap().iter().find(|found| found["id"] == job).expect("the job");
    found["state"].as_str().unwrap().to_owned()
}

/// Starts a commit that runs for minutes, and returns its number.
fn commit_slowly(datastore: &Datastore, machine: &mut Machine<'_>) -> u64 {
    for _ in 0..TRIES_MAX {
        datastore.json("snapshot take web cut");
        machine.ask::<()>(&Ask::Weigh { bytes: WEIGHT_BYTES });
        let job = datastore.json("snapshot commit web cut --yes --detach")["id"].as_u64().unwrap();
        // The limit is refused if the job has already ended at full speed.
        if datastore.run(&format!("job limit {job} {COMMIT_RATE}")).status.success() {
            return job;
        }
    }
    panic!("{TRIES_MAX} commits of {WEIGHT_BYTES} bytes a disk ended before they could be slowed down");
}

pub(crate) fn file_systems_survive_a_reset_amid_a_commit() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    new_file_systems(&datastore, "redo");
    let mut machine = Machine::start(&datastore, "web", DISKS.len());
    mount(&mut machine);
    machine.ask::<()>(&Ask::StartChurn);
    churn_on(&mut machine);
    datastore.json("snapshot take web first");
    churn_on(&mut machine);
    let job = datastore.json("snapshot commit web first --yes");
    assert_eq!(job["state"], "done", "{job}");
    churn_on(&mut machine);

    let job = commit_slowly(&datastore, &mut machine);
    let durable = churn_on(&mut machine);
    assert_eq!(state_of(&datastore, job), "running", "a commit that was to be cut");
    machine.hard_reset();
    println!("reset amid a commit with {durable:?} on the disks");
    assert_eq!(state_of(&datastore, job), "running", "the commit is none of the guest's");
    datastore.json(&format!("job limit {job} none"));

    // Mounting replays the journals.
    mount(&mut machine);
    let files: u64 = machine.ask(&Ask::CheckChurn(durable));
    println!("{files} files found whole");
    unmount(&mut machine);
    machine.quit();
    while state_of(&datastore, job) == "running" {}
    assert_eq!(state_of(&datastore, job), "done");
    for (disk, kind) in DISKS {
        assert_clean(&datastore, &format!("web/{disk}"), kind);
    }
    daemon.stop();
}
