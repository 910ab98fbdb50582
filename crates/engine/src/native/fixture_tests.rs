//! Stores that earlier programs wrote, one with each set of features: every later program must read them.
//!
//! `UNSTUN_WRITE_FIXTURES=1 cargo test -p engine fixture` writes them anew, for a feature that is new. The fixture of a
//! feature that has been released never changes.

use std::path::Path;
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
use super::space::Growth;
use super::store::{Store, StoreOptions};
use super::tests::{disk, fill, run, write_sectors};

const PLAIN: &[u8] = include_bytes!("fixtures/plain.bin");
const SECTOR_MASKS: &[u8] = include_bytes!("fixtures/sector-masks.bin");
const DISK_BLOCKS: u64 = 2000;
const SECTORS: u64 = BLOCK / SECTOR;

async fn open(env: &Env) -> Rc<Store> {
    let file = env.open_root("/").unwrap().open("store", OpenMode::Write).await.unwrap();
    let options = StoreOptions { reserve_blocks: 64, ..StoreOptions::default() };
    let growth = Growth { ahead_blocks: 4, chunk_blocks: 2 };
    Store::open(env.clone(), file, options, growth, true).await.unwrap()
}

/// Makes a store with sealed, running and dropped states, of which a part is merged and the rest is in the journal.
async fn make(env: &Env, sector_masks: bool) {
    let dir = env.open_root("/").unwrap();
    let file = dir.create_new("store").await.unwrap();
    let layout = NewStore { journal_pages: 824, group_blocks: 64, sector_masks };
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

fn is_read(fixture: &'static [u8], sector_masks: bool) {
    let world = SimWorld::new(1, sim::Options::default());
    run(&world, |env| async move {
        restore(&env, fixture).await;
        let store = open(&env).await;
        assert_eq!(store.superblock.get().has_sector_masks(), sector_masks);
        verify(&store).await;
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
        for (name, sector_masks) in [("plain", false), ("sector-masks", true)] {
            let world = SimWorld::new(1, sim::Options::default());
            run(&world, move |env| async move { make(&env, sector_masks).await });
            let bytes = world.run(async |env| encode(&env).await).unwrap();
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/native/fixtures");
            std::fs::write(folder.join(format!("{name}.bin")), bytes).unwrap();
        }
        return;
    }
    is_read(PLAIN, false);
    is_read(SECTOR_MASKS, true);
}
