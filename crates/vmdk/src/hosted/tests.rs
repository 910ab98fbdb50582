use blk::reactor::OpenMode;
use blk::{Env, ErrorKind};
use sim::{Options, SimWorld};

use super::testing::{Image, put};
use super::*;
use crate::probe::read_descriptor;
use crate::testing::{PARENT, read, root};

const FILE: &str = "web.vmdk";
const GRAIN: u64 = 16;
/// Three tables; not a multiple of a grain, let alone of a table.
const CAPACITY: u64 = 2 * 512 * GRAIN + 40 * GRAIN + 3;

/// Opens a disk by its descriptor.
async fn open(env: &Env, name: &str) -> Result<Hosted> {
    let dir = root(env);
    let link = read_descriptor(&dir, name).await?;
    let mut files = BTreeMap::new();
    for extent in link.extents().iter().filter(|extent| !extent.file.is_empty()) {
        files.insert(extent.file.clone(), dir.open(&extent.file, OpenMode::Read).await?);
    }
    Hosted::open(name, &link, files).await
}

/// Reads and checks everything of a disk of one file.
fn evidence(file: &[u8]) -> Result<(Vec<u8>, Vec<String>)> {
    let world = SimWorld::new(1, Options::default());
    world.write_file(FILE, file);
    let outcome = world.run(async |env| {
        let disk = open(&env, FILE).await?;
        let content = read(&disk, 0..disk.size_bytes).await?;
        Ok((content, disk.check().await?))
    });
    outcome.expect("nothing waits for ever")
}

fn sample() -> Image {
    let mut image = Image::new(CAPACITY, GRAIN).monolithic(None, 0x1234);
    image.data(0, 1).data(1, 2).data(5, 3).data(2, 4).zero(511).data(512, 5);
    image.data(CAPACITY / GRAIN, 9);
    image
}

#[test]
fn every_type_of_entry_reads_as_it_should() {
    for redundant in [true, false] {
        let mut image = sample();
        image.redundant = redundant;
        let (content, findings) = evidence(&image.bytes()).unwrap();
        assert_eq!(findings, Vec::<String>::new());
        let bytes = (GRAIN * SECTOR) as usize;
        let grain = |at: usize| &content[at * bytes..((at + 1) * bytes).min(content.len())];
        for (at, fill) in [(0, 1), (1, 2), (2, 4), (3, PARENT), (5, 3), (511, 0), (512, 5), (513, PARENT)] {
            assert!(grain(at).iter().all(|byte| *byte == fill), "grain {at}");
        }
        let last = grain((CAPACITY / GRAIN) as usize);
        assert_eq!((last.len() as u64, last[0]), (3 * SECTOR, 9), "the end of the disk cuts it");
    }
}

#[test]
fn a_lookup_may_begin_and_end_anywhere() {
    let world = SimWorld::new(1, Options::default());
    world.write_file(FILE, &sample().bytes());
    world.run(async |env| {
        let disk = open(&env, FILE).await.unwrap();
        let whole = read(&disk, 0..CAPACITY * SECTOR).await.unwrap();
        for (start, end) in [(3, 9), (15, 50), (8_100, 8_300), (16_000, CAPACITY)] {
            let part = read(&disk, start * SECTOR..end * SECTOR).await.unwrap();
            assert!(part == whole[(start * SECTOR) as usize..(end * SECTOR) as usize], "{start}..{end}");
        }
        let runs = disk.lookup(0..2 * GRAIN * SECTOR).await.unwrap();
        assert_eq!(runs.len(), 1, "neighbours in the file are one run: {runs:?}");
        let error = disk.place(0..SECTOR).await.unwrap_err();
        assert!(error.cause.contains("committing into a hosted sparse disk"), "{error}");
        disk.seal().await.unwrap();
    });
}

#[test]
fn a_split_disk_is_one() {
    let world = SimWorld::new(1, Options::default());
    let sizes = [600 * GRAIN, 7 * GRAIN, 90 * GRAIN];
    for (part, sectors) in sizes.iter().enumerate() {
        let mut image = Image::new(*sectors, GRAIN);
        image.data(0, 1 + part as u8).data(6, 11 + part as u8);
        world.write_file(&format!("web-s00{}.vmdk", part + 1), &image.bytes());
    }
    let [first, second, third] = sizes;
    let text = format!(
        "version=1\nCID=1\nparentCID=ffffffff\ncreateType=\"twoGbMaxExtentSparse\"\nRW {first} SPARSE \"web-s001.vmdk\"\n\
         RW {second} SPARSE \"web-s002.vmdk\"\nRW 800 ZERO\nRW {third} SPARSE \"web-s003.vmdk\"\n"
    );
    world.write_file(FILE, text.as_bytes());
    world.run(async move |env| {
        let disk = open(&env, FILE).await.unwrap();
        let whole = read(&disk, 0..disk.size_bytes).await.unwrap();
        let starts = [0, first, first + second + 800];
        for (part, start) in starts.into_iter().enumerate() {
            let byte = |grain: u64| whole[((start + grain * GRAIN) * SECTOR) as usize];
            assert_eq!((byte(0), byte(6)), (1 + part as u8, 11 + part as u8), "part {part}");
        }
        assert_eq!(whole[((first + second) * SECTOR) as usize], 0, "the extent of zeros");
        let across = (first - 1) * SECTOR..(first + second + 801) * SECTOR;
        let part = read(&disk, across.clone()).await.unwrap();
        assert!(part == whole[across.start as usize..across.end as usize]);
        assert_eq!(disk.check().await.unwrap(), Vec::<String>::new());
        let regions = disk.size_bytes.div_ceil(disk.region_bytes);
        assert!((0..regions).all(|region| disk.populated(region)));
    });
    world.run(async |env| {
        let error = read_descriptor(&root(&env), "web-s001.vmdk").await.unwrap_err();
        assert!(error.cause.contains("an extent of a split disk"), "{error}");
    });
}

/// The last grain of the first file ends at the offset at which the first grain of the second one begins.
#[test]
fn runs_of_two_files_are_never_one() {
    let world = SimWorld::new(1, Options::default());
    let (first, second) = (40 * GRAIN, 600 * GRAIN);
    let mut image = Image::new(first, GRAIN);
    let ends = image.layout().overhead + GRAIN;
    world.write_file("web-s001.vmdk", &image.data(39, 1).bytes());
    let mut image = Image::new(second, GRAIN);
    assert_eq!(image.layout().overhead, ends, "the case that is meant");
    world.write_file("web-s002.vmdk", &image.data(0, 2).data(1, 3).bytes());
    let text = format!(
        "version=1\nCID=1\nparentCID=ffffffff\ncreateType=\"twoGbMaxExtentSparse\"\nRW {first} SPARSE \"web-s001.vmdk\"\n\
         RW {second} SPARSE \"web-s002.vmdk\"\n"
    );
    world.write_file(FILE, text.as_bytes());
    world.run(async move |env| {
        let disk = open(&env, FILE).await.unwrap();
        let around = (first - GRAIN) * SECTOR..(first + 2 * GRAIN) * SECTOR;
        let content = read(&disk, around.clone()).await.unwrap();
        let grains: Vec<u8> = content.chunks((GRAIN * SECTOR) as usize).map(|grain| grain[0]).collect();
        assert_eq!(grains, [1, 2, 3]);
        assert_eq!(disk.lookup(around).await.unwrap().len(), 2);
    });
}

#[test]
fn cut_files_are_refused_at_open_or_when_read() {
    let mut image = Image::new(40 * GRAIN, GRAIN).monolithic(None, 1);
    image.data(0, 1).data(39, 2);
    let whole = image.bytes();
    evidence(&whole).unwrap();
    for keep in (0..whole.len()).step_by(512) {
        let error =
            evidence(&whole[..keep]).err().unwrap_or_else(|| panic!("{keep} bytes of a file are read"));
        assert_eq!(error.kind, ErrorKind::Damaged, "{keep} bytes: {error}");
    }
}

#[test]
fn wrong_fields_are_named() {
    use ErrorKind::{Damaged, Unsupported};
    let image = sample();
    let layout = image.layout();
    let table = layout.tables * SECTOR;
    let cases: [(u64, &[u8], ErrorKind, &str); 17] = [
        (4, &[9], Unsupported, "version is 9, expected 1 to 3"),
        (8, &[3, 0, 1], Unsupported, "streamOptimized"),
        (77, &[1], Unsupported, "streamOptimized"),
        (8, &[3, 0, 4], Unsupported, "a later version has written this file"),
        (73, b"\n \n\n", Damaged, "a transfer in text mode"),
        (12, &[0; 8], Damaged, "capacity is 0"),
        (12, &[0, 0, 0, 0, 1], Damaged, "as pointers have 32 bits"),
        (12, &[1, 0, 0], Damaged, "as the descriptor"),
        (20, &[17], Damaged, "grainSize is 17"),
        (20, &[0, 16], Damaged, "grainSize is 4096"),
        (44, &[0, 0], Damaged, "numGTEsPerGT is 0"),
        (44, &[0, 4], Damaged, "numGTEsPerGT is 1024"),
        (56, &[0xff; 8], Damaged, "gdOffset is"),
        (48, &[0xff; 8], Damaged, "rgdOffset is"),
        (64, &[0xff; 8], Damaged, "overHead is"),
        (28, &[0xff; 8], Damaged, "descriptorOffset is"),
        (layout.directory * SECTOR, &[0xff; 4], Damaged, "grain directory entry 0 is"),
    ];
    for (at, bytes, kind, expected) in cases {
        let mut file = image.bytes();
        put(&mut file, at, bytes);
        let error = evidence(&file).err().unwrap_or_else(|| panic!("{expected}: it was read"));
        assert!(error.kind == kind && error.cause.contains(expected), "{expected}: {error}");
    }
    let entries: [(u64, u32, &str); 4] = [
        (0, 2, "after the metadata"),
        (0, (layout.overhead + 1) as u32, "a multiple of the grain"),
        (0, 1 << 30, "was it cut?"),
        (1, layout.overhead as u32, "another than that of entry 0"),
    ];
    for (entry, sector, expected) in entries {
        let mut image = sample();
        image.redundant = false;
        let table = image.layout().tables * SECTOR;
        let mut file = image.bytes();
        put(&mut file, table + entry * 4, &sector.to_le_bytes());
        let error = evidence(&file).err().unwrap();
        assert!(error.kind == Damaged && error.cause.contains(expected), "{expected}: {error}");
    }
    for directory in [layout.directory, layout.redundant] {
        let mut file = image.bytes();
        put(&mut file, directory * SECTOR + 4, &[0; 4]);
        let error = evidence(&file).err().unwrap();
        let expected = "grain directory entry 1 is 0 in one of the two directories";
        assert!(error.kind == Damaged && error.cause.contains(expected), "{error}");
    }
    let mut file = image.bytes();
    put(&mut file, table + 20, &[0; 4]);
    let error = evidence(&file).err().unwrap();
    assert!(
        error.cause.contains("entry 5 of grain table 0 is different in the table and in its copy"),
        "{error}"
    );
}

#[test]
fn a_text_inside_is_never_written() {
    let world = SimWorld::new(1, Options::default());
    world.write_file(FILE, &sample().bytes());
    world.run(async |env| {
        let link = read_descriptor(&root(&env), FILE).await.unwrap();
        assert_eq!(link.extents()[0].file, FILE, "whatever the text calls it");
        assert!(
            link.is_embedded() && link.is_read_only(true) && link.owner().is_none() && !link.is_prepared()
        );
        let written = std::panic::catch_unwind(|| link.to_bytes());
        assert!(written.is_err());
    });
}
