//! The slices of L2 tables that are in memory, replaced least recently used first.

use std::collections::BTreeMap;

/// Time after which a slice that was not used is dropped, seconds. Source: QEMU `docs/qcow2-cache.txt`,
/// cache-clean-interval on Linux.
pub(super) const CLEAN_INTERVAL_S: u64 = 600;

#[derive(Debug, Clone, Copy)]
struct Entry {
    used: u64,
    /// Interval of the cleaner in which the slice was used last.
    interval: u64,
    dirty: bool,
}

pub(super) struct Slices {
    capacity: usize,
    entries: BTreeMap<u64, Entry>,
    /// Slices by their last use.
    order: BTreeMap<u64, u64>,
    uses: u64,
}

/// What a use of a slice costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Hit,
    /// The slice has to be read, after the slice that it replaces was written, if there is one.
    Miss {
        write_first: Option<u64>,
    },
}

impl Slices {
    pub(super) fn new(capacity: u64) -> Slices {
        Slices { capacity: capacity as usize, entries: BTreeMap::new(), order: BTreeMap::new(), uses: 0 }
    }

    /// Uses a slice, which is in the cache afterwards.
    pub(super) fn use_slice(&mut self, slice: u64, now_us: u64) -> Use {
        let interval = now_us / 1_000_000 / CLEAN_INTERVAL_S;
        self.uses += 1;
        let old = self.entries.remove(&slice);
        if let Some(entry) = old {
            self.order.remove(&entry.used);
        }
        // The cleaner drops what was not used in the whole of one interval.
        let old = old.filter(|entry| entry.dirty || entry.interval + 1 >= interval);
        let found = match old {
            Some(_) => Use::Hit,
            None => Use::Miss { write_first: self.make_room() },
        };
        let dirty = old.is_some_and(|entry| entry.dirty);
        self.entries.insert(slice, Entry { used: self.uses, interval, dirty });
        self.order.insert(self.uses, slice);
        found
    }

    /// Drops the slice that was not used for the longest time, where the cache is full. Returns it if it was dirty.
    fn make_room(&mut self) -> Option<u64> {
        if self.entries.len() < self.capacity {
            return None;
        }
        let (_, oldest) = self.order.pop_first()?;
        self.entries.remove(&oldest).filter(|entry| entry.dirty).map(|_| oldest)
    }

    /// Marks a slice as changed; it was just used.
    pub(super) fn set_dirty(&mut self, slice: u64) {
        if let Some(entry) = self.entries.get_mut(&slice) {
            entry.dirty = true;
        }
    }

    /// Returns the changed slices, in order, and marks them as written.
    pub(super) fn take_dirty(&mut self) -> Vec<u64> {
        let dirty = self.entries.iter_mut().filter(|(_, entry)| entry.dirty);
        dirty
            .map(|(slice, entry)| {
                entry.dirty = false;
                *slice
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Use = Use::Miss { write_first: None };

    #[test]
    fn the_least_recently_used_slice_is_replaced_and_written_if_changed() {
        let mut slices = Slices::new(2);
        assert_eq!((slices.use_slice(1, 0), slices.use_slice(2, 0)), (READ, READ));
        slices.set_dirty(1);
        slices.set_dirty(2);
        assert_eq!(slices.use_slice(1, 0), Use::Hit);
        assert_eq!(slices.use_slice(3, 0), Use::Miss { write_first: Some(2) });
        assert_eq!(slices.take_dirty(), [1]);
        assert_eq!(slices.use_slice(4, 0), READ, "what was written is dropped without a write");
    }

    #[test]
    fn what_is_not_used_is_cleaned() {
        let mut slices = Slices::new(2);
        slices.use_slice(1, 0);
        assert_eq!(slices.use_slice(1, 700_000_000), Use::Hit);
        assert_eq!(slices.use_slice(1, 2_000_000_000), READ);
    }
}
