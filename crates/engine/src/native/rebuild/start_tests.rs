//! Rebuilds of stores whose start was overwritten: the head pages of the catalogue have what the superblocks had.

use std::collections::BTreeMap;

use super::super::catalogue::superblock_in_head;
use super::super::change::Op;
use super::super::layout::{
    ADDRESS_AT, BLOCK, HEAD_BYTES, HEADER_BLOCKS, STORE_ID_AT, get_u64, put_u64, seal_page,
};
use super::super::tests::{disk, fill};
use super::stale_tests::{image_of, new_store};
use super::tests::{DISK_BLOCKS, Image, check, content, image, page, rebuilt, verify};
use super::*;

const HEADER_BYTES: usize = (HEADER_BLOCKS * BLOCK) as usize;
const MIB: usize = 1 << 20;
/// Pages of the journal in the first MiB.
const FIRST_PAGES: u64 = (MIB as u64 / BLOCK) - HEADER_BLOCKS;

/// A store whose journal begins behind the first MiB.
fn with_a_journal_behind_the_first_mib() -> Image {
    image_of(|env| async move {
        let store = new_store(&env).await;
        store.change(&[Op::Create { node: 1, size_blocks: DISK_BLOCKS }]).unwrap();
        for round in 0..FIRST_PAGES + 10 {
            fill(&disk(&store, 1), 100 + round, 1, round as u8).await;
            store.flush().await.unwrap();
        }
        store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
        store.checkpoint().await.unwrap();
        let before = BTreeMap::from([(1, content(&store, 1, DISK_BLOCKS).await)]);
        fill(&disk(&store, 1), 20, 40, 7).await;
        store.flush().await.unwrap();
        let mut states = BTreeMap::new();
        for node in [1, 2] {
            states.insert(node, content(&store, node, DISK_BLOCKS).await);
        }
        (states, before)
    })
}

#[test]
fn a_store_without_its_header_is_rebuilt_from_a_head_page() {
    for tail in [false, true] {
        let mut image = image(tail);
        image.bytes[..HEADER_BYTES].fill(0);
        assert!(check(&image, "no header") <= 1);
    }
}

#[test]
fn the_first_mib_is_not_needed_if_the_end_of_the_journal_is_behind_it() {
    let whole = with_a_journal_behind_the_first_mib();
    assert!(whole.superblock().journal.seq > FIRST_PAGES);
    for filler in [0, 0xA5] {
        let mut image = whole.clone();
        image.bytes[..MIB].fill(filler);
        let outcome = rebuilt(&image, &[], Defects::default());
        assert_eq!(verify(&image, &outcome, "first MiB"), Ok(0));
        let (report, states) = outcome.unwrap();
        assert!(report.has_catalogue && states == image.states, "{report:?}");
    }
}

/// The batches that say which catalogue is the last one are lost.
#[test]
fn a_young_store_without_its_first_mib_is_not_rebuilt() {
    for tail in [false, true] {
        let mut image = image(tail);
        image.bytes[..MIB].fill(0);
        check(&image, "first MiB of a young store");
    }
}

#[test]
fn a_torn_head_page_is_none() {
    let mut image = image(true);
    let heads = image.superblock().catalogue_heads();
    image.bytes[..HEADER_BYTES].fill(0);
    let tear = |image: &mut Image, head: u64| image.bytes[(head * BLOCK) as usize + 512..][..512].fill(0);
    tear(&mut image, heads[0]);
    assert!(check(&image, "one torn head") <= 1);
    tear(&mut image, heads[1]);
    assert!(rebuilt(&image, &[], Defects::default()).is_none());
}

/// Makes the free block at `at` one with the head page of another store, which was never opened, at its own address.
fn forge_head(image: &mut Image, at: u64) {
    let head = image.superblock().catalogue.addr;
    let mut forged = page(&image.bytes, head).to_vec();
    let id = get_u64(&forged, STORE_ID_AT).to_le_bytes();
    let copy =
        (HEAD_BYTES..forged.len() - 8).find(|at| forged[*at..*at + 8] == id).expect("the superblock's copy");
    // Where the head page has the field that a superblock has at this byte: the copy is without the head but for the id.
    let field = |byte: usize| copy + 8 + byte - HEAD_BYTES;
    put_u64(&mut forged, STORE_ID_AT, 4711);
    put_u64(&mut forged, copy, 4711);
    for zero in [64, 72, 128, 168, 192, 216] {
        put_u64(&mut forged, field(zero), 0);
    }
    put_u64(&mut forged, field(136), 1);
    put_u64(&mut forged, ADDRESS_AT, at);
    seal_page(&mut forged);
    image.bytes[(at * BLOCK) as usize..][..BLOCK as usize].copy_from_slice(&forged);
    let forged = superblock_in_head(page(&image.bytes, at), at, None).expect("a head page");
    assert_eq!(
        (forged.store_id, forged.epoch, forged.checkpoint, forged.check_limits()),
        (4711, 0, 0, Ok(()))
    );
}

#[test]
fn a_head_page_in_a_guests_data_is_not_the_stores() {
    let mut image = image(false);
    let superblock = image.superblock();
    let end = superblock.geometry().group_start(superblock.groups);
    let is_free = |at: &u64| page(&image.bytes, *at).iter().all(|byte| *byte == 0);
    let at = (0..end).rev().find(is_free).expect("a free block");
    forge_head(&mut image, at);
    image.bytes[..HEADER_BYTES].fill(0);
    let outcome = rebuilt(&image, &[], Defects::default());
    verify(&image, &outcome, "a head among data").unwrap();
    assert!(outcome.expect("the store's own head").0.has_catalogue);
    superblock.catalogue_heads().into_iter().for_each(|head| image.flip(head));
    assert!(rebuilt(&image, &[], Defects::default()).is_none());
}
