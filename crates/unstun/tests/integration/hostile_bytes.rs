//! The bodies of the REST API against bytes that no sane client sends.
//!
//! The corpus (`fuzz-corpus/rest_body/`, one file a body, its first byte chooses the route) is replayed here;
//! the same entry point serves fuzzing.

use std::path::PathBuf;

use api::error::ErrorKind;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use unstun::rest::body::{ROUTES, replay};

fn corpus() -> Vec<(String, Vec<u8>)> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz-corpus/rest_body");
    let files = std::fs::read_dir(path).expect("the corpus is part of the source");
    let load = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.expect("readable");
        (entry.file_name().into_string().expect("ASCII"), std::fs::read(entry.path()).expect("readable"))
    };
    files.map(load).collect()
}

#[test]
fn the_corpus_has_a_good_body_for_every_route_and_the_hostile_ones_are_refused() {
    let mut routes = [false; ROUTES.len()];
    for (name, input) in corpus() {
        let result = replay(&input);
        if name.starts_with("hostile") {
            let kind = result.unwrap_err().kind;
            assert!(matches!(kind, ErrorKind::Invalid | ErrorKind::Malformed), "{name}: {kind:?}");
            continue;
        }
        result.unwrap_or_else(|e| panic!("{name}: {e}"));
        routes[usize::from(input[0] - b'a')] = true;
    }
    assert_eq!(routes, [true; ROUTES.len()]);
}

#[test]
fn a_refusal_is_short_whatever_was_sent() {
    let (_, accept) = ROUTES.into_iter().find(|(route, _)| *route == "PUT /vms/{vm}/snapshot-dir").unwrap();
    let long = "x".repeat(200 << 10);
    for body in [format!(r#"{{"dir":"{long}"}}"#), format!(r#"{{"dir":"/{long}"}}"#), long] {
        let error = accept(body.as_bytes()).unwrap_err();
        assert!(error.message.len() < 400, "{} bytes", error.message.len());
    }
}

/// Pieces of the corpus and of JSON in any order.
fn almost() -> impl Strategy<Value = Vec<u8>> {
    let known: Vec<Vec<u8>> = corpus().into_iter().map(|(_, input)| input[1..].to_vec()).collect();
    let piece = (0..known.len(), any::<prop::sample::Index>(), any::<prop::sample::Index>()).prop_map(
        move |(which, from, to)| {
            let bytes = &known[which];
            let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
            bytes[from.min(to)..=from.max(to)].to_vec()
        },
    );
    let token =
        prop::sample::select(vec!["{", "}", "[", "]", ":", ",", "\"", "null", "-1", "1e9", "\\u0000"]);
    let part = prop_oneof![piece, token.prop_map(|token| token.as_bytes().to_vec()), vec(any::<u8>(), 0..4)];
    (any::<u8>(), vec(part, 0..12)).prop_map(|(route, parts)| [vec![route], parts.concat()].concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_body_panics_and_what_is_accepted_is_accepted_again(input in almost()) {
        let _ = replay(&input);
    }

    #[test]
    fn one_changed_byte_does_no_harm(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), byte: u8) {
        let corpus = corpus();
        let mut input = corpus[which.index(corpus.len())].1.clone();
        let at = at.index(input.len());
        input[at] = byte;
        let _ = replay(&input);
    }
}
