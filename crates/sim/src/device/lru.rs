//! Pages of a read cache, each with the part that it holds. The least recently used page is evicted first.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// Stands for no neighbour, at both ends of the chain.
const NONE: u32 = u32::MAX;

struct CachedPage {
    page: u64,
    /// Bytes of the page that are valid.
    from: u32,
    to: u32,
    newer: u32,
    older: u32,
}

impl CachedPage {
    fn add(&mut self, part: &Range<u64>) {
        let (from, to) = (part.start as u32, part.end as u32);
        let meets = from <= self.to && self.from <= to && self.from < self.to;
        (self.from, self.to) = if meets { (self.from.min(from), self.to.max(to)) } else { (from, to) };
    }
}

/// A chain of pages in order of their last use, with an index by page number. A touch takes constant time.
#[derive(Default)]
pub(crate) struct Lru {
    pages_max: usize,
    /// Page to its index in `held`. Never iterated.
    places: HashMap<u64, u32, BuildHasherDefault<PageHasher>>,
    held: Vec<CachedPage>,
    newest: u32,
    oldest: u32,
}

impl Lru {
    pub(super) fn new(pages_max: usize) -> Lru {
        assert!(pages_max < NONE as usize, "{pages_max} pages of cache, fewer than 2^32 can be simulated");
        Lru { pages_max, newest: NONE, oldest: NONE, ..Lru::default() }
    }

    pub(super) fn holds(&self, page: u64, part: &Range<u64>) -> bool {
        let found = self.places.get(&page).map(|&place| &self.held[place as usize]);
        found.is_some_and(|held| u64::from(held.from) <= part.start && part.end <= u64::from(held.to))
    }

    /// Adds a part of a page, or moves it to the front. A part that does not touch the one that is held replaces it.
    pub(super) fn touch(&mut self, page: u64, part: &Range<u64>) {
        if self.pages_max == 0 {
            return;
        }
        let place = match self.places.get(&page) {
            Some(&place) => {
                if place != self.newest {
                    self.unchain(place);
                    self.chain(place);
                }
                place
            }
            None => {
                let place = self.bring_in(page);
                self.chain(place);
                place
            }
        };
        self.held[place as usize].add(part);
    }

    /// Returns the index of a page that was not in the cache; it is in no chain yet.
    fn bring_in(&mut self, page: u64) -> u32 {
        let held = CachedPage { page, from: 0, to: 0, newer: NONE, older: NONE };
        let place = if self.held.len() < self.pages_max {
            self.held.push(held);
            self.held.len() as u32 - 1
        } else {
            let oldest = self.oldest;
            self.unchain(oldest);
            let gone = std::mem::replace(&mut self.held[oldest as usize], held);
            self.places.remove(&gone.page);
            oldest
        };
        self.places.insert(page, place);
        place
    }

    fn unchain(&mut self, place: u32) {
        let CachedPage { newer, older, .. } = self.held[place as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.held[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.held[older as usize].newer = newer,
        }
    }

    fn chain(&mut self, place: u32) {
        let second = std::mem::replace(&mut self.newest, place);
        (self.held[place as usize].newer, self.held[place as usize].older) = (NONE, second);
        match second {
            NONE => self.oldest = place,
            second => self.held[second as usize].newer = place,
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Lru::new(self.pages_max);
    }
}

/// Hashes page numbers, which are adjacent or at regular strides: the high bits of a product are spread over the low
/// ones.
#[derive(Default)]
struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("page numbers alone are hashed");
    }

    fn write_u64(&mut self, page: u64) {
        let product = page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 29;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn the_least_recently_used_page_is_evicted() {
        let mut lru = Lru::new(2);
        [1, 2, 1, 3].into_iter().for_each(|page| lru.touch(page, &(0..8)));
        assert_eq!([1, 2, 3].map(|page| lru.holds(page, &(0..8))), [true, false, true]);
        lru.clear();
        assert!(!lru.holds(1, &(0..8)));
        let mut none = Lru::new(0);
        none.touch(1, &(0..8));
        assert!(!none.holds(1, &(0..8)));
    }

    #[test]
    fn a_page_holds_what_was_read_of_it_and_nothing_else() {
        let mut lru = Lru::new(1);
        lru.touch(1, &(8..16));
        assert!(lru.holds(1, &(8..16)) && lru.holds(1, &(9..10)) && !lru.holds(1, &(0..8)));
        lru.touch(1, &(16..24));
        assert!(lru.holds(1, &(8..24)), "neighbours join");
        lru.touch(1, &(0..4));
        assert!(lru.holds(1, &(0..4)) && !lru.holds(1, &(8..16)), "others are forgotten");
    }

    /// Compares the chain with a list in order of use.
    #[test]
    fn a_chain_equals_a_list() {
        let (mut lru, mut list, mut rng) = (Lru::new(16), Vec::new(), Rng::new(4));
        for _ in 0..5000 {
            let page = rng.below(24);
            lru.touch(page, &(0..1));
            list.retain(|&other| other != page);
            list.push(page);
            if list.len() > 16 {
                list.remove(0);
            }
            assert!((0..24).all(|page| lru.holds(page, &(0..1)) == list.contains(&page)), "{list:?}");
        }
    }
}
