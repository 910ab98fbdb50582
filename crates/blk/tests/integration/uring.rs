//! The io_uring reactor against the real kernel: the contract, wake-ups, and ends that come too early.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Context;

use crate::conformance::{self, kind, pattern};
use crate::support::{Scratch, channel, connected, core, with_dir};
use blk::reactor::{Op, OpenMode, Reactor};
use blk::sync::SharedSignal;
use blk::{Buf, ErrorKind};

#[test]
fn conformance_on_a_real_file_system() {
    with_dir("conformance", |env, dir| async move { conformance::script(&env, &dir).await });
}

#[test]
fn files_here_are_opened_for_direct_io_and_their_limits_hold() {
    with_dir("limits", |_, dir| async move {
        let file = dir.create_new("file").await.unwrap();
        let limits = file.limits();
        assert!(limits.logical_block.is_power_of_two() && limits.max_io >= 32 << 20, "{limits:?}");
        // The smallest transfer the limits allow works without a read-modify-write.
        let block = limits.logical_block.max(512) as usize;
        file.write(block as u64, pattern(1, block)).await.unwrap();
        assert_eq!(file.counters().reads, 0);
        assert_eq!(file.counters().writes, 1);
    });
}

/// /dev/shm is a tmpfs wherever glibc runs.
#[test]
fn without_direct_io_files_are_buffered() {
    let path = PathBuf::from(format!("/dev/shm/unstun-uring-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    let scratch = Scratch(path);
    let (reactor, executor) = core();
    let env = executor.env();
    let dir = env.open_root(scratch.path()).unwrap();
    executor
        .run(async move {
            let first = dir.create_new("first").await.unwrap();
            assert!(!first.limits().direct);
            drop((first, dir.create_new("second").await.unwrap()));
            dir.unlink("first").await.unwrap();
            dir.unlink("second").await.unwrap();
            conformance::script(&env, &dir).await;
        })
        .unwrap();
    let notices = reactor.take_notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("first") && notices[0].contains("O_DIRECT"), "{notices:?}");
    assert!(reactor.take_notices().is_empty());
}

#[test]
fn links_pipes_and_folders_are_not_opened_as_files() {
    let scratch = Scratch::new("kinds");
    std::fs::write(scratch.join("target"), b"x").unwrap();
    std::os::unix::fs::symlink("target", scratch.join("link")).unwrap();
    std::fs::create_dir(scratch.join("folder")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        scratch.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let (_, executor) = core();
    let dir = executor.env().open_root(scratch.path()).unwrap();
    executor
        .run(async move {
            for name in ["link", "folder", "pipe"] {
                assert_eq!(kind(dir.open(name, OpenMode::Read).await), ErrorKind::Io, "{name}");
            }
            assert_eq!(dir.list().await.unwrap(), ["folder/", "link", "pipe", "target"]);
        })
        .unwrap();
    assert_eq!(kind(executor.env().open_root(&scratch.join("absent"))), ErrorKind::NotFound);
}

#[test]
fn a_lock_is_exclusive_between_reactors() {
    let scratch = Scratch::new("locks");
    let (_, executor) = core();
    let dir = executor.env().open_root(scratch.path()).unwrap();
    let lock = executor.run(async move { dir.lock("datastore").await.unwrap() }).unwrap();
    let path = scratch.path().to_string();
    let other = std::thread::spawn(move || {
        let (_, executor) = core();
        let dir = executor.env().open_root(&path).unwrap();
        executor.run(async move { dir.lock("datastore").await.err().map(|e| e.kind) }).unwrap()
    });
    assert_eq!(other.join().unwrap(), Some(ErrorKind::Locked));
    drop(lock);
}

#[test]
fn a_range_beyond_the_largest_offset_is_refused() {
    with_dir("offsets", |_, dir| async move {
        let file = dir.create_new("file").await.unwrap();
        let (_, result) = file.read(u64::MAX - 8191, Buf::alloc(4096)).await;
        assert_eq!(kind(result), ErrorKind::Io);
        let (_, result) = file.read(1 << 63, Buf::alloc(4096)).await;
        assert_eq!(kind(result), ErrorKind::Io);
        assert!(file.zero(u64::MAX - 1, 4, false).await.is_err());
    });
}

#[test]
fn another_thread_wakes_a_sleeping_core() {
    let (reactor, executor) = core();
    let (to_core, mut from_thread) = channel();
    let thread = std::thread::spawn(move || {
        for i in 0..1000 {
            to_core.send(i);
        }
    });
    let sum = executor
        .run(async move {
            let mut sum = 0;
            for _ in 0..1000 {
                sum += from_thread.next().await;
            }
            sum
        })
        .unwrap();
    thread.join().unwrap();
    assert_eq!(sum, 999 * 1000 / 2);
    // Waking costs at most one event for each message, and the core neither polls nor spins.
    assert!(reactor.counters().spins == 0 && reactor.counters().waits <= 2100, "{:?}", reactor.counters());
}

#[test]
fn a_shared_signal_loses_no_change_of_another_thread() {
    const CHANGES: u64 = 1000;
    let (_reactor, executor) = core();
    let shared = Arc::new((AtomicU64::new(0), SharedSignal::default()));
    let other = shared.clone();
    let thread = std::thread::spawn(move || {
        for _ in 0..CHANGES {
            other.0.fetch_add(1, Ordering::Release);
            other.1.notify();
        }
    });
    executor
        .run(async move {
            loop {
                let changed = shared.1.wait();
                if shared.0.load(Ordering::Acquire) == CHANGES {
                    return;
                }
                changed.await;
            }
        })
        .unwrap();
    thread.join().unwrap();
}

/// The wake has come before the core waits, so that it is taken in on the way to its sleep.
#[test]
fn a_wake_before_the_wait_ends_the_wait() {
    const LIMIT_NS: u64 = 30_000_000_000;
    let (reactor, _executor) = core();
    for _ in 0..100 {
        reactor.turn();
        let waker = reactor.waker();
        std::thread::spawn(move || waker.wake()).join().unwrap();
        let limit = reactor.submit(Op::Timer { at_ns: reactor.now_ns() + LIMIT_NS });
        reactor.wait();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(reactor.poll(limit, &mut cx).is_pending(), "it was the timer that ended it");
        reactor.forget(limit);
    }
}

#[test]
fn an_endless_timer_costs_nothing_while_it_waits() {
    let (reactor, executor) = core();
    let env = executor.env();
    let (to_core, mut from_thread) = channel();
    let thread = std::thread::spawn(move || {
        let (_, executor) = core();
        let env = executor.env();
        executor.run(async move { env.sleep_us(50_000).await }).unwrap();
        to_core.send(1);
    });
    executor.run(async move {
        let endless = env.clone();
        env.spawn(async move { endless.sleep_until(u64::MAX).await });
        from_thread.next().await
    });
    thread.join().unwrap();
    assert!(reactor.counters().waits < 10, "{:?}", reactor.counters());
}

#[test]
fn a_reactor_dropped_with_everything_under_way_frees_nothing_early() {
    let scratch = Scratch::new("drop");
    for round in 0..20u8 {
        let (reactor, executor) = core();
        let env = executor.env();
        let path = scratch.join("socket");
        let dir = env.open_root(scratch.path()).unwrap();
        let theirs = executor.run({
            let (env, reactor) = (env.clone(), reactor.clone());
            async move {
                let name = format!("file{round}");
                let file = dir.create_new(&name).await.unwrap();
                file.set_len(64 << 20).await.unwrap();
                let (listener, ours, theirs) = connected(&reactor, &env, &path).await;
                for i in 0..64 {
                    let file = file.clone();
                    env.spawn(async move { file.write(i * 65536, pattern(1, 65536)).await });
                }
                env.spawn(async move { ours.recv(Buf::alloc(4096), 0).await.1 });
                env.spawn(async move { listener.accept().await.map(drop) });
                let (timer, file) = (env.clone(), file.clone());
                env.spawn(async move { timer.sleep_us(3_600_000_000).await });
                env.spawn(async move { file.flush().await });
                env.spawn(async move { dir.unlink(&name).await });
                // One round lets every task submit; none is waited for.
                env.sleep_us(0).await;
                theirs
            }
        });
        drop(executor);
        drop(env);
        drop(reactor);
        // Only a cancelled and closed connection reads as ended.
        assert_eq!(theirs.unwrap().read(&mut [0; 16]).unwrap_or(0), 0);
    }
}

#[test]
fn a_dropped_timer_and_a_dropped_open_leak_nothing() {
    const FORGOTTEN: usize = 400;
    let scratch = Scratch::new("leftovers");
    std::fs::write(scratch.join("file"), b"x").unwrap();
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (reactor, executor) = core();
    let env = executor.env();
    let dir = env.open_root(scratch.path()).unwrap();
    let root = reactor.open_root(scratch.path()).unwrap();
    let before = open_files();
    executor
        .run(async move {
            for _ in 0..FORGOTTEN {
                drop(env.op(Op::Timer { at_ns: u64::MAX }));
                let name = "file".to_string();
                drop(env.op(Op::OpenFile { dir: root, name, mode: OpenMode::Read }));
            }
            // The files thread works in order, so all of those opens are over after this one.
            drop(dir.open("file", OpenMode::Read).await.unwrap());
            dir.sync().await.unwrap();
        })
        .unwrap();
    // Other tests of this process open files of their own, but not so many at once.
    assert!(open_files() < before + FORGOTTEN, "{before} before, {} after", open_files());
}

#[test]
fn calculation_runs_on_a_thread_of_its_own_while_the_core_goes_on() {
    let (_, executor) = core();
    let env = executor.env();
    executor
        .run(async move {
            let name = env.offload(|| std::thread::current().name().map(str::to_owned)).await;
            assert_eq!(name.as_deref(), Some("unstun-compute"));
            let (go, wait) = std::sync::mpsc::channel();
            let caller = env.clone();
            let offload = env.spawn(async move { caller.offload(move || wait.recv().unwrap()).await });
            env.next_turn().await;
            go.send(7).unwrap();
            assert_eq!(offload.join().await, 7);
        })
        .unwrap();
}

#[test]
fn a_panic_of_offloaded_work_reaches_the_caller() {
    let (_, executor) = core();
    let env = executor.env();
    let run = || executor.run(async move { env.offload(|| assert!(!file!().ends_with("uring.rs"))).await });
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
}

/// Descriptors of this process that are open on the file.
fn descriptors(path: &str) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    links
        .filter(|entry| {
            std::fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(|to| to.as_os_str() == path)
        })
        .count()
}

#[test]
fn handles_of_a_file_that_is_only_read_share_a_descriptor() {
    with_dir("shared", |_, dir| async move {
        let written = dir.create_new("file").await.unwrap();
        written.write(0, pattern(1, 4096)).await.unwrap();
        let path =
            std::fs::canonicalize(dir.path_of("file")).unwrap().into_os_string().into_string().unwrap();
        let mut readers = Vec::new();
        for _ in 0..100 {
            readers.push(dir.open("file", OpenMode::Read).await.unwrap());
        }
        assert_eq!(descriptors(&path), 2, "one that writes, one for all that read");
        // Another file of that name is another file.
        dir.rename("file", "old").await.unwrap();
        let other = dir.create_new("file").await.unwrap();
        other.write(0, pattern(2, 4096)).await.unwrap();
        let of_other = dir.open("file", OpenMode::Read).await.unwrap();
        let read = |file: blk::File| async move {
            let (buf, result) = file.read(0, Buf::alloc(4096)).await;
            result.map(|()| buf.to_vec())
        };
        assert_eq!(read(of_other).await.unwrap(), pattern(2, 4096).to_vec());
        let last = readers.pop().unwrap();
        drop(readers);
        assert_eq!(read(last.clone()).await.unwrap(), pattern(1, 4096).to_vec(), "the others are closed");
        drop((last, written));
        // Closed on the files thread, which works in order.
        other.size().await.unwrap();
        assert_eq!(descriptors(&path.replace("/file", "/old")), 0);
    });
}

#[test]
fn a_file_that_is_replaced_keeps_its_permissions_and_owner() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    with_dir("like", |_, dir| async move {
        let path = PathBuf::from(dir.path_of("file"));
        dir.replace_file("file", b"old").await.unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        // Only root may give files away.
        let given = chown(&path, Some(4711), Some(4712)).is_ok();
        let old = dir.open("file", OpenMode::Read).await.unwrap();
        dir.replace_file_like("file", b"new", &old).await.unwrap();
        let now = std::fs::metadata(&path).unwrap();
        assert_eq!(now.permissions().mode() & 0o7777, 0o640);
        assert!(!given || (now.uid(), now.gid()) == (4711, 4712), "{now:?}");
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(dir.list().await.unwrap(), ["file"]);
    });
}

#[test]
fn the_longest_poll_is_measured_by_the_thread_and_names_its_task() {
    let (_, executor) = core();
    let env = executor.env();
    executor
        .run(async move {
            let ran_ns = || {
                let ran = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                ran.tv_sec as u64 * 1_000_000_000 + ran.tv_nsec as u64
            };
            let busy = async move {
                let end_ns = ran_ns() + 3_000_000;
                while ran_ns() < end_ns {}
            };
            let (line, task) = (line!(), env.spawn(busy));
            task.join().await;
            let polls = env.polls();
            assert!(polls.longest_us >= 3000 && polls.over_limit == 1, "{polls:?}");
            let task = polls.longest_task.unwrap();
            assert!(task.file().ends_with("uring.rs") && task.line() == line, "{task}");
        })
        .unwrap();
}
