//! A verified grain table of a format that is read and never written, and a cache of such tables.

use std::ops::Range;
use std::rc::Rc;

use blk::Result;

use crate::lru::Lru;

/// Location of a grain, or of a run of grains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Parent,
    Zero,
    /// Number of the first grain of the run in the file; in a streamOptimized disk, where grains differ in length, its first
    /// sector.
    Data(u64),
}

/// A maximal range of a table with one location. `Data` grains are contiguous in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableRun {
    pub entry: usize,
    pub entries: usize,
    pub place: Place,
}

/// A verified table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// One word for each grain: `PARENT`, `ZERO`, or the number of a grain in the file, which is below both.
    places: Box<[u64]>,
}

const PARENT: u64 = u64::MAX;
const ZERO: u64 = u64::MAX - 1;

impl Table {
    pub(crate) fn collect(places: impl Iterator<Item = Result<Place>>) -> Result<Table> {
        let word = |place| match place {
            Place::Parent => PARENT,
            Place::Zero => ZERO,
            Place::Data(grain) => grain,
        };
        Ok(Table { places: places.map(|place| place.map(word)).collect::<Result<_>>()? })
    }

    /// Splits the entries of `range` into runs, in order.
    pub fn runs(&self, range: Range<usize>) -> impl Iterator<Item = TableRun> + '_ {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let (entry, first) = (at, *self.places.get(at).filter(|_| at < range.end)?);
            let step = u64::from(first < ZERO);
            let mut next = first;
            while at < range.end && self.places.get(at) == Some(&next) {
                at += 1;
                next += step;
            }
            let place = match first {
                PARENT => Place::Parent,
                ZERO => Place::Zero,
                grain => Place::Data(grain),
            };
            Some(TableRun { entry, entries: at - entry, place })
        })
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the runs in the file, with their first grain.
    pub fn data_runs(&self) -> impl Iterator<Item = (u64, TableRun)> + '_ {
        self.runs(0..self.len()).filter_map(|run| match run.place {
            Place::Data(grain) => Some((grain, run)),
            Place::Parent | Place::Zero => None,
        })
    }

    /// Returns two entries that name the same grain, the earlier one in the file's order first, and the grain.
    pub(crate) fn doubled(&self) -> Option<(usize, usize, u64)> {
        let mut runs: Vec<(u64, TableRun)> = self.data_runs().collect();
        runs.sort_unstable_by_key(|(grain, _)| *grain);
        let overlaps = |pair: &&[(u64, TableRun)]| pair[0].0 + pair[0].1.entries as u64 > pair[1].0;
        let [(first, left), (second, right)] = runs.windows(2).find(overlaps)? else { return None };
        Some((left.entry + (second - first) as usize, right.entry, *second))
    }
}

/// Tables kept in memory for each layer.
pub(crate) const TABLES_CACHED_MAX: usize = 32;

/// Verified tables by key.
pub(crate) struct TableCache<K>(Lru<K, Rc<Table>>);

impl<K: Ord + Copy> Default for TableCache<K> {
    fn default() -> Self {
        TableCache(Lru::new(TABLES_CACHED_MAX))
    }
}

impl<K: Ord + Copy> TableCache<K> {
    pub(crate) fn get(&mut self, key: K) -> Option<Rc<Table>> {
        self.0.get(key)
    }

    pub(crate) fn insert(&mut self, key: K, table: Rc<Table>) {
        self.0.insert(key, table);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
