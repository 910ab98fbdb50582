use blk::ErrorKind;
use proptest::prelude::*;

use super::*;

const EIGHT_GIB: u64 = 8 << 21;

fn header(capacity_sectors: u64) -> Header {
    Header::create("x-delta.vmdk", capacity_sectors, 1).unwrap()
}

fn decode(header: &Header, file_bytes: u64) -> Result<Header> {
    Header::decode("x-delta.vmdk", header.bytes(), file_bytes)
}

#[test]
fn a_new_header_has_the_documented_values() {
    let header = header(EIGHT_GIB);
    assert_eq!(&header.bytes()[..8], b"COWD\x01\0\0\0");
    assert_eq!(header.directory_entries(), 4096);
    assert_eq!(header.directory_sectors(), 32);
    assert_eq!(header.first_data_sector(), 36);
    assert_eq!(header.free_sector(), 36);
    assert_eq!(header.region_bytes(), 2 << 20);
    assert!(header.is_unclean());
    assert_eq!(decode(&header, 36 * 512).unwrap(), header);
    assert_eq!(header.free_sector_bytes().0, 0);
    assert_eq!(header.unclean_bytes().0, 1536);
}

#[test]
fn the_size_limit_fits_its_arithmetic() {
    let largest = header(NEW_CAPACITY_SECTORS_MAX);
    let tables = largest.directory_entries() as u64 * u64::from(TABLE_SECTORS);
    let full = u64::from(largest.first_data_sector()) + tables + NEW_CAPACITY_SECTORS_MAX;
    assert_eq!(full, 4_294_713_284);
    assert!(full < 1 << 32);
    for bad in [0, NEW_CAPACITY_SECTORS_MAX + 1, u64::MAX] {
        assert_eq!(Header::create("x", bad, 1).unwrap_err().kind, ErrorKind::Unsupported);
    }
}

#[test]
fn the_last_region_may_be_short() {
    let header = header(4096 * 3 + 5);
    assert_eq!(header.directory_entries(), 4);
    assert_eq!((header.grains_in(0), header.grains_in(3), header.grains_in(4)), (4096, 5, 0));
}

#[test]
fn bad_headers_are_named() {
    use ErrorKind::{Damaged, Unsupported};
    let long = 1 << 30;
    let table = [
        (0, *b"KDMV", long, Damaged, "the magic is \"KDMV\""),
        (0, [0; 4], long, Damaged, "the magic is \"\\x00"),
        (4, [2, 0, 0, 0], long, Unsupported, "version is 2"),
        (8, [1, 0, 0, 0], long, Unsupported, "flags is 1"),
        (12, [0; 4], long, Damaged, "numSectors is 0"),
        (12, [1, 0, 0, 0], long, Damaged, "numGDEntries is 4096, expected 1"),
        (16, [0; 4], long, Damaged, "grainSize is 0"),
        (16, [3, 0, 0, 0], long, Damaged, "grainSize is 3"),
        (16, [0, 16, 0, 0], long, Damaged, "grainSize is 4096"),
        (20, [3, 0, 0, 0], long, Damaged, "gdOffset is 3"),
        (20, [0xff; 4], long, Damaged, "gdOffset is 4294967295"),
        (24, [0xff; 4], long, Damaged, "numGDEntries is 4294967295"),
        (28, [35, 0, 0, 0], long, Damaged, "freeSector is 35, expected at least 36"),
        (28, [0xff; 4], long, Damaged, "freeSector is 4294967295, expected at most 2097152"),
        (44, [0; 4], 36 * 512 - 1, Damaged, "the length is 18431 bytes, expected at least 18432"),
    ];
    for (at, value, file_bytes, kind, message) in table {
        let mut header = header(EIGHT_GIB);
        header.set_clean();
        header.patch(at, &value);
        let error = decode(&header, file_bytes).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!(error.kind, kind, "{error}");
    }
    assert!(Header::decode("x", b"COWD", 4).unwrap_err().to_string().contains("at least the 2048"));
}

#[test]
fn an_unclean_free_pointer_is_not_checked() {
    let mut header = header(EIGHT_GIB);
    header.set_free_sector(u32::MAX);
    decode(&header, 36 * 512).unwrap();
}

fn directory_with(entries: &[(usize, u32)], file_sectors: u64) -> Result<Directory> {
    let header = header(EIGHT_GIB);
    let mut all = vec![0; 4096];
    entries.iter().for_each(|(region, sector)| all[*region] = *sector);
    let mut bytes = vec![0; header.directory_bytes()];
    encode_entries(&all, &mut bytes);
    Directory::decode("x-delta.vmdk", &header, &bytes, file_sectors * SECTOR)
}

#[test]
fn bad_directories_are_named() {
    let table = [
        (vec![(7, 1)], "grain directory entry 7 is 1, expected 0 or at least 36"),
        (vec![(7, 35)], "entry 7 is 35"),
        (vec![(7, 969)], "entry 7 is 969, expected 32 sectors below 1000"),
        (vec![(7, u32::MAX)], "entry 7 is 4294967295"),
        (vec![(7, 100), (8, 100)], "entry 8 is 100, expected another table than that of entry 7"),
        (vec![(7, 131), (8, 100)], "entry 7 is 131, expected outside the table of entry 8"),
    ];
    for (entries, message) in table {
        let error = directory_with(&entries, 1000).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!(error.kind, ErrorKind::Damaged);
    }
    let sound = directory_with(&[(7, 968), (8, 36), (4095, 68)], 1000).unwrap();
    assert_eq!((sound.get(8), sound.get(9), sound.table_count()), (Some(36), None, 3));
    assert_eq!(sound.end_of_tables(), 1000);
    assert_eq!((sound.table_in(99, 100), sound.table_in(100, 968)), (Some(4095), None));
}

fn check(entries: &[(usize, u32)], region: u32, free_sector: Option<u32>) -> Result<usize> {
    let header = header(4096 + 5);
    let first = header.first_data_sector();
    assert_eq!(first, 5);
    let mut directory = Directory::empty(header.directory_entries() as u32);
    directory.set(0, 100);
    let mut all = vec![0; TABLE_ENTRIES];
    entries.iter().for_each(|(entry, sector)| all[*entry] = *sector);
    let bounds = TableBounds {
        file: "x-delta.vmdk",
        header: &header,
        directory: &directory,
        file_bytes: 1000 * SECTOR + 511,
        free_sector,
    };
    bounds.check(region, &all)
}

#[test]
fn bad_tables_are_named() {
    let table = [
        (vec![(3, 1)], 0, "entry 3 of grain table 0 is 1, expected 0 or at least 5"),
        (vec![(3, 4)], 0, "entry 3 of grain table 0 is 4"),
        (vec![(3, 1000)], 0, "entry 3 of grain table 0 is 1000, expected 1 sectors below 1000"),
        (vec![(3, u32::MAX)], 0, "is 4294967295"),
        (vec![(3, 131)], 0, "is 131, expected outside the table of region 0"),
        (vec![(3, 99), (4, 100)], 0, "is 99, expected outside the table of region 0"),
        (
            vec![(3, 200), (9, 200)],
            0,
            "entry 9 of grain table 0 is 200, expected another grain than that of entry 3",
        ),
        (vec![(3, 200), (4, 201), (9, 201)], 0, "entry 9 of grain table 0 is 201"),
        (vec![(5, 200)], 1, "entry 5 of grain table 1 is 200, expected 0, as it is past the end"),
    ];
    for (entries, region, message) in table {
        let error = check(&entries, region, None).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
    assert_eq!(check(&[(0, 999), (1, 99), (4, 132), (5, 133)], 0, None).unwrap(), 4);
    assert!(check(&[(0, 300)], 0, Some(300)).unwrap_err().to_string().contains("below freeSector 300"));
    assert_eq!(check(&[(0, 299)], 0, Some(300)).unwrap(), 1);
}

#[test]
fn runs_follow_the_file() {
    let entries = [0, 0, 50, 51, 52, 60, 0, 61];
    let runs: Vec<(usize, usize, u32)> =
        table_runs(&entries, 1..8, 1).map(|run| (run.entry, run.entries, run.position)).collect();
    assert_eq!(runs, [(1, 1, 0), (2, 3, 50), (5, 1, 60), (6, 1, 0), (7, 1, 61)]);
    let big: Vec<usize> = table_runs(&[8, 16, 24, 25], 0..4, 8).map(|run| run.entries).collect();
    assert_eq!(big, [3, 1]);
    assert_eq!(table_runs(&[u32::MAX, 0], 0..2, 1).count(), 2);
}

proptest! {
    #[test]
    fn any_header_bytes_are_read_without_panic(mut bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES), file_bytes in any::<u64>(), keep in any::<[bool; 4]>()) {
        let good = header(EIGHT_GIB);
        // Some fields are kept, so that decoding gets past the magic number.
        for (range, keep) in [0..12, 12..16, 16..24, 24..28].into_iter().zip(keep) {
            if keep {
                bytes[range.clone()].copy_from_slice(&good.bytes()[range]);
            }
        }
        if let Ok(header) = Header::decode("x", &bytes, file_bytes) {
            prop_assert!(u64::from(header.first_data_sector()) * SECTOR <= file_bytes);
            prop_assert!(header.grains_in(header.directory_entries() as u32 - 1) > 0);
        }
    }

    #[test]
    fn any_directory_and_table_are_read_without_panic(
        regions in proptest::collection::btree_map(0u32..4096, 0u32..2000, 0..6),
        entries in proptest::collection::btree_map(0usize..TABLE_ENTRIES, any::<u32>().prop_map(|v| v % 2100), 0..20),
        file_sectors in 36u64..2200,
    ) {
        let regions: Vec<(usize, u32)> = regions.into_iter().map(|(r, s)| (r as usize, s)).collect();
        if let Ok(directory) = directory_with(&regions, file_sectors) {
            let header = header(EIGHT_GIB);
            let mut all = vec![0; TABLE_ENTRIES];
            entries.iter().for_each(|(entry, sector)| all[*entry] = *sector);
            let bounds = TableBounds { file: "x", header: &header, directory: &directory, file_bytes: file_sectors * SECTOR, free_sector: None };
            if bounds.check(0, &all).is_ok() {
                for sector in all.iter().filter(|sector| **sector != 0) {
                    prop_assert!((36..file_sectors).contains(&u64::from(*sector)));
                    prop_assert!(directory.table_in(*sector, sector + 1).is_none());
                }
            }
        }
    }

    #[test]
    fn runs_cover_the_range(entries in proptest::collection::vec(0u32..6, 1..60)) {
        let runs: Vec<TableRun> = table_runs(&entries, 0..entries.len(), 1).collect();
        let mut at = 0;
        for run in &runs {
            prop_assert_eq!(run.entry, at);
            for i in 0..run.entries {
                let expected = if run.position == 0 { 0 } else { run.position + i as u32 };
                prop_assert_eq!(entries[at + i], expected);
            }
            at += run.entries;
        }
        prop_assert_eq!(at, entries.len());
    }
}
