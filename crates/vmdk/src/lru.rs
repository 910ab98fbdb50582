//! A bounded cache of values by key, which drops the one that was not used for longest.

use std::collections::BTreeMap;

/// Values, with the time of their last use. Inserting searches all of them for the oldest, so they are at most some hundreds.
pub(crate) struct Lru<K, V> {
    loaded: BTreeMap<K, (u64, V)>,
    clock: u64,
    max: usize,
}

impl<K: Ord + Copy, V: Clone> Lru<K, V> {
    /// Creates a cache of at most `max` values, at least one.
    pub(crate) fn new(max: usize) -> Self {
        Lru { loaded: BTreeMap::new(), clock: 0, max: max.max(1) }
    }

    pub(crate) fn get(&mut self, key: K) -> Option<V> {
        self.clock += 1;
        let (used, value) = self.loaded.get_mut(&key)?;
        *used = self.clock;
        Some(value.clone())
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.loaded.len() >= self.max {
            let oldest = self.loaded.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key);
            self.loaded.remove(&oldest.expect("the cache is full"));
        }
        self.clock += 1;
        self.loaded.insert(key, (self.clock, value));
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.loaded.len()
    }
}
