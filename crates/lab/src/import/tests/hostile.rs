//! Malformed input: reading ends without a panic and within bounds.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::FileFailurePersistence;

use super::*;
use crate::import::{EVENTS_MAX, SAMPLES_MAX, SERIES_MAX, SKIPPED_MAX, find_phases, merge};
use crate::report;

/// One mutation of a text, as fuzzers make it.
#[derive(Debug, Clone)]
enum Bend {
    Byte(Index, u8),
    Cut(Index),
    Drop(Index, usize),
    Copy(Index, Index, usize),
    Insert(Index, &'static str),
}

const PARTS: [&str; 24] = [
    "\"",
    ",",
    ";",
    "\t",
    "\n",
    "\r\n",
    "'",
    "(",
    ")\\",
    "\u{feff}",
    "18446744073709551615",
    "-1",
    "1e308",
    "NaN",
    "9999-12-31 23:59:59",
    "00/00/0000 00:00:00",
    "icmp_seq=65535 time=1",
    " TTL=1: ",
    "'Worker\n",
    "{",
    "}",
    "[[[[",
    "Checkpoint_Unstun: vm stopped for 18446744073709551615 us\n",
    "ALL,",
];

fn apply(bytes: &mut Vec<u8>, bend: &Bend) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    match bend {
        Bend::Byte(at, value) => bytes[at.index(len)] = *value,
        Bend::Cut(at) => bytes.truncate(at.index(len)),
        Bend::Drop(at, count) => _ = bytes.drain(at.index(len)..len.min(at.index(len) + count)),
        Bend::Copy(from, to, count) => {
            let part = bytes[from.index(len)..len.min(from.index(len) + count)].to_vec();
            bytes.splice(to.index(len)..to.index(len), part);
        }
        Bend::Insert(at, part) => _ = bytes.splice(at.index(len)..at.index(len), part.bytes()),
    }
}

fn bend() -> impl Strategy<Value = Bend> {
    let at = any::<Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, value)| Bend::Byte(at, value)),
        at().prop_map(Bend::Cut),
        (at(), 1..60usize).prop_map(|(at, count)| Bend::Drop(at, count)),
        (at(), at(), 1..200usize).prop_map(|(from, to, count)| Bend::Copy(from, to, count)),
        (at(), select(&PARTS[..])).prop_map(|(at, part)| Bend::Insert(at, part)),
    ]
}

/// Imports the bytes, and checks and shows the result.
fn hold(name: &str, bytes: &[u8]) {
    let Ok(imported) = imported(name, bytes) else { return };
    assert!(imported.skipped.len() <= SKIPPED_MAX + 1 && imported.records.len() <= SERIES_MAX);
    assert!(imported.records.iter().map(|record| record.samples.len()).sum::<usize>() <= SAMPLES_MAX);
    for record in &imported.records {
        assert!(record.beats.len() <= EVENTS_MAX && record.stuns.len() <= EVENTS_MAX);
    }
    let mut merged = merge([imported.records.clone(), imported.records.clone()].concat()).records;
    find_phases(&mut merged);
    let json = report::json::write(&imported.records).expect("numbers that JSON has");
    assert_eq!(report::json::read(name, json.as_bytes()).expect("read back").len(), imported.records.len());
    report::html::page(&merged);
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn bent_files_are_read_or_refused(which in 0..SOUND.len(), bends in vec(bend(), 1..6)) {
        let (name, text, _) = SOUND[which];
        let mut bytes = text.as_bytes().to_vec();
        bends.iter().for_each(|bend| apply(&mut bytes, bend));
        hold(name, &bytes);
    }

    #[test]
    fn noise_is_read_or_refused(which in 0..SOUND.len(), head in 0..400usize, noise in vec(any::<u8>(), 0..300)) {
        let (name, text, _) = SOUND[which];
        let head = &text.as_bytes()[..head.min(text.len())];
        hold(name, &[head, &noise].concat());
        hold(name, &noise);
    }
}

#[test]
fn every_cut_of_every_format_is_read_or_refused() {
    for (name, text, _) in SOUND {
        (0..text.len()).for_each(|len| hold(name, &text.as_bytes()[..len]));
        let wide: Vec<u8> = format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_le_bytes).collect();
        hold(name, &wide);
        assert!(imported(name, &wide).is_ok(), "{name} as Windows' shell writes it");
    }
}
