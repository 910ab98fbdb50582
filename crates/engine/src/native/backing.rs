//! The backing block of a block that was written in part: which sectors the block has itself, and where the others are.

use super::layout::{BLOCK, FLAGS_SHIFT, addr_of};

/// Bytes of a sector: what a device writes whole or not at all.
pub(super) const SECTOR: u64 = 512;
const SECTORS: u64 = BLOCK / SECTOR;
/// The mask of a block that has all of its sectors.
pub(super) const ALL_SECTORS: u8 = u8::MAX;

const _: () = assert!(SECTORS == u8::BITS as u64);

/// A block's sector mask and its backing block, which is whole. Nothing but the block refers to the backing block
/// through this; it is shown like the block itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backing {
    /// The entry's first word: the address, and the mask as flags. 0: the block has all of its sectors.
    pub place: u64,
    pub birth: u64,
}

impl Backing {
    pub const NONE: Backing = Backing { place: 0, birth: 0 };

    /// Returns the backing of a block that has the sectors `present` itself; none if these are all.
    pub fn new(present: u8, addr: u64, birth: u64) -> Backing {
        assert!(present != 0 && addr != 0, "sectors {present:#x} over block {addr}");
        match present {
            ALL_SECTORS => Backing::NONE,
            _ => Backing { place: addr | u64::from(present) << FLAGS_SHIFT, birth },
        }
    }

    pub fn is_none(&self) -> bool {
        self.place == 0
    }

    /// Returns the address of the backing block; 0 if there is none.
    pub fn addr(&self) -> u64 {
        addr_of(self.place)
    }

    /// Returns the sectors that the block has itself, the first in the lowest bit.
    pub fn present(&self) -> u8 {
        match self.is_none() {
            true => ALL_SECTORS,
            false => (self.place >> FLAGS_SHIFT) as u8,
        }
    }
}

/// How a write reaches a run of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WritePath {
    /// To its present place: no other state shows it, and no replay will doubt it.
    InPlace,
    /// To its present place, which gets further sectors of the block.
    Extend,
    Redirect,
}

/// Returns the sectors of `block` that a range of bytes, on bounds of sectors, covers.
pub(super) fn sectors_of(block: u64, from: u64, to: u64) -> u8 {
    let start = block * BLOCK;
    let first = from.clamp(start, start + BLOCK) - start;
    let end = to.clamp(start, start + BLOCK) - start;
    let below = |bytes: u64| ((1u16 << (bytes / SECTOR)) - 1) as u8;
    below(end) & !below(first)
}

/// Returns the contiguous groups of sectors of a mask, as ranges of bytes within the block.
pub(super) fn groups_of(mask: u8) -> impl Iterator<Item = std::ops::Range<u64>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = u32::from(mask) >> at;
        let first = at + rest.trailing_zeros();
        if rest == 0 {
            return None;
        }
        let end = first + (u32::from(mask) >> first).trailing_ones();
        at = end;
        Some(u64::from(first) * SECTOR..u64::from(end) * SECTOR)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_a_bit_for_each_sector() {
        assert_eq!(sectors_of(1, 4096 + 512, 4096 + 1536), 0b110);
        assert_eq!(sectors_of(1, 0, 1 << 20), ALL_SECTORS);
        assert_eq!(sectors_of(1, 4096 + 3584, 8192 + 3584), 0x80);
        assert_eq!(sectors_of(2, 4096 + 3584, 8192 + 3584), 0x7F);
        assert_eq!(sectors_of(3, 4096 + 3584, 8192 + 3584), 0);
        let groups: Vec<_> = groups_of(0b1011_0001).collect();
        assert_eq!(groups, [0..512, 2048..3072, 3584..4096]);
        assert!(groups_of(ALL_SECTORS).eq(std::iter::once(0..4096)));
        assert_eq!(groups_of(0).count(), 0);
    }

    #[test]
    fn a_backing_keeps_mask_address_and_birth() {
        let backing = Backing::new(0x81, 77, 5);
        assert_eq!((backing.present(), backing.addr(), backing.birth), (0x81, 77, 5));
        assert_eq!(Backing::new(ALL_SECTORS, 77, 5), Backing::NONE);
        assert_eq!(Backing::NONE.present(), ALL_SECTORS);
    }
}
