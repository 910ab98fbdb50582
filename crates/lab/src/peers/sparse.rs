//! A sparse array of numbers, whose pages exist once they are written. Memory: 8 bytes for each entry of a written
//! page.

/// Entries of a page: 4 KiB of memory.
const PAGE: u64 = 512;

#[derive(Default)]
pub(super) struct Sparse(Vec<Option<Box<[u64; PAGE as usize]>>>);

impl Sparse {
    /// Returns the entry; 0 where none was set.
    pub(super) fn get(&self, index: u64) -> u64 {
        let page = self.0.get((index / PAGE) as usize).and_then(Option::as_ref);
        page.map_or(0, |page| page[(index % PAGE) as usize])
    }

    pub(super) fn set(&mut self, index: u64, value: u64) {
        let page = (index / PAGE) as usize;
        if self.0.len() <= page {
            self.0.resize_with(page + 1, || None);
        }
        self.0[page].get_or_insert_with(|| Box::new([0; PAGE as usize]))[(index % PAGE) as usize] = value;
    }

    /// Returns the entries other than 0, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let pages = (0..).step_by(PAGE as usize).zip(&self.0);
        let written = pages.filter_map(|(first, page)| Some((first, page.as_ref()?)));
        written.flat_map(|(first, page)| (first..).zip(page.iter().copied())).filter(|(_, value)| *value != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_written_pages_exist() {
        let mut sparse = Sparse::default();
        sparse.set(1 << 20, 7);
        sparse.set(3, 1);
        assert_eq!((sparse.get(1 << 20), sparse.get(4), sparse.get(1 << 40)), (7, 0, 0));
        assert_eq!(sparse.iter().collect::<Vec<_>>(), [(3, 1), (1 << 20, 7)]);
        assert_eq!(sparse.0.iter().flatten().count(), 2);
    }
}
