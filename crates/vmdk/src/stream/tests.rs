use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::volume::{BlockStatus, STATUS_PIECES_MAX, Volume, ZeroMode};
use blk::{Buf, Env, ErrorKind, File, Result, SECTOR};
use flate2::{Compress, Compression, FlushCompress};
use futures_util::future::join_all;
use proptest::prelude::*;
use sim::{Options, Rng, SimWorld};

use super::testing::{FORMS, Form, Image, compress, put};
use super::*;
use crate::testing::root;

const FILE: &str = "web.vmdk";
const GRAIN: u64 = 8;
const GRAIN_BYTES: u64 = GRAIN * SECTOR;
/// Three tables; not a multiple of a grain, let alone of a table.
const CAPACITY: u64 = 2 * 512 * GRAIN + 40 * GRAIN + 3;

async fn file(env: &Env) -> File {
    root(env).open(FILE, OpenMode::Read).await.unwrap()
}

async fn open_file(env: &Env) -> Result<Rc<Stream>> {
    let file = file(env).await;
    let bytes = file.size().await?;
    open(file, 0..bytes).await
}

async fn read(disk: &Rc<Stream>, offset: u64, len: u64) -> Result<Vec<u8>> {
    let (buf, result) = disk.clone().read(offset, Buf::alloc(len as usize)).await;
    result.map(|()| buf.to_vec())
}

/// Returns the pieces of the whole disk.
async fn status(disk: &Rc<Stream>) -> Result<Vec<BlockStatus>> {
    let (mut at, mut all) = (0, Vec::new());
    while at < disk.size_bytes() {
        let pieces = disk.clone().status(at..disk.size_bytes()).await?;
        assert!(!pieces.is_empty() && pieces.iter().all(|piece| piece.len > 0));
        at += pieces.iter().map(|piece| piece.len).sum::<u64>();
        all.extend(pieces);
    }
    assert_eq!(at, disk.size_bytes());
    Ok(all)
}

fn with_file<T: 'static, F: Future<Output = T> + 'static>(
    bytes: &[u8],
    main: impl FnOnce(Env) -> F + 'static,
) -> T {
    let world = SimWorld::new(1, Options::default());
    world.write_file(FILE, bytes);
    world.run(main).expect("nothing waits for ever")
}

/// Reads all of a disk, and compares it with its status.
fn content(bytes: &[u8]) -> Result<Vec<u8>> {
    with_file(bytes, async |env| {
        let disk = open_file(&env).await?;
        let whole = read(&disk, 0, disk.size_bytes()).await?;
        let mut at = 0;
        for piece in status(&disk).await? {
            let part = &whole[at..at + piece.len as usize];
            assert!(!piece.zero || part.iter().all(|byte| *byte == 0));
            assert_eq!(piece.hole, piece.zero);
            at += part.len();
        }
        Ok(whole)
    })
}

fn refused(bytes: &[u8], kind: ErrorKind, expected: &str) {
    let error = content(bytes).err().unwrap_or_else(|| panic!("{expected}: it was read"));
    assert!(error.kind == kind && error.to_string().contains(expected), "{expected}: {error}");
}

fn sample(form: Form) -> Image {
    let mut image = Image::new(CAPACITY, GRAIN, form);
    image.fill(0, 1).fill(1, 2).fill(5, 3).fill(2, 4).zero(511).fill(512, 5);
    let noise: Vec<u8> = {
        let mut noise = vec![0; GRAIN_BYTES as usize];
        Rng::new(7).fill(&mut noise);
        noise
    };
    image.data(6, &noise).fill(CAPACITY / GRAIN, 9);
    image
}

#[test]
fn every_form_reads_as_it_should() {
    for form in FORMS {
        let content = content(&sample(form).build().bytes).unwrap();
        assert_eq!(content.len() as u64, CAPACITY * SECTOR);
        let bytes = GRAIN_BYTES as usize;
        let grain = |at: usize| &content[at * bytes..((at + 1) * bytes).min(content.len())];
        for (at, fill) in [(0, 1), (1, 2), (2, 4), (3, 0), (5, 3), (511, 0), (512, 5), (513, 0)] {
            assert!(grain(at).iter().all(|byte| *byte == fill), "{form:?}: grain {at}");
        }
        let last = grain((CAPACITY / GRAIN) as usize);
        assert_eq!((last.len() as u64, last[0]), (3 * SECTOR, 9), "the end of the disk cuts it");
    }
}

#[test]
fn a_disk_may_begin_inside_of_a_file() {
    for form in FORMS {
        let own = sample(form).build().bytes;
        let expected = content(&own).unwrap();
        let (before, after) = (vec![0xAA; 1536], vec![0xBB; 700]);
        let file_bytes = [before, own.clone(), after].concat();
        with_file(&file_bytes, async move |env| {
            let at = 1536..1536 + own.len() as u64;
            let disk = open_member(file(&env).await, at, "disk1.vmdk").await.unwrap();
            assert!(read(&disk, 0, disk.size_bytes()).await.unwrap() == expected);
            let error = open(file(&env).await, 1537..2000).await.err().unwrap();
            assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
            let error = open_member(file(&env).await, 1536..1 << 40, "disk1.vmdk").await.err().unwrap();
            assert!(error.to_string().contains("web.vmdk (member disk1.vmdk): its end is byte"), "{error}");
        });
    }
}

#[test]
fn changes_are_refused() {
    with_file(&sample(Form::AtEnd).build().bytes, async |env| {
        let disk = open_file(&env).await.unwrap();
        let info = disk.info();
        assert!(info.read_only && !info.fast_zero);
        assert_eq!((info.size_bytes, u64::from(info.preferred_bytes)), (CAPACITY * SECTOR, GRAIN_BYTES));
        let results = [
            disk.clone().write(0, Buf::zeroed(512).freeze()).await,
            disk.clone().discard(0..512).await,
            disk.clone().write_zeroes(0..512, ZeroMode::default()).await,
        ];
        for error in results.map(Result::unwrap_err) {
            assert_eq!(error.kind, ErrorKind::Refused);
            assert!(error.cause.contains("a streamOptimized disk is read only"), "{error}");
        }
        disk.clone().flush().await.unwrap();
        let error = read(&disk, CAPACITY * SECTOR, 512).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        let error = disk.clone().status(0..CAPACITY * SECTOR + 1).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
    });
}

#[test]
fn a_grain_is_inflated_once_for_many_reads() {
    let mut image = Image::new(64 * 128, 128, Form::AtEnd);
    (0..64).for_each(|grain| _ = image.fill(grain, grain as u8 + 1));
    with_file(&image.build().bytes, async |env| {
        let disk = open_file(&env).await.unwrap();
        let reads = || disk.file_reads();
        read(&disk, 0, 512).await.unwrap();
        let before = reads();
        for at in (0..disk.size_bytes()).step_by(4096) {
            assert_eq!(read(&disk, at, 4096).await.unwrap(), [(at / (128 * SECTOR)) as u8 + 1; 4096]);
        }
        assert_eq!(reads() - before, 63, "the first grain was read before");
        let before = reads();
        let same = join_all((0..16).map(|part| read(&disk, part * 4096, 4096))).await;
        assert!(same.into_iter().all(|part| part.unwrap() == [1; 4096]));
        assert_eq!(reads() - before, 1, "readers of one grain at the same time read it once");
    });
}

#[test]
fn the_status_is_bounded() {
    // 64 TiB: 2^17 regions of 512 MiB, and no table.
    let sectors = (64_u64 << 40) / SECTOR;
    let mut image = Image::new(sectors, 2048, Form::AtEnd);
    image.fill(0, 1).fill(1, 2).fill(sectors / 2048 - 1, 3);
    with_file(&image.build().bytes, async move |env| {
        let disk = open_file(&env).await.unwrap();
        let size = disk.size_bytes();
        let first = disk.clone().status(0..size).await.unwrap();
        assert!(first.iter().map(|piece| piece.len).sum::<u64>() < size, "a call does not search all of it");
        let all = status(&disk).await.unwrap();
        let data: u64 = all.iter().filter(|piece| !piece.hole).map(|piece| piece.len).sum();
        assert_eq!(data, 3 << 20);
        assert_eq!(read(&disk, size - 4096, 4096).await.unwrap(), [3; 4096]);
        assert_eq!(read(&disk, size / 2, 4096).await.unwrap(), [0; 4096]);
    });
    let mut image = Image::new(16384 * GRAIN, GRAIN, Form::InFront);
    (0..8192).for_each(|grain| _ = image.fill(grain * 2, 1));
    with_file(&image.build().bytes, async move |env| {
        let disk = open_file(&env).await.unwrap();
        let pieces = disk.clone().status(0..disk.size_bytes()).await.unwrap();
        assert!((STATUS_PIECES_MAX..STATUS_PIECES_MAX + 512).contains(&pieces.len()), "{}", pieces.len());
        assert_eq!(status(&disk).await.unwrap().len(), 16384);
    });
}

#[test]
fn cut_files_are_refused_at_open_or_when_read() {
    for form in FORMS {
        let whole = sample(form).build().bytes;
        for keep in (0..whole.len()).step_by(512) {
            let error = content(&whole[..keep]).err();
            let error = error.unwrap_or_else(|| panic!("{form:?}: {keep} bytes of a file are read"));
            assert_eq!(error.kind, ErrorKind::Damaged, "{form:?}, {keep} bytes: {error}");
        }
    }
}

#[test]
fn wrong_fields_are_named() {
    use ErrorKind::{Damaged, Unsupported};
    let built = sample(Form::Copied).build();
    let cases: [(u64, &[u8], ErrorKind, &str); 17] = [
        (0, b"COWD", Damaged, "the magic is"),
        (4, &[9], Unsupported, "version is 9, expected 1 to 3"),
        (8, &[1, 0, 0], Unsupported, "this is not a streamOptimized disk"),
        (8, &[1, 0, 1], Unsupported, "flags are 0x10001"),
        (8, &[3, 0, 7], Unsupported, "a later version has written this file"),
        (77, &[2], Unsupported, "compressAlgorithm is 2"),
        (73, b"\n \n\n", Damaged, "a transfer in text mode"),
        (12, &[0; 8], Damaged, "capacity is 0"),
        (12, &[0, 0, 0, 0, 0, 1], Unsupported, "which are 64 TiB"),
        (12, &[1, 0, 0], Damaged, "as the descriptor inside says"),
        (20, &[17], Damaged, "grainSize is 17"),
        (44, &[0, 4], Damaged, "numGTEsPerGT is 1024"),
        (56, &[0xfe; 8], Damaged, "gdOffset is"),
        (48, &[0xfe; 8], Damaged, "rgdOffset is"),
        (64, &[0xff; 8], Damaged, "overHead is"),
        (28, &[0xff; 8], Damaged, "descriptorOffset is"),
        (28, &[0; 8], Damaged, "descriptorOffset is 0"),
    ];
    for (at, bytes, kind, expected) in cases {
        let mut file = built.bytes.clone();
        put(&mut file, at, bytes);
        refused(&file, kind, expected);
    }
    let table = |region: usize| built.tables[region] as u32;
    let directory = built.directory as u32;
    let cases = [
        (0, 1 << 30, "grain directory entry 0 is 1073741824"),
        (1, table(0), "4 sectors apart from those of entry 0"),
        (1, table(0) + 3, "4 sectors apart from those of entry 0"),
        (2, 1, "outside of the descriptor, which has sectors 1 to 1"),
        (2, directory, "outside of the grain directory"),
        (2, 0, "a table in both, or in none"),
    ];
    for (entry, value, expected) in cases {
        let mut file = built.bytes.clone();
        put(&mut file, built.directory * SECTOR + entry * 4, &u32::to_le_bytes(value));
        refused(&file, Damaged, expected);
    }
    let built = sample(Form::InFront).build();
    let footed = sample(Form::AtEnd).build();
    let (first, inside) = (built.grains[&0] as u32, built.grains[&6] as u32 + 2);
    let cases = [
        (&built, 0, 2, "after the metadata"),
        (&built, 0, 1 << 30, "was it cut?"),
        (&built, 1, first, "another than that of entry 0"),
        (&built, 0, inside, "the LBA in the marker of grain 0"),
        (&built, 3, first, "another than that of entry 0"),
        (&footed, 0, footed.directory as u32, "and not of the grain directory"),
        (&footed, 0, footed.tables[1] as u32 + 1, "and not of a grain table"),
    ];
    for (built, entry, value, expected) in cases {
        let mut file = built.bytes.clone();
        put(&mut file, built.tables[0] * SECTOR + entry * 4, &u32::to_le_bytes(value));
        refused(&file, Damaged, expected);
    }
    let mut file = sample(Form::Copied).build();
    put(&mut file.bytes, file.tables[0] * SECTOR + 20, &[0; 4]);
    refused(&file.bytes, Damaged, "entry 5 of grain table 0 is different in the table and in its copy");
}

#[test]
fn wrong_footers_and_descriptors_are_named() {
    use ErrorKind::{Damaged, Unsupported};
    let built = sample(Form::AtEnd).build();
    let footer = built.footer * SECTOR;
    let cases: [(u64, &[u8], ErrorKind, &str); 6] = [
        (footer - 512 + 12, &[4], Damaged, "the marker of the footer is of size 0 and type 4"),
        (footer + 512 + 12, &[1], Damaged, "the marker of the end is of size 0 and type 1"),
        (footer, b"COWD", Damaged, "in the footer, the magic is"),
        (footer + 56, &[0xff; 8], Damaged, "in the footer, gdOffset is 2^64 - 1"),
        (footer + 56, &[0; 8], Damaged, "in the footer, gdOffset is 0"),
        (footer + 12, &[1, 1, 1], Damaged, "as in the header"),
    ];
    for (at, bytes, kind, expected) in cases {
        let mut file = built.bytes.clone();
        put(&mut file, at, bytes);
        refused(&file, kind, expected);
    }
    let cases: [(&str, &str, ErrorKind, &str); 5] = [
        ("streamOptimized", "monolithicSparse", Damaged, "createType is \"monolithicSparse\""),
        (
            "parentCID=ffffffff\n",
            "parentCID=00000001\nparentFileNameHint=\"a.vmdk\"\n",
            Unsupported,
            "export the VM again",
        ),
        (" SPARSE \"an", " FLAT \"an", Damaged, "expected one SPARSE extent"),
        ("\"an-old-name.vmdk\"", "\"a\"\nRW 8 SPARSE \"b\"", Damaged, "expected one SPARSE extent"),
        ("version=1", "version=9", Unsupported, "version"),
    ];
    for (from, to, kind, expected) in cases {
        let mut image = sample(Form::AtEnd);
        image.text = image.text.replace(from, to);
        if to.starts_with(" FLAT") {
            image.text = image.text.replace(".vmdk\"\n", ".vmdk\" 0\n");
        }
        refused(&image.build().bytes, kind, expected);
    }
}

/// Returns zlib data that inflates to `blocks` MiB of zeros, without the checksum, which no reader reaches.
fn bomb(blocks: usize) -> Vec<u8> {
    let mut raw = Compress::new(Compression::best(), false);
    let mut block = Vec::with_capacity(1 << 20);
    raw.compress_vec(&vec![0; 1 << 20], &mut block, FlushCompress::Full).unwrap();
    [vec![0x78, 0x01], block.repeat(blocks)].concat()
}

#[test]
fn grains_that_lie_are_refused() {
    let grain = |sectors: u64, data: Vec<u8>| {
        let mut image = Image::new(sectors * 4, sectors, Form::AtEnd);
        image.grains.insert(1, Some(data));
        image.build()
    };
    let half = [compress(&[1; 4096])[..20].to_vec(), vec![]].concat();
    let mut wrong_sum = compress(&[1; 4096]);
    *wrong_sum.last_mut().unwrap() ^= 1;
    let cases: [(u64, Vec<u8>, &str); 8] = [
        (2048, bomb(1000), "is more than 1048576 bytes, expected 1048576 bytes"),
        (8, bomb(1), "is more than 4096 bytes, expected 4096 bytes"),
        (8, compress(&[1; 4097]), "is more than 4096 bytes"),
        (8, compress(&[1; 4095]), "is 4095 bytes, expected 4096 bytes"),
        (8, half, "expected a whole zlib stream"),
        (8, wrong_sum, "whose checksum is right"),
        (8, vec![7; 100], "the compressed data of grain 1 in sector"),
        (8, vec![0; 5000], "the size in the marker of grain 1"),
    ];
    for (sectors, data, expected) in cases {
        refused(&grain(sectors, data).bytes, ErrorKind::Damaged, expected);
    }
    let built = grain(8, compress(&[1; 4096]));
    let marker = built.grains[&1] * SECTOR;
    for (at, bytes, expected) in [
        (0, &[16, 0][..], "the LBA in the marker of grain 1 in sector 8 is 16, expected 8"),
        (7, &[0xff], "the LBA in the marker"),
        (8, &[0, 0, 0, 0], "the size in the marker of grain 1 in sector 8 is 0"),
        (8, &[0xff, 0xff, 0xff, 0xff], "is 4294967295, expected 1 to 4683 bytes"),
    ] {
        let mut file = built.bytes.clone();
        put(&mut file, marker + at, bytes);
        refused(&file, ErrorKind::Damaged, expected);
    }
}

#[test]
fn the_last_grain_may_end_with_the_disk() {
    let last = CAPACITY / GRAIN;
    for sectors in [3, 4, 8] {
        let mut image = sample(Form::AtEnd);
        image.data(last, &vec![9; (sectors * SECTOR) as usize]);
        assert_eq!(content(&image.build().bytes).unwrap().last(), Some(&9));
    }
    for (sectors, expected) in
        [(2, "is 1024 bytes, expected 1536 to 4096 bytes"), (9, "more than 4096 bytes")]
    {
        let mut image = sample(Form::AtEnd);
        image.data(last, &vec![9; (sectors * SECTOR) as usize]);
        refused(&image.build().bytes, ErrorKind::Damaged, expected);
    }
}

/// A header rounded up to grains, as some writers do it.
#[test]
fn the_descriptor_has_the_size_of_the_disk() {
    let mut image = sample(Form::InFront);
    image.capacity_sectors = CAPACITY.next_multiple_of(GRAIN);
    assert_eq!(content(&image.build().bytes).unwrap().len() as u64, CAPACITY * SECTOR);
}

/// Each byte is changed on its own. Without copies of the tables, an entry that becomes 0 cannot be told from an absent grain;
/// a changed byte of these entries is not 0 here.
#[test]
fn a_changed_byte_is_an_error_or_changes_nothing() {
    for form in FORMS {
        let mut image = Image::new(12 * GRAIN, GRAIN, form);
        image.table_entries = 8;
        image.fill(0, 1).fill(3, 2).fill(9, 3);
        let whole = image.build().bytes;
        let expected = content(&whole).unwrap();
        let mut errors = 0;
        // Nothing else in a file without a footer says how long its tables are.
        let unknown = if form == Form::AtEnd { 0..0 } else { 44..48 };
        for at in (0..whole.len()).filter(|at| !unknown.contains(at)) {
            let changes: &[u8] = if form == Form::Copied {
                &[whole[at] ^ 0xff, 0, whole[at] ^ 1]
            } else {
                &[whole[at] ^ 0xff]
            };
            for change in changes {
                let mut file = whole.clone();
                file[at] = *change;
                match content(&file) {
                    Ok(found) => assert!(found == expected, "{form:?}: byte {at} as {change} was read"),
                    Err(_) => errors += 1,
                }
            }
        }
        assert!(errors > 300, "{form:?}: {errors}");
    }
}

fn any_image() -> impl Strategy<Value = (Image, Vec<u8>)> {
    let form = prop::sample::select(&FORMS[..]);
    let grain = prop::sample::select(&[8_u64, 16, 128][..]);
    (form, grain, 1..200_u64, 0..16_u64, 1..=512_u64, any::<u64>()).prop_map(
        |(form, grain, grains, odd, entries, seed)| {
            let capacity = grains * grain + odd % grain;
            let mut image = Image::new(capacity, grain, form);
            image.table_entries = entries;
            let mut content = vec![0; (capacity * SECTOR) as usize];
            let mut rng = Rng::new(seed);
            for number in 0..capacity.div_ceil(grain) {
                let start = (number * grain * SECTOR) as usize;
                let end = (start + (grain * SECTOR) as usize).min(content.len());
                match rng.below(4) {
                    0 => _ = image.zero(number),
                    1 => rng.fill(&mut content[start..end]),
                    2 => content[start..end].fill(rng.below(256) as u8),
                    _ => {}
                }
                if content[start..end].iter().any(|byte| *byte != 0) {
                    image.data(number, &content[start..end]);
                }
            }
            (image, content)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_content_reads_back((image, expected) in any_image(), seed in any::<u64>()) {
        let bytes = image.build().bytes;
        prop_assert!(content(&bytes).unwrap() == expected);
        let same = with_file(&bytes, async move |env| {
            let disk = open_file(&env).await.unwrap();
            let mut rng = Rng::new(seed);
            for _ in 0..20 {
                let sectors = disk.size_bytes() / SECTOR;
                let at = rng.below(sectors) * SECTOR;
                let len = (1 + rng.below(sectors - at / SECTOR)) * SECTOR;
                let part = read(&disk, at, len).await.unwrap();
                if part != expected[at as usize..(at + len) as usize] {
                    return false;
                }
            }
            true
        });
        prop_assert!(same);
    }

    #[test]
    fn hostile_files_never_panic((image, _) in any_image(), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = image.build().bytes;
        for (at, value) in changes {
            let head = bytes.len().min(4096);
            let at = at.index(head * 2);
            // Half of the changes are in the first sectors, half in the last ones.
            let at = if at < head { at } else { bytes.len() - 1 - (at - head) };
            bytes[at] = value;
        }
        let _ = content(&bytes);
    }
}
