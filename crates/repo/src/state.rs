//! What the entries of a log amount to.

use std::collections::{BTreeMap, BTreeSet};

use blk::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::entry::{Entry, EntryHash};
use crate::event::{Backup, Event};
use crate::names::PackName;

/// A backup that was given up and can still be taken back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forgotten {
    /// The backup.
    pub backup: Backup,
    /// When it was given up, in microseconds since 1970.
    pub forgotten_us: u64,
}

/// Everything that a log says, up to one of its entries.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Number of the last entry; 0 before the first.
    pub number: u32,
    pub(crate) hash: EntryHash,
    /// Sessions that have begun and not ended: the time of their begin by epoch.
    pub open: BTreeMap<u32, u64>,
    /// Backups by number.
    pub backups: BTreeMap<u32, Backup>,
    /// Backups that were given up and can be taken back, by number.
    pub forgotten: BTreeMap<u32, Forgotten>,
    /// Packs that no entry may name any more: ranges of numbers by epoch, each with its end.
    swept: BTreeMap<u32, BTreeMap<u32, u32>>,
}

impl State {
    /// Returns whether a pack was given up for ever.
    pub(crate) fn is_swept(&self, pack: PackName) -> bool {
        let ranges = self.swept.get(&pack.epoch);
        let before = ranges.and_then(|ranges| ranges.range(..=pack.number).next_back());
        before.is_some_and(|(_, end)| pack.number < *end)
    }

    /// Returns whether chunks of a session's packs may be named by others: it has ended with a backup.
    pub(crate) fn is_complete(&self, epoch: u32) -> bool {
        epoch <= self.number && !self.open.contains_key(&epoch) && !self.fenced(epoch)
    }

    /// Returns whether a session was declared dead: all its packs are swept.
    pub(crate) fn fenced(&self, epoch: u32) -> bool {
        self.is_swept(PackName { epoch, number: u32::MAX - 1 })
    }

    /// Returns the latest backup of a VM.
    pub fn latest(&self, vm_id: &str) -> Option<(u32, &Backup)> {
        let of_vm = self.backups.iter().filter(|(_, backup)| backup.origin.vm_id == vm_id);
        of_vm
            .max_by_key(|(number, backup)| (backup.taken_us, **number))
            .map(|(number, backup)| (*number, backup))
    }

    /// Returns the backup `number`.
    pub fn backup(&self, number: u32) -> Result<&Backup> {
        if let Some(backup) = self.backups.get(&number) {
            return Ok(backup);
        }
        let cause = match self.forgotten.contains_key(&number) {
            true => "it was removed; `unstun backup recall` takes it back until its space is reclaimed",
            false => "the repository has no backup of this number",
        };
        Err(Error::not_found(format!("backup {number}"), cause))
    }

    /// Applies the next entry, whose object has the hash `hash`.
    pub(crate) fn apply(&mut self, entry: &Entry, hash: EntryHash) -> Result<()> {
        let place = crate::names::log(entry.number);
        if entry.previous != self.hash {
            let cause = "the entry does not follow the one before it; objects of the repository were replaced, or restored from \
                         different times";
            return Err(Error::damaged(place, cause));
        }
        match &entry.event {
            Event::Begin => drop(self.open.insert(entry.number, entry.time_us)),
            Event::Backup(backup) => {
                self.open.remove(&backup.epoch);
                self.backups.insert(entry.number, (**backup).clone());
            }
            Event::Forget { backups } => {
                for number in backups {
                    if let Some(backup) = self.backups.remove(number) {
                        let forgotten = Forgotten { backup, forgotten_us: entry.time_us };
                        self.forgotten.insert(*number, forgotten);
                    }
                }
            }
            Event::Recall { backups } => {
                for number in backups {
                    if let Some(forgotten) = self.forgotten.remove(number) {
                        self.backups.insert(*number, forgotten.backup);
                    }
                }
            }
            Event::Sweep { gone, fenced, packs } => {
                gone.iter().for_each(|number| drop(self.forgotten.remove(number)));
                for epoch in fenced {
                    self.open.remove(epoch);
                    self.sweep(*epoch, 0, u32::MAX);
                }
                packs.iter().for_each(|(epoch, first, count)| {
                    self.sweep(*epoch, *first, first.saturating_add(*count));
                });
            }
        }
        (self.number, self.hash) = (entry.number, hash);
        Ok(())
    }

    /// Adds a range to those of an epoch, and joins it with its neighbours.
    fn sweep(&mut self, epoch: u32, mut first: u32, mut end: u32) {
        let ranges = self.swept.entry(epoch).or_default();
        while let Some((&begin, &stop)) = ranges.range(..=end).next_back() {
            if stop < first {
                break;
            }
            (first, end) = (first.min(begin), end.max(stop));
            ranges.remove(&begin);
        }
        ranges.insert(first, end);
    }

    /// Returns the epochs of whose packs some are swept.
    pub(crate) fn epochs_swept(&self) -> BTreeSet<u32> {
        self.swept.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swept_ranges_join() {
        let mut state = State::default();
        for (first, end) in [(5, 8), (1, 2), (2, 5), (20, 30), (7, 9)] {
            state.sweep(3, first, end);
        }
        assert_eq!(state.swept[&3], BTreeMap::from([(1, 9), (20, 30)]));
        let swept = |number| state.is_swept(PackName { epoch: 3, number });
        assert_eq!(
            [0, 1, 8, 9, 19, 20, 29, 30].map(swept),
            [false, true, true, false, false, true, true, false]
        );
        assert!(!state.is_swept(PackName { epoch: 4, number: 1 }));
    }

    #[test]
    fn a_fenced_session_cannot_be_named() {
        let mut state = State { number: 9, ..State::default() };
        state.open.insert(4, 0);
        assert!(!state.is_complete(4) && !state.fenced(4) && state.is_complete(5));
        state.sweep(4, 0, u32::MAX);
        assert!(state.fenced(4) && !state.is_complete(4));
    }
}
