//! One delta: the grains it holds, its tables in the file, and the growth of the file.

mod growth;
mod journal;
mod tables;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use blk::sync::RangeLock;
use blk::{Buf, Dir, Result};

pub(super) use growth::STEP_BYTES;
use journal::Journal;

use super::cache::Cache;
use super::extent::{Datastore, Extent};
use super::fifo_lock::FifoLock;
use super::format::{Format, Layout};
use super::host::{Host, Purpose};
use super::map::{Map, REGION_GRAINS};
use super::rules::Rules;

/// What all deltas of a VM have in common.
pub(super) struct Kind {
    pub format: Format,
    pub rules: Rules,
    pub datastore: Datastore,
}

pub(super) struct Delta {
    pub name: String,
    pub extent: Extent,
    pub layout: Layout,
    kind: Rc<Kind>,
    host: Rc<Host>,
    state: RefCell<State>,
    growing: FifoLock,
    /// Serialises writes of each table page, so that the last write carries the newest entries.
    pages_written: RangeLock,
    /// Set for SEsparse only.
    journal: Option<Journal>,
    /// Queue for delta-wide locks, where the rules have one.
    pub lock: FifoLock,
}

struct State {
    map: Map,
    cache: Cache,
    /// First unused byte of the file.
    free: u64,
    /// Length of the file.
    size: u64,
    /// Pages whose entries have not been written to the file, where tables are written at flushes.
    dirty: BTreeSet<u64>,
}

/// Location of the first bytes of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// Offset in the delta's file; None: not held.
    pub at: Option<u64>,
    pub len: u64,
}

impl Delta {
    /// Creates the empty delta `name` of a disk of `disk_bytes`.
    pub(super) async fn create(
        dir: &Dir,
        name: &str,
        disk_bytes: u64,
        kind: Rc<Kind>,
        host: Rc<Host>,
    ) -> Result<Delta> {
        let file = dir.create_new(name).await?;
        let layout = Layout::new(kind.format, disk_bytes);
        file.set_len(layout.data_at).await?;
        let extent = Extent::new(file, layout.data_at, &kind.datastore).begun_small();
        let header = layout.header(name, disk_bytes)?;
        extent.write(&host, 0, header.freeze(), Purpose::Table).await?;
        let pages = layout.regions * layout.format.pages_per_table();
        let state = State {
            map: Map::new(layout.regions),
            cache: Cache::new(kind.rules.table_cache, pages),
            free: layout.data_at,
            size: layout.data_at,
            dirty: BTreeSet::new(),
        };
        let journal_writes = kind.rules.journal_writes;
        let journal = layout
            .parts
            .map(|parts| Journal::new(extent.clone(), host.clone(), parts.journal_at, journal_writes));
        Ok(Delta {
            name: name.to_string(),
            extent,
            layout,
            kind,
            host,
            state: RefCell::new(state),
            growing: FifoLock::default(),
            pages_written: RangeLock::default(),
            journal,
            lock: FifoLock::default(),
        })
    }

    /// Returns the bytes of the disk that the delta holds.
    pub(super) fn held_bytes(&self) -> u64 {
        self.state.borrow().map.held() * self.grain()
    }

    fn grain(&self) -> u64 {
        self.layout.format.grain_bytes()
    }

    /// Locates the first bytes of `range`, as far as they are contiguous.
    pub(super) fn find(&self, range: &Range<u64>) -> Found {
        let grain = self.grain();
        let (first, inside) = (range.start / grain, range.start % grain);
        let wanted = range.end.div_ceil(grain) - first;
        let stretch = self.state.borrow().map.find(first, wanted);
        Found {
            at: stretch.at.map(|at| at * grain + inside),
            len: (stretch.count * grain - inside).min(range.end - range.start),
        }
    }

    /// Returns the parts of `range` that are held or missing as a whole, each with its first byte.
    fn parts(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, Found)> {
        let (mut next, end) = (range.start, range.end);
        std::iter::from_fn(move || {
            let (at, found) = (next, (next < end).then(|| self.find(&(next..end)))?);
            next += found.len;
            Some((at, found))
        })
    }

    pub(super) fn holds_any(&self, range: &Range<u64>) -> bool {
        self.parts(range).any(|(_, found)| found.at.is_some())
    }

    /// Returns `range` without the held bytes at both ends.
    pub(super) fn trim(&self, mut range: Range<u64>) -> Range<u64> {
        while !range.is_empty() {
            let found = self.find(&range);
            if found.at.is_none() {
                // Most ranges end here: all of the range is held, or none.
                if found.len == range.end - range.start {
                    return range;
                }
                break;
            }
            range.start += found.len;
        }
        let missing = self.parts(&range).filter(|(_, found)| found.at.is_none());
        let end = missing.last().map_or(range.start, |(at, found)| at + found.len);
        range.start..end
    }

    /// Returns the first held byte from `from` on, and the end of the held bytes there, at most `limit` bytes on.
    pub(super) fn next_held(&self, from: u64, limit: u64) -> Option<Range<u64>> {
        let grain = self.grain();
        let state = self.state.borrow();
        let start = state.map.next_held(from / grain)? * grain;
        let start = start.max(from);
        let mut end = start;
        while end - start < limit && end / self.layout.format.region_bytes() < self.layout.regions {
            let stretch = state.map.find(end / grain, (start + limit - end).div_ceil(grain));
            if stretch.at.is_none() {
                break;
            }
            end += stretch.count * grain;
        }
        Some(start..end.min(start + limit))
    }

    /// Allocates grains for the part of `range`, whole grains, that the delta does not hold. Returns the stretch from
    /// the first to the last new grain; None where nothing was missing. No other task runs between the reservation and
    /// the return.
    pub(super) async fn reserve(&self, range: &Range<u64>) -> Result<Option<Range<u64>>> {
        loop {
            let needed = self.missing_bytes(range);
            if needed == 0 {
                return Ok(None);
            }
            let end = self.state.borrow().free + needed;
            if end <= self.state.borrow().size {
                return Ok(Some(self.place(range)));
            }
            self.grow(end).await?;
        }
    }

    /// Returns the bytes needed for the missing grains of `range` and for tables that do not exist yet.
    fn missing_bytes(&self, range: &Range<u64>) -> u64 {
        let state = self.state.borrow();
        let grain = self.grain();
        let first = range.start / grain;
        let stretches = state.map.stretches(first, range.end / grain - first);
        let missing = stretches.filter(|(_, stretch)| stretch.at.is_none());
        let mut bytes = missing.map(|(_, stretch)| stretch.count * grain).sum();
        let regions = self.regions_of(range);
        if bytes > 0 && self.layout.fixed_table_at(0).is_none() {
            let new = regions.filter(|&region| state.map.table_at(region).is_none()).count();
            bytes += new as u64 * self.layout.format.table_bytes();
        }
        bytes
    }

    fn regions_of(&self, range: &Range<u64>) -> Range<u64> {
        let region = self.layout.format.region_bytes();
        range.start / region..range.end.div_ceil(region)
    }

    /// Places the missing grains. The file has room for them: `missing_bytes`.
    fn place(&self, range: &Range<u64>) -> Range<u64> {
        let grain = self.grain();
        let state = &mut *self.state.borrow_mut();
        let (mut at, end) = (range.start / grain, range.end / grain);
        let mut placed: Option<Range<u64>> = None;
        while at < end {
            let stretch = state.map.find(at, end - at);
            if stretch.at.is_none() {
                state.place_table(&self.layout, at / REGION_GRAINS);
                state.map.insert(at, stretch.count, state.free / grain);
                state.free += stretch.count * grain;
                let start = placed.map_or(at, |placed| placed.start);
                placed = Some(start..at + stretch.count);
            }
            at += stretch.count;
        }
        let placed = placed.expect("something was missing");
        placed.start * grain..placed.end * grain
    }

    /// Reads `range`, all of which the delta holds, piece by piece: one I/O at a time, as the committer does.
    pub(super) async fn read_held(&self, range: Range<u64>) -> Result<Buf> {
        let mut whole = Buf::alloc((range.end - range.start) as usize);
        for (at, found) in self.parts(&range) {
            let place = found.at.expect("the committer reads what is held");
            let single = found.len == range.end - range.start;
            let part = if single {
                std::mem::replace(&mut whole, Buf::alloc(0))
            } else {
                Buf::alloc(found.len as usize)
            };
            let (part, result) = self.host.read(&self.extent.file, place, part, Purpose::Commit).await;
            result?;
            if single {
                return Ok(part);
            }
            let inside = (at - range.start) as usize;
            whole[inside..inside + part.len()].copy_from_slice(&part);
        }
        Ok(whole)
    }
}

impl State {
    fn place_table(&mut self, layout: &Layout, region: u64) {
        if self.map.table_at(region).is_some() {
            return;
        }
        let grain = layout.format.grain_bytes();
        let at = layout.fixed_table_at(region).unwrap_or_else(|| {
            self.free += layout.format.table_bytes();
            self.free - layout.format.table_bytes()
        });
        self.map.set_table(region, at / grain);
    }
}
