//! The prepared VM (`Harness`), and the operations in which I/Os fail.

use std::rc::Rc;

use blk::manifest::{DiskMode, NewDisk};
use blk::volume::Volume;
use blk::{Buf, Env, Local, SECTOR};
use crash::home;
use engine::{CommitWhat, Disk, JobState, Rename, Vm};
use vmdk::home::Home;

pub(super) struct Harness {
    pub vm: Rc<Vm>,
    pub home: Rc<Home>,
}

pub(super) type Act = for<'a> fn(&'a Harness, &'a Env) -> Local<'a, Result<(), String>>;

#[derive(Clone, Copy)]
pub(super) struct Operation {
    pub name: &'static str,
    pub act: Act,
    /// Success does not mean that the result is durable.
    pub unflushed: bool,
    /// Clones that it may make.
    pub clones: &'static [&'static str],
}

const DISK_BYTES: u64 = 384 << 10;
const CLONES: &[&str] = &["test1"];

macro_rules! operations {
    ($($name:literal: $act:expr),* $(,)?) => {
        &[$(Operation { name: $name, act: $act, unflushed: false, clones: CLONES }),*]
    };
}

pub(super) const OPERATIONS: &[Operation] = operations![
    "first writes and a flush": |s, _| Box::pin(async { fill(&s.vm, 0, 300, 40, 9).await }),
    "overwrites and a flush": |s, _| Box::pin(async { fill(&s.vm, 0, 5, 30, 9).await }),
    "overwrites, and flushes until one succeeds": |s, _| Box::pin(insist(s)),
    "zeroes and a discard": |s, _| Box::pin(zero(s)),
    "take": |s, _| Box::pin(async { said(s.vm.take("d", "").await) }),
    "take, then writes and a flush": |s, _| Box::pin(take_and_write(s)),
    "a look at a sealed state": |s, _| Box::pin(look(s)),
    "commit of a shared layer's name": |s, _| Box::pin(commit(s, CommitWhat::One("a".into()))),
    "commit on a side branch": |s, _| Box::pin(commit(s, CommitWhat::One("b".into()))),
    "commit of the latest": |s, _| Box::pin(commit(s, CommitWhat::One("e".into()))),
    "commit of all": |s, _| Box::pin(commit(s, CommitWhat::All)),
    "commit of all, and again until it ends": |s, _| Box::pin(insist_on_commit(s)),
    "a cancelled commit, consolidated": |s, _| Box::pin(cancel_and_consolidate(s)),
    "revert to the latest": |s, _| Box::pin(async { said(s.vm.revert(None, None, false).await) }),
    "revert to a side branch": |s, _| Box::pin(async { said(s.vm.revert(Some("c"), None, false).await) }),
    "revert with a take before": |s, _| Box::pin(async { said(s.vm.revert(Some("b"), Some("d"), false).await) }),
    "discard of the latest": |s, _| Box::pin(async { said(s.vm.discard("e", false).await) }),
    "discard of everything": |s, _| Box::pin(async { said(s.vm.discard("a", false).await) }),
    "discard of a side branch": |s, _| Box::pin(async { said(s.vm.discard("b", false).await) }),
    "revert into the bin": |s, _| Box::pin(async { said(s.vm.revert(Some("b"), None, true).await) }),
    "discard of everything into the bin": |s, _| Box::pin(async { said(s.vm.discard("a", true).await) }),
    "discard of a side branch into the bin": |s, _| Box::pin(async { said(s.vm.discard("b", true).await) }),
    "reset into the bin": |s, _| Box::pin(async { said(s.vm.reset(true).await) }),
    "restore": |s, _| Box::pin(async { said(s.vm.restore(entry(s), false).await) }),
    "restore, and the present into the bin": |s, _| Box::pin(async { said(s.vm.restore(entry(s), true).await) }),
    "emptying the bin": |s, _| Box::pin(async { said(s.vm.empty_bin(&[entry(s)]).await) }),
    "clone": |s, env| Box::pin(clone(s, env)),
    "reset": |s, _| Box::pin(async { said(s.vm.reset(false).await) }),
    "a disk more": |s, _| Box::pin(add_disk(s)),
    "a disk less, with its files": |s, _| Box::pin(async { said(s.vm.remove_disk(2, true).await) }),
    "a larger disk": |s, _| Box::pin(async { said(s.vm.grow_disk(2, 2 * DISK_BYTES).await) }),
    "another mode": |s, _| Box::pin(async { said(s.vm.set_mode(2, DiskMode::Persistent).await) }),
    "another name": |s, _| Box::pin(rename(s)),
    "a clean stop": |s, _| Box::pin(async { said(s.vm.close().await) }),
    "a start": |_, env| Box::pin(async { super::open(env).await.map(drop) }),
];

/// Returns the operation to repeat after an error: of two steps the first may have been done.
pub(super) fn again(operation: &Operation) -> Act {
    match operation.name {
        "revert with a take before" => |s, _| {
            Box::pin(async {
                let take = (!has(s, "d")).then_some("d");
                said(s.vm.revert(Some("b"), take, false).await)
            })
        },
        "a cancelled commit, consolidated" => |s, _| {
            Box::pin(async {
                match has(s, "e") {
                    true => cancel_and_consolidate(s).await,
                    false => commit(s, CommitWhat::Unowned).await,
                }
            })
        },
        _ => operation.act,
    }
}

/// Renames the latest snapshot, which has its new name already where this is repeated.
async fn rename(s: &Harness) -> Result<(), String> {
    let wanted = if has(s, "e") { "e" } else { "renamed" };
    let rename = Rename { name: Some("renamed".to_owned()), description: Some("kept".to_owned()) };
    said(s.vm.rename(wanted, &rename).await)
}

fn has(harness: &Harness, snapshot: &str) -> bool {
    harness.vm.state().snapshots.iter().any(|known| known.name == snapshot)
}

/// Returns the id of the entry that the prepared VM has in the bin.
fn entry(harness: &Harness) -> u64 {
    harness.vm.state().bin[0].id
}

fn said<T>(result: blk::Result<T>) -> Result<(), String> {
    result.map(drop).map_err(|e| e.to_string())
}

pub(super) async fn create(env: &Env) -> Result<(), String> {
    said(home::create(env, home::HOME, &[DISK_BYTES, DISK_BYTES]).await)
}

/// Prepares the tree: a - e - (running), and a - b - c beside it. The bin has what was written after c; disk2 is
/// independent, disk3 nonpersistent.
pub(super) async fn prepare(harness: &Harness) -> Result<(), String> {
    let vm = &harness.vm;
    for (mode, number) in [(DiskMode::IndependentPersistent, 2), (DiskMode::IndependentNonpersistent, 3)] {
        said(vm.add_disk(&NewDisk { size_bytes: DISK_BYTES, mode, folder: None, source: None }).await)?;
        fill(vm, number, 3, 20, 1).await?;
    }
    fill_both(vm, 0, 1).await?;
    for (name, first) in [("a", 20), ("b", 40), ("c", 60)] {
        said(vm.take(name, "").await)?;
        fill_both(vm, first, 2).await?;
    }
    said(vm.revert(Some("a"), None, true).await)?;
    fill_both(vm, 80, 3).await?;
    said(vm.take("e", "").await)?;
    fill_both(vm, 100, 4).await
}

async fn fill_both(vm: &Rc<Vm>, first: u64, seed: u8) -> Result<(), String> {
    for number in [0, 1] {
        fill(vm, number, first, 50, seed).await?;
    }
    Ok(())
}

/// Writes `count` sectors from `first` in small pieces, and flushes.
async fn fill(vm: &Rc<Vm>, number: u32, first: u64, count: u64, seed: u8) -> Result<(), String> {
    let (disk, _client) = vm.attach(number, "test").await.map_err(|e| e.to_string())?;
    write(&disk, first, count, seed).await
}

async fn write(disk: &Rc<Disk>, first: u64, count: u64, seed: u8) -> Result<(), String> {
    write_unflushed(disk, first, count, seed).await?;
    said(disk.clone().flush().await)
}

async fn write_unflushed(disk: &Rc<Disk>, first: u64, count: u64, seed: u8) -> Result<(), String> {
    let mut at = first;
    while at < first + count {
        let sectors = 9.min(first + count - at);
        let byte = seed.wrapping_mul(31).wrapping_add(at as u8) | 1;
        let data = Buf::copy_of(&vec![byte; (sectors * SECTOR) as usize]).freeze();
        said(disk.clone().write(at * SECTOR, data).await)?;
        at += sectors;
    }
    Ok(())
}

/// Flushes until one succeeds. A success after a failure must mean what any success means.
async fn insist(harness: &Harness) -> Result<(), String> {
    let (disk, _client) = harness.vm.attach(0, "test").await.map_err(|e| e.to_string())?;
    write_unflushed(&disk, 5, 30, 9).await?;
    let mut flushed = said(disk.clone().flush().await);
    for _ in 0..3 {
        if flushed.is_ok() {
            break;
        }
        flushed = said(disk.clone().flush().await);
    }
    flushed
}

async fn zero(harness: &Harness) -> Result<(), String> {
    for number in [0, 2] {
        let (disk, _client) = harness.vm.attach(number, "test").await.map_err(|e| e.to_string())?;
        said(disk.clone().write_zeroes(5 * SECTOR..15 * SECTOR, blk::volume::ZeroMode::default()).await)?;
        said(disk.clone().flush().await)?;
    }
    Ok(())
}

async fn take_and_write(harness: &Harness) -> Result<(), String> {
    said(harness.vm.take("d", "").await)?;
    fill(&harness.vm, 0, 200, 30, 7).await
}

async fn look(harness: &Harness) -> Result<(), String> {
    let (disk, _view) = harness.vm.open_view("c", 0, "test").await.map_err(|e| e.to_string())?;
    said(disk.clone().read(0, Buf::alloc(64 << 10)).await.1)
}

async fn commit(harness: &Harness, what: CommitWhat) -> Result<(), String> {
    let job = harness.vm.commit(&what).await.map_err(|e| e.to_string())?;
    match job.wait().await {
        JobState::Done => Ok(()),
        state => Err(format!("the job is {state:?}: {:?}", job.error())),
    }
}

/// Begins a failed commit again on the open VM. It may go on only if the failure left nothing in doubt.
async fn insist_on_commit(harness: &Harness) -> Result<(), String> {
    let mut what = CommitWhat::All;
    let mut done = Ok(());
    for _ in 0..4 {
        done = commit(harness, what.clone()).await;
        if done.is_ok() {
            break;
        }
        if harness.vm.state().snapshots.iter().all(|snapshot| snapshot.name != "e") {
            what = CommitWhat::Unowned;
        }
        fill_again(&harness.vm).await;
    }
    done
}

/// Writes the present content again, into regions that a commit may be moving. After a failure the write may be
/// refused.
async fn fill_again(vm: &Rc<Vm>) {
    for (first, seed) in [(0, 1), (80, 3), (100, 4)] {
        let _ = fill_both(vm, first, seed).await;
    }
}

async fn cancel_and_consolidate(harness: &Harness) -> Result<(), String> {
    let job = harness.vm.commit(&CommitWhat::One("e".into())).await.map_err(|e| e.to_string())?;
    // The job may be over already: then nothing is left to consolidate.
    let _ = job.cancel();
    match job.wait().await {
        JobState::Cancelled => commit(harness, CommitWhat::Unowned).await,
        JobState::Done => Ok(()),
        state => Err(format!("the job is {state:?}")),
    }
}

async fn clone(harness: &Harness, env: &Env) -> Result<(), String> {
    let (snapshot, _held) = harness.vm.hold("c", "clone").await.map_err(|e| e.to_string())?;
    said(home::clone(env, &harness.home, snapshot.id, "test1", false).await)
}

async fn add_disk(harness: &Harness) -> Result<(), String> {
    let disk = NewDisk { size_bytes: DISK_BYTES, mode: DiskMode::Persistent, folder: None, source: None };
    said(harness.vm.add_disk(&disk).await)
}
