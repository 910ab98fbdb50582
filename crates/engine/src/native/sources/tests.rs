//! Disks over a source: what they show, what they refuse, and what checks and differences say of them.

use std::cell::Cell;

use blk::volume::{BlockStatus, VolumeInfo, ZeroMode};
use blk::{Buf, Env, ErrorKind, Local, Slice};
use sim::SimWorld;

use super::super::NativeDisk;
use super::super::check::Fault;
use super::super::layout::device_word;
use super::super::lineage::Node;
use super::super::tests::{disk, fill, open_store, run, shows, write_sectors};
use super::super::tree::span;
use super::super::tree::{Root, Roots, WalkItem, survey};
use super::super::view::View;
use super::*;
use crate::job::{Job, LAND};

/// An image whose sectors each have one byte throughout; some are zeros.
pub(in crate::native) struct PatternImage {
    env: Env,
    bytes: u64,
    /// Longest time that a read takes.
    delay_us: u64,
    reads: Cell<u64>,
}

/// Blocks of the image that are all zeros: one in this many runs of `ZERO_RUN` blocks.
const ZERO_EVERY: u64 = 4;
const ZERO_RUN: u64 = 5;

/// Returns the byte that a sector of a pattern image of this size has; zero behind its end.
pub(in crate::native) fn pattern(bytes: u64, sector: u64) -> u8 {
    let block = sector * SECTOR / BLOCK;
    let is_zero = (block / ZERO_RUN).is_multiple_of(ZERO_EVERY) || sector * SECTOR >= bytes;
    if is_zero { 0 } else { 251 + (sector * 7 % 5) as u8 }
}

impl PatternImage {
    pub(in crate::native) fn new(env: &Env, bytes: u64, delay_us: u64) -> Rc<PatternImage> {
        Rc::new(PatternImage { env: env.clone(), bytes, delay_us, reads: Cell::default() })
    }
}

fn refused() -> Local<'static, Result<()>> {
    Box::pin(async { Err(Error::refused("image", "read-only")) })
}

impl Volume for PatternImage {
    fn info(&self) -> VolumeInfo {
        VolumeInfo { size_bytes: self.bytes, read_only: true, preferred_bytes: 4096, fast_zero: false }
    }

    fn read(self: Rc<Self>, offset: u64, mut buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move {
            assert!(
                offset.is_multiple_of(SECTOR) && offset + buf.len() as u64 <= self.bytes,
                "within the image"
            );
            self.reads.update(|reads| reads + 1);
            if self.delay_us > 0 {
                self.env.sleep_us(self.env.random() % self.delay_us).await;
            }
            for (n, sector) in buf.chunks_exact_mut(SECTOR as usize).enumerate() {
                sector.fill(pattern(self.bytes, offset / SECTOR + n as u64));
            }
            (buf, Ok(()))
        })
    }

    fn write(self: Rc<Self>, _: u64, _: Slice) -> Local<'static, Result<()>> {
        refused()
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        refused()
    }

    fn write_zeroes(self: Rc<Self>, _: std::ops::Range<u64>, _: ZeroMode) -> Local<'static, Result<()>> {
        refused()
    }

    fn status(self: Rc<Self>, range: std::ops::Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        let zero = pattern(self.bytes, range.start / SECTOR) == 0;
        let step = ZERO_RUN * BLOCK;
        let len = (range.start / step + 1) * step - range.start;
        let status = BlockStatus { len: len.min(range.end - range.start), hole: zero, zero };
        Box::pin(async move { Ok(vec![status]) })
    }
}

/// Ends within a block.
pub(in crate::native) const IMAGE_BYTES: u64 = 40_000 * BLOCK - 3 * SECTOR;
const DISK_BLOCKS: u64 = 100_000;
/// The node of the disk over the source in these tests.
const DISK: u64 = 50;

pub(in crate::native) async fn over_a_source(
    store: &Rc<Store>,
    node: u64,
    size_blocks: u64,
    bytes: u64,
) -> Result<u8> {
    let device = store.add_source("/images/base.raw", bytes).await?;
    store.change(&[store.create_over(node, size_blocks, device)?])?;
    Ok(device)
}

/// Checks that sectors show the image.
async fn shows_image(disk: &Rc<NativeDisk>, first: u64, count: u64) {
    let (buf, result) = disk.clone().read(first * SECTOR, Buf::alloc((count * SECTOR) as usize)).await;
    result.unwrap();
    for (n, sector) in buf.chunks_exact(SECTOR as usize).enumerate() {
        let expected = pattern(IMAGE_BYTES, first + n as u64);
        assert!(sector.iter().all(|byte| *byte == expected), "sector {}", first + n as u64);
    }
}

async fn is_sound(store: &Rc<Store>) {
    let report = store.check().await.unwrap();
    assert!(report.is_sound() && report.behind.is_none(), "{report:#?}");
}

fn in_world(test: impl AsyncFnOnce(Env) + 'static) {
    let world = SimWorld::new(1, sim::Options::default());
    run(&world, |env| async move { test(env).await });
}

/// The first sector of a block that the image has as data, and the first of one that it has as zeros.
const DATA: u64 = 6 * 8;
const ZEROS: u64 = 21 * 8;

#[test]
fn a_disk_over_a_source_shows_it_until_it_is_written() {
    let world = SimWorld::new(1, sim::Options::default());
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        assert!(!store.superblock.get().has_sources());
        let device = over_a_source(&store, DISK, DISK_BLOCKS, IMAGE_BYTES).await.unwrap();
        assert!(store.superblock.get().has_sources());
        store.attach_source(device, PatternImage::new(&env, IMAGE_BYTES, 0)).unwrap();
        let running = disk(&store, DISK);
        shows_image(&running, 0, 400).await;
        shows_image(&running, IMAGE_BYTES / SECTOR - 9, 30).await;
        assert_eq!((shows(&running, 99_999).await, running.mapped_bytes()), (0, 0));
        // A part of a block, parts of two blocks, whole blocks, and a discard.
        write_sectors(&running, DATA + 2, 3, 1).await;
        shows_image(&running, DATA, 2).await;
        shows_image(&running, DATA + 5, 10).await;
        write_sectors(&running, DATA + 20, 8, 2).await;
        shows_image(&running, DATA + 16, 4).await;
        shows_image(&running, DATA + 28, 4).await;
        fill(&running, 300, 4, 3).await;
        running.clone().discard(252 * BLOCK..1000 * BLOCK).await.unwrap();
        assert_eq!((shows(&running, 301).await, shows(&running, 700).await), (0, 0));
        shows_image(&running, 251 * 8, 8).await;
        shows_image(&running, 1000 * 8, 8).await;
        store.change(&[Op::Take { running: DISK, sealed: 60 }]).unwrap();
        fill(&running, 1001, 1, 4).await;
        is_sound(&store).await;
        shows_image(&disk(&store, 60), 1001 * 8, 8).await;
        assert_eq!(shows(&disk(&store, 60), 700).await, 0);
        store.close().await.unwrap();
    });
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        store.attach_source(1, PatternImage::new(&env, IMAGE_BYTES, 0)).unwrap();
        let running = disk(&store, DISK);
        shows_image(&running, DATA + 28, 400).await;
        assert_eq!((shows(&running, 700).await, shows(&running, 1001).await), (0, 4));
        store.change(&[Op::Branch { from: 60, node: 61 }]).unwrap();
        shows_image(&disk(&store, 61), 1000 * 8, 24).await;
        store.change(&[Op::Drop { node: 60 }]).unwrap();
        is_sound(&store).await;
        shows_image(&disk(&store, 61), 1000 * 8, 24).await;
        assert_eq!(shows(&disk(&store, 61), 700).await, 0);
        store.close().await.unwrap();
    });
}

#[test]
fn an_image_that_is_not_attached_is_missing_only_where_it_is_needed() {
    in_world(async |env| {
        let store = open_store(&env).await.unwrap();
        let device = over_a_source(&store, DISK, DISK_BLOCKS, IMAGE_BYTES).await.unwrap();
        let running = disk(&store, DISK);
        fill(&running, 10, 2, 7).await;
        assert_eq!((shows(&running, 10).await, shows(&running, 50_000).await), (7, 0));
        let (_, result) = running.clone().read(11 * BLOCK, Buf::alloc(8192)).await;
        let error = result.unwrap_err();
        assert!(error.kind == ErrorKind::Refused && error.cause.contains("blocks 12..13"), "{error}");
        let part = Buf::zeroed(SECTOR as usize).freeze();
        assert!(running.clone().write(DATA * SECTOR, part).await.is_err(), "the rest of its block is needed");
        let status = running.clone().status(10 * BLOCK..40_001 * BLOCK).await.unwrap();
        assert_eq!(status.iter().map(|piece| piece.hole).collect::<Vec<_>>(), [false, true]);
        let image = PatternImage::new(&env, IMAGE_BYTES - SECTOR, 0);
        assert_eq!(store.attach_source(device, image).unwrap_err().kind, ErrorKind::Invalid);
        store.attach_source(device, PatternImage::new(&env, IMAGE_BYTES, 0)).unwrap();
        shows_image(&running, 12 * 8, 8).await;
        store.close().await.unwrap();
    });
}

#[test]
fn the_status_of_a_source_is_that_of_its_image() {
    in_world(async |env| {
        let store = open_store(&env).await.unwrap();
        let device = over_a_source(&store, DISK, DISK_BLOCKS, IMAGE_BYTES).await.unwrap();
        store.attach_source(device, PatternImage::new(&env, IMAGE_BYTES, 0)).unwrap();
        let running = disk(&store, DISK);
        fill(&running, ZEROS / 8, 1, 7).await;
        let mut at = 0;
        while at < DISK_BLOCKS * BLOCK {
            for piece in running.clone().status(at..DISK_BLOCKS * BLOCK).await.unwrap() {
                let sectors = at / SECTOR..(at + piece.len) / SECTOR;
                for sector in sectors.step_by(8) {
                    let written = sector / 8 == ZEROS / 8;
                    assert_eq!(piece.zero, !written && pattern(IMAGE_BYTES, sector) == 0, "sector {sector}");
                }
                at += piece.len;
            }
        }
        assert_eq!(at, DISK_BLOCKS * BLOCK);
        store.close().await.unwrap();
    });
}

#[test]
fn differences_between_states_over_a_source_are_what_was_written() {
    in_world(async |env| {
        let store = open_store(&env).await.unwrap();
        over_a_source(&store, DISK, DISK_BLOCKS, IMAGE_BYTES).await.unwrap();
        let running = disk(&store, DISK);
        fill(&running, 5, 1, 1).await;
        store.change(&[Op::Take { running: DISK, sealed: 60 }]).unwrap();
        fill(&running, 300, 2, 2).await;
        running.clone().discard(31_000 * BLOCK..33_000 * BLOCK).await.unwrap();
        for merged in [false, true] {
            if merged {
                store.checkpoint().await.unwrap();
            }
            let (written, _) = store.differences(Some(60), DISK, 0, 10_000).await.unwrap();
            assert_eq!(written, [300 * BLOCK..302 * BLOCK, 31_000 * BLOCK..33_000 * BLOCK], "{merged}");
            let (all, end) = store.differences(None, 60, 0, 10).await.unwrap();
            let span = span(2).min(DISK_BLOCKS) * BLOCK;
            assert_eq!((all.len(), end), (1, DISK_BLOCKS * BLOCK), "the source may have data anywhere");
            assert_eq!(all[0], 0..span);
            assert_eq!(store.written_in(&[DISK]).await.unwrap(), 2 * BLOCK);
            assert_eq!(store.held_data(&[60]).await.unwrap(), 0);
            assert_eq!(store.held_data(&[DISK, 60]).await.unwrap(), 3);
        }
        store.close().await.unwrap();
    });
}

#[test]
fn changes_that_contradict_the_sources_are_refused() {
    in_world(async |env| {
        let store = open_store(&env).await.unwrap();
        let value = SourceItem { landing: 9, bytes: 4096, landed: 0, name: String::new() }.encode();
        let put = Op::Put { key: source_key(1), value };
        let refused = |ops: &[Op], why: &str| {
            let error = store.change(ops).unwrap_err();
            assert!(error.cause.contains(why), "{error}");
        };
        refused(&[Op::Create { node: 9, size_blocks: 1 }, put.clone()], "without the feature bit");
        let device = over_a_source(&store, DISK, DISK_BLOCKS, IMAGE_BYTES).await.unwrap();
        let landing = store.source(device).unwrap().landing;
        refused(&[Op::Drop { node: landing }], "what landed of source 1");
        refused(&[put], "otherwise than by landing");
        refused(&[Op::Drop { node: landing }, Op::Delete { key: source_key(1) }], "is over it");
        let over = |device, blocks| Op::CreateOver { node: 70, size_blocks: 100, device, blocks };
        refused(&[over(2, 1)], "source 2 has 0 blocks");
        refused(&[over(1, 101)], "source 1 has 40000 blocks");
        refused(&[Op::Delete { key: Key { minor: 255, ..source_key(1) } }], "expected 1 to 254");
        assert!(store.create_over(70, 100, device).unwrap_err().cause.contains("as large at least"));
        for bytes in [0, 100, (SOURCE_BLOCKS_MAX + 1) * BLOCK] {
            assert_eq!(store.add_source("x", bytes).await.unwrap_err().kind, ErrorKind::Invalid);
        }
        let largest = store.add_source("largest", SOURCE_BLOCKS_MAX * BLOCK).await.unwrap();
        store.change(&[store.create_over(71, SOURCE_BLOCKS_MAX, largest).unwrap()]).unwrap();
        fill(&disk(&store, 71), SOURCE_BLOCKS_MAX - 1, 1, 1).await;
        is_sound(&store).await;
        store.close().await.unwrap();
    });
}

fn job(env: &Env) -> Rc<Job> {
    Job::new(env.clone(), 1, LAND, String::new())
}

#[test]
fn a_landed_source_needs_no_image_and_takes_the_space_of_its_data() {
    let world = SimWorld::new(1, sim::Options::default());
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        let device = over_a_source(&store, DISK, DISK_BLOCKS, IMAGE_BYTES).await.unwrap();
        let image = PatternImage::new(&env, IMAGE_BYTES, 500);
        store.attach_source(device, image.clone()).unwrap();
        let running = disk(&store, DISK);
        fill(&running, 300, 4, 3).await;
        running.clone().discard(500 * BLOCK..600 * BLOCK).await.unwrap();
        // A landing that is cancelled goes on later.
        let (first, worker) = (job(&env), store.clone());
        let landing = first.clone();
        let done = env.spawn(async move { worker.land(device, &landing).await });
        while first.bytes_done.get() == 0 {
            env.sleep_us(100).await;
        }
        first.cancel().unwrap();
        assert_eq!(done.join().await.unwrap_err().kind, ErrorKind::Cancelled);
        shows_image(&running, 0, 2400).await;
        let (before, second) = (image.reads.get(), job(&env));
        store.land(device, &second).await.unwrap();
        assert!(image.reads.get() - before < 40_000 / 256, "what has landed is not read again");
        let source = store.source(device).unwrap();
        assert!(source.has_landed() && !source.is_attached());
        shows_image(&running, 304 * 8, 1000).await;
        shows_image(&running, IMAGE_BYTES / SECTOR - 900, 930).await;
        assert_eq!((shows(&running, 301).await, shows(&running, 550).await), (3, 0));
        is_sound(&store).await;
        let landed = store.node(source.landing).unwrap().roots().unwrap().blocks();
        assert_eq!(landed, (0..40_000).filter(|block| pattern(IMAGE_BYTES, block * 8) != 0).count() as u64);
        let report = store.scrub(&job(&env)).await.unwrap();
        assert!(report.is_sound() && report.states == [DISK].into(), "{report:?}");
        store.close().await.unwrap();
    });
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        shows_image(&disk(&store, DISK), 304 * 8, 1000).await;
        store.change(&[Op::Drop { node: DISK }]).unwrap();
        while !store.sources().is_empty() || !store.dropped_nodes().is_empty() {
            store.progress.wait().await;
        }
        is_sound(&store).await;
        assert!(store.space.totals().used < 100, "its space is given back");
        store.close().await.unwrap();
    });
}

#[test]
fn what_guests_read_lands_before_the_rest() {
    in_world(async |env| {
        let store = open_store(&env).await.unwrap();
        let device = over_a_source(&store, DISK, DISK_BLOCKS, IMAGE_BYTES).await.unwrap();
        let image = PatternImage::new(&env, IMAGE_BYTES, 0);
        store.attach_source(device, image.clone()).unwrap();
        let (running, job) = (disk(&store, DISK), job(&env));
        job.set_limit(8 << 20).unwrap();
        let (worker, landing) = (store.clone(), job.clone());
        let done = env.spawn(async move { worker.land(device, &landing).await });
        let last = (IMAGE_BYTES / SECTOR - 2000, 16);
        let source = store.source(device).unwrap();
        loop {
            let before = image.reads.get();
            shows_image(&running, last.0, last.1).await;
            if image.reads.get() == before {
                break;
            }
            env.sleep_us(100_000).await;
        }
        assert!(source.landed_bytes() < IMAGE_BYTES / 2, "it landed out of turn: {}", source.landed_bytes());
        source.hold_landing(true);
        env.sleep_us(5_000_000).await;
        let held_at = job.bytes_done.get();
        assert_eq!(job.state(), crate::job::JobState::WaitingForSpace);
        env.sleep_us(5_000_000).await;
        assert_eq!(job.bytes_done.get(), held_at, "it waits");
        source.hold_landing(false);
        job.set_limit(0).unwrap();
        done.join().await.unwrap();
        assert_eq!(job.bytes_done.get(), source.blocks() * BLOCK, "each block counts once");
        shows_image(&running, last.0, last.1).await;
        is_sound(&store).await;
        // One that no disk was made over goes when it is given up.
        let unused = store.add_source("unused", 1 << 20).await.unwrap();
        store.give_up_source(unused);
        while store.source(unused).is_ok() {
            store.progress.wait().await;
        }
        store.close().await.unwrap();
    });
}

#[test]
fn a_source_is_removed_when_no_state_is_over_it_and_not_before() {
    let world = SimWorld::new(1, sim::Options::default());
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        let device = over_a_source(&store, DISK, DISK_BLOCKS, IMAGE_BYTES).await.unwrap();
        store.attach_source(device, PatternImage::new(&env, IMAGE_BYTES, 0)).unwrap();
        store.change(&[Op::Take { running: DISK, sealed: 60 }, Op::Branch { from: 60, node: 61 }]).unwrap();
        store.change(&[Op::Drop { node: DISK }, Op::Drop { node: 60 }]).unwrap();
        while !store.dropped_nodes().is_empty() {
            store.progress.wait().await;
        }
        store.checkpoint().await.unwrap();
        shows_image(&disk(&store, 61), 0, 400).await;
        let unused = store.add_source("unused", 1 << 20).await.unwrap();
        assert_eq!((device, unused, store.sources().len()), (1, 2, 2));
        store.change(&[Op::Drop { node: 61 }]).unwrap();
        while store.source(device).is_ok() {
            store.progress.wait().await;
        }
        assert_eq!(store.sources().len(), 1, "one waits for its first disk");
        store.flush().await.unwrap();
    });
    world.power_cut();
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        while !store.sources().is_empty() {
            store.progress.wait().await;
        }
        assert_eq!(store.add_source("another", 1 << 20).await.unwrap(), 1, "its number is free again");
        is_sound(&store).await;
        store.close().await.unwrap();
    });
}

#[test]
fn damage_of_a_landing_map_affects_the_states_that_show_it() {
    in_world(async |env| {
        let store = open_store(&env).await.unwrap();
        let device = over_a_source(&store, DISK, DISK_BLOCKS, IMAGE_BYTES).await.unwrap();
        store.attach_source(device, PatternImage::new(&env, IMAGE_BYTES, 0)).unwrap();
        store.change(&[Op::Take { running: DISK, sealed: 60 }]).unwrap();
        fill(&disk(&store, DISK), 0, 252, 1).await;
        store.land(device, &job(&env)).await.unwrap();
        store.checkpoint().await.unwrap();
        let landing = store.node(store.source(device).unwrap().landing).unwrap();
        let mut leaves = Vec::new();
        let mut visit = |seen: WalkItem| {
            if let WalkItem::Page { addr, level: 0, first: 0, .. } = seen {
                leaves.push(addr);
            }
        };
        let root = landing.roots().unwrap().places;
        survey(&store.nodes, root.as_ref(), None, 0..u64::MAX, usize::MAX, &mut visit).await.unwrap();
        store.file.write(leaves[0] * BLOCK + 512, Buf::zeroed(512).freeze()).await.unwrap();
        let report = store.check_committed().await.unwrap();
        let found = report.findings.iter().find(|finding| finding.fault == Fault::Map).expect("it is found");
        let affected: Vec<_> = found.affected.iter().map(|part| (part.node, part.bytes.clone())).collect();
        assert_eq!(affected, [(60, 0..252 * BLOCK)], "the other state has written all of these blocks");
        store.close().await.unwrap();
    });
}

#[test]
fn words_of_a_source_where_none_belong_are_damage() {
    in_world(async |env| {
        let store = open_store(&env).await.unwrap();
        let device = over_a_source(&store, DISK, DISK_BLOCKS, IMAGE_BYTES).await.unwrap();
        store.attach_source(device, PatternImage::new(&env, IMAGE_BYTES, 0)).unwrap();
        let plain = |id: u64, word: u64| {
            let places = Root::of_device(word, 1000);
            let view = View::tree(Roots { places, backings: None }, 1);
            store.lineage.borrow_mut().add(Node::new(id, 0, 1000, view))
        };
        let is_damage = async |node: u64, offset: u64| {
            let (_, read) = disk(&store, node).read(offset, Buf::alloc(4096)).await;
            assert_eq!(read.unwrap_err().kind, ErrorKind::Damaged);
        };
        plain(80, device_word(9, 0));
        is_damage(80, 4096).await;
        plain(81, device_word(device, 7));
        is_damage(81, 4096).await;
        plain(82, device_word(device, 0));
        let part = Buf::zeroed(SECTOR as usize).freeze();
        assert_eq!(disk(&store, 82).write(512, part).await.unwrap_err().kind, ErrorKind::Damaged);
        // The landing map itself is over a source.
        let landing = store.node(store.source(device).unwrap().landing).unwrap();
        let places = Root::of_device(device_word(device, 0), 1000);
        *landing.view.borrow_mut() = View::tree(Roots { places, backings: None }, 1);
        is_damage(DISK, 4096).await;
    });
}
