//! Bitmaps of a store whose catalogue is lost: those found in the file, and those that are written anew.

use blk::Buf;

use super::bits::Bits;
use super::group::{GroupSummary, SLOTS};
use super::page::{self, FoundBitmap};
use crate::native::layout::{Extent, Geometry};

/// A set of blocks of the groups.
pub(crate) struct BlockSet {
    geometry: Geometry,
    groups: Vec<Bits>,
}

impl BlockSet {
    pub(crate) fn new(geometry: Geometry) -> BlockSet {
        BlockSet { geometry, groups: Vec::new() }
    }

    pub(crate) fn groups(&self) -> u64 {
        self.groups.len() as u64
    }

    /// Extends the set to at least `groups` groups.
    pub(crate) fn grow(&mut self, groups: u64) {
        let missing = (groups as usize).max(self.groups.len());
        self.groups.resize_with(missing, || Bits::new(self.geometry.group_blocks as usize));
    }

    /// Adds blocks. Returns whether all of them are blocks of one group that a page or data may have.
    pub(crate) fn insert(&mut self, extent: Extent) -> bool {
        let Some(group) = self.geometry.group_of(extent.addr) else { return false };
        let first = extent.addr - self.geometry.group_start(group);
        if first < SLOTS || first + extent.len > self.geometry.group_blocks || group >= self.groups() {
            return false;
        }
        self.groups[group as usize].fill(first as usize..(first + extent.len) as usize);
        true
    }

    pub(crate) fn contains(&self, addr: u64) -> bool {
        let Some(group) = self.geometry.group_of(addr).filter(|group| *group < self.groups()) else {
            return false;
        };
        self.groups[group as usize].get((addr - self.geometry.group_start(group)) as usize)
    }

    /// Returns the blocks of a group.
    pub(crate) fn of_group(&self, group: u64) -> impl Iterator<Item = u64> {
        let start = self.geometry.group_start(group);
        self.groups[group as usize].runs().flatten().map(move |at| start + at as u64)
    }

    /// Encodes the bitmap page of a group for slot 0, and returns it with its address and summary.
    pub(crate) fn encode(&self, group: u64, version: u64, meta: bool) -> (u64, Buf, GroupSummary) {
        let bits = &self.groups[group as usize];
        let free = (self.geometry.group_blocks - SLOTS) as u32 - bits.count() as u32;
        let summary = GroupSummary { free, version, slot: 0, meta, checksum: 0 };
        let (page, summary) = page::encode(&self.geometry, group, bits, summary);
        (page::address(&self.geometry, group, 0), page, summary)
    }
}

/// The bitmap pages of a group in a file, without the catalogue.
pub(crate) struct GroupPages {
    /// Those that are whole, the newest first.
    pub pages: Vec<FoundGroup>,
    /// A slot holds something else than a whole page, or zeros.
    pub damaged: bool,
    /// A slot holds zeros: it was never written, or its page was lost.
    pub zeros: bool,
}

/// A whole bitmap page.
pub(crate) struct FoundGroup {
    pub summary: GroupSummary,
    bits: Bits,
}

impl GroupPages {
    /// Reads both slots of a group.
    pub(crate) fn find(geometry: &Geometry, group: u64, slots: [&[u8]; 2]) -> GroupPages {
        let mut found = GroupPages { pages: Vec::new(), damaged: false, zeros: false };
        for (slot, page) in slots.into_iter().enumerate() {
            match page::find(geometry, group, slot as u8, page) {
                FoundBitmap::Never => found.zeros = true,
                FoundBitmap::Damaged => found.damaged = true,
                FoundBitmap::Page { summary, bits } => found.pages.push(FoundGroup { summary, bits }),
            }
        }
        found.pages.sort_by_key(|page| std::cmp::Reverse(page.summary.version));
        found
    }

    /// Returns the page of the last valid checkpoint; `Some(None)` if the group had none, and None if that is unknown.
    /// `became_valid` says whether a checkpoint did; None if that is unknown.
    ///
    /// The page of the last valid checkpoint is in one slot, and the other has an older one, or one of a checkpoint that
    /// never became valid.
    pub(crate) fn choose(&self, became_valid: impl Fn(u64) -> Option<bool>) -> Option<Option<&FoundGroup>> {
        if self.damaged {
            return None;
        }
        let verdicts: Vec<Option<bool>> =
            self.pages.iter().map(|page| became_valid(page.summary.version)).collect();
        match verdicts[..] {
            [] | [Some(false)] => Some(None),
            [Some(true), ..] => Some(self.pages.first()),
            [Some(false), Some(true) | None] => Some(self.pages.get(1)),
            _ => None,
        }
    }
}

impl BlockSet {
    /// Adds the blocks of a bitmap page.
    pub(crate) fn add_page(&mut self, group: u64, page: &FoundGroup) {
        self.grow(group + 1);
        self.groups[group as usize] = page.bits.clone();
    }
}
