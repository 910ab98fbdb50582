//! Clients that request as much as they can: the server stays within its budget, and a neighbour gets its share.

use std::thread;

use crate::raw::Raw;
use crate::support::{MIB, Server};
use export::nbd::Limits;
use export::nbd::proto::*;

const LIMITS: Limits = Limits { memory_bytes: 32 * MIB, connections_max: 256, uncharged: false };
const EXPORTS: [(&str, u64, bool); 2] = [("greedy", 40 * MIB, false), ("disk", MIB, false)];

/// Makes round trips of one sector, each of which takes at least one turn of the server.
fn work(raw: &mut Raw, rounds: u64) {
    for cookie in 0..rounds {
        raw.request(CMD_WRITE, 0, cookie, 4096, 512);
        raw.give(&[7; 512]);
        assert_eq!(raw.answer(), (0, cookie));
    }
}

/// Lets 40 clients request 8 MiB each from a disk that does not answer yet. Returns the maximum memory of requests.
fn most_held(limits: Limits) -> u64 {
    let server = Server::with_limits(&EXPORTS, limits);
    server.with(|catalogue, _| catalogue.disk("greedy").held.set(true));
    let mut neighbour = Raw::attach(&server, "disk");
    let mut greedy: Vec<Raw> = (0..40).map(|_| Raw::attach(&server, "greedy")).collect();
    greedy.iter_mut().for_each(|raw| raw.reads(8, MIB as u32));
    server.until("each is being served", |catalogue, _| catalogue.disk("greedy").under_way.get() >= 40);
    // More turns than the start of all 320 requests takes.
    work(&mut neighbour, 1000);
    let (held, used, peak) = server.with(|catalogue, front_end| {
        catalogue.disk("greedy").release();
        (catalogue.disk("greedy").bytes_max.get(), front_end.memory().used(), front_end.memory().peak())
    });
    println!(
        "{} KiB held of {} MiB; budget: {used} used, {peak} at most",
        held >> 10,
        limits.memory_bytes >> 20
    );
    // Nothing is lost: waiting requests are served as memory is freed.
    for raw in &mut greedy {
        for _ in 0..8 {
            assert_eq!(raw.answer().0, 0);
            raw.take(MIB as usize);
        }
    }
    drop((greedy, neighbour));
    server.until("the whole budget is free again", |_, front_end| front_end.memory().used() == 0);
    held
}

#[test]
fn requests_hold_no_more_than_the_budget() {
    assert!(most_held(LIMITS) <= LIMITS.memory_bytes);
}

#[test]
fn a_planted_admission_without_a_charge_is_found() {
    assert!(most_held(Limits { uncharged: true, ..LIMITS }) > LIMITS.memory_bytes);
}

#[test]
fn announced_payloads_are_charged_before_anything_is_allocated() {
    let server = Server::with_limits(&EXPORTS, LIMITS);
    let mut neighbour = Raw::attach(&server, "disk");
    let mut greedy: Vec<Raw> = (0..100).map(|_| Raw::attach(&server, "greedy")).collect();
    greedy.iter_mut().for_each(|raw| raw.request(CMD_WRITE, 0, 1, 0, PAYLOAD_BYTES_MAX));
    server.until("every header has arrived", |_, front_end| {
        front_end.sessions().iter().filter(|session| session.requests == 1).count() >= 100
    });
    work(&mut neighbour, 1000);
    let (used, peak) = server.with(|_, front_end| (front_end.memory().used(), front_end.memory().peak()));
    println!("100 headers of 32 MiB: {used} bytes charged, {peak} at most");
    assert!(peak <= LIMITS.memory_bytes);
    // A payload that arrives is served beside those that do not.
    let payload = vec![0x5a; 8 * MIB as usize];
    let mut honest = Raw::attach(&server, "greedy");
    honest.request(CMD_WRITE, CMD_FLAG_FUA, 2, 0, payload.len() as u32);
    honest.give(&payload);
    assert_eq!(honest.answer(), (0, 2));
    let same = server.with(move |catalogue, _| catalogue.disk("greedy").starts_with(&payload));
    assert!(same, "the pieces of a large write are all of it");
}

#[test]
fn a_large_read_comes_in_pieces_each_byte_once() {
    let server = Server::with_limits(&EXPORTS, LIMITS);
    let mut raw = Raw::attach_structured(&server, "greedy");
    let content: Vec<u8> = (0..5 * MIB).map(|at| (at / 512 * 7 + at % 251) as u8).collect();
    raw.request(CMD_WRITE, 0, 1, 0, content.len() as u32);
    raw.give(&content);
    assert_eq!(raw.answer(), (0, 1));
    raw.request(CMD_READ, 0, 2, 0, content.len() as u32);
    let (mut read, mut seen) = (vec![0; content.len()], 0);
    loop {
        let chunk = raw.chunk();
        assert_eq!((chunk.cookie, chunk.kind), (2, CHUNK_OFFSET_DATA));
        let at = u64::from_be_bytes(chunk.payload[..8].try_into().unwrap()) as usize;
        read[at..at + chunk.payload.len() - 8].copy_from_slice(&chunk.payload[8..]);
        seen += chunk.payload.len() - 8;
        if chunk.done {
            break;
        }
    }
    assert_eq!(seen, content.len());
    assert!(read == content);
    // With DF it is one chunk.
    raw.request(CMD_READ, CMD_FLAG_DF, 3, 0, content.len() as u32);
    let chunk = raw.chunk();
    assert!(chunk.done && chunk.payload[8..] == content);
}

#[test]
fn an_error_in_a_piece_is_the_answer_of_the_whole() {
    let server = Server::with_limits(&EXPORTS, LIMITS);
    server.with(|catalogue, _| catalogue.disk("greedy").sound_bytes.set(3 * MIB));
    let mut raw = Raw::attach_structured(&server, "greedy");
    raw.request(CMD_READ, 0, 1, 0, 5 * MIB as u32);
    let last = std::iter::repeat_with(|| raw.chunk()).find(|chunk| chunk.done).unwrap();
    assert_eq!((last.kind, &last.payload[..4]), (CHUNK_ERROR, &5u32.to_be_bytes()[..]));
    server.with(|catalogue, _| catalogue.disk("greedy").full.set(true));
    raw.request(CMD_WRITE, 0, 2, 0, 3 * MIB as u32);
    raw.give(&vec![1; 3 * MIB as usize]);
    let chunk = raw.chunk();
    assert_eq!((chunk.done, chunk.kind, &chunk.payload[..4]), (true, CHUNK_ERROR, &28u32.to_be_bytes()[..]));
    // A simple reply that has begun can only be aborted.
    let mut simple = Raw::attach(&server, "greedy");
    simple.request(CMD_READ, 0, 3, 0, 5 * MIB as u32);
    assert_eq!(simple.answer(), (0, 3));
    simple.take(3 * MIB as usize);
    assert!(simple.is_closed());
}

/// Counts a neighbour's round trips while 50 clients read zeros as fast as they can: all are answered, and the budget
/// holds. The neighbour's rate is asserted in virtual time (`fair_tests`).
#[test]
fn a_neighbour_works_beside_clients_that_read_zeros() {
    let server = Server::with_limits(&EXPORTS, LIMITS);
    let mut greedy: Vec<Raw> = (0..50).map(|_| Raw::attach(&server, "greedy")).collect();
    let mut neighbour = Raw::attach(&server, "disk");
    thread::scope(|scope| {
        for raw in &mut greedy {
            scope.spawn(move || {
                raw.reads(20, MIB as u32);
                for _ in 0..20 {
                    assert_eq!(raw.answer().0, 0);
                    raw.take(MIB as usize);
                }
            });
        }
        work(&mut neighbour, 500);
    });
    assert!(server.with(|_, front_end| front_end.memory().peak()) <= LIMITS.memory_bytes);
}
