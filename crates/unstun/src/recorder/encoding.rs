//! The bytes of recorded activity. `docs/formats/record.md` describes them.

use engine::latencies::COUNTS;

use super::activity::{Activity, Requests};

/// Bytes of a block's head: the length and the checksum of what follows.
const HEAD_BYTES: usize = 8;
/// Bytes of the first slot and the number of slots.
const SPAN_BYTES: usize = 12;
/// Counts below it are stored as they are.
const EXACT: u32 = 16;
/// Maximum size of a block in bytes; a longer one is not a block. An hour of twelve busy disks is smaller.
const BLOCK_BYTES_MAX: usize = 64 << 20;

/// The activity of disks in consecutive slots. A slot is an interval of a tier, numbered from 1970. A disk without a row
/// was idle.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Block {
    /// First slot.
    pub begin: i64,
    /// Number of slots.
    pub slots: u32,
    rows: Vec<u8>,
    /// Slot of the last row, from `begin`.
    last: u32,
}

impl Block {
    pub(super) fn new(begin: i64) -> Block {
        Block { begin, slots: 0, rows: Vec::new(), last: 0 }
    }

    /// Adds a slot and what its disks did. Slots without a call in between were idle.
    pub(super) fn add<'a>(&mut self, slot: i64, disks: impl Iterator<Item = (u32, &'a Activity)>) {
        let at = u32::try_from(slot - self.begin).expect("slots are added in their order");
        self.slots = at + 1;
        for (number, activity) in disks.filter(|(_, activity)| !activity.is_idle()) {
            put(&mut self.rows, u64::from(at - self.last));
            put(&mut self.rows, u64::from(number));
            put_activity(&mut self.rows, activity);
            self.last = at;
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the bytes of the block on file.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        bytes.extend(self.begin.to_le_bytes());
        bytes.extend(self.slots.to_le_bytes());
        bytes.extend(&self.rows);
        let length = u32::try_from(bytes.len() - HEAD_BYTES).expect("a block is small");
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        let checksum = checksum(&bytes[HEAD_BYTES..]);
        bytes[4..HEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Returns the first block, and the number of its bytes; None for other bytes, such as those of a block that a crash
    /// cut off.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Block, usize)> {
        let length = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let expected = u32::from_le_bytes(bytes.get(4..HEAD_BYTES)?.try_into().ok()?);
        if !(SPAN_BYTES..=BLOCK_BYTES_MAX).contains(&length) {
            return None;
        }
        let content = bytes.get(HEAD_BYTES..HEAD_BYTES + length)?;
        if checksum(content) != expected {
            return None;
        }
        let begin = i64::from_le_bytes(content[..8].try_into().ok()?);
        let slots = u32::from_le_bytes(content[8..SPAN_BYTES].try_into().ok()?);
        let block = Block { begin, slots, rows: content[SPAN_BYTES..].to_vec(), last: 0 };
        Some((block, HEAD_BYTES + length))
    }

    /// Calls `found` with each row: its slot, the number of the disk, and what the disk did. Rows after a damaged one are
    /// left out.
    pub(super) fn rows(&self, mut found: impl FnMut(i64, u32, &Activity)) {
        let (mut rest, mut at) = (self.rows.as_slice(), 0);
        while let Some((step, number, activity)) = row(&mut rest) {
            at += step;
            if at >= u64::from(self.slots) {
                return;
            }
            found(self.begin.saturating_add(at.cast_signed()), number, &activity);
        }
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    // The algorithm has 32 bits.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn row(rest: &mut &[u8]) -> Option<(u64, u32, Activity)> {
    if rest.is_empty() {
        return None;
    }
    let (step, number) = (take(rest)?, u32::try_from(take(rest)?).ok()?);
    let (layers, longest_us, flushes) = (take(rest)?, take(rest)?, take(rest)?);
    let (reads, writes) = (take_requests(rest)?, take_requests(rest)?);
    Some((step, number, Activity { reads, writes, flushes, longest_us, layers }))
}

fn put_activity(bytes: &mut Vec<u8>, activity: &Activity) {
    put(bytes, activity.layers);
    put(bytes, activity.longest_us);
    put(bytes, activity.flushes);
    for requests in [&activity.reads, &activity.writes] {
        put_requests(bytes, requests);
    }
}

fn put_requests(bytes: &mut Vec<u8>, requests: &Requests) {
    put(bytes, requests.count);
    if requests.count > 0 {
        put(bytes, requests.bytes);
        let first = requests.latencies.iter().position(|&n| n > 0).unwrap_or(0);
        let end = requests.latencies.iter().rposition(|&n| n > 0).map_or(first, |last| last + 1);
        // There are fewer counts than a byte has values.
        bytes.extend([first as u8, (end - first) as u8]);
        bytes.extend(requests.latencies[first..end].iter().map(|&count| rounded(count)));
    }
    put(bytes, requests.host_count);
    if requests.host_count > 0 {
        put(bytes, requests.host_bytes);
    }
}

fn take_requests(rest: &mut &[u8]) -> Option<Requests> {
    let mut requests = Requests { count: take(rest)?, ..Requests::default() };
    if requests.count > 0 {
        requests.bytes = take(rest)?;
        let (&[first, length], counts) = rest.split_first_chunk::<2>()?;
        let counts = counts.get(..usize::from(length))?;
        let end = usize::from(first) + counts.len();
        if end > COUNTS {
            return None;
        }
        let latencies = &mut requests.latencies[usize::from(first)..end];
        latencies.iter_mut().zip(counts).for_each(|(count, &byte)| *count = expanded(byte));
        *rest = &rest[2 + counts.len()..];
    }
    requests.host_count = take(rest)?;
    if requests.host_count > 0 {
        requests.host_bytes = take(rest)?;
    }
    Some(requests)
}

/// Returns a count in one byte: exact below `EXACT`, else with the four highest bits, so that it is wrong by 1/16 at most.
fn rounded(count: u32) -> u8 {
    if count < EXACT {
        return count as u8;
    }
    let shift = count.ilog2() - 3;
    // To the nearest; half of the step may carry into the next power of two, which the sum below represents as well.
    let mantissa = (u64::from(count) + (1 << (shift - 1))) >> shift;
    let code = (shift - 1) * 8 + mantissa as u32 - 8 + EXACT;
    code.min(u32::from(u8::MAX)) as u8
}

fn expanded(byte: u8) -> u32 {
    let code = u32::from(byte);
    if code < EXACT {
        return code;
    }
    let (shift, mantissa) = ((code - EXACT) / 8 + 1, (code - EXACT) % 8 + 8);
    u32::try_from(u64::from(mantissa) << shift).unwrap_or(u32::MAX)
}

/// Adds a number, seven bits in each byte, the lowest first; the highest bit says that more follow.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for (at, &byte) in rest.iter().enumerate().take(10) {
        number |= u64::from(byte & 0x7f).checked_shl(7 * at as u32)?;
        if byte < 0x80 {
            *rest = &rest[at + 1..];
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_count_in_one_byte_is_wrong_by_a_sixteenth_at_most() {
        let powers = (0..32).flat_map(|n| [0_i64, -1, 1, 7, 100].map(|by| (1_i64 << n) + by));
        for count in (0..5000).chain(powers.filter_map(|n| u32::try_from(n).ok()).map(i64::from)) {
            let count = u32::try_from(count).unwrap();
            let found = expanded(rounded(count));
            assert!(found.abs_diff(count) <= count / 16, "{count}: {found}");
            assert!(count >= EXACT || found == count);
        }
        // Every byte is a count.
        assert!((1..=u8::MAX).all(|byte| expanded(byte - 1) <= expanded(byte)));
    }

    fn activity(seed: u64) -> Activity {
        let mut activity =
            Activity { flushes: seed % 3, longest_us: seed % 90_000, layers: 4, ..Activity::default() };
        for (requests, factor) in [(&mut activity.reads, 1), (&mut activity.writes, 7)] {
            let at = (seed * factor % 40) as usize;
            requests.latencies[at] = (seed % 16) as u32;
            requests.latencies[at + 3] = 1;
            requests.count = seed % 16 + 1;
            requests.bytes = requests.count * 4096;
            requests.host_count = seed * factor % 5;
            requests.host_bytes = requests.host_count * 8192;
        }
        activity
    }

    #[test]
    fn rows_read_as_they_were_added_and_idle_disks_have_none() {
        let mut block = Block::new(-3);
        let (one, two, idle) = (activity(5), activity(77), Activity::default());
        block.add(-3, [(0, &one), (1, &idle)].into_iter());
        block.add(-1, [(1, &idle)].into_iter());
        block.add(6, [(0, &two), (300, &one)].into_iter());
        block.add(7, std::iter::empty());
        let (again, length) = Block::parse(&block.to_bytes()).unwrap();
        assert_eq!((again.begin, again.slots, length), (-3, 11, block.to_bytes().len()));
        let mut found = Vec::new();
        again.rows(|slot, number, activity| found.push((slot, number, activity.clone())));
        assert_eq!(found, [(-3, 0, one.clone()), (6, 0, two), (6, 300, one)]);
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_no_block(seed in 0_u64..1000, at in 0_usize..80, bit in 0_u8..8) {
            let mut block = Block::new(1_800_000_000);
            block.add(1_800_000_000, [(0, &activity(seed))].into_iter());
            let mut bytes = block.to_bytes();
            let at = at % bytes.len();
            prop_assert!(Block::parse(&bytes[..at]).is_none());
            bytes[at] ^= 1 << bit;
            prop_assert!(Block::parse(&bytes).is_none());
        }

        #[test]
        fn rows_of_any_bytes_are_read_without_panic(rows in prop::collection::vec(any::<u8>(), 0..200), slots in 0_u32..100) {
            Block { begin: 0, slots, rows, last: 0 }.rows(|_, _, _| ());
        }
    }
}
