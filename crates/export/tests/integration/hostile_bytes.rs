//! The two state machines of the protocol against invalid bytes, and against every split of the stream.
//!
//! The corpus (`fuzz-corpus/`, one raw client stream per file) is replayed here. Fuzzing uses the same entry points.

use std::path::PathBuf;

use export::nbd::proto::{OPTION_MAGIC, REQUEST_MAGIC};
use export::nbd::replay;
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
    fn any_bytes_transmit(input in almost(REQUEST_MAGIC.to_be_bytes().to_vec()), lengths in vec(1..50usize, 1..5)) {
        check_transmission(&input, &lengths);
    }

    #[test]
    fn any_requests_transmit(input in requests(), lengths in vec(1..700usize, 1..5)) {
        check_transmission(&input, &lengths);
    }
}
