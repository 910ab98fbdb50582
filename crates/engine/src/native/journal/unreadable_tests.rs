//! Unreadable pages of the ring: behind the end, at the end, and where records were durable.

use sim::SimWorld;

use super::super::layout::{BLOCK, HEADER_BLOCKS};
use super::batch::BATCH_PAGES_MAX;
use super::tests::*;
use super::*;

/// Writes four flushed batches of one page, each confirmed by the next one.
fn four_batches() -> SimWorld {
    let world = world();
    in_world(&world, async |env| {
        let journal = journal(&env, START).await;
        for n in 1..=4 {
            flushed(&journal, [map(n)]).await;
        }
    });
    world
}

fn hide(world: &SimWorld, page: u64) {
    let at = (HEADER_BLOCKS + page) * BLOCK;
    assert!(world.make_unreadable("store", at + 512..at + 1024));
}

fn replayed(world: &SimWorld, flushed_lsn: u64) -> blk::Result<Replayed> {
    in_world(world, async move |env| {
        let begin = Begin { at: BEGIN, epoch: 1, checkpoint: 1, flushed_lsn };
        replay(&open(&env).await, &GEOMETRY, begin).await
    })
}

#[test]
fn unreadable_pages_behind_the_end_are_ignored() {
    let world = four_batches();
    for page in [5, 6, 300, GEOMETRY.journal_pages - 1] {
        hide(&world, page);
    }
    let found = replayed(&world, 0).unwrap();
    assert_eq!((numbers(&found), found.lost), (vec![1, 2, 3, 4], None));
    assert_eq!(found.unreadable.len(), 4);
}

#[test]
fn an_unreadable_page_of_an_unconfirmed_batch_is_the_end() {
    let world = four_batches();
    hide(&world, 3);
    let found = replayed(&world, 0).unwrap();
    assert_eq!((numbers(&found), found.lost), (vec![1, 2, 3], None));
    assert_eq!(found.end, Position { seq: 3, lsn: 4 });
}

#[test]
fn lost_durable_records_are_named_and_earlier_ones_are_replayed() {
    for (page, records) in [(1, vec![1]), (2, vec![1, 2])] {
        let world = four_batches();
        hide(&world, page);
        let found = replayed(&world, 0).unwrap();
        let lost = found.lost.clone().expect("a later batch says that they were durable").to_string();
        assert_eq!(numbers(&found), records);
        let expected = format!("records {} to 3 were durable", page + 1);
        assert!(lost.contains(&expected) && lost.contains(&format!("journal page {page} ")), "{lost}");
    }
}

#[test]
fn missing_records_below_the_superblocks_flushed_lsn_are_reported() {
    let world = four_batches();
    hide(&world, 3);
    let lost = replayed(&world, 4).unwrap().lost.expect("the superblock says that record 4 was durable");
    assert!(lost.cause.contains("records 4 to 4 were durable"), "{lost}");
    let world = four_batches();
    world.write_at("store", (HEADER_BLOCKS + 3) * BLOCK, &[0; BLOCK as usize]);
    assert!(replayed(&world, 3).is_ok());
    let error = replayed(&world, 4).unwrap_err();
    assert!(error.cause.contains("up to 4 were durable"), "{error}");
}

/// The page that may hold the confirmation cannot be read either.
#[test]
fn two_unreadable_pages_are_lost_records_only_if_no_batch_spans_both() {
    let world = four_batches();
    hide(&world, 3);
    hide(&world, 3 + BATCH_PAGES_MAX - 1);
    assert_eq!(replayed(&world, 0).unwrap().lost, None, "they may be one batch's");
    hide(&world, 3 + BATCH_PAGES_MAX);
    let lost = replayed(&world, 0).unwrap().lost.expect("the second is none of the first one's batch");
    assert!(lost.cause.contains("records from 4 on"), "{lost}");
}

/// The next batch is at the ring's start only if its first record does not fit into the rest.
#[test]
fn the_rings_start_is_searched_if_a_batch_may_have_skipped_the_end() {
    for (left, ends) in [(CHANGE_PAGES_MAX - 1, false), (CHANGE_PAGES_MAX, true)] {
        let at = Position { seq: 2 * GEOMETRY.journal_pages - left, lsn: 1 };
        let world = world();
        hide(&world, 0);
        hide(&world, 100);
        let found = in_world(&world, async move |env| {
            let begin = Begin { at, epoch: 1, checkpoint: 1, flushed_lsn: 0 };
            replay(&open(&env).await, &GEOMETRY, begin).await.unwrap()
        });
        assert_eq!(found.lost.is_none(), ends, "{left} pages left");
    }
}
