//! Slots for grain tables in the area of the tables.
//!
//! A slot is not used again before the removal of the pointer to its former table is durable: until then a crash would
//! show a mixture of both tables.
//!
//! New files have two slots for each region, and region R uses slot R. So the back map names a table in the same way by
//! its slot and by its entry in the directory (it is not known which of them ESXi uses), and ESXi, which takes the next
//! slot after all that are in use, always finds one. Files of ESXi have one slot for each region, in order of use.

use std::collections::BTreeMap;

use blk::{Error, ErrorKind, Result};

pub(super) struct Slots {
    count: u32,
    regions: u32,
    /// Bit of each slot that is in use, or was until the last flush.
    used: Vec<u64>,
    /// Slots whose pointers were removed since the last flush, and those that it has captured.
    released: Vec<u32>,
    captured: Vec<u32>,
    /// `freeGTNumber`: all slots in use are below it.
    free_table: u32,
    /// Slots that were taken and whose space is not reserved yet, with their regions.
    unreserved: BTreeMap<u32, u32>,
}

impl Slots {
    /// `count` slots for `regions` regions, with those in `used` in use and all of them below `free_table`.
    pub(super) fn new(count: u32, regions: u32, free_table: u32, used: impl Iterator<Item = u32>) -> Slots {
        let (released, captured) = (Vec::new(), Vec::new());
        let words = vec![0; count.div_ceil(64) as usize];
        let mut slots = Slots {
            count,
            regions,
            used: words,
            released,
            captured,
            free_table,
            unreserved: BTreeMap::new(),
        };
        used.for_each(|slot| slots.set(slot));
        slots
    }

    fn is_used(&self, slot: u32) -> bool {
        self.used[(slot / 64) as usize] & (1 << (slot % 64)) != 0
    }

    fn set(&mut self, slot: u32) {
        self.used[(slot / 64) as usize] |= 1 << (slot % 64);
        self.free_table = self.free_table.max(slot + 1);
    }

    /// Takes a slot for the table of a region.
    ///
    /// # Errors
    /// `NoSpace` if no slot is free before the next flush.
    pub(super) fn take(&mut self, file: &str, region: u32) -> Result<u32> {
        let has_two = u64::from(self.count) >= 2 * u64::from(self.regions);
        let own = [region, region.saturating_add(self.regions)].into_iter().filter(|_| has_two);
        let slot = own
            .chain(self.free_table..self.count)
            .chain(0..self.count)
            .find(|slot| *slot < self.count && !self.is_used(*slot));
        let Some(slot) = slot else {
            let cause = format!("all {} slots for grain tables are in use until the next flush", self.count);
            return Err(Error::new(ErrorKind::NoSpace, file, cause));
        };
        self.set(slot);
        self.unreserved.insert(slot, region);
        Ok(slot)
    }

    /// Returns the slots without reserved space, with their regions.
    pub(super) fn unreserved(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.unreserved.iter().map(|(slot, region)| (*slot, *region))
    }

    pub(super) fn note_reserved(&mut self, slot: u32) {
        self.unreserved.remove(&slot);
    }

    /// Takes the slot that a log names. Returns false if it is in use.
    pub(super) fn claim(&mut self, slot: u32) -> bool {
        let is_free = slot < self.count && !self.is_used(slot);
        if is_free {
            self.set(slot);
        }
        is_free
    }

    /// Returns a slot to which nothing has pointed.
    pub(super) fn give(&mut self, slot: u32) {
        self.unreserved.remove(&slot);
        self.used[(slot / 64) as usize] &= !(1 << (slot % 64));
    }

    pub(super) fn release(&mut self, slot: u32) {
        self.released.push(slot);
    }

    /// Notes that a flush has captured the directory.
    pub(super) fn capture(&mut self) {
        self.captured.append(&mut self.released);
    }

    /// Notes that the captured directory is durable.
    pub(super) fn settle(&mut self) {
        for slot in std::mem::take(&mut self.captured) {
            self.give(slot);
        }
    }

    pub(super) fn free_table(&self) -> u32 {
        self.free_table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_has_its_own_slot_and_another_until_its_pointer_is_durably_gone() {
        let mut slots = Slots::new(64, 20, 0, std::iter::empty());
        assert_eq!((slots.take("x", 7).unwrap(), slots.free_table()), (7, 8));
        slots.release(7);
        slots.capture();
        assert_eq!(slots.take("x", 7).unwrap(), 27);
        slots.settle();
        slots.give(27);
        assert_eq!((slots.take("x", 7).unwrap(), slots.free_table()), (7, 28));
    }

    #[test]
    fn slots_of_a_file_of_esxi_are_taken_in_order() {
        let mut slots = Slots::new(4, 4, 2, [0, 1].into_iter());
        assert_eq!(slots.take("x", 3).unwrap(), 2);
        assert_eq!(slots.take("x", 0).unwrap(), 3);
        let error = slots.take("x", 2).unwrap_err();
        assert!(error.is_no_space() && error.cause.contains("4 slots"), "{error}");
        slots.release(1);
        assert!(slots.take("x", 2).is_err(), "its pointer may be on the disk");
        slots.capture();
        slots.settle();
        assert_eq!(slots.take("x", 2).unwrap(), 1);
        assert!(!slots.claim(1) && !slots.claim(4));
    }
}
