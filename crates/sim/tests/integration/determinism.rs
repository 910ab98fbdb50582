//! The same seed gives the same events and the same medium; another seed gives others.

use crate::support::*;
use sim::{Cut, Options, SimWorld, View};

/// Runs concurrent writers, timers and changes of names, a power cut in the middle, and a second boot.
fn history(seed: u64) -> (u64, u64, u64, Vec<u8>, Vec<String>) {
    let world = world_with_disk(seed, Options::default(), 64 << 10);
    world.cut_at(Cut::Event(300));
    assert!(world.run(busy).is_none(), "seed {seed}");
    world.power_cut();
    world.cut_at(Cut::Event(100));
    world.run(busy);
    world.power_cut();
    let names = world.list("/", View::Current).unwrap();
    let disk = world.read_file("disk", View::Current).unwrap();
    (world.event_hash(), world.events(), world.now_ns(), disk, names)
}

async fn busy(env: blk::Env) {
    let file = open(&env, "disk").await;
    let writers: Vec<_> = (0..8u64)
        .map(|writer| {
            let (env, file) = (env.clone(), file.clone());
            env.clone().spawn(async move {
                for _ in 0..40 {
                    let at = env.random() % 128 * SECTOR as u64;
                    file.write(at, sectors(writer as u8, 1)).await.unwrap();
                    env.sleep_us(env.random() % 50).await;
                }
                let name = format!("{:x}", env.random());
                root(&env).replace_file(&name, b"done").await.unwrap();
            })
        })
        .collect();
    for writer in writers {
        writer.join().await;
    }
}

#[test]
fn the_same_seed_repeats_and_another_does_not() {
    for seed in 0..20 {
        let (first, second) = (history(seed), history(seed));
        assert!(first == second, "seed {seed} gave two histories");
        assert_ne!(first.0, history(seed + 1000).0, "seed {seed}");
    }
}

#[test]
fn the_trace_contains_the_last_events() {
    let world = SimWorld::new(1, Options { trace_events: 4, ..Options::default() });
    world.write_file("disk", &[0; SECTOR]);
    world.run(|env| async move { open(&env, "disk").await.write(0, sectors(1, 1)).await.unwrap() });
    let events: Vec<String> = world.recent_events().iter().map(ToString::to_string).collect();
    assert_eq!(events.len(), 4);
    assert!(
        events[2].contains("sent Write disk 0+512") && events[3].contains("done Write disk"),
        "{events:?}"
    );
    world.mark("read the trace");
    assert_eq!(world.marks()["read the trace"], 1);
}
