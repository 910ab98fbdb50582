//! Invalid descriptors, deltas and configurations: each is refused with an error, or all guarantees hold for it.
//!
//! The corpus (`fuzz-corpus/`, one file each) was written by this crate and then damaged. Fuzzing uses the same entry
//! points.

use std::path::PathBuf;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;
use vmdk::replay;

type Corpus = Vec<(String, Vec<u8>)>;

fn corpus(folder: &str) -> Corpus {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz-corpus").join(folder);
    let mut files: Vec<_> = std::fs::read_dir(&path).expect("the corpus is part of the source").collect();
    files.sort_by_key(|entry| entry.as_ref().expect("readable").file_name());
    let load = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.expect("readable");
        (entry.file_name().into_string().expect("text"), std::fs::read(entry.path()).expect("readable"))
    };
    files.into_iter().map(load).collect()
}

type Entry = fn(&[u8]) -> blk::Result<()>;

/// Folders of the corpus, and the parser of each.
const ENTRIES: [(&str, Entry); 8] = [
    ("descriptor", |bytes| replay::descriptor(bytes).map(drop)),
    ("vmfssparse", |bytes| replay::vmfssparse(bytes).map(drop)),
    ("sesparse", |bytes| replay::sesparse(bytes).map(drop)),
    ("hosted", |bytes| replay::hosted(bytes).map(drop)),
    ("stream", |bytes| replay::stream(bytes).map(drop)),
    ("ova", |bytes| replay::ova(bytes).map(drop)),
    ("vmsd", |bytes| replay::vmsd(bytes).map(drop)),
    ("vmx", |bytes| replay::vmx(bytes).map(drop)),
];

/// A seed that is refused for another reason than its own fault proves nothing; the names show which ones are sound.
#[test]
fn the_corpus_replays() {
    for (folder, accepts) in ENTRIES {
        let corpus = corpus(folder);
        assert!(corpus.len() > 10, "the corpus is not where it should be");
        let mut sound = 0;
        for (name, bytes) in corpus {
            let outcome = accepts(&bytes);
            match &outcome {
                Ok(()) => sound += 1,
                Err(error) => println!("{folder}/{name}: {error}"),
            }
            assert_eq!(outcome.is_ok(), name.starts_with("sound-"), "{folder}/{name}");
        }
        assert!(sound > 3, "{sound} sound files in {folder}");
    }
}

/// One step of damage, as a fuzzer does it.
#[derive(Debug, Clone)]
enum Alteration {
    /// One byte replaced.
    Byte(Index, u8),
    /// A 32-bit field replaced; numbers near the limits find more than random ones.
    Word(Index, u32),
    Cut(Index),
    /// A range copied to another position.
    Copy {
        from: Index,
        to: Index,
        len: usize,
    },
    Insert(Index, Vec<u8>),
}

/// Fields of a delta are aligned to 4 bytes; most are in the first two sectors and in the directory after the header.
const WORD_BYTES: usize = 4;

fn apply(bytes: &mut Vec<u8>, alteration: &Alteration) {
    if bytes.len() < WORD_BYTES {
        return;
    }
    match alteration {
        Alteration::Byte(at, value) => {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        Alteration::Word(at, value) => {
            let at = at.index(bytes.len() / WORD_BYTES) * WORD_BYTES;
            bytes[at..at + WORD_BYTES].copy_from_slice(&value.to_le_bytes());
        }
        Alteration::Cut(at) => bytes.truncate(at.index(bytes.len())),
        Alteration::Copy { from, to, len } => {
            let from = from.index(bytes.len());
            let part = bytes[from..bytes.len().min(from + len)].to_vec();
            let to = to.index(bytes.len() - part.len() + 1);
            bytes[to..to + part.len()].copy_from_slice(&part);
        }
        Alteration::Insert(at, part) => {
            let at = at.index(bytes.len());
            bytes.splice(at..at, part.iter().copied());
        }
    }
}

fn word() -> impl Strategy<Value = u32> {
    let near = (prop_oneof![Just(0u32), Just(4), Just(8), Just(40), Just(1 << 12), Just(u32::MAX)], -2i32..3)
        .prop_map(|(base, by)| base.wrapping_add_signed(by));
    prop_oneof![3 => near, 1 => 0..200u32, 1 => any::<u32>()]
}

fn alteration(text: &'static [&'static str]) -> impl Strategy<Value = Alteration> {
    let at = any::<Index>;
    let part = prop_oneof![
        prop::sample::select(text).prop_map(|text| text.as_bytes().to_vec()),
        vec(any::<u8>(), 1..40)
    ];
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, value)| Alteration::Byte(at, value)),
        (at(), word()).prop_map(|(at, value)| Alteration::Word(at, value)),
        at().prop_map(Alteration::Cut),
        (at(), at(), 1..80usize).prop_map(|(from, to, len)| Alteration::Copy { from, to, len }),
        (at(), part).prop_map(|(at, part)| Alteration::Insert(at, part)),
    ]
}

/// Generates a seed with damage. `head` limits its position, so that metadata is damaged more often than the guest's
/// data.
fn altered(folder: &str, text: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> + use<> {
    let seeds: Vec<Vec<u8>> = corpus(folder).into_iter().map(|(_, bytes)| bytes).collect();
    let head = prop_oneof![Just(2048usize), Just(4096), Just(usize::MAX)];
    (prop::sample::select(seeds), head, vec(alteration(text), 1..6)).prop_map(|(seed, head, alterations)| {
        let (head, tail) = seed.split_at(head.min(seed.len()));
        let mut head = head.to_vec();
        alterations.iter().for_each(|one| apply(&mut head, one));
        [&head, tail].concat()
    })
}

/// Meaningful lines and parts of lines of configurations.
const VALUES: [&str; 16] = [
    "\n",
    "\r\n",
    "\"",
    " = ",
    "#",
    "|",
    "|0A",
    "\0",
    "snapshot0.uid = \"1\"\n",
    "snapshot1.parent = \"2\"\n",
    "snapshot0.disk0.node = \"scsi0:0\"\n",
    "snapshot.numSnapshots = \"4294967295\"\n",
    "snapshot0.createTimeLow = \"-9223372036854775808\"\n",
    "scsi0.present = \"TRUE\"\n",
    "scsi0:7.fileName = \"x\"\n",
    "scsi0:0.mode = \"independent-nonpersistent\"\n",
];

/// Meaningful parts of an archive's texts.
const XML: [&str; 8] = [
    "<",
    "/>",
    "</Item>",
    "&#60;",
    "<!DOCTYPE a [<!ENTITY b \"c\">]>",
    " ovf:compression=\"gzip\"",
    " xmlns:a=\"b\"",
    "ustar\0",
];

/// Meaningful lines and parts of lines.
const TEXT: [&str; 14] = [
    "\n",
    "\r\n",
    "\"",
    "=",
    "#",
    "\0",
    "version=3\n",
    "CID=fffffffe\n",
    "parentCID=ffffffff\n",
    "parentFileNameHint=\"..\"\n",
    "changeTrackPath=\"x-ctk.vmdk\"\n",
    "RW 18014398509481983 ZERO\n",
    "NOACCESS 1 ZERO \"x\" 1\n",
    "RDONLY 8 FLAT \"a\" \"b\" 18014398509481975\n",
];

proptest! {
    // A failure is written beside this file and replayed first from then on. PROPTEST_CASES sets the number of cases.
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn altered_descriptors_are_parsed_without_panic(bytes in altered("descriptor", &TEXT)) {
        let _ = replay::descriptor(&bytes);
    }

    #[test]
    fn altered_deltas_are_parsed_without_panic(bytes in altered("vmfssparse", &["COWD"])) {
        let _ = replay::vmfssparse(&bytes);
    }

    #[test]
    fn altered_sesparse_deltas_are_parsed_without_panic(bytes in altered("sesparse", &["KDMV"])) {
        let _ = replay::sesparse(&bytes);
    }

    #[test]
    fn altered_hosted_extents_are_parsed_without_panic(bytes in altered("hosted", &["COWD"])) {
        let _ = replay::hosted(&bytes);
    }

    #[test]
    fn altered_stream_disks_are_parsed_without_panic(bytes in altered("stream", &["COWD"])) {
        let _ = replay::stream(&bytes);
    }

    #[test]
    fn altered_archives_are_parsed_without_panic(bytes in altered("ova", &XML)) {
        let _ = replay::ova(&bytes);
    }

    #[test]
    fn altered_snapshot_lists_are_parsed_without_panic(bytes in altered("vmsd", &VALUES)) {
        let _ = replay::vmsd(&bytes);
    }

    #[test]
    fn altered_configurations_are_parsed_without_panic(bytes in altered("vmx", &VALUES)) {
        let _ = replay::vmx(&bytes);
    }
}
