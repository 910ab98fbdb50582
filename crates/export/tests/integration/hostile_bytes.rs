//! The two state machines of the protocol, and the client, against invalid bytes, and against every split of the stream.
//!
//! The corpus (`fuzz-corpus/`, one raw stream of a client or a server per file) is replayed here. Fuzzing uses the same entry points.

use std::path::PathBuf;

use export::nbd::proto::{CHUNK_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, REQUEST_MAGIC};
use export::nbd::replay;
use export::nbd_client;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn corpus(folder: &str) -> Vec<(String, Vec<u8>)> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz-corpus").join(folder);
    let mut files: Vec<_> = std::fs::read_dir(&path).expect("the corpus is part of the source").collect();
    files.sort_by_key(|entry| entry.as_ref().expect("readable").file_name());
    let load = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("readable").path();
        (path.display().to_string(), std::fs::read(&path).expect("readable"))
    };
    files.into_iter().map(load).collect()
}

/// Returns a function that cuts by a repeating list of lengths.
fn cuts(lengths: &[usize]) -> impl FnMut(usize) -> usize + '_ {
    let mut at = 0;
    move |left| {
        at += 1;
        lengths.get(at % lengths.len().max(1)).copied().unwrap_or(left)
    }
}

fn check_negotiation(input: &[u8], lengths: &[usize]) {
    let whole = replay::negotiate(input, |left| left);
    assert_eq!(whole, replay::negotiate(input, |_| 1));
    assert_eq!(whole, replay::negotiate(input, cuts(lengths)));
}

fn check_transmission(input: &[u8], lengths: &[usize]) {
    let mut modest = replay::terms();
    (modest.structured, modest.status, modest.read_only) = (false, false, true);
    for terms in [replay::terms(), modest] {
        let whole = replay::transmit(terms.clone(), input, |left| left);
        assert_eq!(whole, replay::transmit(terms.clone(), input, |_| 1));
        assert_eq!(whole, replay::transmit(terms, input, cuts(lengths)));
    }
}

/// Plays a server's bytes to the client.
fn check_client(input: &[u8], piece: usize) {
    if let Ok((export, rest)) = nbd_client::replay::negotiation(input) {
        let whole = nbd_client::replay::transmission(&export, &rest, usize::MAX);
        assert_eq!(whole, nbd_client::replay::transmission(&export, &rest, piece));
    }
}

/// Returns the bytes of a server of the corpus.
fn server(name: &str) -> Vec<u8> {
    let found = corpus("nbd_client").into_iter().find(|(path, _)| path.ends_with(name));
    found.expect("it is part of the corpus").1
}

#[test]
fn the_corpus_of_the_client_replays_however_it_is_cut() {
    for (name, input) in corpus("nbd_client") {
        println!("replaying {name}");
        [1, 7, 4096].into_iter().for_each(|piece| check_client(&input, piece));
    }
    let outcomes = |name| {
        let (export, rest) = nbd_client::replay::negotiation(&server(name)).unwrap();
        let outcomes = nbd_client::replay::transmission(&export, &rest, usize::MAX);
        outcomes.iter().filter(|(result, _)| result.is_ok()).count()
    };
    assert_eq!((outcomes("simple-replies"), outcomes("chunks"), outcomes("modern")), (2, 4, 0));
}

#[test]
fn the_corpus_replays_however_it_is_cut() {
    let (handshakes, streams) = (corpus("negotiate"), corpus("transmit"));
    assert!(handshakes.len() > 10 && streams.len() > 10, "the corpus is not where it should be");
    for (name, input) in handshakes {
        println!("replaying {name}");
        check_negotiation(&input, &[3, 28, 1]);
    }
    for (name, input) in streams {
        println!("replaying {name}");
        check_transmission(&input, &[3, 28, 1]);
    }
}

/// Generates bytes that contain the magic numbers, so that parsing gets past the first field.
fn almost(magic: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let small = prop_oneof![Just(0u8), 0..12u8, any::<u8>()];
    let record = (any::<bool>(), vec(small, 0..40))
        .prop_map(move |(with_magic, tail)| if with_magic { [&magic[..], &tail].concat() } else { tail });
    vec(record, 0..12).prop_map(|records| records.concat())
}

/// Generates well-formed requests with any fields, some with too little or too much payload.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    let blocks = prop_oneof![0..6u64, Just(2048), any::<u64>()];
    let request = (0..10u16, 0..40u16, any::<u64>(), blocks, 0..4u32, 0..1100usize);
    let bytes = request.prop_map(|(kind, flags, cookie, block, len, payload)| {
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(block.wrapping_mul(512).to_be_bytes());
        bytes.extend((len * 512).to_be_bytes());
        if kind == 1 {
            bytes.extend(vec![0x25; if payload % 3 == 0 { payload } else { len as usize * 512 }]);
        }
        bytes
    });
    vec(bytes, 0..8).prop_map(|all| all.concat())
}

proptest! {
    // A failure is written beside this file and replayed first from then on. PROPTEST_CASES sets the number of cases.
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_negotiate(input in vec(any::<u8>(), 0..300), lengths in vec(1..50usize, 1..5)) {
        check_negotiation(&[&[0, 0, 0, 3], &input[..]].concat(), &lengths);
        check_negotiation(&input, &lengths);
    }

    #[test]
    fn almost_options_negotiate(
        input in almost(OPTION_MAGIC.to_be_bytes().to_vec()),
        lengths in vec(1..50usize, 1..5),
    ) {
        check_negotiation(&[&[0, 0, 0, 3], &input[..]].concat(), &lengths);
    }

    #[test]
    fn any_server_negotiates(input in almost(OPTION_REPLY_MAGIC.to_be_bytes().to_vec()), piece in 1..50usize) {
        check_client(&[b"NBDMAGICIHAVEOPT\0\x03", &input[..]].concat(), piece);
        check_client(&input, piece);
    }

    #[test]
    fn any_server_replies(
        input in almost([&CHUNK_MAGIC.to_be_bytes()[..], &[0, 1, 0]].concat()),
        piece in 1..50usize,
        at in 0..10_000usize,
        byte in any::<u8>(),
    ) {
        check_client(&[&server("modern")[..], &input].concat(), piece);
        let mut changed = server("chunks");
        let at = at % changed.len();
        changed[at] = byte;
        check_client(&changed, piece);
    }

    #[test]
    fn any_bytes_transmit(input in almost(REQUEST_MAGIC.to_be_bytes().to_vec()), lengths in vec(1..50usize, 1..5)) {
        check_transmission(&input, &lengths);
    }

    #[test]
    fn any_requests_transmit(input in requests(), lengths in vec(1..700usize, 1..5)) {
        check_transmission(&input, &lengths);
    }
}
