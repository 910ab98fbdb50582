//! Table pages that are in memory: all, none, or a limited number, replaced by the clock algorithm.

use super::rules::TableCache;

pub(super) struct Cache {
    kind: TableCache,
    /// One bit for each table page.
    resident: Vec<u64>,
    /// Resident pages used since the clock hand last passed them.
    used: Vec<u64>,
    /// Resident pages, where the cache is bounded.
    ring: Vec<u32>,
    hand: usize,
}

fn get(bits: &[u64], page: u64) -> bool {
    bits[(page / 64) as usize] >> (page % 64) & 1 == 1
}

fn set(bits: &mut [u64], page: u64, value: bool) {
    let bit = 1 << (page % 64);
    let word = &mut bits[(page / 64) as usize];
    *word = if value { *word | bit } else { *word & !bit };
}

impl Cache {
    pub(super) fn new(kind: TableCache, pages: u64) -> Cache {
        let words = if kind == TableCache::Nothing { 0 } else { pages.div_ceil(64) as usize };
        Cache { kind, resident: vec![0; words], used: vec![0; words], ring: Vec::new(), hand: 0 }
    }

    /// Returns whether the page is in memory, and marks it as used.
    pub(super) fn hit(&mut self, page: u64) -> bool {
        if self.kind == TableCache::Nothing || !get(&self.resident, page) {
            return false;
        }
        set(&mut self.used, page, true);
        true
    }

    /// Adds a page that was read or written.
    pub(super) fn insert(&mut self, page: u64) {
        if self.kind == TableCache::Nothing || self.hit(page) {
            return;
        }
        if let TableCache::Pages(limit) = self.kind {
            self.make_room(limit as usize, page);
        }
        set(&mut self.resident, page, true);
    }

    /// Adds the page to the ring, evicting another where it is full. Page numbers fit in 32 bits: 2 TiB of disk have
    /// 2^22 at most.
    fn make_room(&mut self, limit: usize, page: u64) {
        if self.ring.len() < limit {
            self.ring.push(page as u32);
            return;
        }
        loop {
            let victim = u64::from(self.ring[self.hand]);
            if !get(&self.used, victim) {
                set(&mut self.resident, victim, false);
                self.ring[self.hand] = page as u32;
                self.hand = (self.hand + 1) % limit;
                return;
            }
            set(&mut self.used, victim, false);
            self.hand = (self.hand + 1) % limit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_cache_keeps_what_is_used() {
        let mut cache = Cache::new(TableCache::Pages(2), 100);
        cache.insert(7);
        cache.insert(8);
        assert!(cache.hit(7));
        cache.insert(99);
        assert!(cache.hit(7) && cache.hit(99) && !cache.hit(8));
    }

    #[test]
    fn the_ends_keep_nothing_and_everything() {
        let (mut none, mut all) = (Cache::new(TableCache::Nothing, 9), Cache::new(TableCache::Everything, 9));
        none.insert(3);
        all.insert(3);
        assert!(!none.hit(3) && all.hit(3) && !all.hit(4));
    }
}
