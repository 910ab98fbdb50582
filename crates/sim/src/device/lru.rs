//! Which pages a read cache holds: the least recently used goes first.

use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Lru {
    pages_max: usize,
    /// page -> stamp of its last use
    pages: BTreeMap<u64, u64>,
    /// stamp -> page
    by_use: BTreeMap<u64, u64>,
    uses: u64,
}

impl Lru {
    pub fn new(pages_max: usize) -> Lru {
        Lru { pages_max, ..Lru::default() }
    }

    pub fn holds(&self, page: u64) -> bool {
        self.pages.contains_key(&page)
    }

    /// Brings a page in, or to the front.
    pub fn touch(&mut self, page: u64) {
        if self.pages_max == 0 {
            return;
        }
        self.uses += 1;
        if let Some(before) = self.pages.insert(page, self.uses) {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.uses, page);
        if self.pages.len() > self.pages_max
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.pages.remove(&oldest);
        }
    }

    pub fn clear(&mut self) {
        self.pages.clear();
        self.by_use.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_used_longest_ago_goes() {
        let mut lru = Lru::new(2);
        [1, 2, 1, 3].into_iter().for_each(|page| lru.touch(page));
        assert_eq!([1, 2, 3].map(|page| lru.holds(page)), [true, false, true]);
        let mut none = Lru::new(0);
        none.touch(1);
        assert!(!none.holds(1));
    }
}
