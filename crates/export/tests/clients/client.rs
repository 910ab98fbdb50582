//! The client of this crate against its server: every command, many requests at once, contexts, broken connections.

use std::rc::Rc;

use blk::uring::UringReactor;
use blk::volume::{BlockStatus, Volume, ZeroMode};
use blk::{Buf, Env, ErrorKind, Executor};
use export::nbd::proto::{BASE_ALLOCATION, STATE_DIRTY};
use export::nbd_client::{self, Address, Extent, NbdVolume};
use futures_util::future::join_all;

use crate::support::{CHANGED, CLUSTER, COMPARED, MIB, Server};

/// Runs a task on a core of its own.
pub(crate) fn run<T: 'static, F: Future<Output = T> + 'static>(task: impl FnOnce(Env) -> F) -> T {
    let executor = Executor::new(Rc::new(UringReactor::new().expect("io_uring is there")));
    executor.run(task(executor.env())).expect("the task ends")
}

pub(crate) fn serve(env: &Env, uri: &str) -> Rc<NbdVolume> {
    nbd_client::connect(uri).expect("the server is there").serve(env).unwrap()
}

pub(crate) async fn read(volume: &Rc<NbdVolume>, offset: u64, len: usize) -> blk::Result<Vec<u8>> {
    let (buf, result) = volume.clone().read(offset, Buf::alloc(len)).await;
    assert_eq!(buf.len(), len);
    result.map(|()| buf.to_vec())
}

/// Bytes of a sector that no other sector has.
fn sector(number: u64) -> Vec<u8> {
    (0..64).flat_map(|word| (number * 64 + word).to_le_bytes()).collect()
}

#[test]
fn every_command_takes_effect() {
    let server = Server::start(8 * MIB);
    for uri in [server.uri("disk"), server.tcp_uri("disk")] {
        run(async move |env| {
            let volume = serve(&env, &uri);
            assert_eq!(volume.info().size_bytes, 8 * MIB);
            assert_eq!(volume.export().description, "memory disk");
            let data = Buf::copy_of(&[7; 128 << 10]).freeze();
            volume.clone().write(MIB, data).await.unwrap();
            volume.clone().flush().await.unwrap();
            assert!(read(&volume, MIB, 128 << 10).await.unwrap() == [7; 128 << 10]);
            volume.clone().discard(MIB..MIB + CLUSTER).await.unwrap();
            assert!(read(&volume, MIB, 4096).await.unwrap() == [0; 4096]);
            let mode = ZeroMode { no_hole: true, fast_only: false };
            volume.clone().write_zeroes(MIB + CLUSTER..MIB + 2 * CLUSTER, mode).await.unwrap();
            let fast = ZeroMode { no_hole: true, fast_only: true };
            let error = volume.clone().write_zeroes(0..CLUSTER, fast).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unsupported);
            let status = volume.clone().status(MIB..MIB + 3 * CLUSTER).await.unwrap();
            let piece = |len, hole| BlockStatus { len, hole, zero: hole };
            let expected = [piece(CLUSTER, true), piece(CLUSTER, false), piece(CLUSTER, true)];
            assert_eq!(status, expected);
        });
    }
}

#[test]
fn many_requests_are_under_way_at_once() {
    let server = Server::start(16 * MIB);
    let uri = server.uri("disk");
    run(async move |env| {
        let volume = serve(&env, &uri);
        let write = |n: u64| volume.clone().write(n * 512, Buf::copy_of(&sector(n)).freeze());
        assert!(join_all((0..2000).map(write)).await.into_iter().all(|result| result.is_ok()));
        let read = |n: u64| read(&volume, n * 512, 512);
        let contents = join_all((0..2000).map(read)).await;
        assert!((0..).zip(contents).all(|(n, content)| content.unwrap() == sector(n)));
        let large = self::read(&volume, 512, 15 << 20).await.unwrap();
        assert!(large.starts_with(&sector(1)) && large[1998 * 512..].starts_with(&sector(1999)));
    });
}

#[test]
fn requests_longer_than_a_payload_are_split() {
    let server = Server::start(48 * MIB);
    let uri = server.uri("disk");
    run(async move |env| {
        let volume = serve(&env, &uri);
        let mut content = Buf::alloc(40 << 20);
        content.chunks_mut(512).zip(0..).for_each(|(chunk, n)| chunk.copy_from_slice(&sector(n)));
        let content = content.freeze();
        volume.clone().write(MIB, content.clone()).await.unwrap();
        assert!(read(&volume, MIB, content.len()).await.unwrap() == content[..]);
    });
}

#[test]
fn a_context_beside_the_allocation_is_answered() {
    let server = Server::start(MIB);
    let address = Address::parse(&server.uri("disk")).unwrap();
    run(async move |env| {
        let context = "qemu:dirty-bitmap:part";
        let negotiated = nbd_client::connect_to(&address, Some(context)).unwrap();
        assert!(negotiated.export().has_context(context) && negotiated.export().has_context(BASE_ALLOCATION));
        let volume = negotiated.serve(&env).unwrap();
        let extents = volume.block_status(context, 0..MIB).await.unwrap();
        let expected =
            [Extent { len: CHANGED, flags: STATE_DIRTY }, Extent { len: COMPARED - CHANGED, flags: 0 }];
        assert_eq!(extents, expected);
        assert_eq!(volume.clone().status(0..MIB).await.unwrap().len(), 1);
        let error = volume.block_status("qemu:dirty-bitmap:x", 0..MIB).await.unwrap_err();
        assert!(error.kind == ErrorKind::NotFound && error.cause.contains("dirty-bitmap:x"), "{error}");
        let lost = nbd_client::connect_to(&address, Some("qemu:dirty-bitmap:lost")).unwrap();
        let lost = lost.serve(&env).unwrap();
        let error = lost.block_status("qemu:dirty-bitmap:lost", 0..MIB).await.unwrap_err();
        assert!(error.cause.contains("no such state"), "{error}");
    });
}

#[test]
fn errors_of_the_server_have_their_kinds() {
    let server = Server::with_exports(&[("disk", MIB, false), ("old", MIB, true)]);
    server.with(|catalogue, _| catalogue.disk("disk").full.set(true));
    server.with(|catalogue, _| catalogue.disk("disk").sound_bytes.set(MIB / 2));
    let (disk, old, none) = (server.uri("disk"), server.uri("old"), server.uri("none"));
    run(async move |env| {
        let data = || Buf::copy_of(&[1; 512]).freeze();
        let volume = serve(&env, &disk);
        let error = volume.clone().write(0, data()).await.unwrap_err();
        assert!(error.kind == ErrorKind::NoSpace && error.place.starts_with("nbd+unix:///disk?socket="));
        let error = read(&volume, MIB / 2, 512).await.unwrap_err();
        assert!(error.kind == ErrorKind::Io && error.cause.contains("set to fail there"), "{error}");
        let beyond = read(&volume, MIB, 512).await.unwrap_err();
        assert!(beyond.kind == ErrorKind::Invalid && beyond.cause.contains("not within"), "{beyond}");
        assert_eq!(read(&volume, 0, 512).await.unwrap(), [0; 512]);
        assert_eq!(volume.broken(), None);
        let old = serve(&env, &old);
        assert_eq!(old.clone().write(0, data()).await.unwrap_err().kind, ErrorKind::Refused);
        assert_eq!(old.clone().discard(0..512).await.unwrap_err().kind, ErrorKind::Refused);
        let error = nbd_client::connect(&none).unwrap_err();
        assert!(error.kind == ErrorKind::NotFound && error.cause.contains("no such export"), "{error}");
    });
}

#[test]
fn a_lost_connection_fails_all_requests_and_a_new_one_works() {
    let server = Server::start(MIB);
    let uri = server.uri("disk");
    server.with(|catalogue, _| catalogue.disk("disk").held.set(true));
    run(async move |env| {
        let volume = serve(&env, &uri);
        let waiting = (0..8).map(|n| {
            let volume = volume.clone();
            env.spawn(async move { read(&volume, n * 4096, 4096).await })
        });
        let waiting: Vec<_> = waiting.collect();
        while server.with(|catalogue, _| catalogue.disk("disk").under_way.get()) < 8 {
            env.next_turn().await;
        }
        server.with(|_, front_end| front_end.sessions().iter().all(|one| front_end.disconnect(one.id)));
        server.with(|catalogue, _| catalogue.disk("disk").release());
        for handle in waiting {
            let error = handle.join().await.unwrap_err();
            assert!(error.kind == ErrorKind::Io && error.place == uri, "{error}");
        }
        assert_eq!(volume.broken(), Some(read(&volume, 0, 512).await.unwrap_err()));
        assert!(volume.clone().flush().await.is_err());
        assert_eq!(read(&serve(&env, &uri), 0, 512).await.unwrap(), [0; 512]);
    });
}

#[test]
fn a_dropped_request_and_a_dropped_volume_leave_nothing() {
    let server = Server::start(MIB);
    let uri = server.uri("disk");
    server.with(|catalogue, _| catalogue.disk("disk").held.set(true));
    let env_server = run(async move |env| {
        let volume = serve(&env, &uri);
        let mut first = Box::pin(volume.clone().read(0, Buf::alloc(4096)));
        let polled = futures_util::poll!(&mut first);
        assert!(polled.is_pending());
        while server.with(|catalogue, _| catalogue.disk("disk").under_way.get()) < 1 {
            env.next_turn().await;
        }
        drop(first);
        server.with(|catalogue, _| catalogue.disk("disk").release());
        assert_eq!(read(&volume, 4096, 4096).await.unwrap(), [0; 4096]);
        drop(volume);
        while server.with(|_, front_end| front_end.sessions().len()) > 0 {
            env.next_turn().await;
        }
        server
    });
    assert_eq!(env_server.with(|_, front_end| front_end.failures().len()), 0, "the client said good-bye");
}
