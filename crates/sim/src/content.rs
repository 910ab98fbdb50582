//! Bytes of a file: the durable ones, and above them the writes that are visible but not yet durable.
//!
//! A write keeps its buffer (no copy) until a flush covers it. Then its sectors are copied into the durable pages,
//! once. Each page lists the pending writes to it, oldest first. Invariants:
//! * A reader sees the durable page with its list applied in order.
//! * Making a write durable removes its sectors from every older entry of the list, so a page never returns to older
//!   content.
//! * A durable page of zeros is not stored.
//!
//! The cost of a flush or a cut depends on the pages with pending writes, never on the size of the file.

mod forget;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use blk::Slice;

use crate::rng::Rng;
use crate::survival::{Fate, Survival};

pub(crate) const PAGE: u64 = 4096;
pub(crate) const SECTOR: u64 = 512;
/// One node of the page map covers 256 KiB.
const LEAF_PAGES: u64 = 64;
/// Maximum number of entries of one page. Beyond it, the file's older writes become durable without a flush, as a cache
/// would write them.
const PAGE_PENDING_MAX: usize = 256;
/// Maximum number of unflushed writes of a file, before the oldest become durable without a flush: 16 Ki of 4 KiB hold
/// 64 MiB of buffers.
const FILE_PENDING_MAX: usize = 16 << 10;
/// The same limit in bytes, for large writes.
const FILE_PENDING_BYTES_MAX: u64 = 64 << 20;

/// Identifies a write of this file until it is durable.
pub(crate) type EffectId = u32;
/// Stamp of a write that has not completed; no flush covers it.
const UNDER_WAY: u64 = u64::MAX;

#[derive(Default)]
struct Page {
    durable: Option<Box<[u8; PAGE as usize]>>,
    pending: Vec<Pending>,
}

#[derive(Clone, Copy)]
struct Pending {
    effect: EffectId,
    /// Bit n: the write owns sector n of this page.
    sectors: u8,
}

struct Leaf([Page; LEAF_PAGES as usize]);

impl Default for Leaf {
    fn default() -> Leaf {
        Leaf(std::array::from_fn(|_| Page::default()))
    }
}

/// One visible write, in whole sectors.
#[derive(Default)]
struct Effect {
    range: Range<u64>,
    /// None for a write of zeros.
    data: Option<Slice>,
    stamp: u64,
    /// Number of the change of the file's size to which this zeroing belongs: both survive a cut, or neither.
    change: Option<u64>,
    /// Its flush failed, and no later flush covers it.
    forgotten: bool,
}

type Leaves = BTreeMap<u64, Box<Leaf>>;

#[derive(Default)]
pub(crate) struct Content {
    leaves: Leaves,
    effects: Vec<Effect>,
    free: Vec<EffectId>,
    /// Writes that are completed and not durable, in order of completion.
    completed: VecDeque<EffectId>,
    completed_bytes: u64,
    /// Writes that are completed and visible, and that no later flush covers.
    forgotten: Vec<EffectId>,
    /// Stamp of the oldest write to a page that has too many.
    crowded: Option<u64>,
}

impl Content {
    /// Reads the present content.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        self.read_with(offset, out, |page, index, skip, out| self.read_page(page, index, skip, out));
    }

    /// Reads what would remain if every pending write were lost.
    pub(crate) fn read_durable(&self, offset: u64, out: &mut [u8]) {
        self.read_with(offset, out, |page, _, skip, out| copy_durable(page, skip, out));
    }

    fn read_with(&self, offset: u64, out: &mut [u8], read: impl Fn(&Page, u64, usize, &mut [u8])) {
        let mut at = 0;
        while at < out.len() {
            let position = offset + at as u64;
            let (index, skip) = (position / PAGE, (position % PAGE) as usize);
            let len = (PAGE as usize - skip).min(out.len() - at);
            let piece = &mut out[at..at + len];
            match self.page(index) {
                Some(page) => read(page, index, skip, piece),
                None => piece.fill(0),
            }
            at += len;
        }
    }

    fn page(&self, index: u64) -> Option<&Page> {
        self.leaves.get(&(index / LEAF_PAGES)).map(|leaf| &leaf.0[(index % LEAF_PAGES) as usize])
    }

    fn read_page(&self, page: &Page, index: u64, skip: usize, out: &mut [u8]) {
        let Some(newest) = page.pending.last() else {
            return copy_durable(page, skip, out);
        };
        if newest.sectors == u8::MAX {
            let effect = &self.effects[newest.effect as usize];
            return effect.copy(index * PAGE + skip as u64, out);
        }
        let mut whole = [0; PAGE as usize];
        copy_durable(page, 0, &mut whole);
        for entry in &page.pending {
            let effect = &self.effects[entry.effect as usize];
            for run in sector_runs(entry.sectors) {
                effect.copy(index * PAGE + run.start as u64, &mut whole[run]);
            }
        }
        out.copy_from_slice(&whole[skip..skip + out.len()]);
    }

    /// Returns the pages in `range` (page numbers) that may contain something other than zeros, in order.
    pub(crate) fn data_pages(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        let leaves = self.leaves.range(range.start / LEAF_PAGES..range.end.div_ceil(LEAF_PAGES));
        leaves
            .flat_map(|(&leaf, pages)| {
                pages.0.iter().enumerate().map(move |(at, page)| (leaf * LEAF_PAGES + at as u64, page))
            })
            .filter(move |(index, page)| range.contains(index) && self.may_hold_data(page))
            .map(|(index, _)| index)
    }

    fn may_hold_data(&self, page: &Page) -> bool {
        let writes = |entry: &Pending| self.effects[entry.effect as usize].data.is_some();
        match page.pending.last() {
            Some(newest) if newest.sectors == u8::MAX => writes(newest),
            _ => page.durable.is_some() || page.pending.iter().any(writes),
        }
    }

    /// Makes a write visible that has not completed; `complete` follows. `offset` and length are whole sectors.
    pub(crate) fn expose(&mut self, range: Range<u64>, data: Option<Slice>) -> EffectId {
        self.expose_part(range, data, &mut |sectors| sectors)
    }

    /// Makes a write visible like `expose`, but only the sectors that `part` selects from each page's mask: the
    /// possible effect of a failed write.
    pub(crate) fn expose_part(
        &mut self,
        range: Range<u64>,
        data: Option<Slice>,
        part: &mut dyn FnMut(u8) -> u8,
    ) -> EffectId {
        assert!(range.start.is_multiple_of(SECTOR) && range.end.is_multiple_of(SECTOR), "{range:?}");
        let effect = Effect { range, data, stamp: UNDER_WAY, ..Effect::default() };
        let id = self.free.pop().unwrap_or_else(|| {
            self.effects.push(Effect::default());
            u32::try_from(self.effects.len() - 1).expect("fewer than 2^32 pending writes")
        });
        let mut crowded = None;
        visit(&mut self.leaves, &effect, |index, page| {
            // Zeros over zeros change nothing, and a large punch stays cheap.
            if effect.data.is_none() && page.durable.is_none() && page.pending.is_empty() {
                return;
            }
            if page.pending.len() >= PAGE_PENDING_MAX {
                crowded = Some(page.pending[0].effect);
            }
            let sectors = part(effect.sectors_of(index));
            if sectors != 0 {
                page.pending.push(Pending { effect: id, sectors });
            }
        });
        self.effects[id as usize] = effect;
        let oldest = crowded.map(|oldest: EffectId| self.effects[oldest as usize].stamp);
        self.crowded = oldest.filter(|&stamp| stamp != UNDER_WAY).or(self.crowded);
        id
    }

    /// Marks a write as completed: flushes submitted after `stamp` cover it. Stamps never decrease.
    pub(crate) fn complete(&mut self, id: EffectId, stamp: u64) {
        let effect = &mut self.effects[id as usize];
        effect.stamp = stamp;
        self.completed_bytes += effect.data.as_ref().map_or(0, |d| d.len() as u64);
        self.completed.push_back(id);
    }

    /// Binds a zeroing to the change of size that caused it.
    pub(crate) fn bind(&mut self, id: EffectId, change: u64) {
        self.effects[id as usize].change = Some(change);
    }

    /// Returns the argument with which `persist` must be called if the limits are exceeded.
    pub(crate) fn overdue(&mut self) -> Option<u64> {
        let over = self.completed.len() > FILE_PENDING_MAX || self.completed_bytes > FILE_PENDING_BYTES_MAX;
        // Half of the writes at once, so that the next write does not exceed the limit again.
        let middle = || self.effects[self.completed[self.completed.len() / 2] as usize].stamp + 1;
        let crowded = self.crowded.take().map(|stamp| stamp + 1);
        crowded.or_else(|| over.then(middle))
    }

    /// Makes durable every write that completed before `covers`.
    pub(crate) fn persist(&mut self, covers: u64) {
        while let Some(&id) = self.completed.front()
            && self.effects[id as usize].stamp < covers
        {
            self.completed.pop_front();
            self.persist_one(id);
        }
    }

    fn persist_one(&mut self, id: EffectId) {
        let bytes = self.effects[id as usize].data.as_ref().map_or(0, |d| d.len() as u64);
        self.completed_bytes -= bytes;
        self.settle(id, &mut |sectors| sectors);
    }

    /// Ends a write: the sectors that `part` selects from each page's mask become durable, the others are lost.
    fn settle(&mut self, id: EffectId, part: &mut dyn FnMut(u8) -> u8) {
        let effect = std::mem::take(&mut self.effects[id as usize]);
        self.free.push(id);
        visit(&mut self.leaves, &effect, |index, page| {
            let Some(at) = page.pending.iter().position(|p| p.effect == id) else { return };
            let sectors = part(page.pending.remove(at).sectors);
            if at > 0 {
                page.pending[..at].iter_mut().for_each(|older| older.sectors &= !sectors);
                page.pending.retain(|p| p.sectors != 0);
            }
            page.store(index, sectors, &effect);
        });
    }

    /// Simulates a loss of power. Each pending write is lost, torn or kept, in any order. A zeroing bound to a change
    /// of size happens exactly if that change is below `changes_kept`, the number of the first change that was lost.
    /// Returns the ranges of writes of which something may remain.
    pub(crate) fn cut(&mut self, survival: &Survival, changes_kept: u64, rng: &mut Rng) -> Vec<Range<u64>> {
        let effects = std::mem::take(&mut self.effects);
        let fates: Vec<Fate> = effects
            .iter()
            .map(|effect| match effect.change {
                Some(change) if change < changes_kept => Fate::Whole,
                Some(_) => Fate::Lost,
                None if effect.forgotten => Fate::Lost,
                None => survival.fate(rng),
            })
            .collect();
        for effect in &effects {
            visit(&mut self.leaves, effect, |index, page| page.cut(index, &effects, &fates, rng));
        }
        self.free.clear();
        self.completed.clear();
        self.completed_bytes = 0;
        self.forgotten.clear();
        self.crowded = None;
        let spared =
            effects.into_iter().zip(fates).filter(|(e, fate)| *fate != Fate::Lost && e.data.is_some());
        spared.map(|(effect, _)| effect.range).collect()
    }

    /// Returns the ranges of the writes that a cut would have to decide.
    pub(crate) fn pending_ranges(&self) -> Vec<Range<u64>> {
        self.effects.iter().filter(|e| !e.range.is_empty()).map(|e| e.range.clone()).collect()
    }

    /// Returns the ranges of these writes that contain data.
    pub(crate) fn pending_writes(&self) -> Vec<Range<u64>> {
        let written = self.effects.iter().filter(|e| !e.range.is_empty() && e.data.is_some());
        written.map(|e| e.range.clone()).collect()
    }

    pub(crate) fn range_of(&self, id: EffectId) -> Range<u64> {
        self.effects[id as usize].range.clone()
    }

    /// Edits the durable bytes that are stored in the range, below pending writes.
    pub(crate) fn edit_durable(&mut self, range: Range<u64>, mut edit: impl FnMut(&mut [u8])) {
        let whole = Effect { range: range.clone(), ..Effect::default() };
        visit(&mut self.leaves, &whole, |index, page| {
            if let Some(bytes) = &mut page.durable {
                edit(&mut bytes[clip(&range, index)]);
                page.drop_zeros();
            }
        });
    }

    /// Stores bytes as durable, below pending writes, for fixtures and decay.
    pub(crate) fn put_durable(&mut self, offset: u64, bytes: &[u8]) {
        let range = offset..offset + bytes.len() as u64;
        for index in range.start / PAGE..range.end.div_ceil(PAGE) {
            let leaf = self.leaves.entry(index / LEAF_PAGES).or_default();
            let page = &mut leaf.0[(index % LEAF_PAGES) as usize];
            let part = clip(&range, index);
            let from = (index * PAGE + part.start as u64 - offset) as usize;
            let durable = page.durable.get_or_insert_with(zero_page);
            durable[part.clone()].copy_from_slice(&bytes[from..from + part.len()]);
            page.drop_zeros();
        }
    }
}

impl Effect {
    fn sectors_of(&self, index: u64) -> u8 {
        let part = clip(&self.range, index);
        let (first, end) = (part.start / SECTOR as usize, part.end.div_ceil(SECTOR as usize));
        ((1u16 << end) - (1u16 << first)) as u8
    }

    /// Copies the write's bytes from file offset `position` on, which must be inside it.
    fn copy(&self, position: u64, out: &mut [u8]) {
        match &self.data {
            None => out.fill(0),
            Some(data) => {
                let from = (position - self.range.start) as usize;
                out.copy_from_slice(&data[from..from + out.len()]);
            }
        }
    }
}

impl Page {
    /// Copies an effect's sectors into the durable page.
    fn store(&mut self, index: u64, sectors: u8, effect: &Effect) {
        if effect.data.is_none() && (sectors == u8::MAX || self.durable.is_none()) {
            self.durable = None;
            return;
        }
        let durable = self.durable.get_or_insert_with(zero_page);
        for run in sector_runs(sectors) {
            effect.copy(index * PAGE + run.start as u64, &mut durable[run]);
        }
        self.drop_zeros();
    }

    fn drop_zeros(&mut self) {
        if self.durable.as_ref().is_some_and(|bytes| is_zero(&bytes[..])) {
            self.durable = None;
        }
    }

    fn cut(&mut self, index: u64, effects: &[Effect], fates: &[Fate], rng: &mut Rng) {
        let mut pending = std::mem::take(&mut self.pending);
        // The file system keeps the order around a truncation.
        let free_order = pending.iter().all(|p| effects[p.effect as usize].change.is_none());
        if free_order && pending.len() > 1 && rng.coin() {
            rng.shuffle(&mut pending);
        }
        for entry in pending {
            let sectors = fates[entry.effect as usize].spare(entry.sectors, rng);
            if sectors != 0 {
                self.store(index, sectors, &effects[entry.effect as usize]);
            }
        }
    }
}

fn zero_page() -> Box<[u8; PAGE as usize]> {
    Box::new([0; PAGE as usize])
}

fn copy_durable(page: &Page, skip: usize, out: &mut [u8]) {
    match &page.durable {
        Some(bytes) => out.copy_from_slice(&bytes[skip..skip + out.len()]),
        None => out.fill(0),
    }
}

/// Returns the part of a byte range in page `index`, relative to the page.
fn clip(range: &Range<u64>, index: u64) -> Range<usize> {
    let base = index * PAGE;
    let start = range.start.max(base) - base;
    let end = range.end.min(base + PAGE) - base;
    start as usize..end as usize
}

/// Returns the byte ranges, inside a page, of consecutive set bits.
fn sector_runs(sectors: u8) -> impl Iterator<Item = Range<usize>> {
    let mut left = u32::from(sectors);
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let first = left.trailing_zeros();
        let count = (left >> first).trailing_ones();
        left &= !(((1 << count) - 1) << first);
        let first = first as usize * SECTOR as usize;
        Some(first..first + count as usize * SECTOR as usize)
    })
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|chunk| chunk.iter().fold(0, |all, &byte| all | byte) == 0)
}

/// Calls `each` for every page of the effect's range. For zeros it skips the parts of the map that do not exist.
fn visit(leaves: &mut Leaves, effect: &Effect, mut each: impl FnMut(u64, &mut Page)) {
    let pages = effect.range.start / PAGE..effect.range.end.div_ceil(PAGE);
    if pages.is_empty() {
        return;
    }
    let mut visit_leaf = |number: u64, leaf: &mut Leaf| {
        let base = number * LEAF_PAGES;
        for index in pages.start.max(base)..pages.end.min(base + LEAF_PAGES) {
            each(index, &mut leaf.0[(index - base) as usize]);
        }
    };
    let numbers = pages.start / LEAF_PAGES..pages.end.div_ceil(LEAF_PAGES);
    if effect.data.is_some() {
        numbers.for_each(|number| visit_leaf(number, leaves.entry(number).or_default()));
    } else {
        leaves.range_mut(numbers).for_each(|(&number, leaf)| visit_leaf(number, leaf));
    }
}
