//! Worlds on modelled storage, as the lab uses them: placed files, content without power cuts.

use crate::support::*;
use blk::Buf;
use sim::{
    Buffers, ContentMode, Disk, Group, Level, Model, Options, Place, Seek, SimWorld, Storage, Tags, Unit,
};

fn disk() -> Disk {
    Disk {
        capacity_bytes: 146_000_000_000,
        revolution_ns: 6_000_000,
        track_bytes: 512 << 10,
        tracks_per_cylinder: 4,
        seek: Seek { base_ns: 250_000, stroke_ns: 6_300_000 },
        switch_ns: 150_000,
        write_settle_ns: 300_000,
        overhead_ns: 150_000,
        buffers: Buffers { count: 8, bytes: 64 << 10, per_kib_ns: 3_300 },
        tags: Tags { depth: 16, compared: 6, patience_ns: 500_000_000 },
    }
}

fn pair() -> Model {
    let member = Box::new(Model::Disk(disk()));
    Model::Group(Group { level: Level::Mirror, members: 2, strip_bytes: 0, member })
}

fn on(storage: Storage, content: ContentMode) -> Options {
    Options { storage: Some(storage), content, ..Options::default() }
}

/// Runs eight tasks that write and read back random pages of two files.
async fn busy(env: blk::Env, pages: u64, rounds: u64, compare: bool) {
    let (a, b) = (open(&env, "a").await, open(&env, "b").await);
    let tasks: Vec<_> = (0..8u64)
        .map(|task| {
            let (env, files) = (env.clone(), [a.clone(), b.clone()]);
            env.clone().spawn(async move {
                for round in 0..rounds {
                    let file = &files[(round % 2) as usize];
                    let at = (env.random() % (pages / 8) * 8 + task) * 4096;
                    let data = sectors((task * 31 + round) as u8 | 1, 8).freeze();
                    file.write(at, data.clone()).await.unwrap();
                    let (read, result) = file.read(at, Buf::alloc(4096)).await;
                    result.unwrap();
                    assert!(!compare || read[..] == data[..], "task {task}, round {round}");
                }
            })
        })
        .collect();
    for task in tasks {
        task.join().await;
    }
}

fn run(seed: u64, options: Options) -> (u64, u64) {
    let compare = options.content != ContentMode::Absent;
    let world = SimWorld::new(seed, options);
    world.write_file("a", &[0; 1 << 20]);
    world.write_file("b", &[0; 1 << 20]);
    world.run(move |env| busy(env, 256, 40, compare)).unwrap();
    (world.event_hash(), world.now_ns())
}

#[test]
fn a_seed_repeats_on_modelled_storage_in_every_content_mode() {
    for content in [ContentMode::Durable, ContentMode::Applied, ContentMode::Absent] {
        let options = || on(Storage::of(pair()), content);
        assert_eq!(run(5, options()), run(5, options()), "{content:?}");
        assert_ne!(run(5, options()).0, run(6, options()).0, "{content:?}");
    }
}

#[test]
fn the_content_mode_does_not_change_the_times() {
    let times = |content| run(5, on(Storage::of(pair()), content)).1;
    assert_eq!(times(ContentMode::Applied), times(ContentMode::Absent));
}

/// Files on different units do not move each other's heads; files far apart on one unit do.
#[test]
fn the_placement_of_files_decides_the_latency() {
    let place = |unit, from_bytes| vec![Place { part: "b".into(), unit, from_bytes }];
    let single = Storage::of(Model::Disk(disk()));
    let time =
        |places, units| run(1, on(Storage { units, places, ..single.clone() }, ContentMode::Applied)).1;
    let unit = || single.units[0].clone();
    let near = time(Vec::new(), vec![unit()]);
    let far = time(place(0, 140_000_000_000), vec![unit()]);
    let apart = time(place(1, 0), vec![unit(), unit()]);
    assert!(apart < near && near < far, "own unit {apart} ns, beside {near} ns, far {far} ns");
}

#[test]
fn applied_content_stays_through_holes_truncation_and_a_kill() {
    let world = SimWorld::new(1, on(Storage::of(pair()), ContentMode::Applied));
    world.run(|env| async move {
        let file = root(&env).create_new("disk").await.unwrap();
        file.write(0, sectors(7, 32)).await.unwrap();
        file.zero(4096, 4096, true).await.unwrap();
        assert_eq!(file.extents(0, 1 << 20).await.unwrap().len(), 2);
        file.set_len(12_288 + 1024).await.unwrap();
        file.set_len(16_384).await.unwrap();
    });
    world.kill();
    let kept = world.read_file("disk", sim::View::Current).unwrap();
    let expected = |at: usize| if (4096..8192).contains(&at) || at >= 13_312 { 0 } else { 7 };
    assert!(kept.iter().enumerate().all(|(at, &byte)| byte == expected(at)) && kept.len() == 16_384);
}

#[test]
#[should_panic(expected = "does not know what a power cut would leave")]
fn a_power_cut_without_a_record_of_durability_panics() {
    SimWorld::new(1, on(Storage::of(pair()), ContentMode::Applied)).power_cut();
}

/// A task that yields in a loop must neither stop nor overtake a model's clock.
#[test]
fn a_yielding_task_and_a_disk_both_make_progress() {
    let world = SimWorld::new(1, on(Storage::of(pair()), ContentMode::Applied));
    world.write_file("disk", &[1; 4096]);
    world.run(|env| async move {
        let file = open(&env, "disk").await;
        let reading = {
            let file = file.clone();
            env.spawn(async move { file.read(0, Buf::alloc(4096)).await.1.is_ok() })
        };
        let ticking = env.clone();
        env.spawn(async move {
            while ticking.now_ns() < 50_000_000 {
                ticking.sleep_us(1).await;
            }
        });
        assert!(reading.join().await);
        assert!(env.now_ns() < 20_000_000, "{} ns for one read", env.now_ns());
    });
    let unit = Unit { model: pair(), calls: Default::default() };
    assert_eq!(Storage::of(pair()).units, [unit]);
}
