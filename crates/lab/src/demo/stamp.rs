//! Stamps in the demo's blocks, by which a read is judged: every sector carries its block's number and a rising
//! sequence.
//!
//! Verified: a block never shows another block's data, nor data older than the last write that was answered before the
//! read was sent. Not verified: durability across a crash, and the filler bytes between two stamps.

pub const BLOCK_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;
/// Mark that distinguishes stamps from foreign data. It is in the upper bits, so that the block's number stays readable
/// below it.
const MARK: u64 = 0x5553_5455_4e00_0000 << 8;
const NUMBER_MASK: u64 = (1 << 32) - 1;

/// Stamps every sector of a block. Block numbers are below 2^32: 16 TiB of 4 KiB blocks.
pub fn write(block: u64, sequence: u64, data: &mut [u8]) {
    for sector in data.chunks_exact_mut(SECTOR_BYTES) {
        sector[..8].copy_from_slice(&(MARK | (block & NUMBER_MASK)).to_le_bytes());
        sector[8..16].copy_from_slice(&sequence.to_le_bytes());
    }
}

/// Returns the lowest sequence in the block, or `None` if any sector is not this block's.
pub fn lowest_sequence(block: u64, data: &[u8]) -> Option<u64> {
    let mut lowest = None;
    for sector in data.chunks_exact(SECTOR_BYTES) {
        if field(sector, 0) != MARK | (block & NUMBER_MASK) {
            return None;
        }
        let sequence = field(sector, 8);
        lowest = Some(lowest.map_or(sequence, |l: u64| l.min(sequence)));
    }
    lowest
}

fn field(sector: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&sector[at..at + 8]);
    u64::from_le_bytes(bytes)
}

/// SplitMix64 generator, sufficient for choosing blocks and filling them with bytes that do not compress.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which is far below 2^64, so that the bias does not show.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    pub fn fill(&mut self, data: &mut [u8]) {
        for chunk in data.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.word().to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_known_by_every_sector() {
        let mut data = vec![0; BLOCK_BYTES];
        assert_eq!(lowest_sequence(0, &data), None);
        write(7, 100, &mut data);
        assert_eq!(lowest_sequence(7, &data), Some(100));
        assert_eq!(lowest_sequence(8, &data), None);
        write(7, 90, &mut data[SECTOR_BYTES..2 * SECTOR_BYTES]);
        assert_eq!(lowest_sequence(7, &data), Some(90));
        data[3 * SECTOR_BYTES] ^= 1;
        assert_eq!(lowest_sequence(7, &data), None);
    }
}
