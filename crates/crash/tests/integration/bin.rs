//! Restores from the bin bring back what a revert or a discard threw away. What the bin keeps does not stop a commit.

use std::rc::Rc;

use blk::manifest::{DiskMode, NewDisk};
use blk::volume::Volume;
use blk::{Buf, Env, ErrorKind, SECTOR};
use engine::{CommitWhat, Disk, JobState, Vm};
use sim::SimWorld;
use vmdk::home::{Folders, Home};

use super::support::{self, Growth};

const DISK_BYTES: u64 = 256 << 10;
const GROWTH: Growth = support::growth(64 << 10);

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Env) -> F + 'static) {
    SimWorld::new(3, sim::Options::default()).run(test).expect("no power cut is scheduled");
}

async fn open(env: &Env) -> (Rc<Vm>, Rc<Home>) {
    open_with(env, support::searching(env)).await
}

async fn open_with(env: &Env, folders: Folders) -> (Rc<Vm>, Rc<Home>) {
    support::open_with(env, "web", GROWTH, support::options(), folders).await
}

async fn create(env: &Env) -> Rc<Vm> {
    support::create(env, "web", GROWTH, &[DISK_BYTES]).await;
    open(env).await.0
}

async fn again(env: &Env, vm: Rc<Vm>) -> Rc<Vm> {
    vm.close().await.unwrap();
    drop(vm);
    open(env).await.0
}

async fn fill(vm: &Rc<Vm>, number: u32, byte: u8) {
    let (disk, _client) = vm.attach(number, "test").await.unwrap();
    for sector in 0..8 {
        let data = Buf::copy_of(&[byte; SECTOR as usize]).freeze();
        disk.clone().write(sector * SECTOR, data).await.unwrap();
    }
}

async fn first_byte(disk: Rc<Disk>) -> u8 {
    let (buf, result) = disk.read(0, Buf::alloc(SECTOR as usize)).await;
    result.unwrap();
    buf[0]
}

async fn shows(vm: &Rc<Vm>, number: u32) -> u8 {
    first_byte(vm.disk(number).unwrap()).await
}

async fn sealed(vm: &Rc<Vm>, snapshot: &str) -> u8 {
    let (disk, _view) = vm.open_view(snapshot, 0, "test").await.unwrap();
    first_byte(disk).await
}

fn names(vm: &Vm) -> Vec<String> {
    vm.state().snapshots.iter().map(|snapshot| snapshot.name.clone()).collect()
}

fn entry(vm: &Vm) -> u64 {
    vm.state().bin.last().expect("something is in the bin").id
}

async fn commit(vm: &Rc<Vm>, what: CommitWhat) {
    assert_eq!(vm.commit(&what).await.unwrap().wait().await, JobState::Done);
}

/// Takes `a`, writes 2, and reverts: the bin then has what was written.
async fn throw_away(vm: &Rc<Vm>) {
    vm.take("a", "").await.unwrap();
    fill(vm, 0, 2).await;
    vm.revert(Some("a"), None, true).await.unwrap();
}

#[test]
fn a_revert_and_its_restore_are_undone_by_a_restore() {
    run(|env| async move {
        let vm = create(&env).await;
        fill(&vm, 0, 1).await;
        throw_away(&vm).await;
        let generation = vm.state().generation.present;
        assert_eq!(shows(&vm, 0).await, 1);
        fill(&vm, 0, 3).await;
        let vm = again(&env, vm).await;
        let loss = vm.restore(entry(&vm), true).await.unwrap();
        assert!(loss.reverts && loss.kept.is_some(), "{loss:?}");
        assert_eq!((shows(&vm, 0).await, vm.state().generation.present), (2, generation + 1));
        let vm = again(&env, vm).await;
        vm.restore(entry(&vm), false).await.unwrap();
        assert_eq!((shows(&vm, 0).await, vm.state().bin.len()), (3, 0));
        crash::home::nothing_leaked(&vm).await.unwrap();
    });
}

#[test]
fn a_discarded_branch_is_restored_with_its_names() {
    run(|env| async move {
        let vm = create(&env).await;
        fill(&vm, 0, 1).await;
        vm.take("a", "").await.unwrap();
        fill(&vm, 0, 2).await;
        vm.take("b", "the second").await.unwrap();
        fill(&vm, 0, 3).await;
        vm.discard("a", true).await.unwrap();
        assert_eq!((shows(&vm, 0).await, names(&vm)), (1, vec![]));
        fill(&vm, 0, 4).await;
        vm.take("b", "").await.unwrap();
        let vm = again(&env, vm).await;
        vm.restore(entry(&vm), true).await.unwrap();
        assert_eq!((shows(&vm, 0).await, names(&vm)), (3, ["b", "a", "b-2"].map(String::from).to_vec()));
        assert_eq!((sealed(&vm, "a").await, sealed(&vm, "b-2").await, sealed(&vm, "b").await), (1, 2, 4));
        let state = vm.state();
        let id = |name: &str| state.snapshots.iter().find(|s| s.name == name).map(|s| s.id);
        assert_eq!((state.current, state.snapshots[2].parent), (id("b-2"), id("a")));
        assert_eq!(state.snapshots[2].description, "the second");
        crash::home::is_sound(&env).await.unwrap();
    });
}

#[test]
fn a_side_branch_is_restored_under_its_remaining_parent() {
    run(|env| async move {
        let vm = create(&env).await;
        for (name, byte) in [("a", 1), ("b", 2), ("c", 3)] {
            fill(&vm, 0, byte).await;
            vm.take(name, "").await.unwrap();
        }
        vm.revert(Some("a"), None, false).await.unwrap();
        let loss = vm.discard("c", true).await.unwrap();
        assert!(!loss.reverts);
        // The layers of `b` stay, because `c` in the bin needs them.
        vm.discard("b", false).await.unwrap();
        vm.restore(entry(&vm), true).await.unwrap();
        let state = vm.state();
        assert_eq!((names(&vm), sealed(&vm, "c").await), (["a", "c"].map(String::from).to_vec(), 3));
        assert_eq!(state.snapshots[1].parent, Some(state.snapshots[0].id));
        crash::home::nothing_leaked(&vm).await.unwrap();
    });
}

#[test]
fn a_commit_evicts_binned_states_that_need_the_changed_layer() {
    run(|env| async move {
        let vm = create(&env).await;
        fill(&vm, 0, 1).await;
        throw_away(&vm).await;
        fill(&vm, 0, 3).await;
        let preview = vm.commit_preview(&CommitWhat::One("a".into())).await.unwrap();
        assert_eq!((preview.evicted, preview.layers), (vec![entry(&vm)], 1));
        commit(&vm, CommitWhat::One("a".into())).await;
        assert_eq!((shows(&vm, 0).await, vm.state().bin.len()), (3, 0));
        vm.close().await.unwrap();
        crash::home::nothing_leaked(&vm).await.unwrap();
        let links = vm.manifest().links().await.unwrap();
        assert_eq!(links.len(), 1, "{links:?}");
    });
}

#[test]
fn a_restore_undoes_the_disks_that_a_revert_removed_and_added() {
    run(|env| async move {
        let vm = create(&env).await;
        let disk = NewDisk { size_bytes: DISK_BYTES, mode: DiskMode::Persistent, folder: None, source: None };
        let old = vm.add_disk(&disk).await.unwrap().number;
        fill(&vm, old, 5).await;
        vm.take("a", "").await.unwrap();
        vm.remove_disk(old, false).await.unwrap();
        let new = vm.add_disk(&disk).await.unwrap().number;
        fill(&vm, new, 6).await;
        vm.revert(Some("a"), None, true).await.unwrap();
        assert_eq!(shows(&vm, old).await, 5);
        assert!(vm.disk(new).is_err(), "the snapshot has no such disk");
        let vm = again(&env, vm).await;
        vm.restore(entry(&vm), true).await.unwrap();
        assert_eq!(shows(&vm, new).await, 6);
        assert!(vm.disk(old).is_err(), "it came with the revert");
        vm.restore(entry(&vm), true).await.unwrap();
        assert_eq!(shows(&vm, old).await, 5);
        assert!(vm.disk(new).is_err());
    });
}

#[test]
fn an_entry_with_missing_files_blocks_no_operation() {
    run(|env| async move {
        let vm = create(&env).await;
        throw_away(&vm).await;
        let top = vm.state().bin[0].disks[0].top.clone();
        vm.close().await.unwrap();
        drop(vm);
        let dir = env.open_root("/web").unwrap();
        dir.unlink_if_present(&top).await.unwrap();
        let (vm, home) = open(&env).await;
        assert!(
            home.take_notices().iter().any(|notice| notice.contains(&top)),
            "a notice names the missing layer"
        );
        assert_eq!((vm.state().bin.len(), shows(&vm, 0).await), (0, 0));
        vm.take("b", "").await.unwrap();
    });
}

#[test]
fn emptying_the_bin_removes_its_layers() {
    run(|env| async move {
        let vm = create(&env).await;
        throw_away(&vm).await;
        let id = entry(&vm);
        let bytes = vm.binned_bytes(id).await.unwrap();
        assert!(bytes >= 8 * SECTOR, "{bytes}");
        assert_eq!(vm.empty_bin(&[id]).await.unwrap(), bytes);
        assert_eq!(vm.restore(id, true).await.unwrap_err().kind, blk::ErrorKind::NotFound);
        crash::home::nothing_leaked(&vm).await.unwrap();
        let vm = again(&env, vm).await;
        assert_eq!(vm.state().bin.len(), 0);
    });
}

/// The clone is in a folder that is not searched: only the lines of its snapshot name it.
#[test]
fn layers_that_a_clone_reads_are_kept_by_the_bin_and_by_a_commit() {
    run(|env| async move {
        let vm = create(&env).await;
        vm.close().await.unwrap();
        let (vm, home) = open_with(&env, Folders::default()).await;
        fill(&vm, 0, 1).await;
        vm.take("a", "").await.unwrap();
        fill(&vm, 0, 2).await;
        vm.take("b", "").await.unwrap();
        env.open_root("/").unwrap().open_dir("copy", true).await.unwrap();
        let snapshot = vm.state().snapshots[1].id;
        crash::home::clone(&env, &home, snapshot, "copy", false).await.unwrap();
        fill(&vm, 0, 3).await;
        // The former running state needs the layer that the clone reads, so that the snapshot may move to the bin.
        vm.revert(Some("b"), None, true).await.unwrap();
        let ran = entry(&vm);
        vm.discard("a", true).await.unwrap();
        let names_left = entry(&vm);
        fill(&vm, 0, 4).await;
        for ids in [vec![names_left], vec![ran, names_left]] {
            let refused = vm.empty_bin(&ids).await.unwrap_err();
            assert!(
                refused.kind == ErrorKind::Refused && refused.cause.contains("/copy/copy.vmx"),
                "{refused}"
            );
        }
        let refused =
            vm.commit(&CommitWhat::Unowned).await.err().expect("it would remove what the clone reads");
        assert!(refused.kind == ErrorKind::Refused && refused.cause.contains("/copy/copy.vmx"), "{refused}");
        crash::home::remove(&env, "copy").await.unwrap();
        // In a folder that is not searched the clone could still exist.
        let vm = again(&env, vm).await;
        commit(&vm, CommitWhat::Unowned).await;
        assert_eq!((shows(&vm, 0).await, vm.state().bin.len()), (4, 0));
        crash::home::nothing_leaked(&vm).await.unwrap();
    });
}

/// The fold would change the links under the clone. The commit is refused before a name has left the tree.
#[test]
fn a_commit_is_refused_under_a_clone_of_a_binned_state() {
    run(|env| async move {
        create(&env).await.close().await.unwrap();
        let (vm, home) = open(&env).await;
        for (name, byte) in [("a", 1), ("b", 2), ("c", 3)] {
            fill(&vm, 0, byte).await;
            vm.take(name, "").await.unwrap();
        }
        env.open_root("/").unwrap().open_dir("copy", true).await.unwrap();
        let snapshot = vm.state().snapshots[2].id;
        crash::home::clone(&env, &home, snapshot, "copy", false).await.unwrap();
        vm.revert(Some("b"), None, true).await.unwrap();
        vm.discard("c", true).await.unwrap();
        let refused = vm.commit(&CommitWhat::One("a".into())).await.err().expect("the clone is above it");
        assert!(refused.kind == ErrorKind::Refused && refused.cause.contains("/copy/copy.vmx"), "{refused}");
        assert_eq!((names(&vm), vm.jobs().len()), (["a", "b"].map(String::from).to_vec(), 0));
        crash::home::remove(&env, "copy").await.unwrap();
        let vm = again(&env, vm).await;
        commit(&vm, CommitWhat::One("a".into())).await;
        assert_eq!((shows(&vm, 0).await, names(&vm)), (2, vec!["b".to_owned()]));
        vm.restore(entry(&vm), false).await.unwrap();
        assert_eq!(sealed(&vm, "c").await, 3);
        crash::home::nothing_leaked(&vm).await.unwrap();
    });
}

#[test]
fn a_restored_reset_does_not_change_the_current_snapshot() {
    run(|env| async move {
        let vm = create(&env).await;
        let disk = NewDisk {
            size_bytes: DISK_BYTES,
            mode: DiskMode::IndependentNonpersistent,
            folder: None,
            source: None,
        };
        let scratch = vm.add_disk(&disk).await.unwrap().number;
        vm.take("a", "").await.unwrap();
        fill(&vm, 0, 1).await;
        fill(&vm, scratch, 7).await;
        vm.reset(true).await.unwrap();
        vm.take("b", "").await.unwrap();
        fill(&vm, 0, 2).await;
        let runs_from = vm.state().current;
        for byte in [7, 0] {
            vm.restore(entry(&vm), true).await.unwrap();
            assert_eq!((shows(&vm, 0).await, shows(&vm, scratch).await), (2, byte));
            assert_eq!(vm.state().current, runs_from);
        }
        vm.discard("b", false).await.unwrap();
        assert_eq!((shows(&vm, 0).await, names(&vm)), (1, vec!["a".to_owned()]));
        crash::home::nothing_leaked(&vm).await.unwrap();
    });
}
