//! Stores on media with an unreadable sector: what is served, what is refused, and what is written.

use sim::{SimWorld, View};

use super::change::Op;
use super::journal::Record;
use super::layout::{BLOCK, HEADER_BLOCKS};
use super::superblock::{SLOT_BLOCKS, Superblock};
use super::tests::*;

const FILE: &str = "store";

fn hide(world: &SimWorld, block: u64) {
    assert!(world.make_unreadable(FILE, block * BLOCK..(block + 1) * BLOCK));
}

/// Makes a store with a checkpoint, followed by `rounds` flushed overwrites of blocks that a snapshot shows.
fn made(rounds: u64) -> SimWorld {
    let world = SimWorld::new(11, sim::Options::default());
    run(&world, move |env| async move {
        let store = open_store(&env).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: 1000 }]).unwrap();
        let base = disk(&store, 1);
        fill(&base, 0, 16, 1).await;
        store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
        store.checkpoint().await.unwrap();
        for round in 0..rounds {
            fill(&base, round, 1, 2).await;
            store.flush().await.unwrap();
        }
    });
    world
}

/// Returns the page of the ring where the journal ends, and the slot that counts.
fn end_and_slot(world: &SimWorld) -> (u64, usize) {
    let found = world.run(|env| async move {
        let file = env.open_root("/").unwrap().open(FILE, blk::reactor::OpenMode::Read).await.unwrap();
        let slots = Superblock::read(&file).await.unwrap();
        let geometry = slots.newest.geometry();
        let found = super::journal::replay(&file, &geometry, slots.newest.begin()).await.unwrap();
        (HEADER_BLOCKS + found.end.seq % geometry.journal_pages, slots.slot)
    });
    found.expect("no cut")
}

#[test]
fn the_journals_end_is_overwritten_before_any_other_write() {
    let world = made(3);
    let (end, _) = end_and_slot(&world);
    hide(&world, end - 1);
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        assert_eq!(store.broken(), None);
        let base = disk(&store, 1);
        assert_eq!((shows(&base, 0).await, shows(&base, 1).await, shows(&base, 2).await), (2, 2, 1));
    });
    assert!(world.unreadable(FILE).is_empty(), "the page was written");
    world.power_cut();
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        assert_eq!(shows(&disk(&store, 1), 2).await, 1, "records that were left out once stay out");
        store.close().await.unwrap();
    });
}

#[test]
fn lost_records_make_the_store_read_only_and_nothing_is_written() {
    let world = made(4);
    let (end, _) = end_and_slot(&world);
    hide(&world, end - 3);
    let before = world.read_file(FILE, View::Durable);
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        let broken = store.broken().expect("a later batch says that they were durable");
        assert!(broken.cause.contains("were durable and cannot be read"), "{broken}");
        let base = disk(&store, 1);
        assert_eq!((shows(&base, 0).await, shows(&base, 15).await), (2, 1), "what is left is served");
        let data = blk::Buf::zeroed(4096).freeze();
        let refused = blk::volume::Volume::write(base.clone(), 0, data).await.unwrap_err();
        assert!(refused.cause.contains("read-only since"), "{refused}");
        assert!(store.change(&[Op::Create { node: 9, size_blocks: 1 }]).is_err());
        store.close().await.unwrap();
    });
    assert!(before == world.read_file(FILE, View::Current), "nothing was written");
    world.heal(FILE);
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        assert_eq!(
            (store.broken(), shows(&disk(&store, 1), 3).await),
            (None, 2),
            "all of it, once it can be read"
        );
        store.close().await.unwrap();
    });
}

#[test]
fn an_older_superblock_counts_only_where_the_journal_excludes_a_newer_one() {
    let world = made(2);
    let (end, slot) = end_and_slot(&world);
    hide(&world, SLOT_BLOCKS[slot]);
    let refused = |world: &SimWorld| {
        let opened = world.run(|env| async move { open_store(&env).await.map(drop) });
        opened.expect("no cut").unwrap_err().to_string()
    };
    let stale = refused(&world);
    assert!(stale.contains("this one no longer fits the journal"), "{stale}");
    // The other slot does not count: nothing is lost, unless the journal cannot prove that.
    let world = made(2);
    hide(&world, SLOT_BLOCKS[1 - slot]);
    hide(&world, end + 200);
    let doubt = refused(&world);
    assert!(doubt.contains(&format!("block {}, a page of the journal", end + 200)), "{doubt}");
    let world = made(2);
    hide(&world, SLOT_BLOCKS[1 - slot]);
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        assert_eq!((store.broken(), shows(&disk(&store, 1), 1).await), (None, 2));
        store.close().await.unwrap();
    });
    assert!(world.unreadable(FILE).is_empty(), "the opening wrote that slot");
}

#[test]
fn data_that_cannot_be_read_aborts_its_record() {
    let world = made(0);
    let addr = std::rc::Rc::new(std::cell::Cell::new(0));
    let placed = addr.clone();
    run(&world, move |env| async move {
        let store = open_store(&env).await.unwrap();
        let base = disk(&store, 1);
        fill(&base, 5, 1, 9).await;
        let mut found = super::view::Scratch::default();
        store.find(&base.node, 5..6, &mut found).await.unwrap();
        placed.set(found.found[0].addr);
        store.flush().await.unwrap();
    });
    hide(&world, addr.get());
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        assert_eq!((store.broken(), shows(&disk(&store, 1), 5).await), (None, 1));
        let damage = store.damage.borrow().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(damage.len() == 1 && damage[0].contains("blocks 5..6 of node 1"), "{damage:?}");
        store.close().await.unwrap();
    });
}

/// Records without data fill the journal to its last page: nothing more can be recorded, not even that they are aborted.
#[test]
fn aborts_that_find_no_room_leave_the_store_readable() {
    let world = made(2);
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        // The store makes no checkpoint by itself from here on.
        store.fail_read_only(&blk::Error::refused("store", "a crash is coming"));
        let birth = store.generation.get();
        while store.journal.free_pages() > 0 {
            store.journal.append(Record::Map { node: 1, start: 900, len: 1, addr: 5000, birth, checksum: 1 });
        }
        store.journal.cut();
        // The writes end, and no flush follows.
        env.sleep_us(1000).await;
    });
    for _ in 0..2 {
        world.kill();
        run(&world, |env| async move {
            let store = open_store(&env).await.unwrap();
            let broken = store.broken().expect("there is no room");
            assert!(broken.cause.contains("never happened"), "{broken}");
            let base = disk(&store, 1);
            assert_eq!((shows(&base, 0).await, shows(&base, 2).await, shows(&base, 900).await), (2, 1, 0));
            store.close().await.unwrap();
        });
    }
}
