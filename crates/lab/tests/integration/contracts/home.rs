//! The contract of [`Manifest`]. After each step a second reader of the folder finds what the step left.

use blk::manifest::{Change, DiskMode, Manifest, NewDisk, SnapshotState, VmState};
use blk::{Dir, ErrorKind};
use vmdk::delta::Growth;
use vmdk::home::{Folders, Home, NewVm};

use super::in_both_worlds;

const GROWTH: Growth = Growth { step_bytes: 64 << 10, chunk_bytes: 16 << 10 };
const DISK_BYTES: u64 = 1 << 20;

/// Reopens the home, as after a restart.
fn again(root: &Dir) -> Box<dyn Manifest> {
    Box::new(Home::new(root.clone(), Folders::default(), GROWTH))
}

/// Checks that a restart finds `expected`, and the chain under each running disk.
async fn is_found(root: &Dir, expected: &VmState) {
    let home = again(root);
    assert_eq!(home.load().await.unwrap(), *expected);
    for disk in &expected.disks {
        let chain = home.chain(&disk.top).await.unwrap();
        let names: Vec<_> = chain.iter().map(|layer| layer.name.clone()).collect();
        assert_eq!(home.chain_names(&disk.top).await.unwrap(), names);
        assert_eq!((names.last(), &chain[0].parent), (Some(&disk.top), &None));
        assert!(chain.windows(2).all(|two| two[1].parent.as_ref() == Some(&two[0].name)), "{chain:?}");
        assert!(chain.iter().all(|layer| layer.size_bytes == disk.size_bytes && !layer.foreign), "{chain:?}");
    }
}

async fn names_of_links(home: &dyn Manifest) -> Vec<String> {
    let mut names: Vec<_> = home.links().await.unwrap().into_iter().map(|link| link.name).collect();
    names.sort();
    names
}

async fn publish(home: &dyn Manifest, next: &VmState, remove: &[String]) {
    let change = Change { next: next.clone(), remove: remove.to_vec(), ..Change::default() };
    home.publish(&change).await.unwrap();
}

/// Takes a snapshot of all disks, whose new tops are empty children.
async fn take(home: &dyn Manifest, state: &VmState, name: &str) -> VmState {
    let mut next = state.clone();
    next.last_uid += 1;
    let id = u128::from(next.last_uid);
    for disk in &mut next.disks {
        disk.top = home.create_child(&disk.top).await.unwrap().name().to_string();
    }
    next.snapshots.push(SnapshotState {
        id,
        uid: next.last_uid,
        parent: next.current.replace(id),
        name: name.into(),
        description: "two lines\nand \"quotes\"".into(),
        created_unix_us: 1_000_000,
        disks: state.disks.iter().map(|disk| (disk.number, disk.top.clone())).collect(),
    });
    publish(home, &next, &[]).await;
    next
}

/// Checks that a child that was created and never published is in no state, and that a restart removes it.
async fn what_is_prepared_is_nobodys(root: &Dir, state: &VmState) {
    let home = again(root);
    home.load().await.unwrap();
    let before = names_of_links(&*home).await;
    let child = home.create_child(&state.disks[0].top).await.unwrap().name().to_string();
    assert_eq!(names_of_links(&*home).await, before);
    is_found(root, state).await;
    assert!(!root.list().await.unwrap().contains(&child), "{child} is left behind");

    let child = home.create_child(&state.disks[0].top).await.unwrap().name().to_string();
    home.discard_child(&child).await.unwrap();
    assert!(!root.list().await.unwrap().contains(&child), "{child} is left behind");
    is_found(root, state).await;
}

/// Checks that a first write changes IDs along the chain but never the state, and that a repeated `touch` is harmless.
async fn a_touch_keeps_the_chain(root: &Dir, state: &VmState) {
    let home = again(root);
    home.load().await.unwrap();
    for layer in home.chain_names(&state.disks[0].top).await.unwrap() {
        home.touch(&layer).await.unwrap();
        home.touch(&layer).await.unwrap();
        is_found(root, state).await;
    }
}

async fn layers_open_as_asked(root: &Dir, state: &VmState) {
    let home = again(root);
    home.load().await.unwrap();
    for layer in home.chain_names(&state.disks[0].top).await.unwrap() {
        for writable in [false, true] {
            let opened = home.open(&layer, writable).await.unwrap();
            assert_eq!((opened.name(), opened.shape().writable), (layer.as_str(), writable));
        }
    }
    let missing = home.open("missing.vmdk", false).await.err().expect("there is no such layer");
    assert_eq!(missing.kind, ErrorKind::NotFound, "{missing}");
}

async fn a_disk_comes_and_grows(root: &Dir, state: &VmState) -> VmState {
    let home = again(root);
    home.load().await.unwrap();
    let wanted =
        NewDisk { size_bytes: DISK_BYTES, mode: DiskMode::IndependentPersistent, folder: None, source: None };
    let disk = home.create_disk(state, &wanted).await.unwrap();
    assert!(state.disks.iter().all(|old| old.number != disk.number && old.slot != disk.slot), "{disk:?}");
    is_found(root, state).await;
    let disk = home.create_disk(state, &wanted).await.unwrap();
    let mut next = state.clone();
    next.disks.push(disk.clone());
    publish(&*home, &next, &[]).await;
    is_found(root, &next).await;

    home.grow(&disk.top, 2 * DISK_BYTES).await.unwrap();
    next.disks.last_mut().unwrap().size_bytes = 2 * DISK_BYTES;
    is_found(root, &next).await;
    let delta = home.grow(&next.disks[0].top, 2 * DISK_BYTES).await.unwrap_err();
    assert_eq!(delta.kind, ErrorKind::Refused, "{delta}");
    is_found(root, &next).await;
    next
}

/// Removes the snapshot `newest` together with its empty children.
async fn a_snapshot_goes(root: &Dir, state: &VmState) -> VmState {
    let home = again(root);
    home.load().await.unwrap();
    let mut next = state.clone();
    let newest = next.snapshots.pop().unwrap();
    next.current = newest.parent;
    let mut gone = Vec::new();
    for (number, layer) in &newest.disks {
        let disk = next.disks.iter_mut().find(|disk| disk.number == *number).unwrap();
        gone.push(std::mem::replace(&mut disk.top, layer.clone()));
    }
    publish(&*home, &next, &gone).await;
    let files = root.list().await.unwrap();
    assert!(gone.iter().all(|layer| !files.contains(layer)), "{gone:?} are left behind");
    assert_eq!(home.disks_at(newest.id).await.unwrap_err().kind, ErrorKind::NotFound);
    next
}

async fn keeps_the_contract(root: Dir) {
    let new = NewVm::new("web", &[DISK_BYTES, DISK_BYTES]);
    let home: Box<dyn Manifest> =
        Box::new(Home::create(root.clone(), Folders::default(), GROWTH, new).await.unwrap());
    let empty = home.load().await.unwrap();
    assert_eq!((empty.name.as_str(), empty.disks.len(), empty.snapshots.len()), ("web", 2, 0));
    is_found(&root, &empty).await;
    what_is_prepared_is_nobodys(&root, &empty).await;

    let one = take(&*home, &empty, "one").await;
    is_found(&root, &one).await;
    let two = take(&*home, &one, "two").await;
    is_found(&root, &two).await;
    for (snapshot, state) in two.snapshots.iter().zip([&empty, &one]) {
        assert_eq!(again(&root).disks_at(snapshot.id).await.unwrap().as_ref(), Some(&state.disks));
    }
    let tops: Vec<_> = two.disks.iter().map(|disk| disk.top.clone()).collect();
    assert!(home.dependants(&tops).await.unwrap().is_empty());

    what_is_prepared_is_nobodys(&root, &two).await;
    a_touch_keeps_the_chain(&root, &two).await;
    layers_open_as_asked(&root, &two).await;
    home.reserve(1 << 20).await.unwrap();
    home.reserve(0).await.unwrap();
    is_found(&root, &two).await;
    let grown = a_disk_comes_and_grows(&root, &two).await;
    let back = a_snapshot_goes(&root, &grown).await;
    is_found(&root, &back).await;
}

#[test]
fn a_home_keeps_it() {
    in_both_worlds(|_, root| async move {
        let dir = root.open_dir("home", true).await.unwrap();
        keeps_the_contract(dir).await;
    });
}
