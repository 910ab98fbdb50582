//! Scheduled faults: full file systems, failing and slow operations, misaligned transfers, decay, cuts.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::support::*;
use blk::reactor::{Handle, Op, OpenMode, Outcome, Reactor};
use blk::{Buf, Errno, ErrorKind, Executor};
use sim::{Action, Cut, Device, Fault, OpKind, Options, Phase, SimWorld, View};

#[test]
fn no_space_changes_nothing_and_may_be_retried() {
    let options = Options { capacity_bytes: Some(16 << 10), ..Options::default() };
    let world = world_with_disk(1, options, 8 << 10);
    let inside = world.clone();
    world.run(|env| async move {
        let file = open(&env, "disk").await;
        let refused = file.write(8 << 10, Buf::zeroed(12 << 10)).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NoSpace);
        assert_eq!(file.allocate(8 << 10, 12 << 10).await.unwrap_err().kind, ErrorKind::NoSpace);
        assert_eq!(file.size().await.unwrap(), 8 << 10);
        let space = root(&env).space().await.unwrap();
        assert_eq!((space.total_bytes, space.free_bytes), (16 << 10, 8 << 10));
        inside.set_capacity(Some(20 << 10));
        file.write(8 << 10, Buf::zeroed(12 << 10)).await.unwrap();
        file.write(0, Buf::zeroed(20 << 10)).await.expect("overwriting needs no space");
    });
    assert_eq!(world.used_bytes(), 20 << 10);
}

#[test]
fn holes_need_space_and_punching_gives_it_back() {
    let options = Options { capacity_bytes: Some(8 << 10), ..Options::default() };
    let world = world_with_disk(1, options, 8 << 10);
    let inside = world.clone();
    world.run(|env| async move {
        let file = open(&env, "disk").await;
        let other = root(&env).create_new("other").await.unwrap();
        other.set_len(1 << 30).await.expect("a hole takes no space");
        assert_eq!(other.write(0, sectors(1, 8)).await.unwrap_err().kind, ErrorKind::NoSpace);
        assert_eq!(other.zero(0, 4096, false).await.unwrap_err().kind, ErrorKind::NoSpace);
        file.zero(4096, 4096, true).await.unwrap();
        other.write(0, sectors(1, 8)).await.unwrap();
        assert_eq!(inside.allocated_bytes("disk"), Some(4096));
        assert_eq!(file.write(4096, sectors(1, 8)).await.unwrap_err().kind, ErrorKind::NoSpace);
    });
}

/// `File` reads and rewrites around misaligned requests. The device below refuses them, as with O_DIRECT.
#[test]
fn transfers_must_be_aligned() {
    for block in [512u32, 4096] {
        let options = Options { logical_block: block, memory_align: 512, ..Options::default() };
        let world = world_with_disk(1, options, 16 << 10);
        world.run(move |env| async move {
            let file = open(&env, "disk").await;
            assert_eq!(file.limits().logical_block, block);
            file.write(700, Buf::copy_of(&[5; 100])).await.unwrap();
            let (middle, result) = file.read(699, Buf::alloc(102)).await;
            assert!(result.is_ok() && middle[0] == 0 && middle[1..101] == [5; 100] && middle[101] == 0);
        });
        assert_eq!(world.count(OpKind::Write).bytes, u64::from(block));
        assert_eq!(world.count(OpKind::Write).failed, 0);
    }
}

#[test]
fn the_device_refuses_what_o_direct_refuses() {
    let options = Options { logical_block: 4096, max_io: 64 << 10, ..Options::default() };
    let world = world_with_disk(1, options, 128 << 10);
    let reactor = Rc::new(world.boot());
    let dir = reactor.open_root("/").unwrap();
    let executor = Executor::new(reactor);
    let env = executor.env();
    let refused = executor.run(async move {
        let op = Op::OpenFile { dir, name: "disk".into(), mode: OpenMode::Write };
        let Outcome::Opened(Ok((file, limits))) = env.op(op).await else { unreachable!("it exists") };
        assert_eq!((limits.logical_block, limits.max_io), (4096, 64 << 10));
        for (offset, len) in [(512, 4096), (0, 512), (0, 128 << 10)] {
            let outcome = env.op(Op::Read { file, offset, buf: Buf::alloc(len) }).await;
            assert!(matches!(outcome, Outcome::Read(_, Err(Errno::EINVAL))), "{len} bytes at {offset}");
        }
        let misaligned_memory = Buf::zeroed(8192).freeze().slice(8..4104);
        let outcome = env.op(Op::Write { file, offset: 0, data: misaligned_memory }).await;
        matches!(outcome, Outcome::Count(Err(Errno::EINVAL)))
    });
    assert_eq!(refused, Some(true));
}

#[test]
fn the_nth_operation_fails_once_or_for_ever() {
    for (forever, expected) in [(false, [true, false, true]), (true, [true, false, false])] {
        let world = world_with_disk(1, Options::default(), SECTOR);
        let fault = Fault::nth(2, Action::Fail(Errno::EIO)).of(OpKind::Read).named("disk");
        world.add_fault(if forever { fault.and_all_later() } else { fault });
        let read = world.run(|env| async move {
            let file = open(&env, "disk").await;
            let mut read = Vec::new();
            for _ in 0..3 {
                read.push(file.read(0, Buf::alloc(SECTOR)).await.1.is_ok());
            }
            read
        });
        assert_eq!(read.unwrap(), expected);
        assert!(world.count(OpKind::Read).failed > 0);
    }
}

#[test]
fn a_failed_flush_makes_nothing_durable() {
    let options = Options { page_cache: true, ..Options::default() };
    let world = world_with_disk(1, options, SECTOR);
    world.add_fault(Fault::nth(1, Action::Fail(Errno::EIO)).of(OpKind::Flush));
    world.run(|env| async move {
        let file = open(&env, "disk").await;
        file.write(0, sectors(1, 1)).await.unwrap();
        file.flush().await.unwrap_err();
        assert_eq!(file.write(0, sectors(2, 1)).await.unwrap_err().kind, ErrorKind::Latched);
    });
    assert_eq!(world.read_at("disk", 0, 1, View::Durable).unwrap(), [0]);
    assert_eq!(world.read_at("disk", 0, 1, View::Current).unwrap(), [1]);
}

/// Writes one sector; its flush fails, and the next flush succeeds. Returns what was read between the two, what is read
/// at the end, and what is durable then.
fn after_a_failed_flush(seed: u64, page_cache: bool) -> (u8, u8, u8) {
    let world = world_with_disk(seed, Options { page_cache, ..Options::default() }, SECTOR);
    world.add_fault(Fault::nth(1, Action::Fail(Errno::ENOSPC)).of(OpKind::Flush));
    let reactor = Rc::new(world.boot());
    let dir = reactor.open_root("/").unwrap();
    let executor = Executor::new(reactor);
    let env = executor.env();
    let between = executor.run(async move {
        let op = Op::OpenFile { dir, name: "disk".into(), mode: OpenMode::Write };
        let Outcome::Opened(Ok((file, limits))) = env.op(op).await else { unreachable!("it exists") };
        assert_eq!(limits.direct, !page_cache);
        let data = sectors(1, 1).freeze();
        let written = env.op(Op::Write { file, offset: 0, data }).await;
        assert!(matches!(written, Outcome::Count(Ok(512))));
        let flushed = [
            env.op(Op::Flush { file }).await,
            env.op(Op::Read { file, offset: 0, buf: Buf::alloc(SECTOR) }).await,
        ];
        let [Outcome::Unit(Err(Errno::ENOSPC)), Outcome::Read(between, Ok(SECTOR))] = flushed else {
            unreachable!("the flush fails, and reading goes on")
        };
        assert!(matches!(env.op(Op::Flush { file }).await, Outcome::Unit(Ok(()))), "it is reported once");
        between[0]
    });
    let now = |view| world.read_at("disk", 0, 1, view).unwrap()[0];
    (between.unwrap(), now(View::Current), now(View::Durable))
}

#[test]
fn a_failed_flush_is_reported_once_and_what_it_lost_may_be_read_for_a_while() {
    let outcomes =
        |page_cache| (0..SEEDS).map(|seed| after_a_failed_flush(seed, page_cache)).collect::<BTreeSet<_>>();
    // The second flush wrote it, or it is lost; reads show what is durable.
    assert_eq!(outcomes(false), BTreeSet::from([(0, 0, 0), (1, 1, 1)]));
    // With the page cache it may also be read although it is not on the medium, until its page is evicted.
    assert_eq!(outcomes(true), BTreeSet::from([(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1)]));
}

/// After a failed flush, ranges that no flush covered cannot be read, and no later flush succeeds. A file that is
/// opened again shows what is on the medium.
#[test]
fn a_file_whose_flush_failed_vouches_for_nothing_until_it_is_opened_again() {
    for (seed, errno) in (0..SEEDS).zip([Errno::EIO, Errno::ENOSPC, Errno::EDQUOT].into_iter().cycle()) {
        let options = Options { page_cache: seed % 2 == 0, ..Options::default() };
        let world = world_with_disk(seed, options, 4 * SECTOR);
        world.add_fault(Fault::nth(2, Action::Fail(errno)).of(OpKind::Flush));
        let shown = world.run(|env| async move {
            let file = open(&env, "disk").await;
            file.write(0, sectors(1, 2)).await.unwrap();
            file.flush().await.unwrap();
            file.write(SECTOR as u64, sectors(2, 2)).await.unwrap();
            let failed = file.flush().await.unwrap_err();
            assert_eq!(failed.kind, ErrorKind::Io, "{errno}: never a shortage of space, which loses nothing");
            assert!(failed.cause.contains("1024 bytes"), "{failed}");
            for _ in 0..3 {
                assert_eq!(file.flush().await.unwrap_err().kind, ErrorKind::Latched);
            }
            assert_eq!(file.write(SECTOR as u64, sectors(2, 2)).await.unwrap_err().kind, ErrorKind::Latched);
            for (sector, vouched) in [true, false, false, true].into_iter().enumerate() {
                let (_, result) = file.read((sector * SECTOR) as u64, Buf::alloc(SECTOR)).await;
                assert_eq!(result.is_ok(), vouched, "sector {sector}");
            }
            drop(file);
            let again = open(&env, "disk").await;
            again.read(0, Buf::alloc(4 * SECTOR)).await.0.to_vec()
        });
        let shown = shown.unwrap();
        world.run(|env| async move { open(&env, "disk").await.flush().await.unwrap() });
        world.power_cut();
        let survived = world.read_at("disk", 0, 4 * SECTOR as u64, View::Current).unwrap();
        assert_eq!(survived, shown, "seed {seed}: what was shown again and flushed is there");
    }
}

#[test]
fn sectors_that_were_being_written_may_be_unreadable_after_a_cut_until_they_are_written() {
    let options = Options { unreadable_sectors: sim::Ratio::ALWAYS, ..Options::default() };
    let mut struck = BTreeSet::new();
    for seed in 0..SEEDS {
        let world = world_with_disk(seed, options.clone(), 8 * SECTOR);
        world.run(|env| async move {
            let file = open(&env, "disk").await;
            file.write(0, sectors(1, 2)).await.unwrap();
            file.flush().await.unwrap();
            file.write(4 * SECTOR as u64, sectors(1, 3)).await.unwrap();
        });
        world.power_cut();
        let unreadable = world.unreadable("disk");
        let expected: Vec<usize> = (0..8)
            .filter(|sector| unreadable.iter().any(|range| range.contains(&((sector * SECTOR) as u64))))
            .collect();
        struck.extend(expected.clone());
        let outside = world.clone();
        world.run(move |env| async move {
            let file = open(&env, "disk").await;
            for sector in 0..8 {
                let offset = (sector * SECTOR) as u64;
                let (_, result) = file.read(offset, Buf::alloc(SECTOR)).await;
                assert_eq!(result.is_err(), expected.contains(&sector), "seed {seed}, sector {sector}");
                file.write(offset, sectors(3, 1)).await.unwrap();
                file.read(offset, Buf::alloc(SECTOR)).await.1.unwrap();
            }
            assert!(outside.unreadable("disk").is_empty());
        });
    }
    assert_eq!(struck, BTreeSet::from([4, 5, 6]));
}

#[test]
fn a_latency_spike_delays_its_operation_only() {
    let options = Options { device: Device::steady(1_000), ..Options::default() };
    let world = world_with_disk(1, options, 2 * SECTOR);
    world.add_fault(Fault::nth(1, Action::Delay { ns: 1_000_000 }).of(OpKind::Write));
    let order = world.run(|env| async move {
        let file = open(&env, "disk").await;
        let timed = |offset: u64| {
            let (env, file) = (env.clone(), file.clone());
            async move {
                file.write(offset, sectors(1, 1)).await.unwrap();
                env.now_ns()
            }
        };
        let (slow, fast) = (env.spawn(timed(0)), env.spawn(timed(SECTOR as u64)));
        (slow.join().await, fast.join().await)
    });
    let (slow_ns, fast_ns) = order.unwrap();
    assert_eq!(slow_ns - fast_ns, 1_000_000);
}

#[test]
fn flipped_bits_are_read() {
    let world = world_with_disk(1, Options::default(), SECTOR);
    assert!(world.flip_bit("disk", 17, 3));
    assert!(!world.flip_bit("disk", SECTOR as u64, 0) && !world.flip_bit("none", 0, 0));
    assert_eq!(world.read_at("disk", 17, 1, View::Current).unwrap(), [8]);
}

#[test]
fn a_cut_strikes_where_it_was_ordered() {
    let write_twice = |env| async move {
        let file = open(&env, "disk").await;
        for value in 1..=2 {
            file.write(0, sectors(value, 1)).await.unwrap();
            file.flush().await.unwrap();
        }
    };
    let flushed = |cut: Cut| {
        let world = world_with_disk(1, Options::default(), SECTOR);
        world.cut_at(cut);
        assert!(world.run(write_twice).is_none() && world.is_off(), "{cut:?}");
        let counts = [OpKind::Write, OpKind::Flush].map(|kind| world.count(kind));
        world.power_cut();
        assert!(!world.is_off());
        counts.map(|count| (count.submitted, count.completed))
    };
    let at_flush = |nth, phase| Cut::Kind { kind: OpKind::Flush, nth, phase };
    assert_eq!(flushed(at_flush(1, Phase::Submitted)), [(1, 1), (1, 0)]);
    assert_eq!(flushed(at_flush(2, Phase::Completing)), [(2, 2), (2, 1)]);
    assert_eq!(flushed(at_flush(1, Phase::Completed)), [(2, 1), (1, 1)]);
    assert_eq!(flushed(Cut::Event(1)), [(0, 0), (0, 0)]);
    assert_eq!(flushed(Cut::Event(3)), [(1, 0), (0, 0)]);
    assert_eq!(flushed(Cut::After { ns: 1 }), [(0, 0), (0, 0)]);
}

#[test]
fn a_cut_strikes_a_file_by_name_or_a_place_in_the_code() {
    let world = world_with_disk(1, Options::default(), SECTOR);
    world.write_file("table", &[0; SECTOR]);
    world.add_fault(Fault::nth(1, Action::PowerOff).of(OpKind::Write).named("table"));
    let write_both = |env| async move {
        open(&env, "disk").await.write(0, sectors(1, 1)).await.unwrap();
        open(&env, "table").await.write(0, sectors(1, 1)).await.unwrap();
    };
    assert!(world.run(write_both).is_none());
    let writes = world.count(OpKind::Write);
    assert_eq!((writes.submitted, writes.completed), (2, 1));
    world.power_cut();
    let inside = world.clone();
    assert!(world.run(|_| async move { inside.switch_off() }).is_none());
    world.kill();
}

#[test]
#[should_panic(expected = "seed 5, event 0, 0 ns: nothing is under way")]
fn a_request_that_is_never_answered_is_a_failure() {
    SimWorld::new(5, Options::default()).run(|_| std::future::pending::<()>());
}

#[test]
fn sockets_do_not_exist_here() {
    SimWorld::new(1, Options::default()).run(|env| async move {
        let outcome = env.op(Op::Accept { socket: Handle(0) }).await;
        assert!(matches!(outcome, Outcome::Opened(Err(Errno::EOPNOTSUPP))));
    });
}
