//! The contract of directories: names that a power cut leaves, locks, and files without a name.

use std::collections::BTreeSet;

use crate::support::*;
use blk::reactor::OpenMode;
use blk::{Buf, ErrorKind};
use sim::{Options, Ratio, SimWorld, View};

fn empty(seed: u64) -> SimWorld {
    SimWorld::new(seed, Options::default())
}

fn names(world: &SimWorld) -> String {
    world.list("/", View::Current).unwrap().join(" ")
}

fn set<const N: usize>(items: [&str; N]) -> BTreeSet<String> {
    items.into_iter().map(str::to_string).collect()
}

#[test]
fn a_name_may_be_lost_until_the_directory_is_synced_even_if_the_file_was_flushed() {
    let create = |sync: bool| {
        move |env: blk::Env| async move {
            let dir = root(&env);
            let file = dir.create_new("new").await.unwrap();
            file.write(0, sectors(1, 1)).await.unwrap();
            file.flush().await.unwrap();
            if sync {
                dir.sync().await.unwrap();
            }
        }
    };
    assert_eq!(outcomes_after_cut(empty, create(false), names), set(["", "new"]));
    assert_eq!(outcomes_after_cut(empty, create(true), names), set(["new"]));
}

#[test]
fn a_rename_shows_the_old_file_or_the_new_one() {
    let make = |seed| {
        let world = empty(seed);
        world.write_file("name", b"old");
        world
    };
    let content = |world: &SimWorld| {
        String::from_utf8(world.read_file("name", View::Current).expect("the name never vanishes")).unwrap()
    };
    let staged = |env| async move {
        let dir = root(&env);
        dir.stage_file("name", b"new").await.unwrap();
        dir.rename("name.unstun-tmp", "name").await.unwrap();
    };
    assert_eq!(outcomes_after_cut(make, staged, content), set(["old", "new"]));
    let replaced = |env| async move { root(&env).replace_file("name", b"new").await.unwrap() };
    assert_eq!(outcomes_after_cut(make, replaced, content), set(["new"]));
}

/// Shows why `stage_file` flushes: without the flush, the new name may show a file without its bytes.
#[test]
fn a_rename_does_not_wait_for_the_bytes() {
    let seen = outcomes_after_cut(
        |seed| {
            let world = empty(seed);
            world.write_file("name", &[1; SECTOR]);
            world
        },
        |env| async move {
            let dir = root(&env);
            let file = dir.create_new("temporary").await.unwrap();
            file.write(0, sectors(2, 1)).await.unwrap();
            dir.rename("temporary", "name").await.unwrap();
            dir.sync().await.unwrap();
        },
        |world| sector_values(world, "name"),
    );
    assert_eq!(seen, BTreeSet::from([vec![], vec![0], vec![2]]));
}

#[test]
fn an_unsynced_unlink_may_bring_the_file_back() {
    let make = |seed| world_with_disk(seed, Options::default(), SECTOR);
    let unlink = |env| async move { root(&env).unlink("disk").await.unwrap() };
    assert_eq!(outcomes_after_cut(make, unlink, names), set(["", "disk"]));
}

async fn four_creates(env: blk::Env) {
    for name in ["a", "b", "c", "d"] {
        root(&env).create_new(name).await.unwrap();
    }
}

#[test]
fn of_unsynced_changes_a_prefix_survives() {
    let ordered =
        |seed| SimWorld::new(seed, Options { directory_subsets: Ratio::NEVER, ..Options::default() });
    assert_eq!(outcomes_after_cut(ordered, four_creates, names), set(["", "a", "a b", "a b c", "a b c d"]));
}

#[test]
fn of_unsynced_changes_a_subset_in_order_of_each_name_survives() {
    let harsh =
        |seed| SimWorld::new(seed, Options { directory_subsets: Ratio::ALWAYS, ..Options::default() });
    assert_eq!(outcomes_after_cut(harsh, four_creates, names).len(), 16);
    let chain = |env| async move {
        let dir = root(&env);
        dir.create_new("a").await.unwrap();
        dir.rename("a", "b").await.unwrap();
        dir.rename("b", "c").await.unwrap();
    };
    assert_eq!(outcomes_after_cut(harsh, chain, names), set(["", "a", "b", "c"]));
}

#[test]
fn directories_are_names_too() {
    let seen = outcomes_after_cut(
        empty,
        |env| async move {
            let dir = root(&env).open_dir("home", true).await.unwrap();
            dir.create_new("file").await.unwrap();
            dir.sync().await.unwrap();
        },
        |world| format!("{} {:?}", names(world), world.list("home", View::Current)),
    );
    assert_eq!(seen, set([" None", "home/ Some([\"file\"])"]));
}

#[test]
fn names_behave_without_a_cut() {
    empty(1).run(|env| async move {
        let dir = root(&env);
        let home = dir.open_dir("home", true).await.unwrap();
        home.create_new("file").await.unwrap();
        let taken = home.create_new("file").await.err().unwrap();
        assert_eq!(taken.kind, ErrorKind::Exists);
        assert!(dir.remove_dir("home").await.is_err(), "it is not empty");
        assert_eq!(dir.open("none", OpenMode::Read).await.err().unwrap().kind, ErrorKind::NotFound);
        assert_eq!(dir.open_dir("none", false).await.err().unwrap().kind, ErrorKind::NotFound);
        home.unlink("file").await.unwrap();
        dir.remove_dir("home").await.unwrap();
        assert!(home.create_new("late").await.is_err(), "the folder is gone");
        assert_eq!(dir.list().await.unwrap(), Vec::<String>::new());
    });
}

#[test]
fn an_unlinked_open_file_stays_readable_and_then_gives_its_space_back() {
    let world = world_with_disk(1, Options::default(), 8192);
    let inside = world.clone();
    world.run(|env| async move {
        let dir = root(&env);
        let file = open(&env, "disk").await;
        file.write(0, sectors(4, 1)).await.unwrap();
        dir.unlink("disk").await.unwrap();
        let (content, result) = file.read(0, Buf::alloc(SECTOR)).await;
        assert!(result.is_ok() && content[0] == 4);
        assert_eq!(inside.used_bytes(), 8192);
        drop(file);
        assert_eq!(inside.used_bytes(), 0);
    });
    world.power_cut();
    let back = world.list("/", View::Current).unwrap().len() as u64;
    assert_eq!(world.used_bytes(), back * 8192, "an unsynced unlink brings the space back with the name");
}

#[test]
fn a_lock_is_exclusive_until_it_is_dropped_or_the_power_is_cut() {
    let world = empty(1);
    world.run(|env| async move {
        let dir = root(&env);
        let held = dir.lock("lock").await.unwrap();
        assert_eq!(dir.lock("lock").await.err().unwrap().kind, ErrorKind::Locked);
        drop(held);
        std::mem::forget(dir.lock("lock").await.unwrap());
        assert_eq!(dir.lock("lock").await.err().unwrap().kind, ErrorKind::Locked);
    });
    world.power_cut();
    world.run(|env| async move { drop(root(&env).lock("lock").await.unwrap()) });
}

/// The planted defect must show if the sync alone keeps the name.
#[test]
fn an_ignored_directory_sync_loses_names() {
    let lying = |seed| {
        let world = empty(seed);
        world.ignore_dir_syncs(true);
        world
    };
    let replaced = |env| async move { root(&env).replace_file("name", b"new").await.unwrap() };
    assert!(outcomes_after_cut(lying, replaced, names).contains(""));
}

#[test]
fn a_durable_second_name_remains_without_the_first() {
    let make = |seed| {
        let world = empty(seed);
        world.write_file("a", b"kept");
        world
    };
    let shown = |world: &SimWorld| {
        let has = |path| world.read_file(path, View::Current).is_some_and(|bytes| bytes == b"kept");
        format!("{} {}", has("a"), has("other/b"))
    };
    let moved = |sync: bool| {
        move |env: blk::Env| async move {
            let dir = root(&env);
            let other = dir.open_dir("other", true).await.unwrap();
            dir.link("a", &other, "b").await.unwrap();
            if sync {
                other.sync().await.unwrap();
                dir.sync().await.unwrap();
            }
            dir.unlink("a").await.unwrap();
        }
    };
    assert_eq!(outcomes_after_cut(make, moved(true), shown), set(["true true", "false true"]));
    let unsynced = outcomes_after_cut(make, moved(false), shown);
    assert!(unsynced.contains("false false"), "a name of an unsynced directory is no name: {unsynced:?}");
}
