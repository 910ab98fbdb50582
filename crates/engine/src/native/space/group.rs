//! One group: the state of each of its blocks, and the one function that changes it.

use std::ops::Range;

use super::bits::{Bits, LANE, empty_lanes, masks};

/// Blocks at the start of a group that hold its bitmap page in turn.
pub(crate) const SLOTS: u64 = 2;

/// The catalogue's item for a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct GroupSummary {
    /// Blocks that the page does not mark as in use.
    pub free: u32,
    /// Number of the checkpoint that wrote the page; 0: never written, all free.
    pub version: u64,
    /// Slot of the page in the group: 0 or 1.
    pub slot: u8,
    /// The group holds metadata only.
    pub meta: bool,
    /// Checksum of the page.
    pub checksum: u64,
}

/// The state of a block, exactly one at a time. The transitions are free -> uncommitted -> committed -> waiting -> free. A
/// metadata block skips uncommitted, and a block that was never committed skips that state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockState {
    Free,
    /// Placed since the last freeze; a replay of the journal finds it again.
    Uncommitted,
    /// In the persisted bitmap from the next checkpoint on.
    Committed,
    /// Freed, but a crash could bring its reference back, or an I/O to it may still be under way.
    Waiting,
    /// Free, but kept from placement while it is zero-written or punched. Within a freeze: uncommitted, and not to settle.
    Held,
}

pub(super) const BLOCK_STATES: usize = 5;

/// Blocks of a chunk, the unit of punching and of zero writes: 1 MiB. A group has at most 32256 / 256 = 126 chunks.
pub(super) const CHUNK: usize = 256;

/// The maps of a group in memory. A bit in `busy` alone is a held block, a page slot, or behind the group's end.
#[derive(Debug)]
pub(super) struct Maps {
    pub busy: Bits,
    uncommitted: Bits,
    pub committed: Bits,
    waiting: Bits,
}

#[derive(Debug)]
pub(super) struct Group {
    /// Summary in the newest durable superblock's catalogue.
    pub committed: GroupSummary,
    /// Summary of the page written for the checkpoint under way.
    pub written: Option<GroupSummary>,
    pub meta: bool,
    /// The committed set or `meta` differs from the last written page.
    pub dirty: bool,
    /// Numbers of blocks by `BlockState`. A group that is not loaded has free and committed blocks only.
    pub counts: [u32; BLOCK_STATES],
    /// Number of wholly free lanes; None until the group is loaded for the first time.
    pub lanes: Option<u32>,
    /// This group's lanes and free blocks in the sums over loaded data groups.
    pub counted: (u32, u32),
    /// Used since the last round of eviction.
    pub touched: bool,
    /// Number of the freeze (as `State::freezes`) after which a block of the group last became uncommitted; 0: none yet.
    pub placed_in: u64,
    /// Loaded for a replay: it stays loaded until the next freeze.
    pub pinned: bool,
    /// Start of the next search for a lane, and for a gap.
    pub lane_cursor: usize,
    pub gap_cursor: usize,
    /// Chunks with blocks freed since they were last punched, one bit each.
    pub freed_chunks: u128,
    /// Punched chunks in which nothing was placed since.
    pub sparse_chunks: u128,
    pub maps: Option<Box<Maps>>,
}

fn usable(blocks: usize) -> Range<usize> {
    SLOTS as usize..blocks
}

impl Maps {
    pub(super) fn new(blocks: usize, committed: Bits) -> Maps {
        let mut busy = committed.clone();
        busy.fill(0..SLOTS as usize);
        busy.fill(blocks..busy.len());
        Maps { busy, uncommitted: Bits::new(blocks), committed, waiting: Bits::new(blocks) }
    }

    fn word(&self, state: BlockState, at: usize) -> u64 {
        let word = |bits: &Bits| bits.words()[at];
        let known = word(&self.uncommitted) | word(&self.committed) | word(&self.waiting);
        match state {
            BlockState::Free => !word(&self.busy),
            BlockState::Uncommitted => word(&self.uncommitted),
            BlockState::Committed => word(&self.committed),
            BlockState::Waiting => word(&self.waiting),
            BlockState::Held => word(&self.busy) & !known,
        }
    }

    fn map_mut(&mut self, state: BlockState) -> Option<&mut Bits> {
        match state {
            BlockState::Free | BlockState::Held => None,
            BlockState::Uncommitted => Some(&mut self.uncommitted),
            BlockState::Committed => Some(&mut self.committed),
            BlockState::Waiting => Some(&mut self.waiting),
        }
    }

    pub(super) fn is(&self, range: Range<usize>, state: BlockState) -> bool {
        masks(range).all(|(at, mask)| self.is_word(at, mask, state))
    }

    /// Returns whether the blocks of a part of one word are in this state.
    pub(super) fn is_word(&self, at: usize, mask: u64, state: BlockState) -> bool {
        self.word(state, at) & mask == mask
    }

    /// Changes the state of a part of one word; returns the change of the number of free lanes.
    fn shift_word(&mut self, (at, mask): (usize, u64), from: BlockState, to: BlockState) -> i32 {
        let lanes = |maps: &Maps| empty_lanes(maps.busy.words()[at]) as i32;
        let before = lanes(self);
        if let Some(map) = self.map_mut(from) {
            *map.word_mut(at) &= !mask;
        }
        if let Some(map) = self.map_mut(to) {
            *map.word_mut(at) |= mask;
        }
        let busy = self.busy.word_mut(at);
        *busy = if to == BlockState::Free { *busy & !mask } else { *busy | mask };
        lanes(self) - before
    }
}

impl Group {
    pub(super) fn new(committed: GroupSummary, blocks: usize) -> Group {
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
            sparse_chunks: 0,
            maps: None,
        }
    }

    pub(super) fn count(&self, state: BlockState) -> u32 {
        self.counts[state as usize]
    }

    /// Returns the number of wholly free lanes; for a group that was never loaded, the most that it can have.
    pub(super) fn lanes_at_most(&self) -> u32 {
        self.lanes.unwrap_or(self.count(BlockState::Free) / LANE as u32)
    }

    /// Returns whether the maps can be dropped without loss.
    pub(super) fn is_quiet(&self) -> bool {
        let moving = self.count(BlockState::Uncommitted)
            + self.count(BlockState::Waiting)
            + self.count(BlockState::Held);
        moving == 0 && !self.dirty && self.written.is_none() && !self.pinned
    }

    pub(super) fn is_wholly_free(&self) -> bool {
        self.count(BlockState::Free) == self.counts.iter().sum()
    }

    pub(super) fn install(&mut self, maps: Maps) {
        self.lanes = Some(maps.busy.empty_lanes());
        self.maps = Some(Box::new(maps));
        self.touched = true;
    }

    /// Returns the maps. Panics when the group is not loaded: a caller that changes a block has loaded its group
    /// before.
    pub(super) fn maps(&self) -> &Maps {
        self.maps.as_ref().expect("the group is loaded")
    }

    /// Changes the state of blocks. Panics when a block of `range` (counted from the group's start) is not in state
    /// `from`.
    pub(super) fn shift(&mut self, range: Range<usize>, from: BlockState, to: BlockState) {
        let maps = self.maps();
        assert!(maps.is(range.clone(), from), "blocks {range:?} of the group: not all of them are {from:?}");
        self.shift_words(masks(range), from, to);
    }

    /// Like `shift`, for blocks that the caller has checked: parts of words, each word once. Returns their number.
    pub(super) fn shift_words(
        &mut self,
        parts: impl Iterator<Item = (usize, u64)>,
        from: BlockState,
        to: BlockState,
    ) -> u32 {
        assert!(is_transition(from, to), "no block goes from {from:?} to {to:?}");
        let maps = self.maps.as_mut().expect("the group is loaded");
        let (mut len, mut lanes) = (0, 0);
        for part in parts {
            len += part.1.count_ones();
            lanes += maps.shift_word(part, from, to);
        }
        self.lanes =
            self.lanes.map(|count| count.checked_add_signed(lanes).expect("as many as were counted"));
        self.counts[from as usize] -= len;
        self.counts[to as usize] += len;
        self.dirty |= from == BlockState::Committed || to == BlockState::Committed;
        self.touched = true;
        len
    }

    /// Makes all uncommitted blocks committed.
    pub(super) fn settle(&mut self) {
        let maps = self.maps.as_mut().expect("a group with uncommitted blocks is loaded");
        for at in 0..maps.uncommitted.words().len() {
            let uncommitted = std::mem::take(maps.uncommitted.word_mut(at));
            *maps.committed.word_mut(at) |= uncommitted;
        }
        let uncommitted = std::mem::take(&mut self.counts[BlockState::Uncommitted as usize]);
        self.counts[BlockState::Committed as usize] += uncommitted;
        self.dirty |= uncommitted > 0;
    }

    /// Notes that blocks of `range` hold data that nothing needs.
    pub(super) fn note_freed(&mut self, range: Range<usize>) {
        for chunk in range.start / CHUNK..range.end.div_ceil(CHUNK) {
            self.freed_chunks |= 1 << chunk;
        }
    }
}

fn is_transition(from: BlockState, to: BlockState) -> bool {
    use BlockState::{Committed, Free, Held, Uncommitted, Waiting};
    matches!(
        (from, to),
        (Free, Uncommitted | Committed | Held)
            | (Uncommitted, Committed | Waiting | Free | Held)
            | (Committed, Waiting)
            | (Waiting, Free)
            | (Held, Free | Uncommitted)
    )
}
