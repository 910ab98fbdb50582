//! One group: in which state each of its blocks is, and the one function that changes it.

use std::ops::Range;

use super::bits::{Bits, LANE, empty_lanes, masks};
use super::{GroupSummary, SLOTS};

/// The state of a block. Exactly one at a time; the ways are free -> young -> settled -> waiting -> free, a block of
/// metadata skips young, and one that was never settled skips that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Free,
    /// Placed since the last freeze; found again by replaying the journal.
    Young,
    /// In the persisted bitmap from the next checkpoint on.
    Settled,
    /// Freed, but a crash could bring its reference back, or an I/O may still be under way.
    Waiting,
    /// Free, and kept from placement while it is zero-written or punched; within a freeze, young and not to settle.
    Held,
}

pub(super) const USES: usize = 5;

/// Blocks of a chunk: 1 MiB, the unit of punching and of zero writes. A group has at most 32256 / 256 = 126.
pub(super) const CHUNK: usize = 256;

/// The maps of a group in memory. A bit in `busy` alone is held, a page slot, or behind the group's end.
#[derive(Debug)]
pub(super) struct Maps {
    pub busy: Bits,
    young: Bits,
    pub settled: Bits,
    waiting: Bits,
}

#[derive(Debug)]
pub(super) struct Group {
    /// What the newest durable superblock knows.
    pub committed: GroupSummary,
    /// Written for the checkpoint under way.
    pub written: Option<GroupSummary>,
    pub meta: bool,
    /// The settled set or `meta` differs from the page written last.
    pub dirty: bool,
    /// Blocks by `Use`. A group that is not loaded has free and settled ones only.
    pub counts: [u32; USES],
    /// Wholly free lanes. None until the group is loaded for the first time.
    pub lanes: Option<u32>,
    /// Its lanes and free blocks that the sums over loaded data groups have in them.
    pub counted: (u32, u32),
    /// Used since the last round of eviction.
    pub touched: bool,
    /// The freeze behind which a block of it became young last, counted as `State::freezes`; 0: none yet.
    pub placed_in: u64,
    /// Loaded for replay: stays until the next freeze.
    pub pinned: bool,
    /// Where the next search for a lane and for a gap begins.
    pub lane_cursor: usize,
    pub gap_cursor: usize,
    /// Chunks, one bit each, with blocks freed since they were punched.
    pub freed_chunks: u128,
    pub maps: Option<Box<Maps>>,
}

fn usable(blocks: usize) -> Range<usize> {
    SLOTS as usize..blocks
}

impl Maps {
    pub fn new(blocks: usize, settled: Bits) -> Maps {
        let mut busy = settled.clone();
        busy.fill(0..SLOTS as usize);
        busy.fill(blocks..busy.len());
        Maps { busy, young: Bits::new(blocks), settled, waiting: Bits::new(blocks) }
    }

    fn word(&self, state: Use, at: usize) -> u64 {
        let word = |bits: &Bits| bits.words()[at];
        let known = word(&self.young) | word(&self.settled) | word(&self.waiting);
        match state {
            Use::Free => !word(&self.busy),
            Use::Young => word(&self.young),
            Use::Settled => word(&self.settled),
            Use::Waiting => word(&self.waiting),
            Use::Held => word(&self.busy) & !known,
        }
    }

    fn map_mut(&mut self, state: Use) -> Option<&mut Bits> {
        match state {
            Use::Free | Use::Held => None,
            Use::Young => Some(&mut self.young),
            Use::Settled => Some(&mut self.settled),
            Use::Waiting => Some(&mut self.waiting),
        }
    }

    pub fn is(&self, range: Range<usize>, state: Use) -> bool {
        masks(range).all(|(at, mask)| self.word(state, at) & mask == mask)
    }

    /// The change of a part of one word; answers by how much the count of free lanes changed.
    fn shift_word(&mut self, (at, mask): (usize, u64), from: Use, to: Use) -> i32 {
        let lanes = |maps: &Maps| empty_lanes(maps.busy.words()[at]) as i32;
        let before = lanes(self);
        if let Some(map) = self.map_mut(from) {
            *map.word_mut(at) &= !mask;
        }
        if let Some(map) = self.map_mut(to) {
            *map.word_mut(at) |= mask;
        }
        let busy = self.busy.word_mut(at);
        *busy = if to == Use::Free { *busy & !mask } else { *busy | mask };
        lanes(self) - before
    }
}

impl Group {
    pub fn new(committed: GroupSummary, blocks: usize) -> Group {
        let usable = usable(blocks).len() as u32;
        let unwritten = GroupSummary { free: usable, meta: committed.meta, ..GroupSummary::default() };
        let committed = if committed.version == 0 { unwritten } else { committed };
        let free = committed.free.min(usable);
        Group {
            committed,
            written: None,
            meta: committed.meta,
            dirty: false,
            counts: [free, 0, usable - free, 0, 0],
            lanes: None,
            counted: (0, 0),
            touched: false,
            placed_in: 0,
            pinned: false,
            lane_cursor: 0,
            gap_cursor: 0,
            freed_chunks: 0,
            maps: None,
        }
    }

    pub fn count(&self, state: Use) -> u32 {
        self.counts[state as usize]
    }

    /// Wholly free lanes; for a group never loaded the most that there can be.
    pub fn lanes_at_most(&self) -> u32 {
        self.lanes.unwrap_or(self.count(Use::Free) / LANE as u32)
    }

    /// Nothing would be lost if its maps were dropped.
    pub fn is_quiet(&self) -> bool {
        let moving = self.count(Use::Young) + self.count(Use::Waiting) + self.count(Use::Held);
        moving == 0 && !self.dirty && self.written.is_none() && !self.pinned
    }

    pub fn is_wholly_free(&self) -> bool {
        self.count(Use::Free) == self.counts.iter().sum()
    }

    pub fn install(&mut self, maps: Maps) {
        self.lanes = Some(maps.busy.empty_lanes());
        self.maps = Some(Box::new(maps));
        self.touched = true;
    }

    /// Panics when the group is not loaded: whoever changes a block has loaded it, or placed it in this session.
    pub fn maps(&self) -> &Maps {
        self.maps.as_ref().expect("the group is loaded")
    }

    /// Panics when a block of `range` (counted from the group's start) is not in state `from`.
    pub fn shift(&mut self, range: Range<usize>, from: Use, to: Use) {
        assert!(is_a_way(from, to), "no block goes from {from:?} to {to:?}");
        let maps = self.maps.as_mut().expect("the group is loaded");
        assert!(maps.is(range.clone(), from), "blocks {range:?} of the group: not all of them are {from:?}");
        let len = range.len() as u32;
        let mut lanes = 0;
        for part in masks(range) {
            lanes += maps.shift_word(part, from, to);
        }
        self.lanes =
            self.lanes.map(|count| count.checked_add_signed(lanes).expect("as many as were counted"));
        self.counts[from as usize] -= len;
        self.counts[to as usize] += len;
        self.dirty |= from == Use::Settled || to == Use::Settled;
        self.touched = true;
    }

    /// All young blocks become settled.
    pub fn settle(&mut self) {
        let maps = self.maps.as_mut().expect("a group with young blocks is loaded");
        for at in 0..maps.young.words().len() {
            let young = std::mem::take(maps.young.word_mut(at));
            *maps.settled.word_mut(at) |= young;
        }
        let young = std::mem::take(&mut self.counts[Use::Young as usize]);
        self.counts[Use::Settled as usize] += young;
        self.dirty |= young > 0;
    }

    /// Notes that blocks of `range` hold what nobody needs any more.
    pub fn note_freed(&mut self, range: Range<usize>) {
        for chunk in range.start / CHUNK..range.end.div_ceil(CHUNK) {
            self.freed_chunks |= 1 << chunk;
        }
    }
}

fn is_a_way(from: Use, to: Use) -> bool {
    use Use::{Free, Held, Settled, Waiting, Young};
    matches!(
        (from, to),
        (Free, Young | Settled | Held)
            | (Young, Settled | Waiting | Free | Held)
            | (Settled, Waiting)
            | (Waiting, Free)
            | (Held, Free | Young)
    )
}
