use blk::reactor::OpenMode;
use blk::{Env, ErrorKind};
use proptest::prelude::*;
use sim::{Options, SimWorld};

use super::testing::{GRAIN, Image, TABLE, turned};
use super::*;
use crate::grain_table::TABLES_CACHED_MAX;
use crate::testing::{PARENT, read, root};

const FILE: &str = "web-000001-sesparse.vmdk";
/// Three tables; not a multiple of a grain, let alone of a table.
const CAPACITY: u64 = 2 * 32768 + 1024 + 3;
/// Smaller than ESXi's 1 MiB, so that files stay small.
const ALIGN: u64 = 4096;
/// An entry of a table with the number of a grain.
const DATA: u64 = 3 << 60;

async fn open(env: &Env, capacity_sectors: u64) -> Result<SeSparse> {
    let file = root(env).open(FILE, OpenMode::Read).await.unwrap();
    SeSparse::open(file, DeltaParams { name: "web-000001.vmdk", capacity_sectors }).await
}

/// Reads and checks every grain of the file.
fn evidence(file: &[u8]) -> Result<(Vec<u8>, Vec<String>)> {
    let world = SimWorld::new(1, Options::default());
    world.write_file(FILE, file);
    let outcome = world.run(async |env| {
        let delta = open(&env, CAPACITY).await?;
        let content = read(&delta, 0..CAPACITY * SECTOR).await?;
        Ok((content, delta.check().await?))
    });
    outcome.expect("nothing waits for ever")
}

fn sample() -> Image {
    let mut image = Image::new(CAPACITY, ALIGN).in_order_of_use();
    let last = CAPACITY.div_ceil(8) - 1;
    image.data(last, 9).data(0, 1).data(1, 2).data(5, 3).data(2, 4).zero(4095);
    image.data(3, 6).unmap(3).unmap(7).data(4096, 5);
    image
}

#[test]
fn every_type_of_entry_reads_as_it_should() {
    let (content, findings) = evidence(&sample().bytes()).unwrap();
    assert_eq!(findings, Vec::<String>::new());
    let grain = |at: u64| &content[(at * GRAIN) as usize..((at + 1) * GRAIN).min(CAPACITY * SECTOR) as usize];
    for (at, fill) in
        [(0, 1), (1, 2), (2, 4), (3, 0), (4, PARENT), (5, 3), (6, PARENT), (7, 0), (4095, 0), (4096, 5)]
    {
        assert!(grain(at).iter().all(|byte| *byte == fill), "grain {at}");
    }
    let last = grain(CAPACITY.div_ceil(8) - 1);
    assert_eq!((last.len() as u64, last[0]), (3 * SECTOR, 9), "the end of the disk cuts it");
}

#[test]
fn a_lookup_may_begin_and_end_anywhere() {
    let world = SimWorld::new(1, Options::default());
    world.write_file(FILE, &sample().bytes());
    world.run(async |env| {
        let delta = open(&env, CAPACITY).await.unwrap();
        let whole = read(&delta, 0..CAPACITY * SECTOR).await.unwrap();
        for (start, end) in [(3, 9), (7, 8), (15, 50), (32_765, 32_780), (65_000, CAPACITY)] {
            let part = read(&delta, start * SECTOR..end * SECTOR).await.unwrap();
            assert_eq!(part, whole[(start * SECTOR) as usize..(end * SECTOR) as usize], "{start}..{end}");
        }
        let runs = delta.lookup(0..2 * GRAIN).await.unwrap();
        assert_eq!(runs.len(), 1, "neighbours in the file are one run: {runs:?}");
        assert_eq!([0, 1, 2].map(|region| delta.populated(region)), [true; 3]);
        let shape = delta.shape();
        assert_eq!((shape.grain_bytes, shape.region_bytes, shape.writable), (4096, 16 << 20, false));
    });
}

#[test]
fn nothing_is_placed() {
    let world = SimWorld::new(1, Options::default());
    world.write_file(FILE, &sample().bytes());
    world.run(async |env| {
        let delta = open(&env, CAPACITY).await.unwrap();
        let error = delta.place(0..GRAIN).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported);
        assert!(error.cause.starts_with("committing into SEsparse is not supported until"), "{error}");
        delta.seal().await.unwrap();
        assert!(delta.stages().is_empty());
    });
}

#[test]
fn few_tables_are_kept() {
    let regions = TABLES_CACHED_MAX as u64 + 9;
    let mut image = Image::new(regions * 32768, ALIGN);
    (0..regions).for_each(|region| _ = image.data(region * 4096, region as u8));
    let world = SimWorld::new(1, Options::default());
    world.write_file(FILE, &image.bytes());
    world.run(async move |env| {
        let delta = open(&env, regions * 32768).await.unwrap();
        for region in (0..regions).chain(0..regions) {
            let at = region * REGION_BYTES;
            assert_eq!(read(&delta, at..at + 512).await.unwrap()[0], region as u8);
            assert!(delta.tables.borrow().len() <= TABLES_CACHED_MAX);
        }
        let reads = delta.file().counters().reads;
        read(&delta, (regions - 1) * REGION_BYTES..(regions - 1) * REGION_BYTES + 512).await.unwrap();
        assert_eq!(delta.file().counters().reads, reads + 1, "the table was still there");
    });
}

#[test]
fn a_disk_above_two_terabytes() {
    // 3 TiB and five sectors. The area of tables has 6 GiB, of which one table is allocated.
    let capacity = (3 << 31) + 5;
    let mut image = Image::new(capacity, 1 << 20);
    let last = capacity.div_ceil(8) - 1;
    image.data(last, 7);
    let world = SimWorld::new(1, Options::default());
    world.write_file(FILE, &[]);
    for (at, piece) in image.pieces() {
        world.write_at(FILE, at, &piece);
    }
    world.run(async move |env| {
        let delta = open(&env, capacity).await.unwrap();
        let end = capacity * SECTOR;
        let content = read(&delta, end - 6 * SECTOR..end).await.unwrap();
        assert_eq!((content[0], content[SECTOR as usize]), (PARENT, 7));
        assert_eq!(delta.check().await.unwrap(), Vec::<String>::new());
    });
}

#[test]
fn cut_files_are_refused_at_open_or_when_read() {
    let whole = sample().bytes();
    for keep in (0..whole.len()).step_by(512) {
        let error =
            evidence(&whole[..keep]).err().unwrap_or_else(|| panic!("{keep} bytes of a file are read"));
        assert_eq!(error.kind, ErrorKind::Damaged, "{keep} bytes: {error}");
    }
}

/// Returns the file with little-endian words written at the given offsets.
fn patched(words: &[(u64, u64)]) -> Vec<u8> {
    let mut file = sample().bytes();
    for (at, word) in words {
        file[*at as usize..*at as usize + 8].copy_from_slice(&word.to_le_bytes());
    }
    file
}

#[test]
fn contradictions_of_the_format_are_refused_by_name() {
    use ErrorKind::{Damaged, Refused, Unsupported};
    let at = sample().layout();
    let table = |slot: u64, entry: u64| at.tables + slot * TABLE + entry * 8;
    let cases: &[(u64, u64, ErrorKind, &str)] = &[
        (0, 0x564D_444B, Damaged, "the magic is \"KDMV"),
        (8, 0x2_0000_0002, Unsupported, "version is 0x200000002, expected 0x200000001"),
        (16, CAPACITY + 1, Damaged, "capacity is 66564, expected 66563, as the descriptor"),
        (16, 0, Damaged, "capacity is 0"),
        (16, u64::MAX, Unsupported, "expected at most 137438953472 (64 TiB)"),
        (24, 16, Unsupported, "grainSize is 0x10, expected 0x8"),
        (32, 32, Unsupported, "grainTableSize is 0x20, expected 0x40"),
        (40, 1, Unsupported, "flags is 0x1, expected 0x0"),
        (64, 1, Unsupported, "reserved3 is 0x1, expected 0x0"),
        (216, 1 << 40, Unsupported, "byte 221 of the header is 0x1"),
        (80, u64::MAX, Damaged, "the volatile header is 1 sectors from"),
        (88, 0, Damaged, "the size of the volatile header is 0"),
        (136, 0, Damaged, "the size of the grain directory is 0, expected at least 1"),
        (128, 0, Damaged, "the offset of the grain directory is 0, expected 1 or more"),
        (192, at.tables / 512, Damaged, "the offset of the grains is"),
        (512, 0xCAFE_BABE, Damaged, "the magic of the volatile header is"),
        (512 + 24, 1, Refused, "replayJournal is 1, expected 0"),
        (512 + 64, 1, Unsupported, "byte 64 of the volatile header is 0x1"),
        (512 + 8, 2, Damaged, "grain directory entry 1 is table 2, expected below 2, which is freeGTNumber"),
        (152, 64, Damaged, "expected below 1, the room for grain tables"),
        (at.directory, 0x2000_0000_0000_0000, Damaged, "grain directory entry 0 is 0x2000000000000000"),
        (at.directory, 0x1000_0001_0000_0000, Damaged, "grain directory entry 0 is 0x1000000100000000"),
        (
            at.directory,
            0x1000_0000_0000_0000,
            Damaged,
            "grain directory entry 2 is table 0, expected another",
        ),
        (table(1, 9), 0x4000_0000_0000_0000, Damaged, "entry 9 of grain table 0 is 0x4000000000000000"),
        (table(1, 9), 1, Damaged, "entry 9 of grain table 0 is 0x0000000000000001, expected 0, or"),
        (
            table(1, 9),
            DATA | turned(8321),
            Damaged,
            "entry 9 of grain table 0 is grain 8321, expected below 8321",
        ),
        (table(1, 9), DATA | turned(8320), Damaged, "grain 8320, which ends at"),
        (
            table(1, 9),
            DATA | turned(1),
            Damaged,
            "entry 9 of grain table 0 is grain 1, expected another than that of entry 0",
        ),
    ];
    for (at, word, kind, message) in cases {
        let error = evidence(&patched(&[(*at, *word)])).err().unwrap_or_else(|| panic!("no {message:?}"));
        assert!(error.to_string().contains(message), "{message:?} is not in {error}");
        assert_eq!(error.kind, *kind, "{error}");
        assert!(error.place.ends_with(FILE), "{error}");
    }
}

#[test]
fn cross_references_are_checked() {
    let at = sample().layout();
    let table = |slot: u64, entry: u64| at.tables + slot * TABLE + entry * 8;
    // Grain 0 is the disk's last, 1 its first; 5 was unmapped.
    let cases: &[(u64, u64, &[&str])] = &[
        (
            table(2, 1),
            DATA | turned(1),
            &["the back map of grain 1 is", "as another entry is, expected each grain"],
        ),
        (
            at.bitmap,
            0x5D,
            &["damage:", "the free bitmap of grains 0 to 7 is 0b01011101, expected 0b01011111"],
        ),
        (table(1, 2), 0, &["warning:", "that nothing names; nothing is lost"]),
        (
            at.back_map + 8,
            0,
            &["damage:", "the back map of grain 1 is 0x0000000000000000, expected 0x1000000000000001"],
        ),
        (
            table(1, 9),
            (2 << 60) | 5,
            &["warning:", "entry 9 of grain table 0 is 0x2000000000000005, expected a zeroed"],
        ),
        (
            table(0, 4000),
            2 << 60,
            &["warning:", "entry 4000 of grain table 2 is", "past the end of the disk"],
        ),
        (160, 1 << 60, &["warning:", "the free bitmap is", "inside the file"]),
        (184, 0, &["warning:", "the back map is 0 sectors from"]),
    ];
    for (at, word, messages) in cases {
        let (_, findings) = evidence(&patched(&[(*at, *word)])).unwrap();
        let text = findings.join("\n");
        for message in *messages {
            assert!(text.contains(message), "{message:?} is not in {text}");
        }
        assert!(findings.iter().all(|line| line.contains(FILE)), "{text}");
    }
    // The order of bits in a byte may be reversed, and tables of the back map may be counted by directory entry.
    let by_region =
        [(at.bitmap, 0xFA), (at.back_map + 8, 1 << 60), (at.back_map, (1 << 60) | turned(2 * 4096 + 128))];
    assert_eq!(evidence(&patched(&by_region)).unwrap().1, Vec::<String>::new());
}

#[test]
fn grains_of_a_damaged_table_are_not_called_leaks() {
    let entry = sample().layout().tables + TABLE + 9 * 8;
    let world = SimWorld::new(1, Options::default());
    world.write_file(FILE, &patched(&[(entry, 7 << 60)]));
    let findings = world.run(async |env| open(&env, CAPACITY).await.unwrap().check().await.unwrap());
    let findings = findings.expect("nothing waits for ever");
    assert!(findings.len() == 1 && findings[0].contains("entry 9 of grain table"), "{findings:?}");
}

proptest! {
    #[test]
    fn hostile_files_never_panic(
        patches in proptest::collection::vec((0u64..120 << 10, any::<u64>(), 0u8..4), 1..6),
        keep in proptest::option::of(0usize..160 << 10),
    ) {
        let mut file = sample().bytes();
        for (at, value, kind) in patches {
            // Mostly whole fields, often with meaningful values.
            let value = match kind { 0 => value, 1 => value % 256, 2 => DATA | turned(value % 16), _ => (1 << 60) | (value % 4) };
            let at = (at / 8 * 8) as usize;
            if let Some(word) = file.get_mut(at..at + 8) {
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
        file.truncate(keep.unwrap_or(file.len()));
        let _ = evidence(&file);
    }
}
