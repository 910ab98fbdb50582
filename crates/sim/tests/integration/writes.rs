//! The contract of the medium, rule by rule: effects of a power cut on the bytes and the size of a file.

use std::collections::BTreeSet;

use crate::support::*;
use blk::{Buf, Errno};
use sim::{Action, Cut, Device, Fault, OpKind, Options, Phase, SimWorld, View};

fn disk(seed: u64) -> SimWorld {
    world_with_disk(seed, Options::default(), 4 * SECTOR)
}

fn set<const N: usize>(items: [Vec<u8>; N]) -> BTreeSet<Vec<u8>> {
    items.into_iter().collect()
}

#[test]
fn a_flushed_write_survives() {
    let seen = outcomes_after_cut(
        disk,
        |env| async move {
            let file = open(&env, "disk").await;
            file.write(0, sectors(7, 4)).await.unwrap();
            file.flush().await.unwrap();
        },
        |world| sector_values(world, "disk"),
    );
    assert_eq!(seen, set([vec![7, 7, 7, 7]]));
}

#[test]
fn an_unflushed_write_survives_in_any_subset_of_its_sectors() {
    let seen = outcomes_after_cut(
        |seed| world_with_disk(seed, Options::default(), 2 * SECTOR),
        |env| async move {
            let file = open(&env, "disk").await;
            file.write(0, sectors(7, 2)).await.unwrap();
        },
        |world| sector_values(world, "disk"),
    );
    assert_eq!(seen, set([vec![0, 0], vec![0, 7], vec![7, 0], vec![7, 7]]));
}

#[test]
fn unflushed_writes_survive_in_any_order() {
    let seen = outcomes_after_cut(
        |seed| world_with_disk(seed, Options::default(), SECTOR),
        |env| async move {
            let file = open(&env, "disk").await;
            file.write(0, sectors(1, 1)).await.unwrap();
            file.flush().await.unwrap();
            for value in 2..=4 {
                file.write(0, sectors(value, 1)).await.unwrap();
            }
        },
        |world| sector_values(world, "disk"),
    );
    assert_eq!(seen, set([vec![1], vec![2], vec![3], vec![4]]));
}

/// The write completes while the flush is under way, so the flush does not cover it.
#[test]
fn a_flush_covers_only_what_completed_before_it_was_submitted() {
    let mut slow_flush = Device::steady(1_000);
    slow_flush.flush.base_ns = 1_000_000;
    let seen = outcomes_after_cut(
        |seed| {
            let options = Options { device: slow_flush, ..Options::default() };
            world_with_disk(seed, options, 2 * SECTOR)
        },
        |env| async move {
            let file = open(&env, "disk").await;
            file.write(0, sectors(1, 1)).await.unwrap();
            let flush = {
                let file = file.clone();
                env.spawn(async move { file.flush().await.unwrap() })
            };
            env.sleep_us(10).await;
            file.write(SECTOR as u64, sectors(2, 1)).await.unwrap();
            flush.join().await;
        },
        |world| sector_values(world, "disk"),
    );
    assert_eq!(seen, set([vec![1, 0], vec![1, 2]]));
}

#[test]
fn a_flush_that_was_not_completed_promises_nothing() {
    let seen = outcomes_after_cut(
        |seed| {
            let world = world_with_disk(seed, Options::default(), SECTOR);
            world.cut_at(Cut::Kind { kind: OpKind::Flush, nth: 1, phase: Phase::Completing });
            world
        },
        |env| async move {
            let file = open(&env, "disk").await;
            file.write(0, sectors(1, 1)).await.unwrap();
            file.flush().await.unwrap();
            unreachable!("the power is gone");
        },
        |world| sector_values(world, "disk"),
    );
    assert_eq!(seen, set([vec![0], vec![1]]));
}

#[test]
fn a_write_under_way_at_the_cut_may_survive() {
    let seen = outcomes_after_cut(
        |seed| {
            let world = world_with_disk(seed, Options::default(), SECTOR);
            world.cut_at(Cut::Kind { kind: OpKind::Write, nth: 1, phase: Phase::Submitted });
            world
        },
        |env| async move {
            open(&env, "disk").await.write(0, sectors(1, 1)).await.unwrap();
        },
        |world| sector_values(world, "disk"),
    );
    assert_eq!(seen, set([vec![0], vec![1]]));
}

#[test]
fn flushing_one_file_says_nothing_about_another() {
    let seen = outcomes_after_cut(
        |seed| {
            let world = world_with_disk(seed, Options::default(), SECTOR);
            world.write_file("other", &[0; SECTOR]);
            world
        },
        |env| async move {
            let (disk, other) = (open(&env, "disk").await, open(&env, "other").await);
            disk.write(0, sectors(1, 1)).await.unwrap();
            other.write(0, sectors(1, 1)).await.unwrap();
            other.flush().await.unwrap();
        },
        |world| [sector_values(world, "disk"), sector_values(world, "other")].concat(),
    );
    assert_eq!(seen, set([vec![0, 1], vec![1, 1]]));
}

#[test]
fn zeroing_ranks_as_a_write() {
    for punch in [false, true] {
        let seen = outcomes_after_cut(
            |seed| {
                let world = SimWorld::new(seed, Options::default());
                world.write_file("disk", &[9; 2 * SECTOR]);
                world
            },
            |env| async move {
                let file = open(&env, "disk").await;
                file.zero(0, 2 * SECTOR as u64, punch).await.unwrap();
                let (now, result) = file.read(0, Buf::alloc(2 * SECTOR)).await;
                assert!(result.is_ok() && now.iter().all(|&byte| byte == 0));
            },
            |world| sector_values(world, "disk"),
        );
        assert_eq!(seen, set([vec![0, 0], vec![0, 9], vec![9, 0], vec![9, 9]]));
    }
}

#[test]
fn an_extension_survives_with_its_bytes_or_as_zeros_or_not_at_all() {
    let seen = outcomes_after_cut(
        |seed| world_with_disk(seed, Options::default(), SECTOR),
        |env| async move {
            open(&env, "disk").await.write(SECTOR as u64, sectors(5, 1)).await.unwrap();
        },
        |world| sector_values(world, "disk"),
    );
    assert_eq!(seen, set([vec![0], vec![0, 0], vec![0, 5]]));
}

#[test]
fn a_flush_makes_the_size_durable() {
    let seen = outcomes_after_cut(
        |seed| world_with_disk(seed, Options::default(), 0),
        |env| async move {
            let file = open(&env, "disk").await;
            file.allocate(0, 1000).await.unwrap();
            file.flush().await.unwrap();
            file.set_len(5000).await.unwrap();
        },
        |world| world.file_size("disk", View::Current).unwrap(),
    );
    assert_eq!(seen, BTreeSet::from([1000, 5000]));
}

/// Whatever survives, truncated bytes never reappear when the file grows.
#[test]
fn truncated_bytes_never_come_back() {
    let seen = outcomes_after_cut(
        |seed| {
            let world = SimWorld::new(seed, Options::default());
            world.write_file("disk", &[9; 3 * SECTOR]);
            world
        },
        |env| async move {
            let file = open(&env, "disk").await;
            file.set_len(100).await.unwrap();
            file.set_len(3 * SECTOR as u64).await.unwrap();
        },
        |world| {
            let bytes = world.read_file("disk", View::Current).unwrap();
            (bytes.len(), bytes.iter().filter(|&&byte| byte == 9).count())
        },
    );
    let (full, short) = (3 * SECTOR, 100);
    assert_eq!(seen, BTreeSet::from([(full, full), (short, short), (full, short)]));
}

#[test]
fn a_read_beyond_the_end_is_short() {
    let world = world_with_disk(1, Options::default(), 2 * SECTOR);
    world.run(|env| async move {
        let file = open(&env, "disk").await;
        let (_, result) = file.read(SECTOR as u64, Buf::alloc(2 * SECTOR)).await;
        assert!(result.unwrap_err().cause.contains("ends after 512"));
    });
}

#[test]
fn a_write_that_fails_may_have_torn_what_it_would_have_overwritten() {
    let seen = outcomes_after_cut(
        |seed| {
            let world = world_with_disk(seed, Options::default(), 2 * SECTOR);
            world.add_fault(Fault::nth(1, Action::Fail(Errno::EIO)).of(OpKind::Write));
            world
        },
        |env| async move {
            open(&env, "disk").await.write(0, sectors(3, 2)).await.unwrap_err();
        },
        |world| sector_values(world, "disk"),
    );
    assert_eq!(seen, set([vec![0, 0], vec![0, 3], vec![3, 0], vec![3, 3]]));
}

/// A killed process loses no submitted operation; only a loss of power does that.
#[test]
fn a_killed_process_loses_no_write() {
    for seed in 0..20 {
        let world = disk(seed);
        world.run(|env| async move { open(&env, "disk").await.write(0, sectors(7, 4)).await.unwrap() });
        world.kill();
        assert_eq!(sector_values(&world, "disk"), [7, 7, 7, 7], "seed {seed}");
    }
}

/// Far more rewrites of one place than the world keeps apart must still read correctly.
#[test]
fn many_unflushed_rewrites_read_as_the_last() {
    let world = disk(3);
    world.run(|env| async move {
        let file = open(&env, "disk").await;
        for round in 0..2000u32 {
            let at = u64::from(round % 4) * SECTOR as u64;
            file.write(at, sectors(round as u8, 1)).await.unwrap();
            let (now, result) = file.read(at, Buf::alloc(SECTOR)).await;
            assert!(result.is_ok() && now.iter().all(|&byte| byte == round as u8), "round {round}");
        }
    });
}

/// Compares every operation on one file with a plain model, without faults.
#[test]
fn a_file_without_faults_is_an_array_of_bytes() {
    for seed in 0..40 {
        let world = world_with_disk(seed, Options::default(), 64 << 10);
        world.run(move |env| async move { follow_model(&env, seed).await });
    }
}

async fn follow_model(env: &blk::Env, seed: u64) {
    let file = open(env, "disk").await;
    let mut rng = sim::Rng::new(seed);
    let mut model = vec![0u8; 64 << 10];
    for step in 0..400u32 {
        let start = rng.below(128) as usize * SECTOR;
        let count = rng.between(1, 24) as usize;
        let end = start + count * SECTOR;
        match rng.below(8) {
            0..=3 => {
                file.write(start as u64, sectors(step as u8 | 1, count)).await.unwrap();
                model.resize(model.len().max(end), 0);
                model[start..end].fill(step as u8 | 1);
            }
            4 => {
                file.zero(start as u64, (count * SECTOR) as u64, rng.coin()).await.unwrap();
                let end = end.min(model.len());
                model[start.min(end)..end].fill(0);
            }
            5 => {
                let len = rng.below(80 << 10);
                file.set_len(len).await.unwrap();
                model.resize(len as usize, 0);
            }
            6 => file.flush().await.unwrap(),
            _ => file.allocate(start as u64, 0).await.unwrap(),
        }
        model.resize(model.len().max(file.size().await.unwrap() as usize), 0);
        let now = file.read_all(1 << 20).await.unwrap();
        assert!(now == model, "seed {seed}, step {step}: {} bytes, {} expected", now.len(), model.len());
        check_extents(&file, &model).await;
    }
}

async fn check_extents(file: &blk::File, model: &[u8]) {
    let mut holes = vec![true; model.len()];
    for extent in file.extents(0, u64::MAX).await.unwrap() {
        holes[extent.offset as usize..(extent.offset + extent.len) as usize].fill(false);
    }
    assert!(model.iter().zip(holes).all(|(&byte, hole)| !hole || byte == 0), "data in a hole");
}
