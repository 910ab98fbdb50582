//! Scripted changes of a VM's tree, step by step, on the simulator, and what they must never lose.

use std::rc::Rc;

use blk::manifest::{DiskMode, NewDisk};
use blk::volume::Volume;
use blk::{Buf, Env, Errno, ErrorKind, SECTOR};
use engine::{CommitWhat, Disk, JobState, Options, Vm};
use sim::{Action, Fault, OpKind, SimWorld};
use vmdk::home::{Folders, Home};

use super::support::{self, Growth};

const DISK_BYTES: u64 = 256 << 10;
const GROWTH: Growth = support::growth(64 << 10);
/// More I/Os than the commit of these disks has.
const IO_MAX: u64 = 1000;

fn world() -> SimWorld {
    SimWorld::new(3, sim::Options::default())
}

async fn open(env: &Env) -> (Rc<Vm>, Rc<Home>) {
    support::open_with(env, "web", GROWTH, support::options(), support::searching(env)).await
}

async fn create(env: &Env) -> (Rc<Vm>, Rc<Home>) {
    support::create(env, "web", GROWTH, &[DISK_BYTES]).await;
    open(env).await
}

fn clone_folders(env: &Env) -> Folders {
    Folders { foreign: vec![env.open_root("/web").unwrap()], ..Folders::default() }
}

async fn make_clone(env: &Env, parent: &Home, snapshot: u128) {
    let root = env.open_root("/").unwrap();
    let dir = root.open_dir("test1", true).await.unwrap();
    root.sync().await.unwrap();
    parent.clone_to(snapshot, dir, clone_folders(env), "test1").await.unwrap();
}

async fn open_clone(env: &Env) -> blk::Result<Rc<Vm>> {
    let home = Home::new(env.open_root("/test1").unwrap(), clone_folders(env), GROWTH);
    Vm::open(env.clone(), Rc::new(home), Options::default()).await
}

async fn put(disk: &Rc<Disk>, sector: u64, byte: u8) -> blk::Result<()> {
    let data = Buf::copy_of(&[byte; SECTOR as usize]).freeze();
    disk.clone().write(sector * SECTOR, data).await
}

async fn get(disk: &Rc<Disk>, sector: u64) -> u8 {
    let (buf, result) = disk.clone().read(sector * SECTOR, Buf::alloc(SECTOR as usize)).await;
    result.unwrap();
    buf[0]
}

/// Attaches a client, writes the sectors, flushes and detaches it.
async fn fill(vm: &Rc<Vm>, number: u32, sectors: std::ops::Range<u64>, byte: u8) {
    let (disk, _client) = vm.attach(number, "test").await.unwrap();
    for sector in sectors {
        put(&disk, sector, byte).await.unwrap();
    }
    disk.clone().flush().await.unwrap();
}

async fn add(vm: &Rc<Vm>, mode: DiskMode) -> u32 {
    let disk = NewDisk { size_bytes: DISK_BYTES, mode, folder: None, source: None };
    vm.add_disk(&disk).await.unwrap().number
}

/// Returns what a snapshot shows of a sector.
async fn sealed(vm: &Rc<Vm>, snapshot: &str, number: u32, sector: u64) -> u8 {
    let (disk, _view) = vm.open_view(snapshot, number, "test").await.unwrap();
    get(&disk, sector).await
}

/// If any I/O of a commit fails, its guest goes on, and what the guest flushes after that survives a restart.
#[test]
fn a_guest_continues_during_a_commit_that_fails() {
    for nth in 1..=IO_MAX {
        let world = world();
        let armed = world.clone();
        let written = world.run(|env| async move {
            let (vm, _) = create(&env).await;
            fill(&vm, 0, 0..20, 1).await;
            vm.take("a", "").await.unwrap();
            fill(&vm, 0, 10..30, 2).await;
            let (disk, _client) = vm.attach(0, "guest").await.unwrap();
            armed.add_fault(Fault::nth(nth, Action::Fail(Errno::EIO)));
            let before = armed.ios();
            if let Ok(job) = vm.commit(&CommitWhat::One("a".into())).await {
                job.wait().await;
            }
            let struck = armed.ios() - before >= nth;
            armed.clear_faults();
            let done = async {
                for sector in 15..40 {
                    put(&disk, sector, 3).await?;
                }
                disk.clone().flush().await
            };
            (struck, done.await.is_ok())
        });
        let (struck, flushed) = written.unwrap();
        match nth % 2 == 0 {
            true => world.power_cut(),
            false => world.kill(),
        }
        let lost = world.run(|env| async move {
            let (vm, _) = open(&env).await;
            let disk = vm.disk(0).unwrap();
            let mut lost = Vec::new();
            for (sectors, byte) in [(0..10, 1), (10..15, 2), (15..40, 3)] {
                for sector in sectors.filter(|_| flushed || byte != 3) {
                    if get(&disk, sector).await != byte {
                        lost.push(sector);
                    }
                }
            }
            lost
        });
        assert_eq!(lost.unwrap(), Vec::<u64>::new(), "I/O {nth} of the commit failed");
        if !struck {
            assert!(nth > 1, "no I/O was struck");
            return;
        }
    }
    panic!("the commit has more than {IO_MAX} I/Os");
}

/// A disk that was added after the snapshot is no longer a disk of the VM, and all its data is still there.
#[test]
fn a_revert_keeps_the_files_of_later_disks() {
    let world = world();
    let done = world.run(|env| async move {
        let (vm, home) = create(&env).await;
        vm.take("a", "").await.unwrap();
        for mode in [DiskMode::IndependentPersistent, DiskMode::Persistent] {
            let number = add(&vm, mode).await;
            fill(&vm, number, 0..4, 7).await;
        }
        let bases: Vec<String> = vm.state().disks[1..].iter().map(|disk| disk.top.clone()).collect();
        let preview = vm.revert_preview(Some("a"), false).await.unwrap();
        vm.revert(Some("a"), None, false).await.unwrap();
        let names = home.dir().list().await.unwrap();
        for base in bases {
            assert!(names.contains(&base), "{base} is gone with the revert; preview: {preview:?}");
        }
    });
    done.unwrap();
}

/// A disk that a revert brings back runs on no layer that a snapshot names.
#[test]
fn a_restored_disk_changes_no_snapshot() {
    let world = world();
    let done = world.run(|env| async move {
        let (vm, _) = create(&env).await;
        let number = add(&vm, DiskMode::IndependentPersistent).await;
        fill(&vm, number, 0..4, 1).await;
        vm.take("x", "").await.unwrap();
        vm.set_mode(number, DiskMode::Persistent).await.unwrap();
        vm.take("y", "").await.unwrap();
        assert_eq!(sealed(&vm, "y", number, 0).await, 1);
        vm.remove_disk(number, false).await.unwrap();
        match vm.revert(Some("x"), None, false).await {
            Ok(_) => {
                fill(&vm, number, 0..4, 2).await;
                assert_eq!(sealed(&vm, "y", number, 0).await, 1, "a sealed snapshot has changed");
            }
            Err(e) => assert_eq!(e.kind, ErrorKind::Refused, "{e}"),
        }
    });
    done.unwrap();
}

/// While a clone is made, no commit folds what the clone will read.
#[test]
fn no_commit_begins_while_a_clone_is_made() {
    let world = world();
    let done = world.run(|env| async move {
        let (vm, home) = create(&env).await;
        fill(&vm, 0, 0..10, 1).await;
        vm.take("a", "").await.unwrap();
        fill(&vm, 0, 5..15, 2).await;
        vm.take("b", "").await.unwrap();
        let (snapshot, held) = vm.hold("b", "the clone test1").await.unwrap();
        let refused = vm.commit(&CommitWhat::One("a".into())).await.err().expect("refused");
        assert_eq!(refused.kind, ErrorKind::Refused, "{refused}");
        make_clone(&env, &home, snapshot.id).await;
        drop(held);
        assert!(vm.commit(&CommitWhat::One("a".into())).await.is_err(), "a clone reads it");
    });
    done.unwrap();
}

/// A commit failed, and a clone was made of a state above it. At the next start the commit does not go on under the
/// clone.
#[test]
fn a_failed_commit_does_not_continue_under_a_clone() {
    let world = world();
    let armed = world.clone();
    let prepared = world.run(|env| async move {
        let (vm, home) = create(&env).await;
        fill(&vm, 0, 0..10, 1).await;
        vm.take("a", "").await.unwrap();
        fill(&vm, 0, 5..15, 2).await;
        vm.take("b", "").await.unwrap();
        armed.add_fault(Fault::nth(1, Action::Fail(Errno::EIO)).of(OpKind::Write).named("web-flat"));
        let job = vm.commit(&CommitWhat::One("a".into())).await.unwrap();
        assert_eq!(job.wait().await, JobState::Failed);
        armed.clear_faults();
        let (snapshot, _held) = vm.hold("b", "the clone test1").await.unwrap();
        make_clone(&env, &home, snapshot.id).await;
    });
    prepared.unwrap();
    world.kill();
    let done = world.run(|env| async move {
        let (vm, _) = open(&env).await;
        for job in vm.jobs() {
            job.wait().await;
        }
        let clone = open_clone(&env).await.unwrap_or_else(|e| panic!("the clone is broken: {e}"));
        let disk = clone.disk(0).unwrap();
        assert_eq!((get(&disk, 0).await, get(&disk, 7).await, get(&disk, 12).await), (1, 2, 2));
    });
    done.unwrap();
}

/// A flush after a change of the mode covers unflushed writes from before the change.
#[test]
fn a_flush_covers_what_was_written_before_a_change_of_mode() {
    for seed in 0..16 {
        let world = SimWorld::new(seed, sim::Options::default());
        let prepared = world.run(|env| async move {
            let (vm, _) = create(&env).await;
            let number = add(&vm, DiskMode::IndependentPersistent).await;
            {
                let (disk, _client) = vm.attach(number, "first").await.unwrap();
                put(&disk, 3, 9).await.unwrap();
            }
            vm.set_mode(number, DiskMode::IndependentNonpersistent).await.unwrap();
            let (disk, _client) = vm.attach(number, "second").await.unwrap();
            assert_eq!(get(&disk, 3).await, 9);
            disk.clone().flush().await.unwrap();
            number
        });
        let number = prepared.unwrap();
        world.power_cut();
        let seen = world.run(|env| async move { get(&open(&env).await.0.disk(number).unwrap(), 3).await });
        assert_eq!(seen, Some(9), "seed {seed}: flushed, and lost by the cut");
    }
}

/// A configuration edited by hand points below a snapshot: the engine writes nothing there.
#[test]
fn a_running_layer_under_a_snapshot_is_not_written() {
    let world = world();
    let done = world.run(|env| async move {
        let (vm, home) = create(&env).await;
        fill(&vm, 0, 0..10, 1).await;
        vm.take("a", "").await.unwrap();
        vm.close().await.unwrap();
        let text = home.dir().read_file("web.vmx", 1 << 20).await.unwrap();
        let text = String::from_utf8(text).unwrap().replace("web-000001.vmdk", "web.vmdk");
        home.dir().replace_file("web.vmx", text.as_bytes()).await.unwrap();
        drop((vm, home));
        let (vm, _) = open(&env).await;
        assert_eq!(vm.state().disks[0].top, "web.vmdk");
        let refused = vm.attach(0, "guest").await.err().expect("refused");
        assert_eq!(refused.kind, ErrorKind::Refused, "{refused}");
        // A take repairs this: the VM then runs on a child.
        vm.take("mended", "").await.unwrap();
        fill(&vm, 0, 0..4, 2).await;
        assert_eq!(sealed(&vm, "a", 0, 0).await, 1);
    });
    done.unwrap();
}
