//! Placement of stretches: what they leave to guests, and when the file grows for them.

use super::tests::{GEOMETRY, checkpoint, in_world, open, quiet, run_in, store};
use super::*;
use crate::native::layout::BLOCK;

/// Blocks of a group that may be placed.
const USABLE: u64 = GEOMETRY.group_blocks - SLOTS;

#[test]
fn stretches_leave_free_blocks_to_guests_and_try_a_full_file_system_seldom() {
    let world = sim::SimWorld::new(1, sim::Options::default());
    let theirs = world.clone();
    run_in(&world, async move |env| {
        let file = store(&env).await;
        let space = open(&env, &file, GEOMETRY, Vec::new());
        while space.groups() < 4 {
            space.place(16, None).await.unwrap();
            quiet(&space).await;
        }
        theirs.set_capacity(Some(file.size().await.unwrap()));
        while space.place_stretch(16, None).await.unwrap().is_some() {}
        assert!(space.totals().free_data >= USABLE, "{:?}", space.totals());
        theirs.set_capacity(None);
        assert_eq!(space.place_stretch(100, None).await.unwrap(), None, "a growth has just failed");
        env.sleep_us(11_000_000).await;
        assert!(space.place_stretch(100, None).await.unwrap().is_some());
        assert!(space.totals().free_data >= USABLE, "the file has grown for it: {:?}", space.totals());
    });
}

#[test]
fn the_file_grows_if_the_groups_that_were_loaded_have_no_run() {
    in_world(async |env| {
        let file = store(&env).await;
        let space = open(&env, &file, GEOMETRY, Vec::new());
        let mut lanes = Vec::new();
        while space.groups() < 9 {
            lanes.push(space.place(16, None).await.unwrap());
            quiet(&space).await;
        }
        lanes.into_iter().step_by(2).for_each(|lane| space.unplace(lane));
        space.freeze(&[]);
        checkpoint(&space, 1).await;
        let again = open(&env, &file, GEOMETRY, space.summaries());
        let before = again.groups();
        let placed = again.place_stretch(100, None).await.unwrap();
        assert_eq!(placed.map(|extent| extent.len), Some(100));
        assert!(again.groups() > before && file.size().await.unwrap() >= again.state.borrow().end() * BLOCK);
    });
}
