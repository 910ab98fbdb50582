//! Handshakes of a client that is built field by field.

use super::*;
use crate::nbd::replay::{self, Ended, HandshakeTrace};

/// A client's side, built field by field.
struct Client(Vec<u8>);

impl Client {
    fn new(flags: u32) -> Client {
        let mut bytes = Vec::new();
        bytes.put_u32(flags);
        Client(bytes)
    }

    fn option(mut self, option: u32, payload: &[u8]) -> Client {
        self.0.put_u64(OPTION_MAGIC);
        self.0.put_u32(option);
        self.0.put_u32(payload.len() as u32);
        self.0.extend_from_slice(payload);
        self
    }

    fn talk(&self) -> HandshakeTrace {
        replay::negotiate(&self.0, |left| left)
    }
}

fn info_payload(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u32(name.len() as u32);
    bytes.extend_from_slice(name.as_bytes());
    bytes.put_u16(infos.len() as u16);
    infos.iter().for_each(|info| bytes.put_u16(*info));
    bytes
}

fn context_payload(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u32(name.len() as u32);
    bytes.extend_from_slice(name.as_bytes());
    bytes.put_u32(queries.len() as u32);
    for query in queries {
        bytes.put_u32(query.len() as u32);
        bytes.extend_from_slice(query.as_bytes());
    }
    bytes
}

/// Returns (option, reply type, payload) of every option reply after the greeting.
fn replies(talk: &HandshakeTrace) -> Vec<(u32, u32, Vec<u8>)> {
    let mut fields = Fields::new(&talk.output[18..]);
    let mut all = Vec::new();
    while let Some(magic) = fields.u64() {
        assert_eq!(magic, OPTION_REPLY_MAGIC);
        let (option, kind) = (fields.u32().unwrap(), fields.u32().unwrap());
        let len = fields.u32().unwrap() as usize;
        all.push((option, kind, fields.bytes(len).unwrap().to_vec()));
    }
    all
}

fn kinds(talk: &HandshakeTrace) -> Vec<u32> {
    replies(talk).into_iter().map(|(_, kind, _)| kind).collect()
}

#[test]
fn the_greeting_offers_fixed_newstyle_without_zeroes() {
    let talk = Client(Vec::new()).talk();
    assert_eq!(&talk.output[..16], b"NBDMAGICIHAVEOPT");
    assert_eq!(&talk.output[16..], &[0, 3]);
    assert_eq!(talk.ended, Ended::Hungry);
}

#[test]
fn unknown_client_flags_end_the_session() {
    assert!(matches!(Client::new(4).talk().ended, Ended::Closed(_)));
}

#[test]
fn export_name_answers_with_size_flags_and_the_agreed_padding() {
    for (flags, padding) in [(1, 124), (3, 0)] {
        let talk = Client::new(flags).option(OPT_EXPORT_NAME, b"disk").talk();
        assert_eq!(talk.output.len(), 18 + 8 + 2 + padding);
        assert_eq!(&talk.output[18..26], &(1u64 << 20).to_be_bytes());
        let Ended::Agreed(terms) = talk.ended else { panic!("not agreed") };
        assert!(!terms.structured && !terms.status && terms.fast_zero);
        assert_eq!(terms.transmission_flags() & TRANSMIT_DF, 0);
    }
}

#[test]
fn export_name_of_nothing_ends_the_session() {
    for name in [b"nope".as_slice(), b"", &[0xff], &[b'x'; 5000]] {
        assert!(matches!(Client::new(3).option(OPT_EXPORT_NAME, name).talk().ended, Ended::Closed(_)));
    }
}

#[test]
fn go_returns_size_and_blocks_and_starts_transmission() {
    let payload = info_payload("disk", &[INFO_NAME, INFO_DESCRIPTION, 77]);
    let mut client = Client::new(3).option(OPT_STRUCTURED_REPLY, &[]).option(OPT_GO, &payload);
    client.0.extend_from_slice(b"next");
    let talk = client.talk();
    let all = replies(&talk);
    assert_eq!(kinds(&talk), [REP_ACK, REP_INFO, REP_INFO, REP_INFO, REP_INFO, REP_ACK]);
    let flags = TRANSMIT_HAS_FLAGS
        | TRANSMIT_FLUSH
        | TRANSMIT_FUA
        | TRANSMIT_TRIM
        | TRANSMIT_WRITE_ZEROES
        | TRANSMIT_DF
        | TRANSMIT_MULTI_CONN
        | TRANSMIT_CACHE
        | TRANSMIT_FAST_ZERO;
    assert_eq!(all[1].2, [&[0, 0], &(1u64 << 20).to_be_bytes()[..], &flags.to_be_bytes()].concat());
    let sizes = [512u32, 4096, 32 << 20].map(u32::to_be_bytes).concat();
    assert_eq!(all[2].2, [&[0, 3], &sizes[..]].concat());
    assert_eq!(all[3].2, b"\0\x01disk");
    assert_eq!(all[4].2, b"\0\x02the disk");
    assert!(matches!(&talk.ended, Ended::Agreed(terms) if terms.structured));
    assert_eq!(talk.rest, b"next");
}

#[test]
fn info_continues_the_negotiation_and_unknown_names_are_reported() {
    let client = Client::new(3)
        .option(OPT_INFO, &info_payload("old", &[]))
        .option(OPT_GO, &info_payload("nope", &[]))
        .option(OPT_GO, b"\0\0\0\x09short");
    let talk = client.talk();
    assert_eq!(kinds(&talk), [REP_INFO, REP_INFO, REP_ACK, REP_ERR_UNKNOWN, REP_ERR_INVALID]);
    let flags = u16::from_be_bytes(replies(&talk)[0].2[10..].try_into().unwrap());
    assert_ne!(flags & TRANSMIT_READ_ONLY, 0);
    assert_eq!(flags & (TRANSMIT_FUA | TRANSMIT_TRIM | TRANSMIT_WRITE_ZEROES | TRANSMIT_FAST_ZERO), 0);
    assert_eq!(talk.ended, Ended::Hungry);
}

#[test]
fn list_names_everything_and_takes_no_payload() {
    let talk = Client::new(3).option(OPT_LIST, b"x").option(OPT_LIST, &[]).talk();
    assert_eq!(kinds(&talk), [REP_ERR_INVALID, REP_SERVER, REP_SERVER, REP_ACK]);
    assert_eq!(replies(&talk)[1].2, b"\0\0\0\x04diskthe disk");
}

#[test]
fn tls_and_unknown_options_are_unsupported_and_abort_is_acknowledged() {
    let talk = Client::new(3).option(OPT_STARTTLS, &[]).option(4711, b"abc").option(OPT_ABORT, b"bye").talk();
    assert_eq!(kinds(&talk), [REP_ERR_UNSUP, REP_ERR_UNSUP, REP_ACK]);
    assert_eq!(talk.ended, Ended::Left);
}

/// Feeds a server that requires TLS, and returns its last step with the kinds of its replies.
fn with_tls(client: &Client) -> (Step, Vec<u32>) {
    let mut machine = Negotiation::new(true);
    machine.feed(&client.0);
    let mut step = machine.step();
    while step == Step::Answered {
        step = machine.step();
    }
    let talk = HandshakeTrace { output: machine.take_output(), ended: Ended::Hungry, rest: Vec::new() };
    (step, kinds(&talk))
}

#[test]
fn where_tls_is_required_nothing_is_said_before_it() {
    let go = info_payload("disk", &[]);
    let early = Client::new(3).option(OPT_LIST, &[]).option(OPT_STRUCTURED_REPLY, &[]).option(OPT_GO, &go);
    assert_eq!(with_tls(&early), (Step::Receive, vec![REP_ERR_TLS_REQD; 3]));
    let name = Client::new(3).option(OPT_EXPORT_NAME, b"disk");
    assert!(matches!(with_tls(&name), (Step::Close(why), _) if why.contains("TLS is required")));
    assert_eq!(with_tls(&Client::new(3).option(OPT_ABORT, &[])), (Step::Left, vec![REP_ACK]));
    assert_eq!(with_tls(&early.option(OPT_STARTTLS, b"x")).1.last(), Some(&REP_ERR_INVALID));
    let started = Client::new(3).option(OPT_STARTTLS, &[]);
    assert_eq!(with_tls(&started), (Step::StartTls, vec![REP_ACK]));
    let injected = started.option(OPT_LIST, &[]);
    assert!(matches!(with_tls(&injected), (Step::Close(why), _) if why.contains("not encrypted")));
}

#[test]
fn tls_is_started_once() {
    let mut machine = Negotiation::new(true);
    machine.feed(&Client::new(3).option(OPT_STARTTLS, &[]).0);
    assert_eq!((machine.step(), machine.step()), (Step::Answered, Step::StartTls));
    let again = Client(Vec::new()).option(OPT_STARTTLS, &[]).option(OPT_LIST, &[]);
    machine.feed(&again.0);
    assert_eq!((machine.step(), machine.step()), (Step::Answered, Step::List));
}

#[test]
fn contexts_need_structured_replies_and_hold_for_their_export_only() {
    let set = |name| context_payload(name, &["base:allocation", "x:y"]);
    let go = info_payload("disk", &[]);
    let without = Client::new(3).option(OPT_SET_META_CONTEXT, &set("disk")).talk();
    assert_eq!(kinds(&without), [REP_ERR_INVALID]);
    for (chosen, status) in [("disk", true), ("old", false)] {
        let client = Client::new(3)
            .option(OPT_STRUCTURED_REPLY, &[])
            .option(OPT_SET_META_CONTEXT, &set(chosen))
            .option(OPT_GO, &go);
        let talk = client.talk();
        assert_eq!(replies(&talk)[1].2, b"\0\0\0\x01base:allocation");
        assert!(matches!(talk.ended, Ended::Agreed(terms) if terms.status == status));
    }
}

#[test]
fn a_failed_set_clears_the_context_set_before() {
    let client = Client::new(3)
        .option(OPT_STRUCTURED_REPLY, &[])
        .option(OPT_SET_META_CONTEXT, &context_payload("disk", &["base:allocation"]))
        .option(OPT_SET_META_CONTEXT, b"nonsense")
        .option(OPT_GO, &info_payload("disk", &[]));
    assert!(matches!(client.talk().ended, Ended::Agreed(terms) if !terms.status));
}

#[test]
fn listing_contexts_understands_the_wildcard_and_setting_does_not() {
    let ask = |option, queries: &[&str]| {
        let client = Client::new(3)
            .option(OPT_STRUCTURED_REPLY, &[])
            .option(option, &context_payload("disk", queries));
        kinds(&client.talk()).len() - 2
    };
    assert_eq!(ask(OPT_LIST_META_CONTEXT, &[]), 3);
    assert_eq!(ask(OPT_LIST_META_CONTEXT, &["base:"]), 1);
    assert_eq!(ask(OPT_LIST_META_CONTEXT, &["base:other", "x:"]), 0);
    assert_eq!(ask(OPT_LIST_META_CONTEXT, &["qemu:"]), 2);
    assert_eq!(ask(OPT_LIST_META_CONTEXT, &["qemu:dirty-bitmap:", "base:"]), 3);
    assert_eq!(ask(OPT_LIST_META_CONTEXT, &["qemu:dirty-bitmap:monday"]), 1);
    assert_eq!(ask(OPT_LIST_META_CONTEXT, &["qemu:dirty-bitmap:sunday"]), 0);
    assert_eq!(ask(OPT_SET_META_CONTEXT, &["qemu:", "qemu:dirty-bitmap:"]), 0);
    assert_eq!(ask(OPT_SET_META_CONTEXT, &[]), 0);
    assert_eq!(ask(OPT_SET_META_CONTEXT, &["base:"]), 0);
}

#[test]
fn bitmaps_are_selected_by_name_and_for_their_export() {
    let queries = ["qemu:dirty-bitmap:tuesday", "qemu:dirty-bitmap:sunday", "qemu:dirty-bitmap:monday"];
    for (chosen, expected) in [("disk", &["tuesday", "monday"][..]), ("old", &[])] {
        let client = Client::new(3)
            .option(OPT_STRUCTURED_REPLY, &[])
            .option(OPT_SET_META_CONTEXT, &context_payload(chosen, &queries))
            .option(OPT_GO, &info_payload("disk", &[]));
        let talk = client.talk();
        let selected: Vec<Vec<u8>> = replies(&talk)[1..3].iter().map(|reply| reply.2.clone()).collect();
        assert_eq!(
            selected,
            [&b"\0\0\0\x02qemu:dirty-bitmap:tuesday"[..], b"\0\0\0\x03qemu:dirty-bitmap:monday"]
        );
        let Ended::Agreed(terms) = talk.ended else { panic!("{:?}", talk.ended) };
        let names: Vec<&str> = terms.since.iter().map(|state| state.name.as_str()).collect();
        assert!(names == expected && !terms.status, "{terms:?}");
    }
}

#[test]
fn an_oversized_option_is_passed_over_without_memory() {
    let huge = vec![7; OPTION_BYTES_MAX as usize + 1];
    let client = Client::new(3).option(OPT_LIST, &huge).option(OPT_LIST, &[]);
    for piece in [1usize << 20, 1000] {
        let talk = replay::negotiate(&client.0, |_| piece);
        assert_eq!(kinds(&talk), [REP_ERR_TOO_BIG, REP_SERVER, REP_SERVER, REP_ACK]);
    }
    assert!(matches!(Client::new(3).option(OPT_EXPORT_NAME, &huge).talk().ended, Ended::Closed(_)));
}

#[test]
fn options_are_counted() {
    let client = (0..=OPTIONS_MAX).fold(Client::new(3), |client, _| client.option(OPT_STRUCTURED_REPLY, &[]));
    let talk = client.talk();
    assert_eq!(talk.ended, Ended::Closed("too many options"));
    assert_eq!(kinds(&talk).len(), OPTIONS_MAX as usize);
}

#[test]
fn preferred_sizes_are_made_valid() {
    assert_eq!(preferred_block(64 << 10), 64 << 10);
    assert_eq!(preferred_block(1), 512);
    assert_eq!(preferred_block(5000), 4096);
    assert_eq!(preferred_block(1 << 31), PAYLOAD_BYTES_MAX);
}
