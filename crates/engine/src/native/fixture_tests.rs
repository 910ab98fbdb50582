//! Stores that earlier programs wrote, one with each set of features: every later program must read them.
//!
//! `UNSTUN_WRITE_FIXTURES=1 cargo test -p engine fixture` writes them anew, for a feature that is new. The fixture of a
//! feature that has been released never changes.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Buf, Env};
use sim::SimWorld;

use super::NativeDisk;
use super::backing::SECTOR;
use super::change::Op;
use super::layout::BLOCK;
use super::recover::NewStore;
use super::sources::tests::{PatternImage, over_a_source, pattern};
use super::space::Growth;
use super::store::{Store, StoreOptions};
use super::tests::{disk, fill, run, write_sectors};
use crate::job::{Job, LAND};

const FIXTURES: [(&str, Feature); 4] = [
    ("plain", Feature::Plain),
    ("sector-masks", Feature::SectorMasks),
    ("sources", Feature::Sources),
    ("rebuildable", Feature::Rebuildable),
];
const DISK_BLOCKS: u64 = 2000;
const SECTORS: u64 = BLOCK / SECTOR;

async fn open(env: &Env) -> Rc<Store> {
    let file = env.open_root("/").unwrap().open("store", OpenMode::Write).await.unwrap();
    let options = StoreOptions { reserve_blocks: 64, ..StoreOptions::default() };
    let growth = Growth { ahead_blocks: 4, chunk_blocks: 2 };
    Store::open(env.clone(), file, options, growth, true).await.unwrap()
}

/// The feature that a fixture has; each has those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Feature {
    Plain,
    SectorMasks,
    Sources,
    Rebuildable,
}

/// Bytes of the two sources of a fixture. The first has landed.
const IMAGE_BYTES: u64 = 24 * BLOCK - SECTOR;
/// A running node over the first source, the state that was sealed before, and a node over the second source.
const OVER: u64 = 50;
const SEALED_OVER: u64 = 51;
const OVER_SECOND: u64 = 60;

/// Makes disks over two sources, of which one has landed.
async fn make_sources(env: &Env, store: &Rc<Store>) {
    let first = over_a_source(store, OVER, 30, IMAGE_BYTES).await.unwrap();
    store.attach_source(first, PatternImage::new(env, IMAGE_BYTES, 0)).unwrap();
    let job = Job::new(env.clone(), 1, LAND, String::new());
    store.land(first, &job).await.unwrap();
    fill(&disk(store, OVER), 12, 2, 1).await;
    store.change(&[Op::Take { running: OVER, sealed: SEALED_OVER }]).unwrap();
    store.checkpoint().await.unwrap();
    disk(store, OVER).discard(10 * BLOCK..11 * BLOCK).await.unwrap();
    over_a_source(store, OVER_SECOND, 300, IMAGE_BYTES).await.unwrap();
    fill(&disk(store, OVER_SECOND), 6, 1, 2).await;
}

async fn verify_sources(store: &Rc<Store>) {
    let image = |blocks: std::ops::Range<u64>| {
        let sectors = blocks.start * SECTORS..blocks.end * SECTORS;
        sectors.map(|sector| pattern(IMAGE_BYTES, sector)).collect::<Vec<_>>()
    };
    let sealed = [image(5..12), vec![1; 16], image(14..30)].concat();
    assert_eq!(sectors(&disk(store, SEALED_OVER), 5, 25).await, sealed);
    let running = [image(9..10), vec![0; 8], image(11..12), vec![1; 8]].concat();
    assert_eq!(sectors(&disk(store, OVER), 9, 4).await, running);
    let landed: Vec<bool> = store.sources().iter().map(|source| source.has_landed()).collect();
    assert_eq!(landed, [true, false]);
    let second = disk(store, OVER_SECOND);
    let (_, missing) = second.clone().read(5 * BLOCK, Buf::alloc(BLOCK as usize)).await;
    assert_eq!(missing.unwrap_err().kind, blk::ErrorKind::Refused);
    store.attach_source(2, PatternImage::new(&store.env, IMAGE_BYTES, 0)).unwrap();
    assert_eq!(sectors(&second, 5, 3).await, [image(5..6), vec![2; 8], image(7..8)].concat());
}

/// Makes a store with sealed, running and dropped states, of which a part is merged and the rest is in the journal.
async fn make(env: &Env, feature: Feature) {
    let dir = env.open_root("/").unwrap();
    let file = dir.create_new("store").await.unwrap();
    let layout = NewStore {
        journal_pages: 824,
        group_blocks: 64,
        sector_masks: feature >= Feature::SectorMasks,
        rebuildable: feature >= Feature::Rebuildable,
    };
    Store::format(env, &file, layout).await.unwrap();
    dir.sync().await.unwrap();
    let store = open(env).await;
    store.change(&[Op::Create { node: 1, size_blocks: DISK_BLOCKS }]).unwrap();
    let running = disk(&store, 1);
    fill(&running, 10, 8, 1).await;
    fill(&running, 900, 2, 2).await;
    store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
    store.checkpoint().await.unwrap();
    write_sectors(&running, 10 * SECTORS + 7, 8, 3).await;
    fill(&running, 14, 1, 4).await;
    store.change(&[Op::Branch { from: 2, node: 3 }]).unwrap();
    store.checkpoint().await.unwrap();
    write_sectors(&running, 11 * SECTORS + 7, 3, 5).await;
    write_sectors(&disk(&store, 3), 900 * SECTORS + 2, 2, 6).await;
    running.clone().discard(16 * BLOCK..17 * BLOCK).await.unwrap();
    if feature >= Feature::Sources {
        make_sources(env, &store).await;
    }
    store.flush().await.unwrap();
}

/// Length of a sector whose bytes are all the same: only one follows.
const UNIFORM: u16 = u16::MAX;

/// Returns the sectors that are not zeros, each as its number, u64, its length without zeros at the end, u16, and its
/// bytes.
async fn encode(env: &Env) -> Vec<u8> {
    let file = env.open_root("/").unwrap().open("store", OpenMode::Read).await.unwrap();
    let size = file.size().await.unwrap();
    let (content, result) = file.read(0, Buf::alloc(size as usize)).await;
    result.unwrap();
    let mut out = size.to_le_bytes().to_vec();
    for (n, sector) in content.chunks_exact(SECTOR as usize).enumerate() {
        let len = sector.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if len > 0 {
            out.extend((n as u64).to_le_bytes());
            if sector.iter().all(|byte| *byte == sector[0]) {
                out.extend(UNIFORM.to_le_bytes());
                out.push(sector[0]);
            } else {
                out.extend((len as u16).to_le_bytes());
                out.extend(&sector[..len]);
            }
        }
    }
    out
}

async fn restore(env: &Env, mut fixture: &[u8]) {
    let dir = env.open_root("/").unwrap();
    let file = dir.create_new("store").await.unwrap();
    let mut take = |len: usize| {
        let (head, rest) = fixture.split_at_checked(len)?;
        fixture = rest;
        Some(head)
    };
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    file.set_len(number(take(8).unwrap())).await.unwrap();
    while let Some(sector) = take(8).map(number) {
        let len = u16::from_le_bytes(take(2).unwrap().try_into().unwrap());
        let mut data = Buf::zeroed(SECTOR as usize);
        match len {
            UNIFORM => data.fill(take(1).unwrap()[0]),
            _ => data[..usize::from(len)].copy_from_slice(take(len.into()).unwrap()),
        }
        file.write(sector * SECTOR, data.freeze()).await.unwrap();
    }
    file.flush().await.unwrap();
    dir.sync().await.unwrap();
}

/// Returns the first byte of each sector of these blocks.
async fn sectors(disk: &Rc<NativeDisk>, block: u64, blocks: u64) -> Vec<u8> {
    let (buf, result) = disk.clone().read(block * BLOCK, Buf::alloc((blocks * BLOCK) as usize)).await;
    result.unwrap();
    buf.chunks_exact(SECTOR as usize).map(|sector| sector[0]).collect()
}

async fn verify(store: &Rc<Store>) {
    let expected = [vec![1; 7], vec![3; 8], vec![5; 3], vec![1; 6]].concat();
    assert_eq!(sectors(&disk(store, 1), 10, 3).await, expected);
    assert_eq!(sectors(&disk(store, 1), 13, 5).await, [[1; 8], [4; 8], [1; 8], [0; 8], [1; 8]].concat());
    assert_eq!(sectors(&disk(store, 2), 10, 8).await, [1; 64]);
    assert_eq!(sectors(&disk(store, 3), 900, 1).await, [2, 2, 6, 6, 2, 2, 2, 2]);
    let report = store.check().await.unwrap();
    assert!(report.is_sound(), "{report:?}");
}

fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/native/fixtures").join(format!("{name}.bin"))
}

fn is_read(fixture: Vec<u8>, feature: Feature) {
    let sector_masks = feature >= Feature::SectorMasks;
    let world = SimWorld::new(1, sim::Options::default());
    run(&world, |env| async move {
        restore(&env, &fixture).await;
        let store = open(&env).await;
        assert_eq!(store.superblock.get().has_sector_masks(), sector_masks);
        assert_eq!(store.superblock.get().has_sources(), feature >= Feature::Sources);
        assert_eq!(store.superblock.get().is_rebuildable(), feature >= Feature::Rebuildable);
        verify(&store).await;
        if feature >= Feature::Sources {
            verify_sources(&store).await;
        }
        assert_eq!(store.node(1).unwrap().roots().unwrap().backings.is_some(), sector_masks);
        store.change(&[Op::Drop { node: 2 }]).unwrap();
        store.close().await.unwrap();
    });
    run(&world, |env| async move {
        let store = open(&env).await;
        while store.has_to_reclaim() {
            store.progress.wait().await;
        }
        assert_eq!(sectors(&disk(&store, 1), 17, 1).await, [1; 8]);
        store.close().await.unwrap();
    });
}

#[test]
fn a_fixture_of_each_feature_is_read_and_written() {
    if std::env::var_os("UNSTUN_WRITE_FIXTURES").is_some() {
        for (name, feature) in FIXTURES {
            let world = SimWorld::new(1, sim::Options::default());
            run(&world, move |env| async move { make(&env, feature).await });
            let bytes = world.run(async |env| encode(&env).await).unwrap();
            std::fs::write(path_of(name), bytes).unwrap();
        }
        return;
    }
    for (name, feature) in FIXTURES {
        is_read(std::fs::read(path_of(name)).unwrap(), feature);
    }
}
