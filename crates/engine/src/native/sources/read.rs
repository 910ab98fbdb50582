//! Reads of blocks that are a source's: from its landing map, or from the image where they have not landed.
//!
//! An image may be slow, or not answer at all. So nothing that others wait for is held while it is read: neither an
//! admission of the store, nor space.

use std::ops::Range;
use std::rc::Rc;

use blk::sync::Admitted;
use blk::volume::{BlockStatus, Volume};
use blk::{Buf, Error, Result};
use futures_util::future::join_all;

use super::super::disk::{NativeDisk, blocks_of};
use super::super::layout::{BLOCK, LOST};
use super::super::source::{Source, not_attached};
use super::super::status::push_status;
use super::super::store::Store;
use super::super::table::LookupRun;
use super::super::view::Scratch;

/// Bytes of an image whose status is asked for at once: 2048 pieces, if each sector is one.
const IMAGE_STEP_BYTES: u64 = 1 << 20;

/// A source as it was at one moment. What has landed is read before the landing map: the map, looked up later, has at
/// least that.
struct Moment {
    source: Rc<Source>,
    landed: u64,
    image: Option<Rc<dyn Volume>>,
    _uses_image: Admitted,
}

/// Blocks of an image that have not landed.
pub(in super::super) struct ImageBlocks {
    moment: Rc<Moment>,
    blocks: Range<u64>,
}

/// Runs of a disk with what has landed of a source in the place of the source's blocks.
#[derive(Default)]
pub(in super::super) struct Resolved {
    /// Runs of the store, and holes.
    pub runs: Vec<LookupRun>,
    /// What has not landed, in order; `runs` has a hole for each.
    pub images: Vec<ImageBlocks>,
}

impl Resolved {
    /// Appends a run of the landing map.
    fn push(&mut self, run: &LookupRun, moment: &Rc<Moment>) {
        if !run.is_hole() {
            self.runs.push(*run);
            return;
        }
        let first = run.start.max(moment.landed).min(run.end());
        let last = run.end().min(moment.source.blocks()).max(first);
        let parts = [run.start..first, first..last, last..run.end()];
        let holes = parts.into_iter().filter(|blocks| !blocks.is_empty());
        self.runs.extend(holes.map(|blocks| run.part(blocks)));
        if first < last {
            self.images.push(ImageBlocks { moment: moment.clone(), blocks: first..last });
        }
    }
}

impl ImageBlocks {
    /// Reads the part of the blocks that is within a range of bytes, and returns it with its offset. Behind the image's
    /// end are zeros.
    async fn read(&self, bytes: &Range<u64>) -> (u64, Buf, Result<()>) {
        let Moment { source, image, .. } = &*self.moment;
        let (from, to) = (bytes.start.max(self.blocks.start * BLOCK), bytes.end.min(self.blocks.end * BLOCK));
        let Some(image) = image else {
            return (from, Buf::alloc(0), Err(not_attached(source, &self.blocks)));
        };
        let end = to.min(source.bytes);
        match from < end {
            true => {
                let (part, result) = image.clone().read(from, Buf::alloc((end - from) as usize)).await;
                if result.is_ok() {
                    source.want(&self.blocks);
                }
                (from, part, result)
            }
            false => (from, Buf::alloc(0), Ok(())),
        }
    }

    /// Appends the status of the blocks within a range of bytes. They count as data where the image cannot tell.
    async fn push_status(&self, bytes: &Range<u64>, out: &mut Vec<BlockStatus>) {
        let Moment { source, image, .. } = &*self.moment;
        let (mut at, to) =
            (bytes.start.max(self.blocks.start * BLOCK), bytes.end.min(self.blocks.end * BLOCK));
        let end = to.min(source.bytes);
        while at < end {
            let data = || vec![BlockStatus { len: end - at, hole: false, zero: false }];
            let found = match image {
                Some(image) => {
                    let step = at..end.min(at + IMAGE_STEP_BYTES);
                    image.clone().status(step).await.unwrap_or_else(|_| data())
                }
                None => data(),
            };
            at += found.iter().map(|status| status.len).sum::<u64>();
            found.into_iter().for_each(|status| push_status(out, status));
        }
        if at < to {
            push_status(out, BlockStatus { len: to - at, hole: true, zero: true });
        }
    }
}

/// Refuses lost blocks: their content is unknown.
fn refuse_lost(path: &str, found: &[LookupRun]) -> Result<()> {
    match found.iter().find(|run| run.device() == LOST) {
        None => Ok(()),
        Some(run) => {
            let cause = format!(
                "blocks {}..{} of the disk are lost: a page of its map was damaged; write them again, or restore them from a \
                 backup",
                run.start,
                run.end()
            );
            Err(Error::damaged(path, cause))
        }
    }
}

impl Store {
    /// Looks up where the blocks of sources are among runs of a disk. The caller is admitted.
    pub(in super::super) async fn resolve(&self, found: &[LookupRun]) -> Result<Resolved> {
        let (mut resolved, mut landing) = (Resolved::default(), Scratch::default());
        refuse_lost(self.path(), found)?;
        for run in found {
            if run.device() == 0 {
                resolved.runs.push(*run);
                continue;
            }
            let source = self.source(run.device()).map_err(|_| {
                let (start, end, device) = (run.start, run.end(), run.device());
                let cause = format!("blocks {start}..{end} are those of source {device}, which is not there");
                Error::damaged(self.path(), cause)
            })?;
            let (landed, image) = (source.landed.get(), source.image.borrow().clone());
            let map = self.node(source.landing)?;
            self.find(&map, run.start..run.end(), &mut landing).await?;
            let moment = Rc::new(Moment { _uses_image: source.uses.enter(), source, landed, image });
            refuse_lost(self.path(), &landing.found)?;
            if landing.found.iter().any(|run| run.device() != 0) {
                let cause = format!("the landing map, node {}, has blocks of a source itself", map.id);
                return Err(Error::damaged(self.path(), cause));
            }
            landing.found.iter().for_each(|run| resolved.push(run, &moment));
        }
        Ok(resolved)
    }
}

/// Reads what has not landed from the images into the buffer of a read at `offset`.
pub(in super::super) async fn read_images(
    images: &[ImageBlocks],
    offset: u64,
    mut buf: Buf,
) -> (Buf, Result<()>) {
    let bytes = offset..offset + buf.len() as u64;
    let mut result = Ok(());
    for (from, part, outcome) in join_all(images.iter().map(|image| image.read(&bytes))).await {
        let at = (from - offset) as usize;
        buf[at..at + part.len()].copy_from_slice(&part);
        result = result.and(outcome);
    }
    (buf, result)
}

/// Content of the first and the last block of a write, if the write covers only part of them and they are a source's.
#[derive(Default)]
pub(in super::super) struct SourceEdges(Vec<(u64, Buf)>);

impl SourceEdges {
    /// Returns the blocks within a range, with their content.
    pub(in super::super) fn within(&self, blocks: &Range<u64>) -> impl Iterator<Item = (u64, &Buf)> {
        self.0.iter().filter(|(block, _)| blocks.contains(block)).map(|(block, content)| (*block, content))
    }
}

impl NativeDisk {
    /// Refuses blocks of a source in a node that is over none: the edges of a write to them were not read. Refuses lost
    /// blocks that a write of these bytes covers only in part.
    pub(in super::super) fn refuse_foreign(&self, found: &[LookupRun], bytes: &Range<u64>) -> Result<()> {
        let is_cut = |run: &&LookupRun| run.start * BLOCK < bytes.start || bytes.end < run.end() * BLOCK;
        let cut: Vec<LookupRun> = found.iter().filter(is_cut).copied().collect();
        refuse_lost(self.store.path(), &cut)?;
        let mut found = found.iter().filter(|run| run.device() != LOST);
        match found.find(|run| run.device() != 0).filter(|_| self.node.device == 0) {
            None => Ok(()),
            Some(run) => {
                let (node, block, device) = (self.node.id, run.start, run.device());
                let cause = format!("block {block} of node {node} is that of source {device}, expected none");
                Err(Error::damaged(self.store.path(), cause))
            }
        }
    }

    /// Reads the blocks at the edges of a write that are a source's. The caller has locked the range, so they stay so
    /// until its write.
    pub(in super::super) async fn source_edges(&self, range: Range<u64>) -> Result<SourceEdges> {
        let mut edges = SourceEdges::default();
        if self.node.device == 0 || range.is_empty() {
            return Ok(edges);
        }
        let mut blocks = vec![range.start / BLOCK, (range.end - 1) / BLOCK];
        blocks.dedup();
        blocks.retain(|block| block * BLOCK < range.start || range.end < (block + 1) * BLOCK);
        for block in blocks {
            let (buf, result, is_source) = self.read_block(block).await;
            result?;
            if is_source {
                edges.0.push((block, buf));
            }
        }
        Ok(edges)
    }

    /// Reads a block if it is a source's.
    async fn read_block(&self, block: u64) -> (Buf, Result<()>, bool) {
        let mut is_source = false;
        let admitted = self.store.reads.enter();
        let resolved = self
            .with_found(block..block + 1, async |found| {
                is_source = found[0].device() != 0;
                if is_source { self.store.resolve(found).await } else { Ok(Resolved::default()) }
            })
            .await;
        let buf = Buf::alloc(BLOCK as usize);
        let resolved = match resolved {
            Ok(resolved) if is_source => resolved,
            Ok(_) => return (buf, Ok(()), false),
            Err(e) => return (buf, Err(e), is_source),
        };
        let (buf, result) = self.read_stored(&resolved.runs, block * BLOCK, buf).await;
        drop(admitted);
        match result {
            Ok(()) => {
                let (buf, result) = read_images(&resolved.images, block * BLOCK, buf).await;
                (buf, result, true)
            }
            failed => (buf, failed, true),
        }
    }

    /// Appends the status of bytes of which some may be a source's.
    pub(in super::super) async fn status_with_sources(
        &self,
        bytes: &Range<u64>,
        out: &mut Vec<BlockStatus>,
    ) -> Result<()> {
        let blocks = blocks_of(bytes.start, bytes.end - bytes.start);
        let resolved = {
            let _admitted = self.store.reads.enter();
            self.with_found(blocks, async |found| self.store.resolve(found).await).await?
        };
        let mut images = resolved.images.iter().peekable();
        for run in &resolved.runs {
            if let Some(image) = images.next_if(|image| image.blocks.start == run.start) {
                image.push_status(bytes, out).await;
                continue;
            }
            let len = bytes.end.min(run.end() * BLOCK) - bytes.start.max(run.start * BLOCK);
            push_status(out, BlockStatus { len, hole: run.is_hole(), zero: run.is_hole() });
        }
        Ok(())
    }
}
