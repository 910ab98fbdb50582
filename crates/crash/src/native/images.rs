//! Images under the sources of a run, which the store does not write.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use blk::volume::{BlockStatus, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Env, Error, Local, SECTOR, Slice};
use engine::native::Store;
use engine::native::layout::BLOCK;
use sim::Rng;
use sim::oracle::DiskModel;

use super::windows::Windows;

/// Most sectors of one stretch of data of an image.
const STRETCH_SECTORS_MAX: u64 = 40;
/// Most sectors by which an image is shorter than its disk.
const SHORTER_SECTORS_MAX: u64 = 12;
/// Longest time that a read of an image takes.
const READ_US_MAX: u64 = 400;

/// Content of an image. Sectors that are not there are zeros.
struct ImageContent {
    bytes: u64,
    sectors: BTreeMap<u64, Vec<u8>>,
}

/// The images of a run by the names of their sources.
#[derive(Default)]
pub struct Images {
    all: BTreeMap<String, Rc<ImageContent>>,
    /// Images that are not there any more: all of them had landed.
    gone: BTreeSet<String>,
    /// Names of the sources that the present boot began with.
    present: BTreeSet<String>,
}

impl ImageContent {
    /// Draws an image for a new disk: its data are writes of the disk's model that are durable.
    fn draw(rng: &mut Rng, model: &DiskModel, windows: &Windows) -> ImageContent {
        let bytes = windows.size_blocks * BLOCK - rng.below(SHORTER_SECTORS_MAX) * SECTOR;
        let mut sectors = BTreeMap::new();
        for _ in 0..rng.between(1, 12) {
            let first = rng.below(windows.sectors());
            let (offset, room) = windows.on_disk(first);
            let count = rng.between(1, STRETCH_SECTORS_MAX).min(room);
            if offset + count * SECTOR > bytes {
                continue;
            }
            let write = model.begin(first, count);
            let data = model.data(&write);
            model.end(&write);
            let numbered = (offset / SECTOR..).zip(data.chunks_exact(SECTOR as usize));
            sectors.extend(numbered.map(|(sector, bytes)| (sector, bytes.to_vec())));
        }
        model.closed();
        ImageContent { bytes, sectors }
    }
}

/// An image as one boot has it.
struct Image {
    env: Env,
    content: Rc<ImageContent>,
}

fn refused() -> Local<'static, blk::Result<()>> {
    Box::pin(async { Err(Error::refused("image", "it is read-only")) })
}

impl Volume for Image {
    fn info(&self) -> VolumeInfo {
        let size_bytes = self.content.bytes;
        VolumeInfo { size_bytes, read_only: true, preferred_bytes: BLOCK as u32, fast_zero: false }
    }

    fn read(self: Rc<Self>, offset: u64, mut buf: Buf) -> Local<'static, (Buf, blk::Result<()>)> {
        Box::pin(async move {
            assert!(offset + buf.len() as u64 <= self.content.bytes, "a read behind the end of an image");
            self.env.sleep_us(self.env.random() % READ_US_MAX).await;
            buf.fill(0);
            let end = (offset + buf.len() as u64) / SECTOR;
            for (sector, data) in self.content.sectors.range(offset / SECTOR..end) {
                let at = (sector * SECTOR - offset) as usize;
                buf[at..at + data.len()].copy_from_slice(data);
            }
            (buf, Ok(()))
        })
    }

    fn write(self: Rc<Self>, _: u64, _: Slice) -> Local<'static, blk::Result<()>> {
        refused()
    }

    fn flush(self: Rc<Self>) -> Local<'static, blk::Result<()>> {
        refused()
    }

    fn write_zeroes(self: Rc<Self>, _: Range<u64>, _: ZeroMode) -> Local<'static, blk::Result<()>> {
        refused()
    }

    /// Returns the first piece only.
    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, blk::Result<Vec<BlockStatus>>> {
        let (first, end) = (range.start / SECTOR, range.end / SECTOR);
        let is_data = |sector: u64| self.content.sectors.contains_key(&sector);
        let zero = !is_data(first);
        let next = (first..end).find(|sector| is_data(*sector) == zero).unwrap_or(end);
        let status = BlockStatus { len: (next - first) * SECTOR, hole: zero, zero };
        Box::pin(async move { Ok(vec![status]) })
    }
}

impl Images {
    /// Adds an image for a new disk, and returns its size in bytes.
    pub(super) fn add(&mut self, name: &str, rng: &mut Rng, model: &DiskModel, windows: &Windows) -> u64 {
        let content = ImageContent::draw(rng, model, windows);
        let bytes = content.bytes;
        self.gone.remove(name);
        self.all.insert(name.to_string(), Rc::new(content));
        bytes
    }

    /// Notes that an image is not there any more.
    pub(super) fn lose(&mut self, name: &str) {
        self.gone.insert(name.to_string());
    }

    /// Notes the sources that a boot begins with.
    pub(super) fn begin_boot(&mut self, store: &Store) {
        self.present = store.sources().iter().map(|source| source.name.clone()).collect();
    }

    /// Returns whether a source that the boot began with has been removed.
    pub(super) fn has_fewer(&self, store: &Store) -> bool {
        let sources = store.sources();
        self.present.iter().any(|name| !sources.iter().any(|source| source.name == *name))
    }

    /// Attaches the images that are still there.
    pub(super) fn attach(&self, env: &Env, store: &Store) -> blk::Result<()> {
        for source in store.sources().iter().filter(|source| !self.gone.contains(&source.name)) {
            if let Some(content) = self.all.get(&source.name) {
                let image = Image { env: env.clone(), content: content.clone() };
                store.attach_source(source.device, Rc::new(image))?;
            }
        }
        Ok(())
    }
}
