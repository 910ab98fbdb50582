//! Rebuilds of stores in whose file an earlier state can be found: it must not be taken for the current one.

use std::collections::BTreeMap;
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::{Buf, Env};
use sim::{SimWorld, View};

use super::super::catalogue::superblock_in_head;
use super::super::change::Op;
use super::super::journal::RingBatches;
use super::super::layout::{BLOCK, HEADER_BLOCKS, get_u64, seal_page};
use super::super::sources::tests::over_a_source;
use super::super::store::Store;
use super::super::superblock::{SLOT_BLOCKS, Superblock};
use super::super::tests::{disk, fill, run};
use super::tests::{
    Content, DISK_BLOCKS, Image, LAYOUT, check, content, is_right_or, open, page, rebuilt, verify,
};
use super::*;

/// A store, and pages of its file as they were earlier.
struct History {
    image: Image,
    /// Both superblocks of the checkpoint before the last one.
    superblocks: Vec<Vec<u8>>,
}

pub(super) async fn new_store(env: &Env) -> Rc<Store> {
    let dir = env.open_root("/").unwrap();
    let file = dir.create_new("store").await.unwrap();
    Store::format(env, &file, LAYOUT).await.unwrap();
    dir.sync().await.unwrap();
    open(env, "store").await.unwrap()
}

async fn read_superblocks(env: &Env) -> Vec<Vec<u8>> {
    let file = env.open_root("/").unwrap().open("store", OpenMode::Read).await.unwrap();
    let mut pages = Vec::new();
    for block in SLOT_BLOCKS {
        let (page, read) = file.read(block * BLOCK, Buf::alloc(BLOCK as usize)).await;
        read.unwrap();
        pages.push(page.to_vec());
    }
    pages
}

/// What states show, and what they show if the journal ends early.
pub(super) type Shown = (BTreeMap<u64, Content>, BTreeMap<u64, Content>);

pub(super) fn image_of<F: Future<Output = Shown> + 'static>(work: impl FnOnce(Env) -> F + 'static) -> Image {
    let world = SimWorld::new(7, sim::Options::default());
    let states: Rc<std::cell::RefCell<Shown>> = Rc::default();
    let out = states.clone();
    run(&world, move |env| async move { *out.borrow_mut() = work(env).await });
    let bytes = world.read_file("store", View::Durable).unwrap();
    let (states, without_tail) = states.take();
    Image { bytes, states, without_tail }
}

/// A snapshot (node 2) that the last checkpoint has given back, and a disk (node 5) that uses its blocks since.
fn history() -> History {
    let superblocks: Rc<std::cell::RefCell<Vec<Vec<u8>>>> = Rc::default();
    let out = superblocks.clone();
    let image = image_of(move |env| async move {
        let store = new_store(&env).await;
        store.change(&[Op::Create { node: 1, size_blocks: DISK_BLOCKS }]).unwrap();
        fill(&disk(&store, 1), 0, 30, 1).await;
        store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
        fill(&disk(&store, 1), 0, 30, 2).await;
        store.change(&[Op::Create { node: 5, size_blocks: DISK_BLOCKS }]).unwrap();
        fill(&disk(&store, 5), 500, 2, 5).await;
        store.checkpoint().await.unwrap();
        store.checkpoint().await.unwrap();
        store.flush().await.unwrap();
        let mut states = BTreeMap::from([(2, content(&store, 2, DISK_BLOCKS).await)]);
        *out.borrow_mut() = read_superblocks(&env).await;
        store.change(&[Op::Drop { node: 2 }]).unwrap();
        store.checkpoint().await.unwrap();
        store.flush().await.unwrap();
        assert!(store.dropped_nodes().is_empty());
        let mut without_tail = states.clone();
        for node in [1, 5] {
            without_tail.insert(node, content(&store, node, DISK_BLOCKS).await);
        }
        fill(&disk(&store, 5), 0, 400, 6).await;
        store.flush().await.unwrap();
        for node in [1, 5] {
            states.insert(node, content(&store, node, DISK_BLOCKS).await);
        }
        (states, without_tail)
    });
    History { image, superblocks: superblocks.take() }
}

#[test]
fn superblocks_of_an_earlier_checkpoint_are_not_the_last_one() {
    let History { mut image, superblocks } = history();
    for (block, page) in SLOT_BLOCKS.into_iter().zip(&superblocks) {
        image.bytes[(block * BLOCK) as usize..][..BLOCK as usize].copy_from_slice(page);
    }
    check(&image, "earlier superblocks");
}

#[test]
fn a_head_of_an_earlier_checkpoint_is_not_the_last_one() {
    let History { mut image, .. } = history();
    let superblock = image.superblock();
    let is_earlier = |head: Superblock| head.checkpoint < superblock.checkpoint;
    let heads = (0..image.blocks()).filter_map(|n| superblock_in_head(page(&image.bytes, n), n, None));
    assert!(heads.into_iter().any(is_earlier), "an earlier head is in the file");
    image.flip_all(*b"unstunSB");
    let found = rebuilt(&image, &[], Defects::default()).expect("the last head is there");
    assert!(found.0.has_catalogue);
    image.flip(superblock.catalogue.addr);
    image.flip(superblock.second_catalogue);
    assert!(rebuilt(&image, &[], Defects::default()).is_none());
}

/// Space that the last checkpoint freed may be used after an opening. If the batch that names the checkpoint was not durable,
/// only one of the opening shows that earlier heads are stale.
#[test]
fn an_opening_names_the_checkpoint_of_the_catalogue() {
    let History { mut image, .. } = history();
    let superblock = image.superblock();
    for block in HEADER_BLOCKS + superblock.journal.seq..HEADER_BLOCKS + LAYOUT.journal_pages {
        image.wipe(block);
    }
    let world = SimWorld::new(9, sim::Options::default());
    world.write_file("store", &image.bytes);
    run(&world, move |env| async move {
        let store = open(&env, "store").await.unwrap();
        let ring = RingBatches::read(&store.file, &store.geometry).await.unwrap();
        assert_eq!(ring.catalogue_checkpoint, superblock.catalogue_checkpoint);
    });
}

/// The store of `history`, opened again and written to by a program that does not name catalogues in its batches.
fn continued_by_an_earlier_program(image: &Image) -> Image {
    let world = SimWorld::new(9, sim::Options::default());
    world.write_file("store", &image.bytes);
    run(&world, |env| async move {
        let store = open(&env, "store").await.unwrap();
        fill(&disk(&store, 5), 100, 3, 9).await;
        store.checkpoint().await.unwrap();
        store.flush().await.unwrap();
    });
    let mut bytes = world.read_file("store", View::Durable).unwrap();
    let epoch = Image { bytes: bytes.clone(), ..image.clone() }.superblock().epoch;
    for block in HEADER_BLOCKS..HEADER_BLOCKS + LAYOUT.journal_pages {
        let (head, at) = (page(&bytes, block), (block * BLOCK) as usize);
        if head[..8] != *b"unstunJB" || get_u64(head, 32) != epoch {
            continue;
        }
        let pages = usize::from(head[80]);
        let batch = &mut bytes[at..at + pages * BLOCK as usize];
        batch[88..96].fill(0);
        seal_page(batch);
    }
    Image { bytes, ..image.clone() }
}

/// Batches of an earlier epoch name a catalogue that has been replaced since. Its pages are still in the file.
#[test]
fn only_the_newest_batch_names_the_last_catalogue() {
    let earlier = history().image;
    let mut image = continued_by_an_earlier_program(&earlier);
    let last = image.superblock();
    image.flip_all(*b"unstunSB");
    let mut lost = image.clone();
    for head in last.catalogue_heads() {
        lost.flip(head);
    }
    let named = earlier.superblock();
    let is_there =
        named.catalogue_heads().map(|at| superblock_in_head(page(&lost.bytes, at), at, None).is_some());
    assert!(is_there.contains(&true), "the catalogue that older batches name is in the file");
    assert!(rebuilt(&lost, &[], Defects::default()).is_none());
    let (report, _) =
        rebuilt(&image, &[], Defects::default()).expect("the epoch and the checkpoint are those of a head");
    assert!(report.has_catalogue && report.checkpoint == last.catalogue_checkpoint, "{report:?}");
}

/// The pages of a checkpoint that was under way stay in the file of the new store.
#[test]
fn a_rebuilt_store_has_a_number_of_its_own() {
    let states = Rc::new(std::cell::RefCell::new(Vec::new()));
    let before = states.clone();
    let after = image_of(move |env| async move {
        let store = new_store(&env).await;
        store.change(&[Op::Create { node: 1, size_blocks: DISK_BLOCKS }]).unwrap();
        fill(&disk(&store, 1), 0, 30, 1).await;
        store.checkpoint().await.unwrap();
        fill(&disk(&store, 1), 40, 3, 2).await;
        store.flush().await.unwrap();
        let file = env.open_root("/").unwrap().open("store", OpenMode::Read).await.unwrap();
        let (start, read) = file.read(0, Buf::alloc((store.geometry.groups_start() * BLOCK) as usize)).await;
        read.unwrap();
        *before.borrow_mut() = start.to_vec();
        store.checkpoint().await.unwrap();
        Shown::default()
    });
    // Superblocks and journal are those of before: the last checkpoint never became valid.
    let mut image = after.clone();
    image.bytes[..states.borrow().len()].copy_from_slice(&states.borrow());
    let (report, bytes) = rebuilt_file(&image.bytes);
    assert!(report.is_complete(), "{report:?}");
    let rebuilt = Image { bytes, ..image };
    let superblock = rebuilt.superblock();
    let heads = (0..rebuilt.blocks()).filter_map(|n| superblock_in_head(page(&rebuilt.bytes, n), n, None));
    let of_checkpoint: Vec<u64> = heads
        .filter(|head| head.checkpoint == superblock.catalogue_checkpoint)
        .map(|head| head.catalogue.addr)
        .collect();
    assert_eq!(of_checkpoint, superblock.catalogue_heads());
}

#[test]
fn an_unreadable_or_erased_journal_does_not_prove_that_a_head_is_the_last_one() {
    let History { mut image, .. } = history();
    image.flip_all(*b"unstunSB");
    let ring = HEADER_BLOCKS..HEADER_BLOCKS + LAYOUT.journal_pages;
    let batches: Vec<u64> =
        ring.clone().filter(|block| &page(&image.bytes, *block)[..8] == b"unstunJB").collect();
    for first in &batches {
        let later: Vec<u64> = batches.iter().copied().filter(|block| block >= first).collect();
        verify(&image, &rebuilt(&image, &later, Defects::default()), "unreadable batches").unwrap();
        let mut erased = image.clone();
        (*first..ring.end).for_each(|block| erased.wipe(block));
        // Erased batches at the end of the first lap are as if they had never been written.
        let outcome = rebuilt(&erased, &[], Defects::default());
        for (node, found) in outcome.iter().flat_map(|(_, states)| states) {
            let right = is_right_or(found, &image.states[node], &image.without_tail[node]);
            assert!(right, "erased from {first}: node {node}");
        }
    }
}

#[test]
fn an_erased_journal_is_not_an_empty_one() {
    let History { image, .. } = history();
    let mut erased = image.clone();
    (HEADER_BLOCKS..HEADER_BLOCKS + LAYOUT.journal_pages).for_each(|block| erased.wipe(block));
    let outcome = rebuilt(&erased, &[], Defects::default());
    verify(&erased, &outcome, "erased journal").unwrap();
    let (report, _) = outcome.unwrap();
    assert!(!report.is_complete(), "{report:?}");
}

fn last_batch(image: &Image) -> u64 {
    let mut blocks = image.metadata();
    blocks.retain(|block| page(&image.bytes, *block)[..8] == *b"unstunJB");
    *blocks.iter().max_by_key(|block| get_u64(page(&image.bytes, **block), 16)).unwrap()
}

#[test]
fn wiped_pages_are_damaged_ones() {
    for (tail, has_catalogue) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut whole = super::tests::image(tail);
        if !has_catalogue {
            whole.flip_all(*b"unstCATA");
        }
        for block in whole.metadata() {
            let mut image = whole.clone();
            image.wipe(block);
            let outcome = rebuilt(&image, &[], Defects::default());
            let what = format!("wiped block {block}, tail {tail}, catalogue {has_catalogue}");
            let wrong = verify(&image, &outcome, &what);
            // A wiped last batch of the first lap is as if it had never been written.
            let is_last_batch = block == last_batch(&whole);
            if wrong.is_err() && is_last_batch {
                for (node, found) in outcome.iter().flat_map(|(_, states)| states) {
                    // An older state has a new node.
                    let Some(expected) = image.states.get(node) else { continue };
                    assert!(is_right_or(found, expected, &image.without_tail[node]), "{what}");
                }
            } else {
                wrong.unwrap();
            }
        }
    }
}

/// Several pages are damaged, wiped or written to another place.
#[test]
fn damage_of_several_pages_leaves_right_content_or_errors() {
    let wholes = [false, true].map(super::tests::image);
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for round in 0..400 {
        let whole = &wholes[round % 2];
        let mut image = whole.clone();
        let pages = whole.metadata();
        let mut damaged = Vec::new();
        for _ in 0..=random(6) {
            let block = pages[random(pages.len())];
            let is_journal = block < HEADER_BLOCKS + LAYOUT.journal_pages;
            match random(3) {
                1 if !is_journal => image.wipe(block),
                2 if !is_journal => {
                    let other = page(&whole.bytes, pages[random(pages.len())]).to_vec();
                    image.bytes[(block * BLOCK) as usize..][..BLOCK as usize].copy_from_slice(&other);
                }
                _ => image.flip(block),
            }
            damaged.push(block);
        }
        if random(3) == 0 {
            image.flip_all(*b"unstCATA");
        }
        if random(4) == 0 {
            image.flip_all(*b"unstunSB");
        }
        check(&image, &format!("round {round}, damaged {damaged:?}"));
    }
}

#[test]
fn what_a_cut_file_lacks_is_lost_and_not_zeros() {
    for has_catalogue in [true, false] {
        let mut whole = super::tests::image(true);
        if !has_catalogue {
            whole.flip_all(*b"unstCATA");
        }
        for blocks in (HEADER_BLOCKS + LAYOUT.journal_pages..whole.blocks()).step_by(5) {
            let mut image = whole.clone();
            image.bytes.truncate((blocks * BLOCK) as usize + 100);
            check(&image, &format!("cut behind block {blocks}, catalogue {has_catalogue}"));
        }
    }
}

/// Only the catalogue has the root of a disk that was not written before the last checkpoint.
#[test]
fn lost_writes_to_a_disk_without_its_own_root_are_reported() {
    let mut image = image_of(|env| async move {
        let store = new_store(&env).await;
        store.change(&[Op::Create { node: 1, size_blocks: DISK_BLOCKS }]).unwrap();
        fill(&disk(&store, 1), 0, 30, 1).await;
        store.change(&[Op::Take { running: 1, sealed: 2 }, Op::Branch { from: 2, node: 3 }]).unwrap();
        store.checkpoint().await.unwrap();
        let before = BTreeMap::from([(1, content(&store, 1, DISK_BLOCKS).await)]);
        fill(&disk(&store, 3), 40, 2, 3).await;
        store.flush().await.unwrap();
        (before.clone(), before)
    });
    image.flip_all(*b"unstCATA");
    let outcome = rebuilt(&image, &[], Defects::default());
    assert_eq!(verify(&image, &outcome, "a disk without its own root"), Ok(0));
    let notes = outcome.unwrap().0.notes;
    assert!(notes.iter().any(|note| note.contains("no root of their own")), "{notes:?}");
}

/// Rebuilds a store, and returns the new one's file.
fn rebuilt_file(bytes: &[u8]) -> (RebuildReport, Vec<u8>) {
    let world = SimWorld::new(8, sim::Options::default());
    world.write_file("store", bytes);
    let out: Rc<std::cell::RefCell<Option<RebuildReport>>> = Rc::default();
    let report = out.clone();
    run(&world, move |env| async move {
        let dir = env.open_root("/").unwrap();
        let source = dir.open("store", OpenMode::Read).await.unwrap();
        let target = dir.create_new("new").await.unwrap();
        *report.borrow_mut() = Some(rebuild(&env, &source, &target, Defects::default()).await.unwrap());
        dir.sync().await.unwrap();
    });
    (out.take().unwrap(), world.read_file("new", View::Durable).unwrap())
}

#[test]
fn what_an_earlier_rebuild_lost_is_reported_again() {
    let mut image = super::tests::image(false);
    let id = image.superblock().store_id;
    let found = (0..image.blocks()).filter_map(|block| {
        super::super::tree::FoundPage::read(id, block, page(&image.bytes, block)).map(|found| (block, found))
    });
    let newest =
        found.filter(|(_, found)| found.tag.node == 1 && found.is_places).max_by_key(|(_, found)| found.tag);
    image.flip(newest.unwrap().0);
    let (first, bytes) = rebuilt_file(&image.bytes);
    assert!(first.lost_bytes() > 0, "{first:?}");
    let (second, _) = rebuilt_file(&bytes);
    assert_eq!(second.lost_bytes(), first.lost_bytes(), "{first:?} {second:?}");
    assert!(!second.is_complete());
}

#[test]
fn blocks_of_a_source_are_lost_without_the_catalogue() {
    let mut image = image_of(|env| async move {
        let store = new_store(&env).await;
        over_a_source(&store, 9, 100, 50 * BLOCK).await.unwrap();
        fill(&disk(&store, 9), 10, 3, 7).await;
        store.checkpoint().await.unwrap();
        store.flush().await.unwrap();
        Shown::default()
    });
    image.flip_all(*b"unstCATA");
    let (report, states) = rebuilt(&image, &[], Defects::default()).unwrap();
    let node = report.nodes.iter().find(|node| node.name.as_deref() == Some("recovered-9")).unwrap();
    let lost: Vec<u64> =
        node.lost.iter().flat_map(|range| [range.start / BLOCK, range.end / BLOCK]).collect();
    // The root does not say where the source ends.
    assert_eq!(lost, [0, 10, 13, 252], "{report:?}");
    let shown: Vec<bool> = states[&9].iter().take(50).map(Option::is_some).collect();
    assert!((0..50).all(|block| shown[block] == (10..13).contains(&block)), "{shown:?}");
}
