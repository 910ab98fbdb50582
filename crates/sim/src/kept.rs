//! A file's bytes where no power is ever cut: the buffers that were written, by reference.
//!
//! A page is a page of somebody's write buffer until another write lies over it. Only a write of a part of a page
//! copies.

use std::ops::Range;

use blk::{Buf, Slice};

use crate::content::PAGE;

/// Pages of a leaf: 2 MiB of the file. Leaves of a branch: 1 GiB. Branches: the largest file of 64 TiB has 64 Ki.
const FANOUT: u64 = 512;

struct Leaf([Option<Slice>; FANOUT as usize]);
struct Branch([Option<Box<Leaf>>; FANOUT as usize]);

#[derive(Default)]
pub(crate) struct Kept {
    branches: Vec<Option<Box<Branch>>>,
}

impl Kept {
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let mut at = 0;
        while at < out.len() {
            let position = offset + at as u64;
            let skip = (position % PAGE) as usize;
            let len = (PAGE as usize - skip).min(out.len() - at);
            let piece = &mut out[at..at + len];
            match self.page(position / PAGE) {
                Some(page) => piece.copy_from_slice(&page[skip..skip + len]),
                None => piece.fill(0),
            }
            at += len;
        }
    }

    fn page(&self, index: u64) -> Option<&Slice> {
        let (branch, leaf, page) = place(index);
        self.branches.get(branch)?.as_ref()?.0[leaf].as_ref()?.0[page].as_ref()
    }

    /// The place of a page, made where it does not exist.
    fn page_mut(&mut self, index: u64) -> &mut Option<Slice> {
        let (branch, leaf, page) = place(index);
        if self.branches.len() <= branch {
            self.branches.resize_with(branch + 1, || None);
        }
        let empty_branch = || Box::new(Branch([const { None }; FANOUT as usize]));
        let empty_leaf = || Box::new(Leaf([const { None }; FANOUT as usize]));
        let branch = self.branches[branch].get_or_insert_with(empty_branch);
        &mut branch.0[leaf].get_or_insert_with(empty_leaf).0[page]
    }

    pub fn write(&mut self, offset: u64, data: &Slice) {
        let end = offset + data.len() as u64;
        let mut position = offset;
        while position < end {
            let (index, skip) = (position / PAGE, (position % PAGE) as usize);
            let len = (PAGE - position % PAGE).min(end - position) as usize;
            let from = (position - offset) as usize;
            let page = self.page_mut(index);
            if len == PAGE as usize {
                *page = Some(data.slice(from..from + len));
            } else {
                patch(page, skip, &data[from..from + len]);
            }
            position += len as u64;
        }
    }

    /// The range reads as zeros. Pages that are not there are not made.
    pub fn zero(&mut self, range: Range<u64>) {
        let inner = range.start.div_ceil(PAGE)..(range.end / PAGE).max(range.start.div_ceil(PAGE));
        for index in self.data_pages(inner).collect::<Vec<_>>() {
            *self.page_mut(index) = None;
        }
        let edges = [range.start / PAGE, range.end / PAGE];
        for index in edges.into_iter().take(if edges[0] == edges[1] { 1 } else { 2 }) {
            let start = range.start.max(index * PAGE);
            let end = range.end.min((index + 1) * PAGE);
            if start < end && self.page(index).is_some() {
                let zeros = [0; PAGE as usize];
                patch(
                    self.page_mut(index),
                    (start - index * PAGE) as usize,
                    &zeros[..(end - start) as usize],
                );
            }
        }
    }

    /// Pages of `range` (page numbers) that were written, in order.
    pub fn data_pages(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        let leaves =
            range.start / FANOUT..range.end.div_ceil(FANOUT).min(self.branches.len() as u64 * FANOUT);
        leaves
            .filter_map(move |leaf| {
                let branch = self.branches.get((leaf / FANOUT) as usize)?.as_ref()?;
                Some((leaf, branch.0[(leaf % FANOUT) as usize].as_ref()?))
            })
            .flat_map(|(leaf, pages)| {
                let written = pages.0.iter().enumerate().filter(|(_, page)| page.is_some());
                written.map(move |(page, _)| leaf * FANOUT + page as u64)
            })
            .filter(move |index| range.contains(index))
    }
}

fn place(index: u64) -> (usize, usize, usize) {
    let (branch, leaf) = (index / (FANOUT * FANOUT), index / FANOUT % FANOUT);
    (branch as usize, leaf as usize, (index % FANOUT) as usize)
}

/// Writes into a page. Its buffer may be somebody else's too, so it is a copy that changes.
fn patch(page: &mut Option<Slice>, skip: usize, bytes: &[u8]) {
    let mut own = page.as_ref().map_or_else(|| Buf::zeroed(PAGE as usize), |old| Buf::copy_of(old));
    own[skip..skip + bytes.len()].copy_from_slice(bytes);
    *page = Some(own.freeze());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Against plain bytes, over random writes, zeroings and reads.
    #[test]
    fn equals_plain_bytes() {
        const LEN: u64 = 5 * PAGE;
        let mut rng = Rng::new(3);
        // Across the end of a leaf.
        let base = (FANOUT - 2) * PAGE;
        let (mut kept, mut plain) = (Kept::default(), vec![0; LEN as usize]);
        for step in 0..3000u64 {
            let start = rng.below(LEN);
            let end = start + rng.below(LEN - start + 1);
            let range = start as usize..end as usize;
            match rng.below(3) {
                0 => {
                    let bytes: Vec<u8> = range.clone().map(|_| step as u8 | 1).collect();
                    plain[range].copy_from_slice(&bytes);
                    kept.write(base + start, &Buf::copy_of(&bytes).freeze());
                }
                1 => {
                    plain[range].fill(0);
                    kept.zero(base + start..base + end);
                }
                _ => {
                    let mut found = vec![9; range.len()];
                    kept.read(base + start, &mut found);
                    assert_eq!(found, plain[range], "step {step}");
                }
            }
        }
        let held: Vec<u64> = kept.data_pages(0..4 * FANOUT).collect();
        assert!(held.iter().all(|page| (FANOUT - 2..FANOUT + 3).contains(page)), "{held:?}");
    }

    #[test]
    fn a_whole_page_is_the_writers_own_buffer() {
        let mut kept = Kept::default();
        let data = Buf::zeroed(2 * PAGE as usize).freeze();
        kept.write(PAGE, &data);
        assert_eq!(kept.page(2).expect("written").as_ptr(), data[PAGE as usize..].as_ptr());
        assert_eq!(kept.data_pages(0..10).collect::<Vec<_>>(), [1, 2]);
    }
}
