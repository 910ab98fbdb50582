//! Faults of the files that descriptors name: rows of 1.8, 3.4, 4.9 and 11.

use super::*;
use crate::hosted::testing::Image as Hosted;
use crate::sesparse::testing::turned;

const CUT: &str = "must not be filled with zeros";
const DELTA: &str = "web-000002-delta.vmdk";
const SE: &str = "db-000002-sesparse.vmdk";

const FILES: &[Case] = &[
    (
        "a missing extent",
        |files| _ = files.remove(DELTA),
        &[(
            Damage,
            "web-000002.vmdk",
            "the extent line",
            "\"web-000002-delta.vmdk\"",
            "a file, which is not here",
            "backup",
        )],
    ),
    (
        "an extent in another folder",
        |files| edit(files, "web.vmdk", "\"web-flat.vmdk\"", "\"/other/base-flat.vmdk\""),
        &[
            (
                Note,
                "web.vmdk",
                "the extent line",
                "\"/other/base-flat.vmdk\"",
                "it is elsewhere",
                "check it by itself",
            ),
            nameless("web-flat.vmdk", "\"web.vmdk\"", "RW 6144 VMFS"),
        ],
    ),
    (
        "a flat extent that was cut",
        |files| cut(files, "web-flat.vmdk", 1 << 20),
        &[(
            Damage,
            "web-flat.vmdk",
            "the length",
            "1048576 bytes",
            "at least 3145728, as \"web.vmdk\" says: the file was cut",
            CUT,
        )],
    ),
    (
        "a flat extent that does not reach its offset",
        |files| edit(files, "web.vmdk", "VMFS \"web-flat.vmdk\"", "FLAT \"web-flat.vmdk\" 8"),
        &[(Damage, "web-flat.vmdk", "the length", "3145728 bytes", "at least 3149824", CUT)],
    ),
    (
        "the type of another format",
        |files| {
            edit(files, "web-000002.vmdk", "vmfsSparse", "seSparse");
            edit(files, "web-000002.vmdk", "VMFSSPARSE", "SESPARSE");
        },
        &[(
            Damage,
            "web-000002.vmdk",
            "the type of the extent",
            "SESPARSE",
            "VMFSSPARSE, as \"web-000002-delta.vmdk\" is",
            "write VMFSSPARSE into the extent line",
        )],
    ),
    (
        "a createType of another format",
        |files| edit(files, "web-000002.vmdk", "vmfsSparse", "seSparse"),
        &[(Warning, "web-000002.vmdk", "createType", "\"seSparse\"", "VMFSSPARSE", "correct createType")],
    ),
    (
        "a delta that is something else",
        |files| patch(files, DELTA, 0, b"JUNK"),
        &[(Damage, DELTA, "the magic", "\"JUNK\"", "\"COWD\"", "backup")],
    ),
    (
        "a size that differs from the header's",
        |files| {
            for name in ["web.vmdk", "web-000001.vmdk", "web-000002.vmdk"] {
                edit(files, name, "RW 6144", "RW 6143");
            }
        },
        &[
            (
                Damage,
                "web-000001-delta.vmdk",
                "numSectors",
                "6144",
                "6143, as the extent line of \"web-000001.vmdk\" says",
                "put 6144 into the extent line",
            ),
            (
                Damage,
                DELTA,
                "numSectors",
                "6144",
                "6143, as the extent line of \"web-000002.vmdk\" says",
                "put 6144 into the extent line",
            ),
        ],
    ),
    (
        "version 3 without changeTrackPath",
        |files| edit(files, "web.vmdk", "version=1", "version=3"),
        &[(
            Warning,
            "web.vmdk",
            "changeTrackPath",
            "absent",
            "version is 3",
            "only change tracking (CBT) is lost",
        )],
    ),
    (
        "a change-tracking file that is gone",
        |files| edit(files, "web.vmdk", "version=1", "version=3\nchangeTrackPath=\"web-ctk.vmdk\""),
        &[(
            Warning,
            "web.vmdk",
            "changeTrackPath",
            "\"web-ctk.vmdk\"",
            "a file, which is not here",
            "only change tracking (CBT) is lost",
        )],
    ),
    (
        "a change-tracking file that no descriptor names",
        |files| _ = files.insert("web-ctk.vmdk".into(), vec![9; 30_000]),
        &[(Note, "web-ctk.vmdk", "the file", "named by nothing here", "a changeTrackPath", "remove it")],
    ),
    (
        "a hosted sparse extent that is damaged",
        |files| {
            files.insert("old.vmdk".into(), link(4, None, ("monolithicSparse", "SPARSE"), "old-s001.vmdk"));
            files.insert("old-s001.vmdk".into(), [&b"KDMV"[..], &[0; 2044]].concat());
        },
        &[
            (Warning, "old-s001.vmdk", "version", "0", "1 to 3", "take the file from a backup"),
            unreferred("old.vmdk"),
        ],
    ),
    (
        "a part of a split disk without its descriptor",
        |files| _ = files.insert("old-s001.vmdk".into(), Hosted::new(6144, 16).bytes()),
        &[(
            Damage,
            "old-s001.vmdk",
            "its descriptor",
            "missing",
            "a part of a split disk",
            "find it in a backup",
        )],
    ),
    (
        "a hosted disk with its descriptor inside, not closed, with a table that differs from its copy",
        |files| {
            let mut image = Hosted::new(6144, 16).monolithic(None, 7);
            image.data(1, 5);
            let mut bytes = image.bytes();
            bytes[72] = 1;
            bytes[image.layout().tables as usize * 512 + 4] ^= 16;
            files.insert("old.vmdk".into(), bytes);
        },
        &[
            (Warning, "old.vmdk", "uncleanShutdown", "set", "VMware has the disk open", "close the VM"),
            (
                Damage,
                "old.vmdk",
                "entry 1 of grain table 0",
                "different in the table and in its copy",
                "the same value",
                "open the VM in VMware once",
            ),
            unreferred("old.vmdk"),
        ],
    ),
    (
        "a flat disk into which a guest wrote a hosted one",
        |files| {
            let flat = files.get_mut("web-flat.vmdk").unwrap();
            let mut image = Hosted::new(600, 16).monolithic(Some(("web-000001.vmdk", 3)), 7);
            let bytes = image.data(1, 5).bytes();
            flat[..bytes.len()].copy_from_slice(&bytes);
        },
        &[],
    ),
    (
        "a hosted extent of another size than its descriptor says, with a grain of two entries",
        |files| {
            let mut image = Hosted::new(600 * 16, 16);
            image.redundant = false;
            image.data(0, 1).data(599, 2);
            let (mut bytes, tables) = (image.bytes(), image.layout().tables as usize * 512);
            bytes.copy_within(tables..tables + 4, tables + 4 * 512);
            files.insert("old-s001.vmdk".into(), bytes);
            files.insert(
                "old.vmdk".into(),
                link(4, None, ("twoGbMaxExtentSparse", "SPARSE"), "old-s001.vmdk"),
            );
        },
        &[
            (Damage, "old-s001.vmdk", "capacity", "9600", "6144, as the extent line", "put 9600 into"),
            (
                Damage,
                "old-s001.vmdk",
                "entry 0 of grain table 1",
                "sector 16, as another entry is",
                "each grain in one entry",
                "take the file from a backup",
            ),
            unreferred("old.vmdk"),
        ],
    ),
];

#[test]
fn files_of_a_descriptor() {
    expect_each(FILES);
}

#[test]
fn a_change_tracking_file_that_is_there_is_no_fault() {
    let mut files = sound();
    edit(&mut files, "web.vmdk", "version=1", "version=3\nchangeTrackPath=\"web-ctk.vmdk\"");
    files.insert("web-ctk.vmdk".into(), vec![9; 30_000]);
    expect("nothing", &files, &[]);
}

/// Returns the offset of an entry in one of the two tables of the VMFSsparse delta, by its directory.
fn entry_at(files: &Files, table: usize, entry: usize) -> usize {
    let sector = word_at(files, 2048 + 4 * table);
    sector as usize * 512 + 4 * entry
}

fn word_at(files: &Files, at: usize) -> u32 {
    u32::from_le_bytes(files[DELTA][at..at + 4].try_into().unwrap())
}

fn set_entry(files: &mut Files, table: usize, entry: usize, sector: u32) {
    let at = entry_at(files, table, entry);
    patch(files, DELTA, at, &word(sector));
}

fn word(value: u32) -> [u8; 4] {
    value.to_le_bytes()
}

/// A planted fault of a delta, and the only finding that must result.
type One = (&'static str, fn(&mut Files), Row);

const COWD_FAULTS: &[One] = &[
    (
        "version",
        |f| patch(f, DELTA, 4, &word(2)),
        (Warning, DELTA, "version", "2", "1, the only one", "backup"),
    ),
    ("flags", |f| patch(f, DELTA, 8, &word(1)), (Warning, DELTA, "flags", "1", "3, the only one", "backup")),
    (
        "grain of 3",
        |f| patch(f, DELTA, 16, &word(3)),
        (Damage, DELTA, "grainSize", "3", "a power of two", "backup"),
    ),
    (
        "directory in the header",
        |f| patch(f, DELTA, 20, &word(1)),
        (Damage, DELTA, "gdOffset", "1", "at least 4", "backup"),
    ),
    (
        "entries",
        |f| patch(f, DELTA, 24, &word(9)),
        (Damage, DELTA, "numGDEntries", "9", "2 for 6144 sectors", "backup"),
    ),
    (
        "free sector",
        |f| patch(f, DELTA, 28, &word(1 << 20)),
        (Damage, DELTA, "freeSector", "1048576", "the file was cut", CUT),
    ),
    (
        "free sector too low",
        |f| patch(f, DELTA, 28, &word(48)),
        (Damage, DELTA, "entry 0 of grain table 1", "80", "below freeSector 48", "backup"),
    ),
    (
        "a table in the header",
        |f| patch(f, DELTA, 2048, &word(1)),
        (Damage, DELTA, "grain directory entry 0", "1", "0 or at least 5", "backup"),
    ),
    (
        "a grain in the header",
        |f| set_entry(f, 0, 0, 1),
        (Damage, DELTA, "entry 0 of grain table 0", "1", "0 or at least 5, after the metadata", "backup"),
    ),
    (
        "a grain in a table",
        |f| {
            let table = word_at(f, 2048);
            set_entry(f, 0, 0, table);
        },
        (Damage, DELTA, "entry 0 of grain table 0", "8", "outside the table of region 0", "backup"),
    ),
    (
        "an entry past the disk",
        |f| set_entry(f, 1, 2048, 40),
        (Damage, DELTA, "entry 2048 of grain table 1", "40", "0, as it is past the end", "backup"),
    ),
    (
        "a grain twice",
        |f| {
            let grain = word_at(f, entry_at(f, 0, 0));
            set_entry(f, 1, 0, grain);
        },
        (
            Damage,
            DELTA,
            "entry 0 of grain table 1",
            "sector 40, as another entry is",
            "each sector once",
            "backup",
        ),
    ),
    (
        "half a header",
        |f| cut(f, DELTA, 1000),
        (Damage, DELTA, "the length", "1000 bytes", "at least the 2048 of a header", "backup"),
    ),
    (
        "unclean",
        |f| patch(f, DELTA, 1648, &word(1)),
        (Warning, DELTA, "uncleanShutdown", "set", "not closed", "nothing if its VM runs"),
    ),
];

#[test]
fn vmfssparse_deltas() {
    for (planted, plant, row) in COWD_FAULTS {
        let mut files = sound();
        plant(&mut files);
        expect(planted, &files, &[*row]);
    }
}

/// Offset in the file, the word that is planted there, and the only finding that must result.
type Word = (usize, u64, Row);

fn expect_words(cases: &[Word]) {
    for (at, word, row) in cases {
        let mut files = sound();
        patch(&mut files, SE, *at, &word.to_le_bytes());
        expect(row.2, &files, &[*row]);
    }
}

const BACKUP: &str = "take the file from a backup";
const COPY: &str = "copy the disk as its guest sees it";

#[test]
fn sesparse_headers() {
    let directory = Image::new(CAPACITY, 4096).layout().directory as usize;
    expect_words(&[
        (8, 0x2_0000_0002, (Warning, SE, "version", "0x200000002", "0x200000001", BACKUP)),
        (40, 1, (Warning, SE, "flags", "0x1", "0x0", BACKUP)),
        (
            512 + 24,
            1,
            (
                Damage,
                SE,
                "replayJournal",
                "1",
                "0: the last writes of ESXi are in a journal",
                "open and close",
            ),
        ),
        (
            512 + 8,
            0,
            (Damage, SE, "grain directory entry 0", "table 0", "below 0, which is freeGTNumber", BACKUP),
        ),
        (
            directory,
            2 << 60,
            (Damage, SE, "grain directory entry 0", "0x2000000000000000", "0x10000000 above", BACKUP),
        ),
        (directory, 1 << 60 | 1, (Damage, SE, "grain directory entry 0", "table 1", "the room for", BACKUP)),
    ]);
}

#[test]
fn sesparse_tables() {
    const DATA: u64 = 3 << 60;
    const FIRST: &str = "entry 0 of grain table 0";
    let at = Image::new(CAPACITY, 4096).layout();
    let (tables, bitmap) = (at.tables as usize, at.bitmap as usize);
    expect_words(&[
        (tables, 4 << 60, (Damage, SE, FIRST, "0x4000000000000000", "a type from 1 to 3", COPY)),
        (tables, 5, (Damage, SE, FIRST, "0x0000000000000005", "0, or a type", COPY)),
        (
            tables,
            DATA | turned(768),
            (Damage, SE, FIRST, "grain 768", "below 768, the room for grains", COPY),
        ),
        (
            tables,
            DATA | turned(2),
            (Damage, SE, FIRST, "grain 2, which ends at 65536", "the file was cut", CUT),
        ),
        (
            tables,
            DATA | turned(1),
            (Damage, SE, "entry 5 of grain table 0", "grain 1", "than that of entry 0", COPY),
        ),
        (
            bitmap,
            1,
            (
                Damage,
                SE,
                "the free bitmap of grains 0 to 7",
                "0b00000001",
                "0b00000011: a grain in use",
                COPY,
            ),
        ),
        (
            tables + 5 * 8,
            0,
            (
                Warning,
                SE,
                "the free bitmap of grains 0 to 7",
                "0b00000011",
                "that nothing names",
                "nothing is lost",
            ),
        ),
    ]);
}

/// Wherever a delta is cut: there is a finding, and the delta never counts as sound if a grain that it names is
/// missing.
#[test]
fn cut_deltas_are_damage() {
    for (name, step) in [(DELTA, 512), (SE, 4096)] {
        let whole = sound()[name].len();
        for keep in (0..whole - 4096).step_by(step) {
            let mut files = sound();
            cut(&mut files, name, keep);
            let report = examine(&files, Some(name)).unwrap();
            assert!(!report.is_sound(), "{name} of {keep} bytes");
            assert!(report.findings[0].file.ends_with(name), "{report:?}");
        }
    }
}
