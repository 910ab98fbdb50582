//! Replies that are built field by field, right and wrong, to two reads, a flush and a status.

use super::*;
use crate::nbd::wire::Put;
use crate::nbd_client::replay;

/// Cookies of the requests of a replay.
const FIRST: u64 = 1 << 32;
const SECOND: u64 = FIRST + 1;
const FLUSH: u64 = FIRST + 2;
const STATUS: u64 = FIRST + 3;
const ALLOCATION: u32 = 7;
const CHANGES: u32 = 9;
const LAST: u16 = CHUNK_FLAG_DONE;

fn export(structured: bool) -> Export {
    Export {
        size_bytes: 1 << 20,
        flags: TRANSMIT_HAS_FLAGS,
        block_bytes_min: 512,
        block_bytes_preferred: 4096,
        payload_bytes_max: 32 << 20,
        description: String::new(),
        structured,
        contexts: vec![(ALLOCATION, BASE_ALLOCATION.to_owned()), (CHANGES, "x:changes".to_owned())],
    }
}

fn simple(errno: u32, cookie: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u32(SIMPLE_REPLY_MAGIC);
    bytes.put_u32(errno);
    bytes.put_u64(cookie);
    bytes.extend_from_slice(data);
    bytes
}

fn chunk(flags: u16, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u32(CHUNK_MAGIC);
    bytes.put_u16(flags);
    bytes.put_u16(kind);
    bytes.put_u64(cookie);
    bytes.put_u32(payload.len() as u32);
    bytes.extend_from_slice(payload);
    bytes
}

fn data(flags: u16, cookie: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    chunk(flags, CHUNK_OFFSET_DATA, cookie, &[&offset.to_be_bytes()[..], bytes].concat())
}

fn hole(flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    chunk(flags, CHUNK_OFFSET_HOLE, cookie, &[&offset.to_be_bytes()[..], &len.to_be_bytes()].concat())
}

fn status(flags: u16, context: u32, extents: &[(u32, u32)]) -> Vec<u8> {
    let mut payload = context.to_be_bytes().to_vec();
    extents.iter().for_each(|(len, state)| payload.extend([len.to_be_bytes(), state.to_be_bytes()].concat()));
    chunk(flags, CHUNK_BLOCK_STATUS, STATUS, &payload)
}

fn error(flags: u16, kind: u16, cookie: u64, errno: u32, text: &str) -> Vec<u8> {
    let mut payload = errno.to_be_bytes().to_vec();
    payload.put_u16(text.len() as u16);
    payload.extend_from_slice(text.as_bytes());
    chunk(flags, kind, cookie, &payload)
}

type Outcomes = Vec<(Result<()>, Vec<u8>)>;

/// Plays replies; how they are cut must not matter.
fn play(structured: bool, replies: &[Vec<u8>]) -> Outcomes {
    let bytes = replies.concat();
    let whole = replay::transmission(&export(structured), &bytes, usize::MAX);
    for piece in [1, 7] {
        assert_eq!(replay::transmission(&export(structured), &bytes, piece), whole);
    }
    whole
}

/// Returns the error that ends the connection; no request succeeds.
fn broken(structured: bool, replies: &[Vec<u8>]) -> String {
    let outcomes = play(structured, replies);
    let causes: Vec<String> = outcomes.into_iter().map(|(result, _)| result.unwrap_err().cause).collect();
    assert!(causes.iter().all(|cause| *cause == causes[0]), "{causes:?}");
    causes[0].clone()
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word)).collect()
}

#[test]
fn simple_replies_arrive_in_any_order() {
    let outcomes = play(
        false,
        &[
            simple(0, FLUSH, &[]),
            simple(0, SECOND, &[2; 4096]),
            simple(5, FIRST, &[]),
            simple(28, STATUS, &[]),
        ],
    );
    let first = outcomes[0].0.as_ref().unwrap_err();
    assert!(first.kind == ErrorKind::Io && first.cause.contains("a read failed with error 5 (EIO"));
    assert!(outcomes[1].0.is_ok() && outcomes[1].1 == [2; 4096] && outcomes[2].0.is_ok());
    assert_eq!(outcomes[3].0.as_ref().unwrap_err().kind, ErrorKind::NoSpace);
}

#[test]
fn chunks_fill_a_read_in_any_order() {
    let far = 64 << 10;
    let outcomes = play(
        true,
        &[
            data(0, FIRST, 1024, &[3; 3072]),
            data(0, SECOND, far, &[4; 4096]),
            hole(LAST, FIRST, 0, 1024),
            status(0, CHANGES, &[(65536, 1), (4096, 0)]),
            status(LAST, ALLOCATION, &[(u32::MAX, 3)]),
            simple(0, FLUSH, &[]),
            chunk(LAST, CHUNK_NONE, SECOND, &[]),
        ],
    );
    assert!(outcomes.iter().all(|(result, _)| result.is_ok()), "{:?}", outcomes[3].0);
    assert_eq!(outcomes[0].1, [vec![0; 1024], vec![3; 3072]].concat());
    assert_eq!(outcomes[1].1, [4; 4096]);
    assert_eq!(words(&outcomes[3].1), [9, 65536, 1, 9, 4096, 0, 7, u64::from(u32::MAX), 3]);
}

#[test]
fn an_error_in_a_chunk_fails_its_request_alone() {
    let lost = "old: no such state";
    let outcomes = play(
        true,
        &[
            data(0, FIRST, 0, &[3; 512]),
            error(0, CHUNK_ERROR, FIRST, 5, "bad sector"),
            error(0, CHUNK_ERROR, FIRST, 1, "the first one counts"),
            chunk(LAST, CHUNK_NONE, FIRST, &[]),
            error(LAST, CHUNK_ERROR, STATUS, 22, lost),
            chunk(LAST, CHUNK_ERROR + 1, SECOND, &[0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            chunk(LAST, CHUNK_NONE, FLUSH, &[]),
        ],
    );
    let cause = |at: usize| outcomes[at].0.as_ref().unwrap_err().cause.clone();
    assert!(cause(0).ends_with("bad sector") && cause(3).ends_with(lost) && cause(1).contains("EIO"));
    assert!(outcomes[2].0.is_ok());
}

#[test]
fn extents_beyond_the_limit_are_passed_over() {
    let many = vec![(512, 0); EXTENTS_KEPT + 10];
    let outcomes = play(true, &[status(LAST, ALLOCATION, &many), simple(0, FLUSH, &[])]);
    assert_eq!(words(&outcomes[3].1).len(), 3 * EXTENTS_KEPT);
    assert!(outcomes[2].0.is_ok(), "the stream is where it should be");
}

#[test]
fn wrong_replies_break_the_connection() {
    let far = 64u64 << 10;
    let long = |kind, cookie, len: u32| {
        let mut bytes = chunk(LAST, kind, cookie, &[]);
        bytes[16..20].copy_from_slice(&len.to_be_bytes());
        bytes
    };
    for (replies, said) in [
        (vec![], "hung up"),
        (vec![vec![0; 16]], "begins with 0x00000000"),
        (vec![simple(0, 0, &[])], "not under way"),
        (vec![simple(0, u64::MAX, &[])], "not under way"),
        (vec![simple(0, 4, &[])], "not under way"),
        (vec![simple(0, FIRST + (1 << 32), &[])], "not under way"),
        (vec![chunk(LAST, CHUNK_NONE, 99, &[])], "not under way"),
        (vec![simple(0, FIRST, &[0; 4096])], "without a chunk"),
        (vec![simple(0, STATUS, &[])], "without a chunk"),
        (vec![data(0, FIRST, 0, &[1]), simple(5, FIRST, &[])], "follows one of its chunks"),
        (vec![chunk(0, CHUNK_NONE, FIRST, &[])], "type 0 with 0 bytes"),
        (vec![chunk(LAST, CHUNK_NONE, FIRST, &[1])], "type 0 with 1 bytes"),
        (vec![chunk(LAST, CHUNK_NONE, FIRST, &[])], "before its content is complete"),
        (vec![chunk(LAST, CHUNK_NONE, STATUS, &[])], "before its content is complete"),
        (vec![chunk(LAST, 77, FIRST, &[0; 20])], "type 77"),
        (vec![data(LAST, FIRST, 0, &[])], "type 1 with 8 bytes"),
        (vec![data(LAST, FLUSH, 0, &[1])], "type 1 with 9 bytes"),
        (vec![data(LAST, FIRST, 0, &[1; 4095])], "before its content is complete"),
        (vec![data(LAST, FIRST, 0, &[1; 4097])], "exceeds the read"),
        (vec![data(LAST, FIRST, u64::MAX, &[1])], "exceeds the read"),
        (vec![data(LAST, SECOND, far - 1, &[1])], "begins before the read"),
        (vec![data(0, FIRST, 0, &[1; 9]), data(0, FIRST, 8, &[1])], "overlap"),
        (vec![long(CHUNK_OFFSET_DATA, FIRST, u32::MAX), vec![0; 8]], "exceeds the read"),
        (vec![hole(LAST, FIRST, 0, 0)], "empty"),
        (vec![hole(LAST, FIRST, 0, u32::MAX)], "exceeds the read"),
        (vec![chunk(LAST, CHUNK_OFFSET_HOLE, FIRST, &[0; 11])], "type 2 with 11 bytes"),
        (vec![status(LAST, 8, &[(512, 0)])], "was not selected"),
        (vec![status(LAST, ALLOCATION, &[])], "type 5 with 4 bytes"),
        (vec![status(LAST, ALLOCATION, &[(0, 1)])], "an extent of no bytes"),
        (vec![status(0, CHANGES, &[(1, 1)]), status(0, CHANGES, &[(1, 1)])], "two statuses"),
        (vec![chunk(LAST, CHUNK_BLOCK_STATUS, STATUS, &[0; 13])], "type 5 with 13 bytes"),
        (vec![long(CHUNK_BLOCK_STATUS, STATUS, u32::MAX - 3)], "type 5 with 4294967292 bytes"),
        (vec![chunk(LAST, CHUNK_BLOCK_STATUS, FIRST, &[0; 12])], "type 5 with 12 bytes"),
        (vec![long(CHUNK_ERROR, FIRST, 5)], "with 5 bytes"),
        (vec![long(CHUNK_ERROR, FIRST, u32::MAX)], "with 4294967295 bytes"),
        (vec![error(LAST, CHUNK_ERROR, FIRST, 0, "")], "an error 0"),
        (vec![chunk(LAST, CHUNK_ERROR, FIRST, &[0, 0, 0, 5, 0, 1])], "a text of 1 bytes"),
    ] {
        let cause = broken(true, &replies);
        assert!(cause.contains(said), "{cause:?} lacks {said:?}");
    }
    let cause = broken(false, &[chunk(LAST, CHUNK_NONE, FLUSH, &[])]);
    assert!(cause.contains("begins with 0x668e33ef"), "{cause}");
}

#[test]
fn a_second_reply_breaks_the_connection() {
    for again in [simple(0, FLUSH, &[]), chunk(LAST, CHUNK_NONE, FLUSH, &[])] {
        let outcomes = play(true, &[simple(0, FLUSH, &[]), again]);
        assert!(outcomes[2].0.is_ok());
        assert!(outcomes[0].0.as_ref().unwrap_err().cause.contains("not under way"));
    }
}

#[test]
fn a_server_that_hangs_up_fails_what_is_left() {
    let replies =
        [simple(0, FLUSH, &[]), data(LAST, FIRST, 0, &[1; 4096]), hole(LAST, SECOND, 64 << 10, 4096)];
    let whole = replies.concat();
    for len in 0..whole.len() {
        for (result, _) in replay::transmission(&export(true), &whole[..len], usize::MAX) {
            assert!(result.is_ok() || result.unwrap_err().cause == "the server hung up", "{len} bytes");
        }
    }
}
