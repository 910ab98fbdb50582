//! Sockets of the io_uring reactor, against plain clients on other threads.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::conformance::{kind, pattern};
use crate::support::{Scratch, connected, core};
use blk::reactor::Reactor;
use blk::socket::{Listener, Socket};
use blk::{Buf, ErrorKind};

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
fn a_connection_goes_on_at_another_core() {
    let scratch = Scratch::new("detach");
    let (reactor, executor) = core();
    let path = scratch.join("socket");
    let listener = Listener::new(executor.env(), reactor.listen_unix(&path).unwrap(), path.clone());
    let client = std::thread::spawn(move || {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(b"one").unwrap();
        let mut answer = [0; 3];
        stream.read_exact(&mut answer).unwrap();
        stream.write_all(b"two").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        (answer, rest)
    });
    let detached = executor.run(async move {
        let socket = listener.accept().await.unwrap();
        let (buf, received) = socket.recv(Buf::alloc(16), 0).await;
        assert_eq!(&buf[..received.unwrap()], b"one");
        assert_eq!(socket.send(vec![Buf::copy_of(b"ONE").freeze()]).await.unwrap(), 3);
        socket.detach().expect("no operation is under way")
    });
    let other_core = std::thread::spawn(move || {
        let (_reactor, executor) = core();
        let env = executor.env();
        executor.run(async move { echo(Socket::attach(&env, detached.unwrap()).unwrap()).await }).unwrap();
    });
    other_core.join().unwrap();
    assert_eq!(client.join().unwrap(), (*b"ONE", b"two".to_vec()));
}

#[test]
fn a_socket_path_is_replaced_only_if_no_server_answers() {
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

#[test]
fn a_dropped_receive_is_cancelled_and_takes_no_later_bytes() {
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
