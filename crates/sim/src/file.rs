//! One file: its bytes, size and space, and how much of each a power cut may revert.
//!
//! Changes of size and space are metadata. They are applied at once and kept in an undo log, in order of completion,
//! until a flush covers them. A cut undoes a suffix of that log. The bytes are independent of it (see `content`),
//! except that nothing remains beyond the surviving size.

use std::collections::VecDeque;
use std::ops::Range;

use blk::reactor::FileExtent;
use blk::{Errno, Slice};

use crate::bytes::Bytes;
use crate::content::{EffectId, PAGE, SECTOR};
use crate::device::Layout;
use crate::interval::IntervalSet;
use crate::options::ContentMode;
use crate::rng::Rng;
use crate::survival::Survival;
use crate::unreadable::Unreadable;

/// 64 TiB: VMware's largest disk with its tables fits. Larger offsets fail with EFBIG.
const FILE_BYTES_MAX: u64 = 64 << 40;
/// Maximum number of unflushed changes of size or space, before the oldest become durable without a flush: 16 Ki first
/// writes.
const CHANGES_MAX: usize = 16 << 10;

/// Space of the file system, in pages.
#[derive(Debug)]
pub(crate) struct FsSpace {
    pub capacity_pages: u64,
    pub used_pages: u64,
}

/// One change of metadata, and its undo.
#[derive(Debug)]
struct Change {
    stamp: u64,
    size_before: u64,
    added: Vec<Range<u64>>,
    removed: Vec<Range<u64>>,
}

pub(crate) struct FileNode {
    bytes: Bytes,
    /// Location on devices with placed files.
    pub layout: Layout,
    size: u64,
    allocated: IntervalSet,
    pub unreadable: Unreadable,
    changes: VecDeque<Change>,
    /// Number of the first change in the log.
    first_change: u64,
}

/// Returns the pages that a byte range touches.
fn pages_of(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}

fn count(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|r| r.end - r.start).sum()
}

/// Returns the byte range; fails beyond the largest file.
pub(crate) fn byte_range(offset: u64, len: u64) -> Result<Range<u64>, Errno> {
    let end = offset.checked_add(len).filter(|&end| end <= FILE_BYTES_MAX).ok_or(Errno::EFBIG)?;
    Ok(offset..end)
}

impl FileNode {
    pub(crate) fn new(mode: ContentMode) -> FileNode {
        FileNode {
            bytes: Bytes::new(mode),
            layout: Layout::default(),
            size: 0,
            allocated: IntervalSet::default(),
            unreadable: Unreadable::default(),
            changes: VecDeque::new(),
            first_change: 0,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn allocated_pages(&self) -> u64 {
        self.allocated.len()
    }

    /// Fills `out` up to the end of the file, and returns the number of bytes.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> usize {
        let len = self.size.saturating_sub(offset).min(out.len() as u64) as usize;
        self.bytes.read(offset, &mut out[..len]);
        len
    }

    /// Reads what would remain after a cut that loses everything unflushed.
    pub(crate) fn read_durable(&self, offset: u64, out: &mut [u8]) -> usize {
        let len = self.durable_size().saturating_sub(offset).min(out.len() as u64) as usize;
        self.bytes.read_durable(offset, &mut out[..len]);
        len
    }

    pub(crate) fn durable_size(&self) -> u64 {
        self.changes.front().map_or(self.size, |first| first.size_before)
    }

    /// Returns the pieces of `range` that may contain something other than zeros, merged, in order.
    pub(crate) fn extents(&self, range: Range<u64>) -> Vec<FileExtent> {
        let range = range.start..range.end.min(self.size);
        let mut extents: Vec<FileExtent> = Vec::new();
        if range.is_empty() {
            return extents;
        }
        for page in self.bytes.data_pages(pages_of(&range), &self.allocated) {
            let start = (page * PAGE).max(range.start);
            let end = ((page + 1) * PAGE).min(range.end);
            match extents.last_mut() {
                Some(last) if last.offset + last.len == start => last.len = end - last.offset,
                _ => extents.push(FileExtent { offset: start, len: end - start }),
            }
        }
        extents
    }

    /// Makes a write visible that changes neither size nor space; `complete` follows. Returns None for other writes.
    pub(crate) fn write_in_place(&mut self, offset: u64, data: &Slice) -> Option<EffectId> {
        let range = byte_range(offset, data.len() as u64).ok()?;
        let in_place = range.end <= self.size && self.allocated.covers(&pages_of(&range));
        let content = self.bytes.durable().filter(|_| in_place)?;
        Some(content.expose(range, Some(data.clone())))
    }

    pub(crate) fn complete(&mut self, effect: EffectId, stamp: u64) {
        let Some(content) = self.bytes.durable() else { return };
        self.unreadable.written(&content.range_of(effect));
        content.complete(effect, stamp);
        if let Some(covers) = content.overdue() {
            self.persist(covers);
        }
    }

    /// Applies bytes or zeros permanently.
    fn apply(&mut self, range: Range<u64>, data: Option<Slice>, stamp: u64) {
        match self.bytes.durable() {
            Some(content) => {
                let effect = content.expose(range, data);
                self.complete(effect, stamp);
            }
            None => self.bytes.apply(range, data.as_deref()),
        }
    }

    /// Writes, and extends and allocates as necessary. `NoSpace` changes nothing.
    pub(crate) fn write(
        &mut self,
        offset: u64,
        data: Slice,
        stamp: u64,
        space: &mut FsSpace,
    ) -> Result<u64, Errno> {
        let range = byte_range(offset, data.len() as u64)?;
        self.claim(pages_of(&range), self.size.max(range.end), stamp, space)?;
        let len = data.len() as u64;
        self.apply(range, Some(data), stamp);
        Ok(len)
    }

    /// Applies the possible effect of a failed write: any of its sectors may have changed.
    pub(crate) fn write_failed(&mut self, offset: u64, data: &Slice, stamp: u64, rng: &mut Rng) {
        let Ok(range) = byte_range(offset, data.len() as u64) else { return };
        if range.end > self.size || !self.allocated.covers(&pages_of(&range)) {
            return;
        }
        let mut torn = |sectors: u8| sectors & rng.u64() as u8;
        let Some(content) = self.bytes.durable() else { return };
        let effect = content.expose_part(range, Some(data.clone()), &mut torn);
        self.complete(effect, stamp);
    }

    pub(crate) fn allocate(
        &mut self,
        range: Range<u64>,
        stamp: u64,
        space: &mut FsSpace,
    ) -> Result<(), Errno> {
        self.claim(pages_of(&range), self.size.max(range.end), stamp, space)
    }

    /// Allocates space for the pages and sets the size. Logs the change if there is one.
    fn claim(&mut self, pages: Range<u64>, size: u64, stamp: u64, space: &mut FsSpace) -> Result<(), Errno> {
        let covered = self.allocated.covers(&pages);
        if covered && size == self.size {
            return Ok(());
        }
        if !covered && self.allocated.missing(&pages) > space.capacity_pages.saturating_sub(space.used_pages)
        {
            return Err(Errno::ENOSPC);
        }
        let added = self.allocated.insert(pages);
        space.used_pages += count(&added);
        self.log(Change { stamp, size_before: self.size, added, removed: Vec::new() });
        self.size = size;
        Ok(())
    }

    fn log(&mut self, change: Change) {
        if self.bytes.durable().is_none() {
            return;
        }
        if self.changes.len() >= CHANGES_MAX {
            self.persist(self.changes[CHANGES_MAX / 2].stamp + 1);
        }
        self.changes.push_back(change);
    }

    fn last_change(&self) -> u64 {
        (self.first_change + self.changes.len() as u64).saturating_sub(1)
    }

    /// Zeros the range up to the end of the file; the size stays. Without `punch` the range is allocated.
    pub(crate) fn zero(
        &mut self,
        range: Range<u64>,
        punch: bool,
        stamp: u64,
        space: &mut FsSpace,
    ) -> Result<(), Errno> {
        let range = range.start..range.end.min(self.size.next_multiple_of(SECTOR));
        if range.is_empty() {
            return Ok(());
        }
        if punch {
            self.give_back(&range, stamp, space);
        } else {
            self.claim(pages_of(&range), self.size, stamp, space)?;
        }
        self.apply(range, None, stamp);
        Ok(())
    }

    /// Frees the whole pages of a range; the last page of the file counts as whole.
    fn give_back(&mut self, range: &Range<u64>, stamp: u64, space: &mut FsSpace) {
        let end = if range.end >= self.size { range.end.next_multiple_of(PAGE) } else { range.end };
        let removed = self.allocated.remove(range.start.div_ceil(PAGE)..end / PAGE);
        if !removed.is_empty() {
            space.used_pages -= count(&removed);
            self.log(Change { stamp, size_before: self.size, added: Vec::new(), removed });
        }
    }

    pub(crate) fn set_len(&mut self, len: u64, stamp: u64, space: &mut FsSpace) -> Result<(), Errno> {
        byte_range(0, len)?;
        if len < self.size {
            self.truncate(len, stamp, space);
        } else if len > self.size {
            self.claim(0..0, len, stamp, space)?;
        }
        Ok(())
    }

    fn truncate(&mut self, len: u64, stamp: u64, space: &mut FsSpace) {
        let removed = self.allocated.remove(len.div_ceil(PAGE)..self.size.div_ceil(PAGE));
        space.used_pages -= count(&removed);
        self.log(Change { stamp, size_before: self.size, added: Vec::new(), removed });
        // The removed bytes must not reappear when the file grows again.
        let gone = len.next_multiple_of(SECTOR)..self.size.next_multiple_of(SECTOR);
        self.truncate_bytes(gone, None, stamp);
        if let Some(last_sector) = self.shortened_sector(len) {
            let start = len / SECTOR * SECTOR;
            self.truncate_bytes(start..start + SECTOR, Some(last_sector), stamp);
        }
        self.size = len;
    }

    fn truncate_bytes(&mut self, range: Range<u64>, data: Option<Slice>, stamp: u64) {
        let change = self.last_change();
        let Some(content) = self.bytes.durable() else { return self.bytes.apply(range, data.as_deref()) };
        let effect = content.expose(range, data);
        content.bind(effect, change);
        self.complete(effect, stamp);
    }

    /// Returns the sector that contains the new end of file, zeroed from there; None if it already reads so. Its
    /// remaining bytes become durable with the size. That is less harsh than a real device, and rare, because writers
    /// pad with zeros.
    fn shortened_sector(&self, len: u64) -> Option<Slice> {
        let keep = (len % SECTOR) as usize;
        let mut sector = [0; SECTOR as usize];
        self.bytes.read(len - keep as u64, &mut sector);
        if keep == 0 || sector[keep..].iter().all(|&byte| byte == 0) {
            return None;
        }
        sector[keep..].fill(0);
        Some(blk::Buf::copy_of(&sector).freeze())
    }

    /// Makes durable the bytes, size and space that completed before `covers`.
    pub(crate) fn persist(&mut self, covers: u64) {
        let Some(content) = self.bytes.durable() else { return };
        content.persist(covers);
        let settled = self.changes.iter().take_while(|change| change.stamp < covers).count();
        self.changes.drain(..settled);
        self.first_change += settled as u64;
    }

    /// Simulates a failed flush that would have made durable what completed before `covers`.
    pub(crate) fn flush_failed(&mut self, covers: u64, page_cache: bool, rng: &mut Rng) {
        if let Some(content) = self.bytes.durable() {
            content.flush_failed(covers, page_cache, rng);
        }
    }

    /// Evicts some clean pages from the page cache that are not on the medium.
    pub(crate) fn evict_some(&mut self, rng: &mut Rng) {
        if let Some(content) = self.bytes.durable().filter(|content| content.has_forgotten()) {
            content.evict_some(rng);
        }
    }

    /// Writes dirty pages and evicts all others, so that reads show the medium.
    pub(crate) fn drop_cached(&mut self, covers: u64, rng: &mut Rng) {
        self.persist(covers);
        if let Some(content) = self.bytes.durable() {
            content.evict_all(rng);
        }
    }

    /// Simulates a loss of power. The caller recounts the space.
    pub(crate) fn cut(&mut self, survival: &Survival, rng: &mut Rng) {
        let Some(content) = self.bytes.durable() else { return };
        let pending = content.pending_ranges();
        if pending.is_empty() && self.changes.is_empty() {
            return;
        }
        let writes = content.pending_writes();
        let kept = survival.prefix(rng, self.changes.len());
        let spared = content.cut(survival, self.first_change + kept as u64, rng);
        self.undo_after(kept);
        self.first_change += self.changes.len() as u64;
        self.changes.clear();
        self.drop_beyond_size(&pending);
        for range in spared {
            let inside = range.start..range.end.min(self.size);
            if !inside.is_empty() {
                self.allocated.insert(pages_of(&inside));
            }
        }
        if let Some(unit_bytes) = survival.unreadable_bytes {
            self.unreadable.draw(&writes, self.size, unit_bytes, rng);
        }
    }

    fn undo_after(&mut self, kept: usize) {
        while self.changes.len() > kept {
            let change = self.changes.pop_back().expect("longer than kept");
            self.size = change.size_before;
            change.added.into_iter().for_each(|pages| drop(self.allocated.remove(pages)));
            change.removed.into_iter().for_each(|pages| drop(self.allocated.insert(pages)));
        }
    }

    /// Clears bytes beyond the size. Writes whose extension was lost have left such bytes; so has an earlier write of
    /// the last sector with other padding than the surviving one.
    fn drop_beyond_size(&mut self, pending: &[Range<u64>]) {
        let last_sector = self.size..self.size.next_multiple_of(SECTOR);
        let beyond = pending.iter().map(|range| range.start.max(self.size)..range.end);
        let Some(content) = self.bytes.durable() else { return };
        for range in beyond.chain([last_sector]).filter(|range| !range.is_empty()) {
            content.edit_durable(range, |bytes| bytes.fill(0));
        }
    }

    /// Stores bytes, durably, together with all pending changes. For fixtures only.
    pub(crate) fn put(&mut self, offset: u64, bytes: &[u8], space: &mut FsSpace) {
        self.persist(u64::MAX);
        let range = offset..offset + bytes.len() as u64;
        self.unreadable.written(&range);
        self.size = self.size.max(range.end);
        space.used_pages += count(&self.allocated.insert(pages_of(&range)));
        self.bytes.put(offset, bytes);
    }

    /// Flips one durable bit, below pending writes. Returns false beyond the durable size.
    pub(crate) fn flip_bit(&mut self, offset: u64, bit: u8) -> bool {
        let mut byte = [0];
        if self.read_durable(offset, &mut byte) == 0 {
            return false;
        }
        self.bytes.put(offset, &[byte[0] ^ (1 << (bit % 8))]);
        true
    }
}
