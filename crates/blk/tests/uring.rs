//! The io_uring reactor against the real kernel: the contract, sockets, wake-ups, and ends that come too early.

mod conformance;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;

use blk::reactor::{Op, OpenMode, Reactor};
use blk::socket::{Listener, Socket};
use blk::uring::UringReactor;
use blk::{Buf, Dir, Env, ErrorKind, Executor};
use conformance::{kind, pattern};

/// A directory of its own on the file system of the build, gone with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn join(&self, name: &str) -> String {
        format!("{}/{name}", self.path())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn core() -> (Rc<UringReactor>, Executor) {
    let reactor = Rc::new(UringReactor::new().unwrap());
    let executor = Executor::new(reactor.clone());
    (reactor, executor)
}

/// Runs `test` on a fresh core with a fresh directory.
fn with_dir<F: Future<Output = ()> + 'static>(name: &str, test: impl FnOnce(Env, Dir) -> F) {
    let scratch = Scratch::new(name);
    let (_, executor) = core();
    let env = executor.env();
    let dir = env.open_root(scratch.path()).unwrap();
    executor.run(test(env, dir)).unwrap();
}

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
fn without_direct_io_files_are_buffered_and_it_is_said_once() {
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

/// Sends all of `bytes`, in parts, and answers what came back for them.
async fn echo(socket: Socket) {
    let mut buf = Buf::alloc(64 << 10);
    loop {
        let (back, result) = socket.recv(buf, 0).await;
        let n = result.unwrap();
        if n == 0 {
            return;
        }
        let mut data = Buf::copy_of(&back[..n]).freeze();
        while !data.is_empty() {
            // In three parts where there is enough, so that gathering is exercised.
            let third = data.len() / 3;
            let parts = match third {
                0 => vec![data.clone()],
                _ => vec![
                    data.slice(0..third),
                    data.slice(third..2 * third),
                    data.slice(2 * third..data.len()),
                ],
            };
            let sent = socket.send(parts).await.unwrap() as usize;
            data = data.slice(sent..data.len());
        }
        buf = back;
    }
}

fn echo_client(mut stream: impl Read + Write) {
    for len in [1, 2, 3, 100, 70_000] {
        let data = pattern(len as u8, len).to_vec();
        stream.write_all(&data).unwrap();
        let mut back = vec![0; len];
        stream.read_exact(&mut back).unwrap();
        assert!(back == data, "{len} bytes");
    }
}

#[test]
fn sockets_echo_over_unix_and_tcp() {
    let scratch = Scratch::new("echo");
    let (reactor, executor) = core();
    let path = scratch.join("socket");
    let unix = reactor.listen_unix(&path).unwrap();
    let tcp = reactor.listen_tcp("127.0.0.1:0").unwrap();
    let address = reactor.local_address(tcp).unwrap();
    assert_ne!(address.port(), 0);
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);

    let client_path = path.clone();
    let clients = [
        std::thread::spawn(move || echo_client(UnixStream::connect(client_path).unwrap())),
        std::thread::spawn(move || echo_client(std::net::TcpStream::connect(address).unwrap())),
    ];
    let env = executor.env();
    executor
        .run(async move {
            let listeners = [
                Listener::new(env.clone(), unix, "unix".into()),
                Listener::new(env.clone(), tcp, "tcp".into()),
            ];
            for listener in listeners {
                echo(listener.accept().await.unwrap()).await;
            }
        })
        .unwrap();
    for client in clients {
        client.join().unwrap();
    }
    assert!(!std::fs::exists(&path).unwrap(), "a closed listener takes its file away");
}

#[test]
fn a_large_gathered_send_arrives_in_order() {
    const PARTS: usize = 3000;
    let scratch = Scratch::new("gather");
    let (reactor, executor) = core();
    let path = scratch.join("socket");
    let listener = Listener::new(executor.env(), reactor.listen_unix(&path).unwrap(), path.clone());
    let client = std::thread::spawn(move || {
        let mut all = Vec::new();
        UnixStream::connect(path).unwrap().read_to_end(&mut all).unwrap();
        all
    });
    executor
        .run(async move {
            let socket = listener.accept().await.unwrap();
            let piece = pattern(1, 4096).freeze();
            let mut parts: Vec<_> = (0..PARTS).map(|i| piece.slice(i % 7..1000 + i % 7)).collect();
            while !parts.is_empty() {
                let mut sent = socket.send(parts.clone()).await.unwrap() as usize;
                while sent > 0 && sent >= parts[0].len() {
                    sent -= parts.remove(0).len();
                }
                if sent > 0 {
                    parts[0] = parts[0].slice(sent..parts[0].len());
                }
            }
        })
        .unwrap();
    let piece = pattern(1, 4096);
    let expected: Vec<u8> = (0..PARTS).flat_map(|i| piece[i % 7..1000 + i % 7].to_vec()).collect();
    assert!(client.join().unwrap() == expected);
}

#[test]
fn a_socket_path_is_taken_over_only_when_nobody_answers() {
    let scratch = Scratch::new("stale");
    let (reactor, _executor) = core();
    let path = scratch.join("socket");
    // Left behind by a listener that did not clean up.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let handle = reactor.listen_unix(&path).unwrap();
    assert_eq!(kind(reactor.listen_unix(&path)), ErrorKind::Locked);
    reactor.close(handle);
    std::fs::write(&path, b"precious").unwrap();
    assert_eq!(kind(reactor.listen_unix(&path)), ErrorKind::Exists);
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    assert_eq!(kind(reactor.listen_unix(&"x".repeat(200))), ErrorKind::Invalid);
    let tcp = reactor.listen_tcp("127.0.0.1:0").unwrap();
    let address = reactor.local_address(tcp).unwrap().to_string();
    assert_eq!(kind(reactor.listen_tcp(&address)), ErrorKind::Locked);
    assert!(reactor.listen_tcp("no port").is_err());
}

/// A connected pair: ours on the reactor, theirs plain.
async fn connected(reactor: &UringReactor, env: &Env, path: &str) -> (Listener, Socket, UnixStream) {
    let listener = Listener::new(env.clone(), reactor.listen_unix(path).unwrap(), path.to_string());
    let theirs = UnixStream::connect(path).unwrap();
    let ours = listener.accept().await.unwrap();
    (listener, ours, theirs)
}

#[test]
fn a_forgotten_receive_is_cancelled_and_takes_no_later_bytes() {
    let scratch = Scratch::new("forget");
    let (reactor, executor) = core();
    let env = executor.env();
    let path = scratch.join("socket");
    executor
        .run(async move {
            let (listener, ours, mut theirs) = connected(&reactor, &env, &path).await;
            for round in 0..100u8 {
                {
                    let recv = ours.recv(Buf::alloc(4096), 0);
                    let sleep = env.sleep_us(u64::from(round % 5) * 20);
                    futures_util::pin_mut!(recv, sleep);
                    // The timer wins: nothing has been sent.
                    match futures_util::future::select(recv, sleep).await {
                        futures_util::future::Either::Right(((), _)) => {}
                        futures_util::future::Either::Left(_) => panic!("nothing was sent"),
                    }
                }
                // Lets the cancel reach the kernel before the bytes do.
                env.sleep_us(1).await;
                theirs.write_all(&[round]).unwrap();
                let (buf, result) = ours.recv(Buf::alloc(4096), 0).await;
                assert_eq!((result.unwrap(), buf[0]), (1, round));
            }
            // A forgotten accept does not swallow the next client either.
            {
                let accept = listener.accept();
                let sleep = env.sleep_us(100);
                futures_util::pin_mut!(accept, sleep);
                let _ = futures_util::future::select(accept, sleep).await;
            }
            env.sleep_us(1).await;
            let mut second = UnixStream::connect(&path).unwrap();
            let socket = listener.accept().await.unwrap();
            second.write_all(b"hello").unwrap();
            let (buf, result) = socket.recv(Buf::alloc(4096), 0).await;
            assert_eq!(&buf[..result.unwrap()], b"hello");
        })
        .unwrap();
}

#[test]
fn closing_a_socket_ends_both_sides() {
    let scratch = Scratch::new("close");
    let (reactor, executor) = core();
    let env = executor.env();
    let path = scratch.join("socket");
    executor
        .run(async move {
            let (_listener, ours, mut theirs) = connected(&reactor, &env, &path).await;
            let peer_gone = std::thread::spawn(move || theirs.read(&mut [0; 16]).unwrap());
            drop(ours);
            assert_eq!(peer_gone.join().unwrap(), 0);

            let theirs = UnixStream::connect(&path).unwrap();
            let ours = _listener.accept().await.unwrap();
            drop(theirs);
            let (_, result) = ours.recv(Buf::alloc(16), 0).await;
            assert_eq!(result.unwrap(), 0, "the end of the stream");
            let gone = ours.send(vec![Buf::copy_of(b"x").freeze()]).await.unwrap_err();
            assert!(gone.cause.contains("Broken pipe"), "{gone}");
            let (_, result) = ours.recv(Buf::alloc(16), 16).await;
            assert!(result.is_err(), "no room to receive into");
        })
        .unwrap();
}

#[test]
fn another_thread_wakes_a_sleeping_core() {
    let (reactor, executor) = core();
    let (to_core, mut from_thread) = futures_channel();
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
fn an_endless_timer_costs_nothing_while_it_waits() {
    let (reactor, executor) = core();
    let env = executor.env();
    let (to_core, mut from_thread) = futures_channel();
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

/// The smallest channel from a thread to a task.
fn futures_channel() -> (Sender, Receiver) {
    let shared = std::sync::Arc::<std::sync::Mutex<Channel>>::default();
    (Sender(shared.clone()), Receiver(shared))
}

#[derive(Default)]
struct Channel {
    values: std::collections::VecDeque<u64>,
    waker: Option<std::task::Waker>,
}
struct Sender(std::sync::Arc<std::sync::Mutex<Channel>>);
struct Receiver(std::sync::Arc<std::sync::Mutex<Channel>>);

impl Sender {
    fn send(&self, value: u64) {
        let mut channel = self.0.lock().unwrap();
        channel.values.push_back(value);
        if let Some(waker) = channel.waker.take() {
            waker.wake();
        }
    }
}

impl Receiver {
    async fn next(&mut self) -> u64 {
        std::future::poll_fn(|cx| {
            let mut channel = self.0.lock().unwrap();
            match channel.values.pop_front() {
                Some(value) => std::task::Poll::Ready(value),
                None => {
                    channel.waker = Some(cx.waker().clone());
                    std::task::Poll::Pending
                }
            }
        })
        .await
    }
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
fn a_forgotten_timer_and_a_forgotten_open_leave_nothing_behind() {
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
            for _ in 0..50 {
                drop(env.op(Op::Timer { at_ns: u64::MAX }));
                let name = "file".to_string();
                drop(env.op(Op::OpenFile { dir: root, name, mode: OpenMode::Read }));
            }
            // The files thread works in order, so all of those opens are over after this one.
            drop(dir.open("file", OpenMode::Read).await.unwrap());
            dir.sync().await.unwrap();
        })
        .unwrap();
    // Other tests of this process open files of their own, but not fifty at once.
    assert!(open_files() < before + 50, "{before} before, {} after", open_files());
}
