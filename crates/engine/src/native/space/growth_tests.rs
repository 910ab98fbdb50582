//! Files that grow and fill up, devices that do not grow, zeros ahead, and punching.

use std::cell::Cell;

use blk::{Buf, Errno, ErrorKind};
use sim::{Action, Fault, OpKind, Options, SimWorld};

use super::tests::{FILE, GEOMETRY, SMALL, checkpoint, in_world, open, quiet, release_all, run_in, store};
use super::*;
use crate::native::layout::BLOCK;

/// Opens the space of a block device: all groups exist from the start.
fn device(env: &Env, file: &File, groups: usize) -> Rc<Space> {
    let summaries = vec![GroupSummary::default(); groups];
    Space::open(env.clone(), file.clone(), GEOMETRY, summaries, 0, SMALL, false)
}

#[test]
fn a_device_gives_metadata_a_free_group_and_keeps_the_reserve() {
    in_world(async |env| {
        let file = store(&env).await;
        file.set_len(GEOMETRY.group_start(3) * BLOCK).await.unwrap();
        let space = device(&env, &file, 3);
        space.set_reserve(100);
        let mut placed = 0;
        let error = loop {
            match space.place(9, None).await {
                Ok(extent) => placed += extent.len,
                Err(e) => break e,
            }
        };
        assert_eq!((error.kind, placed), (ErrorKind::NoSpace, 2 * 126));
        quiet(&space).await;
        assert_eq!((space.totals().free_meta, space.totals().free_data), (126, 0));
        space.place_meta(27).await.unwrap();
        assert_eq!(space.place_meta_run(100).await.map_err(|e| e.kind), Err(ErrorKind::NoSpace));
        assert_eq!(space.place_meta_run(99).await.map(|extent| extent.len), Ok(99));
        assert!(space.place_meta(1).await.is_err_and(|e| e.is_no_space()));
        // Data in use keeps its groups; freed data blocks become the reserve only if a whole group is free.
        let data = Extent { addr: GEOMETRY.group_start(2) + 2, len: 126 };
        space.free_uncommitted(data, 1);
        release_all(&space);
        assert!(space.place(1, None).await.is_err_and(|e| e.is_no_space()));
        assert_eq!(space.totals().free_data, 126, "a replay may still place data there");
        space.freeze(&[]);
        let extent = space.place(1, None).await;
        assert!(extent.is_err_and(|e| e.is_no_space()), "the third group became metadata's");
        space.place_meta_run(126).await.unwrap();
        space.set_reserve(0);
        assert!(space.place(1, None).await.is_err_and(|e| e.is_no_space()));
    });
}

#[test]
fn a_store_does_not_grow_while_it_is_held() {
    in_world(async |env| {
        let file = store(&env).await;
        let space = open(&env, &file, GEOMETRY, Vec::new());
        space.place(20, None).await.unwrap();
        quiet(&space).await;
        let hold = space.hold_growth().await;
        let before = file.size().await.unwrap();
        let refused = loop {
            if let Err(e) = space.place(20, None).await {
                break e;
            }
        };
        assert!(refused.is_no_space(), "{refused}");
        assert_eq!(file.size().await.unwrap(), before);
        drop(hold);
        space.place(20, None).await.unwrap();
        assert!(file.size().await.unwrap() > before);
    });
}

#[test]
fn a_full_file_system_loses_nothing_at_any_step() {
    let groups_bytes = GEOMETRY.group_blocks * BLOCK;
    for step in 0..24 {
        let world = SimWorld::new(step, Options::default());
        let capacity = step * groups_bytes / 5;
        world.set_capacity(Some(capacity + 20 * BLOCK));
        let theirs = world.clone();
        let refused = Rc::new(Cell::new(0));
        let count = refused.clone();
        run_in(&world, async move |env| {
            let file = store(&env).await;
            let space = open(&env, &file, GEOMETRY, Vec::new());
            let (mut number, mut used) = (0, 0);
            for round in 0..40 {
                let before = space.totals().used;
                assert_eq!(before, used);
                let placed =
                    if round % 4 == 3 { space.place_meta(9).await } else { space.place(20, None).await };
                match placed {
                    Ok(extent) => used += extent.len,
                    Err(e) => {
                        assert!(e.is_no_space(), "{e}");
                        assert_eq!(space.totals().used, before);
                        count.set(count.get() + 1);
                    }
                }
                if round % 7 == 6 && number + 1 < 5 {
                    number += 1;
                    space.freeze(&[]);
                    checkpoint(&space, number).await;
                }
            }
            theirs.set_capacity(None);
            space.place(20, None).await.unwrap();
            space.place_meta(20).await.unwrap();
            space.freeze(&[]);
            checkpoint(&space, 9).await;
            let again = open(&env, &file, GEOMETRY, space.summaries());
            assert_eq!(again.totals().used, space.totals().used);
            for group in 0..space.groups() as u32 {
                let runs = again.committed_runs(group).await.unwrap();
                assert_eq!(runs, space.committed_runs(group).await.unwrap());
            }
        });
        assert!(refused.get() > 0 || step > 9, "capacity {capacity}");
    }
}

#[test]
fn a_growth_that_fails_halfway_leaves_the_file_as_it_was() {
    for kind in [OpKind::Allocate, OpKind::Write] {
        let world = SimWorld::new(3, Options::default());
        world.add_fault(Fault::nth(1, Action::Fail(Errno::ENOSPC)).of(kind).named(FILE));
        run_in(&world, async |env| {
            let file = store(&env).await;
            let space = open(&env, &file, GEOMETRY, Vec::new());
            assert!(space.place(1, None).await.is_err_and(|e| e.is_no_space()));
            assert_eq!((space.totals(), space.groups()), (Totals::default(), 0));
            assert!(file.size().await.unwrap() <= GEOMETRY.groups_start() * BLOCK);
            space.place(1, None).await.unwrap();
        });
    }
}

#[test]
fn zeros_are_written_ahead_and_never_over_data() {
    let world = in_world(async |env| {
        let file = store(&env).await;
        let space = open(&env, &file, GEOMETRY, Vec::new());
        let mut placed = Vec::new();
        for round in 0..60u64 {
            let extent = space.place(1 + round % 5, None).await.unwrap();
            // The data is written at once, while zeros are written around it.
            file.write(extent.addr * BLOCK, Buf::copy_of(&vec![7; (extent.len * BLOCK) as usize]))
                .await
                .unwrap();
            placed.push(extent);
            env.sleep_us(20_000).await;
        }
        quiet(&space).await;
        let frontier = placed.iter().map(Extent::end).max().unwrap();
        let end = GEOMETRY.group_start(space.groups());
        assert!(
            space.ready_to() >= end.min(frontier + SMALL.ahead_blocks),
            "{} {frontier}",
            space.ready_to()
        );
        for extent in placed {
            let (bytes, result) =
                file.read(extent.addr * BLOCK, Buf::alloc((extent.len * BLOCK) as usize)).await;
            result.unwrap();
            assert!(bytes.iter().all(|byte| *byte == 7), "{extent:?}");
        }
        assert_eq!(space.totals().held, 0);
    });
    // Writes of the data, and of zeros.
    assert!(world.count(OpKind::Write).submitted > 60 + 10);
}

#[test]
fn space_is_made_ready_and_needs_no_zeros_later() {
    let world = SimWorld::new(5, Options::default());
    let theirs = world.clone();
    run_in(&world, async move |env| {
        let space = open(&env, &store(&env).await, GEOMETRY, Vec::new());
        space.place(20, None).await.unwrap();
        quiet(&space).await;
        assert!(!space.wants_ready() && space.keep_ready(1000));
        while space.wants_ready() {
            space.make_ready().await.unwrap();
        }
        assert!(space.totals().free_data >= 1000);
        let before = theirs.count(OpKind::Write).submitted;
        let mut placed = 20;
        while placed < 800 {
            placed += space.try_place(16, None).expect("room that was made ready").len;
        }
        quiet(&space).await;
        assert_eq!(theirs.count(OpKind::Write).submitted, before, "zeros were written again");
        assert!(space.wants_ready());
    });
}

#[test]
fn a_file_system_without_space_is_left_as_it_is() {
    let world = SimWorld::new(5, Options::default());
    let theirs = world.clone();
    run_in(&world, async move |env| {
        let space = open(&env, &store(&env).await, GEOMETRY, Vec::new());
        space.place(20, None).await.unwrap();
        quiet(&space).await;
        theirs.set_capacity(theirs.allocated_bytes(FILE).map(|bytes| bytes + 100 * BLOCK));
        space.keep_ready(1000);
        while space.wants_ready() {
            space.make_ready().await.unwrap();
        }
        let groups = space.groups();
        assert!(space.totals().free_data < 1000);
        theirs.set_capacity(None);
        assert!(space.keep_ready(1000) && space.wants_ready(), "the next call tries again");
        space.make_ready().await.unwrap();
        assert_eq!(space.groups(), groups + 1);
    });
}

const WIDE: Geometry = Geometry { store_id: 5, journal_pages: 4, group_blocks: 1024 };

#[test]
fn whole_free_mebibytes_are_punched_once() {
    let world = SimWorld::new(9, Options::default());
    let theirs = world.clone();
    run_in(&world, async move |env| {
        let file = store(&env).await;
        let space = open(&env, &file, WIDE, Vec::new());
        let placed = space.place(1000, None).await.unwrap();
        assert_eq!(placed.len, 1000);
        quiet(&space).await;
        let before = theirs.allocated_bytes(FILE).unwrap();
        assert_eq!(space.punch(9).await.unwrap(), 0, "fresh space is not punched");
        let freed = Extent { addr: placed.addr, len: 800 };
        space.free_uncommitted(freed, 1);
        assert_eq!(space.punch(9).await.unwrap(), 0, "what waits is not punched");
        release_all(&space);
        space.keep_ready(space.totals().free_data - 300);
        assert_eq!(space.punch(1).await.unwrap(), 1 << 20);
        space.keep_ready(space.totals().free_data - 256);
        assert_eq!(space.punch(9).await.unwrap(), 0, "the rest is kept ready");
        space.keep_ready(0);
        assert_eq!(space.punch(9).await.unwrap(), 1 << 20);
        assert_eq!(theirs.allocated_bytes(FILE).unwrap(), before - (2 << 20));
        assert_eq!(space.punch(9).await.unwrap(), 0, "punched already");
        let again = space.place(1, Some(WIDE.group_start(0) + 300)).await.unwrap();
        space.unplace(again);
        assert_eq!(space.punch(9).await.unwrap(), 1 << 20);
    });
}

#[test]
fn nothing_is_placed_where_a_punch_is_under_way() {
    let world = SimWorld::new(2, Options::default());
    world.add_fault(Fault::nth(1, Action::Delay { ns: 1 << 30 }).of(OpKind::GiveBack));
    run_in(&world, async |env| {
        let file = store(&env).await;
        let space = open(&env, &file, WIDE, Vec::new());
        let placed = space.place(1000, None).await.unwrap();
        quiet(&space).await;
        space.free_uncommitted(placed, 1);
        release_all(&space);
        let punching = space.clone();
        let punch = env.spawn(async move { punching.punch(1).await.unwrap() });
        // The punch takes longer than this.
        file.flush().await.unwrap();
        let held = Extent { addr: WIDE.group_start(0) + 256, len: 256 };
        let mut others = Vec::new();
        for at in 0..256 {
            others.extend(space.try_place(1, Some(held.addr + at)));
        }
        assert_eq!(space.totals().held, 256, "the punch is still under way");
        assert!(others.iter().all(|extent| !(held.addr..held.end()).contains(&extent.addr)));
        assert_eq!(punch.join().await, 1 << 20);
        assert!(space.try_place(1, Some(held.addr)).is_some_and(|extent| extent.addr == held.addr));
    });
}
