//! Clients that send false data, end or stop responding while another one continues; and disconnects by the daemon.

use std::io::Write;

use crate::raw::{Raw, request};
use crate::support::{MIB, Server};
use export::nbd::proto::*;

/// Checks that a client is served, as it is if the server works.
fn check_served(raw: &mut Raw, cookie: u64) {
    raw.request(CMD_WRITE, 0, cookie, 4096, 512);
    raw.give(&[7; 512]);
    assert_eq!(raw.answer(), (0, cookie));
    raw.request(CMD_READ, 0, cookie + 1, 4096, 512);
    assert_eq!(raw.answer(), (0, cookie + 1));
    assert_eq!(raw.take(512), [7; 512]);
}

#[test]
fn garbage_closes_its_own_connection_only() {
    let server = Server::start(MIB);
    let mut good = Raw::attach(&server, "disk");
    let mut http = Raw::connect(&server);
    http.give(b"GET / HTTP/1.1\r\n\r\n");
    assert!(http.is_closed());
    let mut lost = Raw::attach(&server, "disk");
    lost.give(&[0xee; 28]);
    assert!(lost.is_closed());
    check_served(&mut good, 1);
    server.until("garbage leaves", |_, front_end| front_end.sessions().len() == 1);
    let causes = server.with(|_, front_end| front_end.failures());
    assert_eq!(causes.len(), 2, "{causes:?}");
    assert_eq!((causes[1].export.as_str(), causes[1].cause.contains("magic")), ("disk", true));
}

#[test]
fn truncated_messages_leak_nothing() {
    let server = Server::start(MIB);
    let mut good = Raw::attach(&server, "disk");
    drop(Raw::connect(&server));
    let mut option = Raw::connect(&server);
    option.give(&[0, 0, 0, 3, b'I', b'H']);
    drop(option);
    let mut header = Raw::attach(&server, "disk");
    header.give(&request(CMD_READ, 0, 1, 0, 512)[..13]);
    drop(header);
    let mut payload = Raw::attach(&server, "disk");
    payload.request(CMD_WRITE, 0, 1, 4096, 32 << 20);
    payload.give(&[9; 5000]);
    drop(payload);
    check_served(&mut good, 1);
    server.until("the others leave", |catalogue, front_end| {
        front_end.sessions().len() == 1 && catalogue.disk("disk").attached.get() == 1
    });
}

#[test]
fn every_request_is_answered_exactly_once() {
    let server = Server::start(MIB);
    let mut raw = Raw::attach(&server, "disk");
    raw.request(CMD_READ, 0, 1, MIB, 512);
    raw.request(99, 0, 2, 0, 512);
    raw.request(CMD_WRITE, 0, 3, 100, 600);
    raw.give(&[0x25; 600]);
    raw.request(CMD_WRITE, 0, 4, MIB, 512);
    raw.give(&[0x25; 512]);
    raw.request(CMD_BLOCK_STATUS, 0, 5, 0, 512);
    raw.request(CMD_FLUSH, 0, 6, 0, 0);
    raw.request(CMD_CACHE, 0, 7, 0, 4096);
    let mut answers: Vec<_> = (0..7).map(|_| raw.answer()).collect();
    answers.sort_by_key(|(_, cookie)| *cookie);
    let errors: Vec<u32> = answers.iter().map(|(error, _)| *error).collect();
    assert_eq!(errors, [22, 22, 22, 28, 22, 0, 0]);
    raw.request(CMD_DISC, 0, 8, 0, 0);
    assert!(raw.is_closed());
}

#[test]
fn a_disconnect_is_preceded_by_the_answers_to_earlier_requests() {
    let server = Server::start(MIB);
    server.with(|catalogue, _| catalogue.disk("disk").held.set(true));
    let mut raw = Raw::attach(&server, "disk");
    raw.request(CMD_READ, 0, 1, 0, 512);
    raw.request(CMD_DISC, 0, 0, 0, 0);
    server.until("the read is under way", |catalogue, _| catalogue.disk("disk").under_way.get() == 1);
    server.with(|catalogue, _| catalogue.disk("disk").release());
    assert_eq!(raw.answer(), (0, 1));
    raw.take(512);
    assert!(raw.is_closed());
}

#[test]
fn a_client_that_reads_nothing_is_bounded_and_does_not_affect_others() {
    let server = Server::start(2 * MIB);
    let mut good = Raw::attach(&server, "disk");
    let mut silent = Raw::attach(&server, "disk");
    silent.reads(1000, MIB as u32);
    check_served(&mut good, 1);
    let taken_in = |front_end: &export::nbd::FrontEnd| front_end.sessions()[1].requests;
    server.until("the silent one is being served", |_, front_end| front_end.sessions()[1].requests >= 64);
    (0..100).for_each(|round| check_served(&mut good, 10 + 2 * round));
    // 64 MiB under way, and the part of the first replies that the socket's buffer took.
    let admitted = server.with(move |_, front_end| taken_in(front_end));
    assert!((64..72).contains(&admitted), "{admitted} requests of 1 MiB are in memory");
    // The client was only slow: every answer is still there.
    for _ in 0..1000 {
        assert_eq!(silent.answer().0, 0);
        silent.take(MIB as usize);
    }
    check_served(&mut silent, 5000);
}

#[test]
fn small_requests_under_way_are_bounded_too() {
    let server = Server::start(MIB);
    server.with(|catalogue, _| catalogue.disk("disk").held.set(true));
    let mut raw = Raw::attach(&server, "disk");
    raw.reads(1000, 512);
    server.until("the line is full", |catalogue, _| catalogue.disk("disk").under_way.get() == 256);
    server.with(|catalogue, _| catalogue.disk("disk").release());
    let mut seen = vec![false; 1000];
    for _ in 0..1000 {
        let (error, cookie) = raw.answer();
        raw.take(512);
        assert!(error == 0 && !std::mem::replace(&mut seen[cookie as usize], true), "cookie {cookie} again");
    }
}

#[test]
fn a_largest_write_goes_alone_and_byte_by_byte_does_not_matter() {
    let server = Server::start(64 * MIB);
    let mut raw = Raw::attach(&server, "disk");
    raw.request(CMD_WRITE, CMD_FLAG_FUA, 1, 0, PAYLOAD_BYTES_MAX);
    let payload = vec![0x5a; PAYLOAD_BYTES_MAX as usize];
    for byte in &payload[..2000] {
        raw.give(std::slice::from_ref(byte));
    }
    raw.give(&payload[2000..]);
    assert_eq!(raw.answer(), (0, 1));
    raw.request(CMD_READ, 0, 2, 0, PAYLOAD_BYTES_MAX);
    assert_eq!(raw.answer(), (0, 2));
    assert!(raw.take(payload.len()) == payload);
}

#[test]
fn a_killed_client_is_detached_when_its_last_request_ends() {
    let server = Server::start(MIB);
    server.with(|catalogue, _| catalogue.disk("disk").held.set(true));
    let mut raw = Raw::attach(&server, "disk");
    raw.reads(100, 4096);
    server.until("all are under way", |catalogue, _| catalogue.disk("disk").under_way.get() == 100);
    drop(raw);
    check_attached(&server, 1);
    server.with(|catalogue, _| catalogue.disk("disk").release());
    server.until("the export is free", |catalogue, front_end| {
        catalogue.disk("disk").attached.get() == 0 && front_end.sessions().is_empty()
    });
}

fn check_attached(server: &Server, wanted: u64) {
    assert_eq!(server.with(|catalogue, _| catalogue.disk("disk").attached.get()), wanted);
}

#[test]
fn one_session_can_be_disconnected() {
    let server = Server::start(MIB);
    let mut stays = Raw::attach(&server, "disk");
    let mut goes = Raw::attach(&server, "disk");
    check_served(&mut goes, 1);
    let list = server.with(|_, front_end| front_end.sessions());
    assert_eq!((list[1].export.as_str(), list[1].requests, list[1].bytes), ("disk", 2, 1024));
    let id = list[1].id;
    assert!(server.with(move |_, front_end| front_end.disconnect(id)));
    assert!(goes.is_closed());
    server.until("it has left", |catalogue, _| catalogue.disk("disk").attached.get() == 1);
    assert!(!server.with(move |_, front_end| front_end.disconnect(id)));
    check_served(&mut stays, 1);
}

#[test]
fn stopping_finishes_what_is_under_way() {
    let server = Server::start(MIB);
    server.with(|catalogue, _| catalogue.disk("disk").held.set(true));
    let mut raw = Raw::attach(&server, "disk");
    let idle = Raw::connect(&server);
    raw.request(CMD_WRITE, 0, 1, 0, 512);
    raw.give(&[1; 512]);
    server.until("the write is under way", |catalogue, _| catalogue.disk("disk").under_way.get() == 1);
    server.with(|catalogue, front_end| {
        front_end.stop();
        catalogue.disk("disk").release();
    });
    assert_eq!(raw.answer(), (0, 1));
    assert!(raw.is_closed());
    server.stop();
    drop(idle);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the grace it must not take is in real time")]
fn half_a_request_does_not_delay_a_stop() {
    let server = Server::start(MIB);
    let mut raw = Raw::attach(&server, "disk");
    raw.request(CMD_WRITE, 0, 1, 0, 4096);
    raw.give(&[1; 100]);
    server.until("half a write is there", |_, front_end| front_end.sessions()[0].requests == 1);
    let started = std::time::Instant::now();
    server.stop();
    assert!(raw.is_closed());
    assert!(started.elapsed().as_micros() < u128::from(STOP_GRACE_US), "it was waited for");
}

#[test]
fn nothing_is_accepted_after_a_stop() {
    let server = Server::start(MIB);
    let path = server.socket();
    server.stop();
    assert!(std::os::unix::net::UnixStream::connect(path).is_err());
}

#[test]
fn a_silent_peer_that_never_chooses_does_not_keep_the_server_from_stopping() {
    let server = Server::start(MIB);
    let mut raw = Raw::connect(&server);
    raw.stream.write_all(&[0, 0]).unwrap();
    server.until("it is listed", |_, front_end| front_end.sessions().len() == 1);
    server.stop();
    assert!(raw.is_closed());
}

#[test]
fn a_client_that_chooses_no_export_is_disconnected_in_time() {
    let server = Server::start(MIB);
    let mut raw = Raw::connect(&server);
    raw.give(&[0, 0, 0, 3]);
    assert!(raw.is_closed());
    server.until("it has left", |_, front_end| front_end.sessions().is_empty());
    let causes = server.with(|_, front_end| front_end.failures());
    assert!(causes[0].cause.contains("no export chosen within 10 s"), "{causes:?}");
}
