//! Rebuilds of damaged stores. Every block of the new store is right, or an error to read.

use std::collections::BTreeMap;
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Buf, Env, ErrorKind, Result};
use sim::{SimWorld, View};

use super::super::backing::SECTOR;
use super::super::change::Op;
use super::super::check::Fault;
use super::super::layout::{BLOCK, HEADER_BLOCKS, get_u64, page_checksum};
use super::super::recover::NewStore;
use super::super::space::Growth;
use super::super::store::{Store, StoreOptions};
use super::super::superblock::{SLOT_BLOCKS, Superblock};
use super::super::tests::{disk, fill, run, write_sectors};
use super::super::tree::FoundPage;
use super::*;
use crate::options::Defect;

pub(super) const DISK_BLOCKS: u64 = 600;
const SECTORS: u64 = BLOCK / SECTOR;
pub(super) const LAYOUT: NewStore = NewStore { journal_pages: 824, group_blocks: 64, ..NewStore::DEFAULT };

/// The first bytes of the sectors of each block; None for one that cannot be read.
pub(super) type Content = Vec<Option<[u8; 8]>>;

/// A store's file, and what its states show.
#[derive(Clone)]
pub(super) struct Image {
    pub bytes: Vec<u8>,
    pub states: BTreeMap<u64, Content>,
    /// What the states show if the journal ends early, as it does where its last batch is torn.
    pub without_tail: BTreeMap<u64, Content>,
}

pub(super) async fn open(env: &Env, name: &str) -> Result<Rc<Store>> {
    let file = env.open_root("/")?.open(name, OpenMode::Write).await?;
    let options = StoreOptions { reserve_blocks: 16, ..StoreOptions::default() };
    let growth = Growth { ahead_blocks: 4, chunk_blocks: 2 };
    Store::open(env.clone(), file, options, growth, true).await
}

pub(super) async fn content(store: &Rc<Store>, node: u64, blocks: u64) -> Content {
    let disk = disk(store, node);
    let mut content = Vec::new();
    let piece = |buf: &[u8]| -> [u8; 8] { std::array::from_fn(|n| buf[n * SECTOR as usize + 17]) };
    for first in (0..blocks).step_by(50) {
        let count = 50.min(blocks - first);
        let (buf, result) = disk.clone().read(first * BLOCK, Buf::alloc((count * BLOCK) as usize)).await;
        if result.is_ok() {
            content.extend(buf.chunks_exact(BLOCK as usize).map(|block| Some(piece(block))));
            continue;
        }
        for block in first..first + count {
            let (buf, result) = disk.clone().read(block * BLOCK, Buf::alloc(BLOCK as usize)).await;
            content.push(result.is_ok().then(|| piece(&buf)));
        }
    }
    content
}

/// Makes snapshots, clones, sector masks, stale pages of several checkpoints, and nodes that are dropped and whose space
/// is used again. `tail`: the journal has records behind the last checkpoint.
async fn make(env: &Env, tail: bool) -> BTreeMap<u64, Content> {
    let dir = env.open_root("/").unwrap();
    let file = dir.create_new("store").await.unwrap();
    Store::format(env, &file, LAYOUT).await.unwrap();
    dir.sync().await.unwrap();
    let store = open(env, "store").await.unwrap();
    store.change(&[Op::Create { node: 1, size_blocks: DISK_BLOCKS }]).unwrap();
    let base = disk(&store, 1);
    fill(&base, 3, 20, 1).await;
    fill(&base, 300, 4, 2).await;
    store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
    store.checkpoint().await.unwrap();
    write_sectors(&base, 5 * SECTORS + 3, 2, 3).await;
    fill(&base, 301, 1, 4).await;
    store.change(&[Op::Branch { from: 2, node: 3 }]).unwrap();
    store.checkpoint().await.unwrap();
    fill(&disk(&store, 3), 4, 2, 5).await;
    store.checkpoint().await.unwrap();
    // The space of this node is used again.
    store.change(&[Op::Create { node: 4, size_blocks: DISK_BLOCKS }]).unwrap();
    fill(&disk(&store, 4), 100, 30, 6).await;
    store.checkpoint().await.unwrap();
    store.change(&[Op::Drop { node: 4 }]).unwrap();
    while store.has_to_reclaim() {
        store.checkpoint().await.unwrap();
        store.flush().await.unwrap();
    }
    store.change(&[Op::Create { node: 5, size_blocks: DISK_BLOCKS }]).unwrap();
    fill(&disk(&store, 5), 7, 25, 7).await;
    store.checkpoint().await.unwrap();
    // A disk that is empty now; its snapshot is not.
    store.change(&[Op::Create { node: 6, size_blocks: DISK_BLOCKS }]).unwrap();
    fill(&disk(&store, 6), 40, 3, 8).await;
    store.change(&[Op::Take { running: 6, sealed: 7 }]).unwrap();
    store.checkpoint().await.unwrap();
    disk(&store, 6).discard(0..DISK_BLOCKS * BLOCK).await.unwrap();
    for round in 0..4 {
        fill(&base, 10 + round, 2, 20 + round as u8).await;
        store.flush().await.unwrap();
        store.checkpoint().await.unwrap();
    }
    write_sectors(&disk(&store, 3), 20 * SECTORS + 1, 1, 40).await;
    store.checkpoint().await.unwrap();
    if tail {
        fill(&base, 8, 2, 50).await;
        fill(&base, 590, 3, 51).await;
        write_sectors(&disk(&store, 5), 9 * SECTORS + 2, 2, 52).await;
        disk(&store, 3).discard(300 * BLOCK..301 * BLOCK).await.unwrap();
        store.flush().await.unwrap();
    }
    let mut states = BTreeMap::new();
    for node in [1, 2, 3, 5, 6, 7] {
        states.insert(node, content(&store, node, DISK_BLOCKS).await);
    }
    states
}

pub(super) fn image(tail: bool) -> Image {
    let world = SimWorld::new(7, sim::Options::default());
    let states: Rc<std::cell::RefCell<BTreeMap<u64, Content>>> = Rc::default();
    let out = states.clone();
    run(&world, move |env| async move { *out.borrow_mut() = make(&env, tail).await });
    let bytes = world.read_file("store", View::Durable).unwrap();
    let without_tail = if tail { image(false).states } else { BTreeMap::new() };
    Image { bytes, states: states.take(), without_tail }
}

pub(super) fn page(bytes: &[u8], block: u64) -> &[u8] {
    &bytes[(block * BLOCK) as usize..][..BLOCK as usize]
}

impl Image {
    pub(super) fn blocks(&self) -> u64 {
        self.bytes.len() as u64 / BLOCK
    }

    pub(super) fn superblock(&self) -> Superblock {
        let decode =
            |slot: usize| Superblock::decode(page(&self.bytes, SLOT_BLOCKS[slot]), slot, "store").ok();
        [0, 1].into_iter().filter_map(decode).max_by_key(|superblock| superblock.checkpoint).unwrap()
    }

    pub(super) fn flip(&mut self, block: u64) {
        self.bytes[(block * BLOCK) as usize + 1000] ^= 4;
    }

    /// Makes a block zeros.
    pub(super) fn wipe(&mut self, block: u64) {
        self.bytes[(block * BLOCK) as usize..][..BLOCK as usize].fill(0);
    }

    /// Damages all pages with this magic.
    pub(super) fn flip_all(&mut self, magic: [u8; 8]) {
        for block in 0..self.blocks() {
            if page(&self.bytes, block)[..8] == magic {
                self.flip(block);
            }
        }
    }

    /// Returns the pages of metadata, whether they are in use or not.
    pub(super) fn metadata(&self) -> Vec<u64> {
        let magics: [&[u8; 8]; 5] = [b"unstunSB", b"unstnMAP", b"UnstnBmp", b"unstCATA", b"unstunJB"];
        (0..self.blocks())
            .filter(|block| magics.iter().any(|magic| &page(&self.bytes, *block)[..8] == *magic))
            .collect()
    }
}

pub(super) type Outcome = Option<(RebuildReport, BTreeMap<u64, Content>)>;

/// Rebuilds a store, and returns what the new one shows; None if nothing can be rebuilt with certainty.
pub(super) fn rebuilt(image: &Image, unreadable: &[u64], defects: Defects) -> Outcome {
    let world = SimWorld::new(8, sim::Options::default());
    world.write_file("store", &image.bytes);
    for block in unreadable {
        assert!(world.make_unreadable("store", block * BLOCK..(block + 1) * BLOCK));
    }
    let outcome: Rc<std::cell::RefCell<Outcome>> = Rc::default();
    let out = outcome.clone();
    run(&world, move |env| async move {
        let dir = env.open_root("/").unwrap();
        let source = dir.open("store", OpenMode::Read).await.unwrap();
        let target = dir.create_new("new").await.unwrap();
        let report = match rebuild(&env, &source, &target, defects).await {
            Ok(report) => report,
            Err(e) => {
                assert_eq!(e.kind, ErrorKind::Damaged, "{e}");
                return;
            }
        };
        dir.sync().await.unwrap();
        let store = open(&env, "new").await.unwrap();
        assert_eq!(store.broken(), None, "{report:?}");
        let mut states = BTreeMap::new();
        for node in &report.nodes {
            states.insert(node.node, content(&store, node.node, DISK_BLOCKS.min(node.bytes / BLOCK)).await);
        }
        let check = store.check().await.unwrap();
        // A block that a state has lost and its children replace is not given back.
        let is_leak = check.findings.iter().all(|finding| finding.fault == Fault::Leaked);
        assert!(is_leak || defects != Defects::default(), "{check:?} of {report:?}");
        store.close().await.unwrap();
        *out.borrow_mut() = Some((report, states));
    });
    outcome.take()
}

/// Returns whether a content is right or an error at each block. Blocks behind its end must be holes.
fn is_right(found: &Content, expected: &Content) -> bool {
    let behind = |n: usize| found.get(n).copied().unwrap_or(Some([0; 8]));
    expected.iter().enumerate().all(|(n, block)| behind(n).is_none() || behind(n) == *block)
}

/// Returns whether each block is right as one of two contents says, or an error.
pub(super) fn is_right_or(found: &Content, one: &Content, other: &Content) -> bool {
    let behind = |n: usize| found.get(n).copied().unwrap_or(Some([0; 8]));
    (0..one.len()).all(|n| behind(n).is_none() || behind(n) == one[n] || behind(n) == other[n])
}

/// Checks the outcome of a rebuild, and returns the number of blocks that are lost.
pub(super) fn verify(image: &Image, outcome: &Outcome, what: &str) -> Result<usize, String> {
    let Some((report, states)) = outcome else { return Ok(usize::MAX) };
    let mut lost = 0;
    for node in &report.nodes {
        let found = &states[&node.node];
        lost += found.iter().filter(|block| block.is_none()).count();
        let exact = node.name.as_ref().is_none_or(|name| *name == format!("recovered-{}", node.node));
        // A last batch that is not whole may be one that was never durable.
        let is_torn = |node: u64| {
            report.notes.iter().any(|note| note.contains("not whole"))
                && image
                    .without_tail
                    .get(&node)
                    .is_some_and(|expected| is_right_or(found, &image.states[&node], expected))
        };
        let right = is_torn(node.node)
            || match image.states.get(&node.node).filter(|_| exact) {
                Some(expected) => is_right(found, expected),
                None => image.states.values().any(|expected| is_right(found, expected)),
            };
        if !right {
            let all: Vec<(u64, usize)> = image
                .states
                .iter()
                .map(|(id, expected)| {
                    (
                        *id,
                        (0..found.len()).filter(|n| found[*n].is_some() && found[*n] != expected[*n]).count(),
                    )
                })
                .collect();
            return Err(format!("{what}: node {} ({:?}) is wrong: {all:?}", node.node, node.name));
        }
        let bytes: u64 = node.lost.iter().map(|range| range.end - range.start).sum();
        if found.iter().any(Option::is_none) && bytes == 0 {
            return Err(format!("{what}: node {} has lost blocks that were not reported", node.node));
        }
    }
    Ok(lost)
}

pub(super) fn check(image: &Image, what: &str) -> usize {
    verify(image, &rebuilt(image, &[], Defects::default()), what).unwrap_or_else(|wrong| panic!("{wrong}"))
}

#[test]
fn a_store_without_damage_is_rebuilt_with_everything() {
    for tail in [false, true] {
        let image = image(tail);
        let outcome = rebuilt(&image, &[], Defects::default());
        assert_eq!(verify(&image, &outcome, "whole"), Ok(0));
        let (report, states) = outcome.unwrap();
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(states, image.states);
    }
}

#[test]
fn a_store_without_catalogue_is_rebuilt_from_its_map_pages() {
    for tail in [false, true] {
        let mut image = image(tail);
        image.flip_all(*b"unstCATA");
        let outcome = rebuilt(&image, &[], Defects::default());
        let lost = verify(&image, &outcome, "no catalogue").unwrap();
        let (report, states) = outcome.unwrap();
        assert!(!report.has_catalogue);
        for node in [1, 3, 5, 6] {
            let found = states.get(&node).unwrap_or_else(|| panic!("node {node}: {report:?}"));
            let good = found.iter().filter(|block| block.is_some_and(|block| block != [0; 8])).count();
            let all =
                image.states[&node].iter().filter(|block| block.is_some_and(|block| block != [0; 8])).count();
            assert!(good + 2 >= all, "node {node}: {good} of {all}, {report:?}");
        }
        // Blocks of which some sectors were written behind the last checkpoint, at most.
        assert!(lost <= 1, "{lost} blocks are lost: {report:?}");
    }
}

#[test]
fn one_copy_of_the_catalogue_is_enough_and_both_are_written_again() {
    let mut image = image(true);
    let superblock = image.superblock();
    image.flip(superblock.catalogue.addr);
    assert_eq!(check(&image, "first copy"), 0);
    let world = SimWorld::new(9, sim::Options::default());
    world.write_file("store", &image.bytes);
    run(&world, |env| async move {
        let store = open(&env, "store").await.unwrap();
        let damage = store.damage();
        assert!(damage.iter().any(|e| e.place.contains("catalogue")), "{damage:?}");
        store.checkpoint().await.unwrap();
        let report = store.check().await.unwrap();
        assert!(report.is_sound(), "{report:?}");
        store.close().await.unwrap();
    });
}

#[test]
fn lost_superblocks_are_found_in_the_catalogue() {
    for tail in [false, true] {
        let mut image = image(tail);
        image.flip_all(*b"unstunSB");
        let outcome = rebuilt(&image, &[], Defects::default());
        let lost = verify(&image, &outcome, "no superblock").unwrap();
        assert!(outcome.unwrap().0.has_catalogue);
        assert!(lost <= 1, "{lost}");
        image.flip_all(*b"unstCATA");
        assert!(rebuilt(&image, &[], Defects::default()).is_none());
    }
}

#[test]
fn any_one_damaged_page_leaves_right_content_or_errors() {
    for tail in [false, true] {
        let whole = image(tail);
        for block in whole.metadata() {
            let mut image = whole.clone();
            image.flip(block);
            check(&image, &format!("block {block}, tail {tail}"));
        }
    }
}

#[test]
fn any_one_damaged_page_beside_a_lost_catalogue_leaves_right_content_or_errors() {
    for tail in [false, true] {
        let mut whole = image(tail);
        whole.flip_all(*b"unstCATA");
        for block in whole.metadata() {
            let mut image = whole.clone();
            image.flip(block);
            check(&image, &format!("no catalogue, block {block}, tail {tail}"));
        }
    }
}

#[test]
fn unreadable_blocks_are_lost_and_no_others() {
    let image = image(true);
    let start = HEADER_BLOCKS + LAYOUT.journal_pages;
    for block in (start..image.blocks()).step_by(3) {
        let outcome = rebuilt(&image, &[block], Defects::default());
        verify(&image, &outcome, &format!("unreadable {block}")).unwrap();
    }
}

#[test]
fn torn_pages_are_no_pages() {
    let mut image = image(true);
    let id = image.superblock().store_id;
    let maps: Vec<u64> = (0..image.blocks())
        .filter(|block| FoundPage::read(id, *block, page(&image.bytes, *block)).is_some())
        .collect();
    for block in maps.iter().step_by(2) {
        let at = (block * BLOCK) as usize;
        image.bytes[at + 2048..at + 4096].fill(0);
    }
    check(&image, "torn");
    image.flip_all(*b"unstCATA");
    check(&image, "torn, no catalogue");
}

/// A rebuild that trusts pages which are not in use, or that shows zeros for what is lost, is found.
#[test]
fn planted_defects_are_found() {
    let mut lacks_catalogue = image(true);
    lacks_catalogue.flip_all(*b"unstCATA");
    let stale = rebuilt(&lacks_catalogue, &[], Defects::only(Defect::RebuildFromStalePages));
    verify(&lacks_catalogue, &stale, "stale").unwrap_err();
    let image = image(true);
    let found = image.metadata().into_iter().any(|block| {
        let mut image = image.clone();
        image.flip(block);
        verify(&image, &rebuilt(&image, &[], Defects::only(Defect::RebuildLostAsZeros)), "zeros").is_err()
    });
    assert!(found, "a rebuild that shows zeros was not found");
    assert_eq!(get_u64(page(&image.bytes, 0), 24), page_checksum(page(&image.bytes, 0)));
}
