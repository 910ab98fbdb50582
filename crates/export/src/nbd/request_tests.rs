//! Requests that are built field by field, and what each is decoded to.

use super::*;
use crate::nbd::replay::{self, ReplayedEvent};

fn request(kind: u16, flags: u16, offset: u64, length: u32) -> Vec<u8> {
    let header = Header {
        magic: REQUEST_MAGIC.into(),
        flags: flags.into(),
        kind: kind.into(),
        cookie: 42.into(),
        offset: offset.into(),
        length: length.into(),
    };
    header.as_bytes().to_vec()
}

fn first(terms: Terms, bytes: &[u8]) -> Event {
    RequestParser::new(terms).next(bytes).1
}

fn errno(terms: Terms, bytes: &[u8]) -> Option<NbdErrno> {
    match first(terms, bytes) {
        Event::Refused { cookie: 42, refusal } => Some(refusal.errno),
        _ => None,
    }
}

#[test]
fn every_command_is_understood() {
    let ask = |kind, flags| first(replay::terms(), &request(kind, flags, 512, 1024));
    let is = |command| Event::Command { cookie: 42, command };
    assert_eq!(ask(CMD_READ, CMD_FLAG_DF), is(Command::Read { offset: 512, len: 1024, whole: true }));
    assert_eq!(ask(CMD_WRITE, CMD_FLAG_FUA), Event::Write { cookie: 42, offset: 512, len: 1024, fua: true });
    assert_eq!(ask(CMD_TRIM, 0), is(Command::Trim { range: 512..1536, fua: false }));
    assert_eq!(ask(CMD_CACHE, 0), is(Command::Cache));
    let mode = ZeroMode { no_hole: true, fast_only: true };
    let flags = CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO | CMD_FLAG_FUA;
    assert_eq!(ask(CMD_WRITE_ZEROES, flags), is(Command::Zero { range: 512..1536, mode, fua: true }));
    assert_eq!(ask(CMD_BLOCK_STATUS, CMD_FLAG_REQ_ONE), is(Command::Status { range: 512..1536, one: true }));
    assert_eq!(first(replay::terms(), &request(CMD_FLUSH, 0, 0, 0)), is(Command::Flush));
    assert_eq!(first(replay::terms(), &request(CMD_DISC, 0, 0, 0)), Event::Disconnect);
}

#[test]
fn past_the_end_is_no_space_for_writers_and_invalid_for_readers() {
    let end = replay::terms().size_bytes;
    let ask = |kind, offset, len| errno(replay::terms(), &request(kind, 0, offset, len));
    for kind in [CMD_WRITE, CMD_WRITE_ZEROES] {
        assert_eq!(ask(kind, end, 512), Some(NbdErrno::NoSpace));
        assert_eq!(ask(kind, u64::MAX - 511, 1024), Some(NbdErrno::NoSpace));
        assert_eq!(ask(kind, end - 512, 512), None);
    }
    for kind in [CMD_READ, CMD_TRIM, CMD_CACHE, CMD_BLOCK_STATUS] {
        assert_eq!(ask(kind, end - 512, 1024), Some(NbdErrno::Invalid));
        assert_eq!(ask(kind, end - 512, 512), None);
    }
}

#[test]
fn sizes_outside_the_advertised_ones_are_invalid() {
    let ask = |kind, offset, len| errno(replay::terms(), &request(kind, 0, offset, len));
    assert_eq!(ask(CMD_READ, 1, 512), Some(NbdErrno::Invalid));
    assert_eq!(ask(CMD_WRITE, 0, 100), Some(NbdErrno::Invalid));
    assert_eq!(ask(CMD_READ, 0, 0), Some(NbdErrno::Invalid));
    assert_eq!(ask(CMD_READ, 0, PAYLOAD_BYTES_MAX + 512), Some(NbdErrno::Invalid));
    assert_eq!(ask(CMD_FLUSH, 512, 0), Some(NbdErrno::Invalid));
}

#[test]
fn zeroes_and_trims_may_be_longer_than_any_payload() {
    let terms = Terms { size_bytes: 1 << 40, ..replay::terms() };
    assert_eq!(errno(terms.clone(), &request(CMD_WRITE_ZEROES, 0, 0, u32::MAX - 511)), None);
    assert_eq!(errno(terms, &request(CMD_TRIM, 0, 0, u32::MAX - 511)), None);
}

#[test]
fn flags_must_fit_the_command_and_the_negotiation() {
    let ask = |terms, kind, flags| errno(terms, &request(kind, flags, 0, 512));
    let bare = Terms { structured: false, status: false, fast_zero: false, ..replay::terms() };
    assert_eq!(ask(replay::terms(), CMD_READ, CMD_FLAG_FUA), None);
    assert_eq!(ask(replay::terms(), CMD_READ, CMD_FLAG_REQ_ONE), Some(NbdErrno::Invalid));
    assert_eq!(ask(replay::terms(), CMD_CACHE, 1 << 15), Some(NbdErrno::Invalid));
    assert_eq!(ask(bare.clone(), CMD_READ, CMD_FLAG_DF), Some(NbdErrno::Invalid));
    assert_eq!(ask(bare.clone(), CMD_WRITE_ZEROES, CMD_FLAG_FAST_ZERO), Some(NbdErrno::Invalid));
    assert_eq!(ask(bare.clone(), CMD_WRITE_ZEROES, CMD_FLAG_NO_HOLE), None);
    assert_eq!(ask(bare, CMD_BLOCK_STATUS, 0), Some(NbdErrno::Invalid));
    assert_eq!(ask(replay::terms(), 8, 0), Some(NbdErrno::Invalid));
}

#[test]
fn read_only_exports_permit_no_change() {
    let terms = Terms { read_only: true, fast_zero: false, ..replay::terms() };
    for kind in [CMD_WRITE, CMD_TRIM, CMD_WRITE_ZEROES] {
        assert_eq!(errno(terms.clone(), &request(kind, 0, 0, 512)), Some(NbdErrno::Perm));
    }
    assert_eq!(errno(terms.clone(), &request(CMD_FLUSH, 0, 0, 0)), None);
    assert_eq!(errno(terms, &request(CMD_READ, 0, 0, 512)), None);
}

#[test]
fn the_payload_of_a_refused_write_is_passed_over() {
    let mut bytes = request(CMD_WRITE, 0, 3, 700);
    bytes.extend_from_slice(&[0x25; 700]);
    bytes.extend(request(CMD_WRITE, 0, 0, 512));
    bytes.extend_from_slice(&[9; 512]);
    bytes.extend(request(CMD_DISC, 0, 0, 0));
    for piece in [1, 13, 4096] {
        let seen = replay::transmit(replay::terms(), &bytes, |_| piece);
        let [refused, written, left] = &seen[..] else { panic!("{seen:?}") };
        assert!(matches!(refused.event, Event::Refused { .. }));
        assert_eq!(written.payload, [9; 512]);
        assert_eq!(left, &ReplayedEvent { event: Event::Disconnect, payload: Vec::new() });
    }
}

#[test]
fn a_wrong_magic_is_the_end() {
    let mut bytes = request(CMD_READ, 0, 0, 512);
    bytes[0] ^= 1;
    assert!(matches!(first(replay::terms(), &bytes), Event::Garbage(_)));
    assert_eq!(first(replay::terms(), &bytes[..27]), Event::Receive);
}
