//! SEsparse files as QEMU and as unstun read them, and disks that VMware's own programs wrote, if they are available.
//!
//! The samples are public files that may not be redistributed: a folder beside the project's, `../shared/samples`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use blk::layer::Where;
use blk::manifest::Manifest;
use blk::{Env, ErrorKind, SECTOR};
use sim::Rng;
use vmdk::check::{Target, check};
use vmdk::home::Home;

use crate::sesparse::{GRAIN, Image};
use crate::support::layers::show;
use crate::support::{GROWTH, convert, run, scratch};

fn home(env: &Env, folder: &Path) -> Home {
    Home::new(env.open_root(folder.to_str().unwrap()).unwrap(), vmdk::home::Folders::default(), GROWTH)
}

/// Writes a descriptor with one extent; that of a child if it has a parent.
fn describe(folder: &Path, name: &str, kind: (&str, &str), extent: &str, sectors: u64, parent: Option<&str>) {
    let (create_type, keyword) = kind;
    let parent = parent.map_or("parentCID=ffffffff\n".into(), |parent| {
        format!("parentCID=00000001\nparentFileNameHint=\"{parent}\"\n")
    });
    let text = format!(
        "# Disk DescriptorFile\nversion=1\nCID=00000001\n{parent}createType=\"{create_type}\"\n\
         RW {sectors} {keyword} \"{extent}\"\n"
    );
    std::fs::write(folder.join(name), text).unwrap();
}

fn write_image(path: &Path, image: &Image) {
    let mut file = std::fs::File::create(path).unwrap();
    file.set_len(image.length()).unwrap();
    for (at, piece) in image.pieces() {
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&piece).unwrap();
    }
}

/// Returns a delta with every type of entry, and tables in any order, for a disk of that many sectors.
fn random_image(seed: u64, capacity: u64, align: u64) -> Image {
    let mut rng = Rng::new(seed);
    let mut image = Image::new(capacity, align);
    if rng.coin() {
        image = image.in_order_of_use();
    }
    let grains = capacity.div_ceil(8);
    let mut seen = BTreeSet::from([grains - 1]);
    for _ in 0..=rng.below(300) {
        let at = if rng.coin() { rng.below(grains) } else { rng.below(grains.min(64)) };
        match rng.below(6) {
            // There is room for each grain of the disk once.
            _ if !seen.insert(at) => image.unmap(at),
            0 => image.zero(at),
            1 => image.unmap(at),
            _ => image.data(at, rng.between(1, 255) as u8),
        };
    }
    image.data(grains - 1, 0xEE);
    image
}

#[test]
fn qemu_and_we_read_the_same() {
    // Includes sizes that are not multiples of a table or a grain, and areas aligned to 1 MiB, as in ESXi, or less.
    for (seed, capacity, align) in
        [(1, 1 << 15, 1 << 20), (2, 3 * 32768 + 8 * 77, 32 << 10), (3, 32768 + 5, 32 << 10), (4, 8, 1 << 20)]
    {
        let (_guard, path) = scratch();
        let base: Vec<u8> = (0..capacity * SECTOR).map(|at| (at / 512 % 251) as u8).collect();
        std::fs::write(path.join("web-flat.vmdk"), &base).unwrap();
        describe(&path, "web.vmdk", ("vmfs", "VMFS"), "web-flat.vmdk", capacity, None);
        write_image(&path.join("web-000001-sesparse.vmdk"), &random_image(seed, capacity, align));
        let kind = ("seSparse", "SESPARSE");
        describe(&path, "web-000001.vmdk", kind, "web-000001-sesparse.vmdk", capacity, Some("web.vmdk"));
        let folder = path.clone();
        let ours = run(async move |env| {
            let home = home(&env, &folder);
            let home: &dyn Manifest = &home;
            assert_eq!(home.chain("web-000001.vmdk").await.unwrap().len(), 2);
            let layer = home.open("web-000001.vmdk", true).await.unwrap();
            assert!(!layer.shape().writable, "whatever was asked for");
            assert_eq!(layer.check().await.unwrap(), Vec::<String>::new(), "seed {seed}");
            let mut content = base;
            show(&*layer, 0, &mut content).await.unwrap();
            content
        });
        let theirs = convert(&path, "web-000001.vmdk");
        assert!(theirs == ours, "seed {seed}: qemu-img reads something else");
    }
}

/// Unpacks the samples into a folder of the test; None if they are not available.
fn samples() -> Option<(tempfile::TempDir, PathBuf)> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two folders down");
    let folder = project.join("../shared/samples");
    if !folder.is_dir() {
        println!("no samples in {}: nothing is tested here", folder.display());
        return None;
    }
    let (guard, path) = scratch();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap().path();
        let mut bytes = std::fs::read(&entry).unwrap();
        let mut name = entry.file_name().unwrap().to_str().unwrap();
        if let Some(plain) = name.strip_suffix(".gz") {
            let mut unpacked = Vec::new();
            flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut unpacked).unwrap();
            (bytes, name) = (unpacked, plain);
        }
        std::fs::write(path.join(name), bytes).unwrap();
    }
    Some((guard, path))
}

#[test]
fn a_delta_that_esxi_wrote() {
    let Some((_guard, path)) = samples() else { return };
    const HELD: u64 = 16 << 20;
    describe(&path, "web-000001.vmdk", ("seSparse", "SESPARSE"), "sesparse.vmdk", 1 << 20, None);
    run(async move |env| {
        let home = home(&env, &path);
        let home: &dyn Manifest = &home;
        let layer = home.open("web-000001.vmdk", false).await.unwrap();
        assert_eq!(layer.shape().size_bytes, 512 << 20);
        let runs = layer.lookup(0..512 << 20).await.unwrap();
        assert_eq!(runs.len(), 2, "{runs:?}");
        assert!(matches!(runs[0].place, Where::Data { .. }) && runs[0].len == HELD, "{runs:?}");
        assert_eq!((runs[1].place, runs[1].start), (Where::Parent, HELD));
        let mut content = vec![0; HELD as usize + GRAIN as usize];
        show(&*layer, 0, &mut content).await.unwrap();
        assert!(content[..HELD as usize].iter().all(|byte| *byte == 0x61));
        assert!(content[HELD as usize..].iter().all(|byte| *byte == 0));
        assert_eq!(layer.check().await.unwrap(), Vec::<String>::new());
        assert_eq!(layer.usage().held_bytes, HELD);
    });
}

#[test]
fn hosted_sparse_disks_of_other_programs() {
    let Some((_guard, path)) = samples() else { return };
    // VMware's program made the same disk in two formats.
    let expected = convert(&path, "streamOptimized.vmdk");
    for name in ["monolithicSparse.vmdk", "ext2.vmdk"] {
        let qemus = convert(&path, name);
        assert!(name == "ext2.vmdk" || qemus == expected, "the samples have changed");
        let folder = path.clone();
        run(async move |env| {
            let home = home(&env, &folder);
            let layer = (&home as &dyn Manifest).open(name, false).await.unwrap();
            let mut content = vec![0; layer.shape().size_bytes as usize];
            show(&*layer, 0, &mut content).await.unwrap();
            assert!(content == qemus, "{name}");
            assert_eq!(layer.check().await.unwrap(), Vec::<String>::new());
        });
    }
    run(async move |env| {
        let home = home(&env, &path);
        let home: &dyn Manifest = &home;
        let name = "streamOptimized.vmdk";
        let opened = home.open(name, false).await.map(drop);
        for error in [opened.unwrap_err(), home.chain(name).await.unwrap_err()] {
            assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
            assert!(error.place.ends_with(name) && error.cause.contains("qemu-img convert"), "{error}");
        }
    });
}

#[test]
fn a_missing_extent_is_named() {
    let Some((_guard, path)) = samples() else { return };
    run(async move |env| {
        let home = home(&env, &path);
        let home: &dyn Manifest = &home;
        let error = home.open("missing-extent-000001.vmdk", false).await.map(drop).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert!(error.place.ends_with("missing-extent-000001.vmdk"), "{error}");
        assert!(error.cause.contains("vmfs_thick-000001-delta.vmdk"), "{error}");
    });
}

/// Checks the folder of samples as a folder of disks on a real file system; nothing in it changes.
#[test]
fn a_check_of_the_samples_names_what_is_wrong() {
    let Some((_guard, path)) = samples() else { return };
    let before = listing(&path);
    let folder = path.clone();
    let report = run(async move |env| {
        let dir = env.open_root(folder.to_str().unwrap()).unwrap();
        check(&dir, Target::Folder).await.unwrap()
    });
    let lines: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    let text = lines.join("\n");
    for expected in [
        "missing-extent-000001.vmdk: the extent line is \"vmfs_thick-000001-delta.vmdk\", expected a file, which is not here",
        "missing-extent-000001.vmdk: parentFileNameHint is \"vmfs_thick.vmdk\"",
        "sesparse.vmdk: its descriptor is missing",
        "RW 1048576 SESPARSE \"sesparse.vmdk\"",
        "streamOptimized.vmdk: the content is a streamOptimized disk",
        "the list of .vmx files is empty",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in\n{text}");
    }
    assert_eq!(lines.len(), 5, "{text}");
    assert_eq!(listing(&path), before, "a check changes nothing");
}

/// Returns names, lengths and times of change.
fn listing(folder: &Path) -> BTreeMap<String, (u64, std::time::SystemTime)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let facts = entry.metadata().unwrap();
        (entry.file_name().into_string().unwrap(), (facts.len(), facts.modified().unwrap()))
    });
    entries.collect()
}
