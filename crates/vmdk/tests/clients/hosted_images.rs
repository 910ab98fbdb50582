//! Hosted sparse disks that QEMU wrote, as unstun reads them: with the descriptor inside, split, and on a parent.

use std::path::Path;
use std::process::Command;

use blk::SECTOR;
use blk::manifest::Manifest;
use sim::Rng;
use vmdk::check::{Target, check};
use vmdk::home::{Folders, Home};

use crate::support::layers::show;
use crate::support::{GROWTH, convert, qemu_img, run, scratch};

/// Not a multiple of a grain.
const BYTES: u64 = (70 << 20) + 3 * SECTOR;

/// Writes a raw file with runs of data at random places.
fn raw_disk(path: &Path, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut content = vec![0; BYTES as usize];
    for _ in 0..40 {
        let sectors = [1, 8, 128, 300, 5000][rng.below(5) as usize];
        let at = rng.below(BYTES / SECTOR - sectors) * SECTOR;
        rng.fill(&mut content[at as usize..(at + sectors * SECTOR) as usize]);
    }
    rng.fill(&mut content[(BYTES - SECTOR) as usize..]);
    std::fs::write(path, content).unwrap();
}

/// Writes and zeroes parts of a disk with QEMU.
fn change(folder: &Path, disk: &str, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut command = Command::new("qemu-io");
    command.args(["-f", "vmdk"]).current_dir(folder);
    for _ in 0..30 {
        let sectors = [1, 8, 128, 300][rng.below(4) as usize];
        let at = rng.below(BYTES / SECTOR - sectors) * SECTOR;
        let what = if rng.coin() { format!("-P {}", rng.between(1, 255)) } else { "-z".to_owned() };
        command.args(["-c", &format!("write {what} {at} {}", sectors * SECTOR)]);
    }
    let output = command.arg(disk).output().expect("qemu-io is installed by scripts/setup.sh");
    assert!(output.status.success(), "{output:?}");
}

/// Returns the disk as unstun reads it, and what a check of the folder finds about its files.
fn read(folder: &Path, disk: &'static str) -> (Vec<u8>, Vec<String>) {
    let folder = folder.to_path_buf();
    run(async move |env| {
        let dir = env.open_root(folder.to_str().unwrap()).unwrap();
        let findings = check(&dir, Target::File(disk)).await.unwrap().findings;
        let home = Home::new(dir, Folders::default(), GROWTH);
        let home: &dyn Manifest = &home;
        let chain = home.chain(disk).await.unwrap();
        let mut content = vec![0; chain[0].size_bytes as usize];
        for layer in chain {
            assert!(layer.read_only);
            let layer = home.open(&layer.name, true).await.unwrap();
            assert!(!layer.shape().writable);
            assert_eq!(layer.check().await.unwrap(), Vec::<String>::new());
            show(&*layer, 0, &mut content).await.unwrap();
        }
        (content, findings.iter().map(ToString::to_string).collect())
    })
}

#[test]
fn disks_and_their_children_read_as_qemu_reads_them() {
    for (seed, options) in
        [(1, "monolithicSparse"), (2, "monolithicSparse,zeroed_grain=on"), (3, "twoGbMaxExtentSparse")]
    {
        let (_guard, path) = scratch();
        raw_disk(&path.join("disk.raw"), seed);
        let form = format!("subformat={options}");
        qemu_img(&path, &["convert", "-O", "vmdk", "-o", &form, "disk.raw", "web.vmdk"]);
        let raw = std::fs::read(path.join("disk.raw")).unwrap();
        let (content, findings) = read(&path, "web.vmdk");
        assert!(content[..raw.len()] == raw, "{options}: the base");
        assert_eq!(findings, Vec::<String>::new(), "{options}");
        let parent = "backing_file=web.vmdk,backing_fmt=vmdk,subformat=monolithicSparse,zeroed_grain=on";
        qemu_img(&path, &["create", "-f", "vmdk", "-o", parent, "web-000001.vmdk"]);
        change(&path, "web-000001.vmdk", seed);
        let expected = convert(&path, "web-000001.vmdk");
        let (content, findings) = read(&path, "web-000001.vmdk");
        assert!(content == expected, "{options}: the child");
        assert_eq!(findings, Vec::<String>::new(), "{options}");
    }
}

/// Three extents of VMware's size, sparse, with data at the edges of each.
#[test]
fn a_split_disk_of_several_gibibytes() {
    const GIB: u64 = 1 << 30;
    let (_guard, path) = scratch();
    qemu_img(&path, &["create", "-f", "vmdk", "-o", "subformat=twoGbMaxExtentSparse", "web.vmdk", "5G"]);
    let edge = 4_192_256 * SECTOR;
    let places = [0, edge - 4096, edge, 2 * edge - 4096, 2 * edge, 5 * GIB - 8192];
    let mut command = Command::new("qemu-io");
    command.args(["-f", "vmdk"]).current_dir(&path);
    for (index, at) in places.iter().enumerate() {
        command.args(["-c", &format!("write -P {} {at} 4096", index + 1)]);
    }
    assert!(command.arg("web.vmdk").output().unwrap().status.success());
    let names = std::fs::read_dir(&path).unwrap().count();
    run(async move |env| {
        let dir = env.open_root(path.to_str().unwrap()).unwrap();
        assert_eq!(check(&dir, Target::File("web.vmdk")).await.unwrap().findings, []);
        let home = Home::new(dir, Folders::default(), GROWTH);
        let layer = (&home as &dyn Manifest).open("web.vmdk", false).await.unwrap();
        assert_eq!(layer.files().len(), names - 1);
        for (index, at) in places.into_iter().enumerate() {
            let mut content = vec![0; 8192];
            show(&*layer, at, &mut content).await.unwrap();
            let next = if places.contains(&(at + 4096)) { index as u8 + 2 } else { 0 };
            assert_eq!((content[0], content[4095], content[4096]), (index as u8 + 1, index as u8 + 1, next));
        }
    });
}
