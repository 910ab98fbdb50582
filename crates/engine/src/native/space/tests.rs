use blk::ErrorKind;
use blk::reactor::OpenMode;
use sim::{Options, SimWorld, View};

use super::*;
use crate::native::layout::{BLOCK, put_u64};

pub(super) const FILE: &str = "store";
pub(super) const GEOMETRY: Geometry = Geometry { store_id: 77, journal_pages: 4, group_blocks: 128 };
pub(super) const SMALL: Growth = Growth { ahead_blocks: 32, chunk_blocks: 8 };

pub(super) fn in_world(test: impl AsyncFnOnce(Env) + 'static) -> SimWorld {
    let world = SimWorld::new(1, Options::default());
    run_in(&world, test);
    world
}

pub(super) fn run_in(world: &SimWorld, test: impl AsyncFnOnce(Env) + 'static) {
    assert!(world.run(async move |env| test(env).await).is_some());
}

pub(super) async fn store(env: &Env) -> File {
    let root = env.open_root("/").unwrap();
    if root.list().await.unwrap().iter().any(|name| name == FILE) {
        return root.open(FILE, OpenMode::Write).await.unwrap();
    }
    let file = root.create_new(FILE).await.unwrap();
    root.sync().await.unwrap();
    file
}

pub(super) fn open(env: &Env, file: &File, geometry: Geometry, summaries: Vec<GroupSummary>) -> Rc<Space> {
    Space::open(env.clone(), file.clone(), geometry, summaries, 0, SMALL, true)
}

pub(super) async fn checkpoint(space: &Rc<Space>, number: u64) -> Vec<(u32, GroupSummary)> {
    let written = space.write_pages(number).await.unwrap();
    space.file.flush().await.unwrap();
    space.committed(number);
    written
}

/// Waits until the work ahead has ended.
pub(super) async fn quiet(space: &Space) {
    while space.working_ahead.get() {
        space.eased.wait().await;
    }
}

pub(super) fn release_all(space: &Space) {
    space.release(&space.take_releasable(u64::MAX, u64::MAX));
}

#[test]
fn single_blocks_are_placed_densely_and_streams_in_lanes() {
    in_world(async |env| {
        let space = open(&env, &store(&env).await, GEOMETRY, Vec::new());
        let start = GEOMETRY.group_start(0);
        let at = |addr: u64, len: u64| Some(Extent { addr: start + addr, len });
        assert_eq!(space.place(1, None).await.ok(), at(16, 1));
        assert_eq!(space.try_place(1, None), at(17, 1));
        assert_eq!(space.try_place(1, Some(start + 17)), at(32, 1), "its place is taken: it begins a lane");
        assert_eq!(space.try_place(4, Some(start + 33)), at(33, 4));
        assert_eq!(space.try_place(1, None), at(18, 1));
        assert_eq!(space.try_place(1, Some(start + 19)), at(19, 1), "a stream among what is alone");
        assert_eq!(space.try_place(1, None), at(20, 1));
        assert_eq!(space.try_place(40, None), at(48, 40));
        // The rest of the first lane, then the next free one.
        for block in 21..32 {
            assert_eq!(space.try_place(1, None), at(block, 1));
        }
        assert_eq!(space.try_place(1, None), at(96, 1));
        // Two lanes of the first group are left, and at most a second group was added ahead of need.
        let groups = space.groups();
        for _ in 0..20 {
            space.place(1, None).await.unwrap();
        }
        assert!(space.groups() <= groups.max(2));
    });
}

#[test]
fn a_checkpoint_holds_what_was_committed_and_slots_alternate() {
    in_world(async |env| {
        let file = store(&env).await;
        let space = open(&env, &file, GEOMETRY, Vec::new());
        let kept = space.place(8, None).await.unwrap();
        space.freeze(&[]);
        let uncommitted = space.place(3, Some(kept.end())).await.unwrap();
        assert_eq!(checkpoint(&space, 4).await[0].1.slot, 1);
        space.freeze(&[]);
        assert_eq!(checkpoint(&space, 5).await[0].1.slot, 0);
        space.free_committed(&[uncommitted]);
        space.freeze(&[]);
        assert!(space.take_releasable(u64::MAX, u64::MAX).is_empty());
        let written = space.write_pages(6).await.unwrap();
        assert_eq!((written[0].1.slot, written[0].1.version, written[0].1.free), (1, 6, 126 - 8));
        // The superblock of 6 is never written: 5 stays the newest.
        let committed: Vec<_> = space.state.borrow().groups.iter().map(|group| group.committed).collect();
        let again = open(&env, &file, GEOMETRY, committed);
        let both = Extent { addr: kept.addr, len: 11 };
        assert_eq!(again.committed_runs(0).await.unwrap(), [both]);
        let late = Extent { addr: kept.addr, len: 1 };
        space.free_committed(&[late]);
        space.committed(6);
        assert_eq!(space.take_releasable(u64::MAX, 5), [], "no durable batch names checkpoint 6");
        assert_eq!(
            space.take_releasable(u64::MAX, u64::MAX),
            [uncommitted],
            "what was freed behind the pages is of the next"
        );
        assert_eq!((space.totals().waiting, space.totals().used), (4, 7));
        space.release(&[uncommitted]);
        assert_eq!(checkpoint(&space, 7).await.len(), 1);
        assert_eq!(space.take_releasable(0, u64::MAX), [late]);
        space.release(&[late]);
        assert_eq!(space.totals().waiting, 0);
        assert_eq!(checkpoint(&space, 8).await, [], "nothing changed");
    });
}

#[test]
fn frees_wait_for_their_record() {
    in_world(async |env| {
        let space = open(&env, &store(&env).await, GEOMETRY, Vec::new());
        let placed = space.place(10, None).await.unwrap();
        let part = |at: u64| Extent { addr: placed.addr + at, len: 2 };
        for lsn in 1..=3 {
            space.free_uncommitted(part(2 * lsn), lsn);
        }
        assert_eq!(space.take_releasable(0, u64::MAX), []);
        let batch = space.take_releasable(2, u64::MAX);
        assert_eq!(batch, [part(2), part(4)]);
        assert_eq!(space.try_place(1, Some(placed.addr + 2)).map(|e| e.addr == placed.addr + 2), Some(false));
        space.release(&batch);
        assert_eq!(space.try_place(1, Some(placed.addr + 2)), Some(Extent { addr: placed.addr + 2, len: 1 }));
    });
}

#[test]
#[should_panic(expected = "not all of them are Uncommitted")]
fn a_double_free_is_detected() {
    in_world(async |env| {
        let space = open(&env, &store(&env).await, GEOMETRY, Vec::new());
        let placed = space.place(1, None).await.unwrap();
        space.free_uncommitted(placed, 1);
        space.free_uncommitted(placed, 2);
    });
}

/// Returns the summaries of two data groups and one metadata group after two checkpoints of all of them.
async fn two_versions(env: &Env) -> Vec<GroupSummary> {
    let space = open(env, &store(env).await, GEOMETRY, Vec::new());
    for number in 1..=2 {
        for _ in 0..3 {
            space.place(50, None).await.unwrap();
        }
        space.freeze(&[]);
        space.place_meta(5).await.unwrap();
        checkpoint(&space, number).await;
    }
    let versions: Vec<u64> = space.summaries().iter().map(|summary| summary.version).collect();
    assert!(versions.len() >= 3 && versions.iter().filter(|version| **version == 2).count() >= 2);
    space.summaries()
}

async fn load_error(env: &Env, geometry: Geometry, summaries: &[GroupSummary], group: u32) -> Option<String> {
    let space = open(env, &store(env).await, geometry, summaries.to_vec());
    let error = space.committed_runs(group).await.err()?;
    assert_eq!(error.kind, ErrorKind::Damaged);
    Some(error.to_string())
}

#[test]
fn every_flipped_bit_of_a_page_is_damage() {
    let world = SimWorld::new(1, Options::default());
    let summaries = world.run(async |env| two_versions(&env).await).unwrap();
    let group = summaries.iter().position(|summary| summary.version == 2).unwrap();
    let at = (GEOMETRY.group_start(group as u64) + u64::from(summaries[group].slot)) * BLOCK;
    for bit in (0..BLOCK * 8).step_by(61) {
        let (offset, mask) = (at + bit / 8, (bit % 8) as u8);
        assert!(world.flip_bit(FILE, offset, mask));
        let theirs = summaries.clone();
        run_in(&world, async move |env| {
            assert!(load_error(&env, GEOMETRY, &theirs, group as u32).await.is_some(), "bit {bit}");
        });
        assert!(world.flip_bit(FILE, offset, mask));
    }
    run_in(&world, async move |env| {
        assert_eq!(load_error(&env, GEOMETRY, &summaries, group as u32).await, None);
    });
}

#[test]
fn stale_and_misdirected_pages_are_damage() {
    let world = SimWorld::new(1, Options::default());
    let summaries = world.run(async |env| two_versions(&env).await).unwrap();
    let group = summaries.iter().position(|summary| summary.version == 2).unwrap();
    let other = summaries.iter().rposition(|summary| summary.version == 2).unwrap();
    let address = |group: usize, slot: u8| (GEOMETRY.group_start(group as u64) + u64::from(slot)) * BLOCK;
    let at = address(group, summaries[group].slot);
    let good = world.read_at(FILE, at, BLOCK, View::Durable).unwrap();
    let error_with = |page: &[u8], summaries: &[GroupSummary], geometry: Geometry| {
        world.write_at(FILE, at, page);
        let theirs = summaries.to_vec();
        let error =
            world.run(async move |env| load_error(&env, geometry, &theirs, group as u32).await).unwrap();
        world.write_at(FILE, at, &good);
        error.expect("the page is not what the catalogue says")
    };
    let page_at = |at| world.read_at(FILE, at, BLOCK, View::Durable).unwrap();
    let stale = page_at(address(group, 1 - summaries[group].slot));
    assert!(error_with(&stale, &summaries, GEOMETRY).contains("own address"));
    let misdirected = page_at(address(other, summaries[other].slot));
    assert!(error_with(&misdirected, &summaries, GEOMETRY).contains("own address"));
    assert!(error_with(&vec![0; BLOCK as usize], &summaries, GEOMETRY).contains("magic"));
    let foreign = Geometry { store_id: 78, ..GEOMETRY };
    assert!(error_with(&good, &summaries, foreign).contains("store id is 0x4d, expected 0x4e"));
    let changed = |change: fn(&mut GroupSummary)| {
        let mut changed = summaries.clone();
        change(&mut changed[group]);
        changed
    };
    assert!(error_with(&good, &changed(|summary| summary.version = 3), GEOMETRY).contains("version"));
    assert!(error_with(&good, &changed(|summary| summary.checksum ^= 1), GEOMETRY).contains("catalogue"));
    assert!(error_with(&good, &changed(|summary| summary.free += 1), GEOMETRY).contains("free count"));
    assert!(error_with(&good, &changed(|summary| summary.meta ^= true), GEOMETRY).contains("flags"));
    assert!(error_with(&good, &changed(|summary| summary.slot = 7), GEOMETRY).contains("slot 7"));
    // A page that is consistent in itself and marks its own slots.
    let mut hostile = good.clone();
    hostile[64] |= 1;
    let checksum = crate::native::layout::page_checksum(&hostile);
    put_u64(&mut hostile, crate::native::layout::CHECKSUM_AT, checksum);
    let mut theirs = summaries.clone();
    theirs[group].checksum = checksum;
    assert!(error_with(&hostile, &theirs, GEOMETRY).contains("outside of the usable"));
}

#[test]
fn frees_of_what_is_not_in_use_stop_the_checkpoint() {
    in_world(async |env| {
        let file = store(&env).await;
        let end = GEOMETRY.group_start(1);
        let hostile =
            [(end - 1, 1), (end - 1, 2), (0, 1), (3, u64::MAX), (u64::MAX, 1), (end + 5000, 1), (end, 1)];
        for (addr, len) in hostile {
            let space = open(&env, &file, GEOMETRY, vec![GroupSummary::default(); 1]);
            space.place(1, None).await.unwrap();
            space.freeze(&[]);
            space.free_committed(&[Extent { addr, len }]);
            assert_eq!(
                space.write_pages(1).await.map_err(|e| e.kind),
                Err(ErrorKind::Damaged),
                "{addr} {len}"
            );
            assert!(space.replay_place(Extent { addr, len }).is_err() || (addr, len) == (end - 1, 1));
            assert!(space.replay_free(Extent { addr: addr.wrapping_sub(3), len }).is_err());
        }
        let space = open(&env, &file, GEOMETRY, vec![GroupSummary::default(); 1]);
        let placed = space.place(5, None).await.unwrap();
        space.freeze(&[]);
        space.free_committed(&[placed, Extent { addr: placed.addr + 2, len: 1 }]);
        assert_eq!(space.write_pages(1).await.map_err(|e| e.kind), Err(ErrorKind::Damaged), "freed twice");
    });
}

#[test]
fn replay_restores_uncommitted_blocks() {
    in_world(async |env| {
        let file = store(&env).await;
        let space = open(&env, &file, GEOMETRY, Vec::new());
        let kept = space.place(4, None).await.unwrap();
        space.freeze(&[]);
        checkpoint(&space, 1).await;
        let uncommitted = space.place(4, None).await.unwrap();
        let again = open(&env, &file, GEOMETRY, space.summaries());
        again.load_for([kept.addr, uncommitted.addr, 0, u64::MAX].into_iter()).await.unwrap();
        assert!(again.replay_place(kept).unwrap_err().to_string().contains("were placed"));
        again.replay_place(uncommitted).unwrap();
        assert_eq!(again.replay_place(uncommitted).unwrap_err().kind, ErrorKind::Damaged);
        again.replay_free(uncommitted).unwrap();
        assert!(again.replay_free(uncommitted).is_err() && again.replay_free(kept).is_err());
        again.replay_place(uncommitted).unwrap();
        assert_eq!(again.totals().used, 8);
    });
}

#[test]
fn idle_groups_are_evicted_and_loaded_again() {
    in_world(async |env| {
        let file = store(&env).await;
        let space = open(&env, &file, GEOMETRY, Vec::new());
        space.resident_groups_max.set(3);
        let mut placed = Vec::new();
        for number in 1..=12 {
            for _ in 0..4 {
                placed.push(space.place(60, None).await.unwrap());
            }
            space.freeze(&[]);
            checkpoint(&space, number).await;
        }
        let loaded = |space: &Space| space.state.borrow().groups.iter().filter(|g| g.maps.is_some()).count();
        assert!(space.groups() > 10 && loaded(&space) <= 4, "{} of {}", loaded(&space), space.groups());
        // The blocks are freed while most groups are not loaded; the checkpoint loads them.
        space.free_committed(&placed);
        space.freeze(&[]);
        checkpoint(&space, 20).await;
        release_all(&space);
        assert_eq!(space.totals().used, 0);
        let groups = space.groups();
        for _ in 0..30 {
            space.place(100, None).await.unwrap();
        }
        assert_eq!(space.groups(), groups, "freed space is used before the file grows");
    });
}

#[test]
fn a_group_has_at_most_what_its_page_has_bits_for() {
    assert_eq!(GROUP_BLOCKS_MAX, 32256);
    let geometry = Geometry { group_blocks: GROUP_BLOCKS_MAX, ..GEOMETRY };
    assert_eq!(groups_within(&geometry, 0), 0);
    assert_eq!(groups_within(&geometry, geometry.group_start(2) * BLOCK), 2);
    assert_eq!(groups_within(&geometry, geometry.group_start(2) * BLOCK - 1), 1);
}
