//! Random trees of links, read by QEMU and by unstun: bases of many forms made by either, and on them deltas of unstun
//! and SEsparse links, in several folders.
//!
//! `UNSTUN_SEED=n cargo test -p vmdk --release --test clients chains` begins with the tree of seed n.

mod base;
mod tree;

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use blk::ErrorKind;
use blk::manifest::{DeltaFormat, Manifest};
use sim::Rng;
use vmdk::home::{Folders, Home};

use crate::support::layers::{self, WRITES_MAX};
use crate::support::{GROWTH, qemu_img, run, scratch};
use base::{BASES, Base};
use tree::Tree;

/// Two of each kind of base.
const TREES: u64 = 16;
const CHILDREN_MAX: u64 = 10;

fn write_at(path: &Path, at: u64, bytes: &[u8]) {
    let mut file = std::fs::File::options().write(true).create(true).truncate(false).open(path).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(bytes).unwrap();
}

fn cut(path: &Path, bytes: u64) {
    std::fs::File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

/// Returns the given seeds, or always the same ones. A failure is that of the last one printed.
fn seeds() -> impl Iterator<Item = u64> {
    let given = std::env::var("UNSTUN_SEED").ok().map(|text| text.parse().expect("UNSTUN_SEED is a number"));
    let first: u64 = given.unwrap_or(1);
    (0..TREES).map(move |n| first.wrapping_add(n)).inspect(|seed| println!("replay with UNSTUN_SEED={seed}"))
}

#[test]
fn qemu_and_we_read_every_leaf_of_a_tree_alike() {
    for seed in seeds() {
        run(async move |env| {
            let kind = BASES[(seed % BASES.len() as u64) as usize];
            let mut tree = Tree::new(env, seed, kind);
            tree.compare().await;
            if tree.base_is_writable() && tree.rng.coin() {
                tree.write_again(0).await;
            }
            for _ in 0..tree.rng.between(1, CHILDREN_MAX) {
                tree.grow().await;
            }
            tree.compare().await;
        });
    }
}

/// QEMU reads on at the end of a file, and shows zeros or the parent's data. unstun names the file and its length.
#[test]
fn files_that_were_cut_are_refused_where_qemu_shows_something_else() {
    for seed in seeds() {
        run(async move |env| {
            let mut tree = Tree::new(env, seed, Base::Vmfs);
            let file = match seed % 3 {
                0 => 0,
                1 => tree.add_sesparse(0, 1),
                _ => {
                    let writes = tree.rng.between(1, WRITES_MAX);
                    tree.add_delta(0, 1, writes, DeltaFormat::Fitting).await
                }
            };
            let top = tree.nodes.len() - 1;
            let whole = tree.read(top).await.unwrap();
            let path = tree.extent_path(file);
            let within = tree.bytes_in_use(file);
            let length = tree.rng.between(within.start, within.end - 1);
            let lost = std::fs::read(&path).unwrap()[length as usize..within.end as usize].to_vec();
            cut(&path, length);
            let error = tree.read(top).await.unwrap_err();
            let text = error.to_string();
            assert_eq!(error.kind, ErrorKind::Damaged, "{text}");
            assert!(error.place.ends_with(&tree.nodes[file].extent), "{text}");
            // VMFSsparse counts sectors.
            let found = [length, length / blk::SECTOR].map(|length| length.to_string());
            assert!(text.contains("was cut") && found.iter().any(|found| text.contains(found)), "{text}");
            // The end of a table may be zeros, as which QEMU reads it.
            let guessed = lost.iter().all(|byte| *byte == 0);
            assert!((tree.convert(top) == whole) == guessed, "QEMU cannot know {} bytes", lost.len());
        });
    }
}

/// A child across the boundary of two files that QEMU made, which only a disk of more than 2 GiB has.
#[test]
fn a_child_over_two_files_of_two_gib() {
    const MIB: u64 = 1 << 20;
    const EDGE: u64 = 2048 * MIB;
    // The compared range: two MiB on either side.
    const WINDOW: std::ops::Range<u64> = EDGE - 2 * MIB..EDGE + 2 * MIB;
    let (_guard, path) = scratch();
    let size = (EDGE + 3 * MIB + 512).to_string();
    let make = ["create", "-q", "-f", "vmdk", "-o", "subformat=twoGbMaxExtentFlat", "web.vmdk", &size];
    qemu_img(&path, &make);
    let mut content = vec![0; (WINDOW.end - WINDOW.start) as usize];
    let mut rng = Rng::new(7);
    rng.fill(&mut content);
    let (left, right) = content.split_at(2 * MIB as usize);
    write_at(&path.join("web-f001.vmdk"), WINDOW.start, left);
    write_at(&path.join("web-f002.vmdk"), 0, right);
    run(async move |env| {
        let home = Home::new(env.open_root(path.to_str().unwrap()).unwrap(), Folders::default(), GROWTH);
        let home: &dyn Manifest = &home;
        let mut ours = vec![0; content.len()];
        layers::show(&*home.open("web.vmdk", false).await.unwrap(), WINDOW.start, &mut ours).await.unwrap();
        assert!(ours == content);
        let child = home.create_child("web.vmdk").await.unwrap();
        layers::write_randomly(&mut rng, &*child, WINDOW.start, &mut content, WRITES_MAX).await;
        layers::seal(&*child).await;
        layers::show(&*child, WINDOW.start, &mut ours).await.unwrap();
        assert!(ours == content);
        let (input, skip) = (format!("if={}", child.name()), format!("skip={}", WINDOW.start / MIB));
        let count = (WINDOW.end / MIB).to_string();
        // Its `count` is taken before `skip`.
        let count = format!("count={count}");
        let window = ["dd", "-f", "vmdk", "-O", "raw", &input, "of=out.raw", "bs=1M", &skip, &count];
        qemu_img(&path, &window);
        assert!(std::fs::read(path.join("out.raw")).unwrap() == content, "QEMU reads something else");
    });
}
