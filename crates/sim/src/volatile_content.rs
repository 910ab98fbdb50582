//! Bytes of a file in a world without power cuts.
//!
//! Only the present content is kept. Of a sector that repeats the same 32 bytes, only these are kept: stamps of an
//! oracle, fill of a generator, and zeros. A page of such sectors takes 256 bytes instead of 4096. Pages in a row whose
//! sectors are all the same share one copy of the 32 bytes. A working set of hundreds of gigabytes therefore needs
//! little memory, and its reads are as fast as those of a small one.

use std::ops::Range;
use std::rc::Rc;

use crate::content::{PAGE, SECTOR};

const PAGE_LEN: usize = PAGE as usize;
const SECTOR_LEN: usize = SECTOR as usize;
/// Length of the repeated bytes.
const UNIT: usize = 32;
/// One unit of each sector of a page.
const UNITS_LEN: usize = PAGE_LEN / SECTOR_LEN * UNIT;
/// Pages of a leaf: 2 MiB of the file. Leaves of a branch: 1 GiB. Branches: the largest file of 64 TiB has 64 Ki.
const FANOUT: u64 = 512;

enum Page {
    /// Every sector repeats the same unit.
    Same(Rc<[u8; UNIT]>),
    Repeating(Box<[u8; UNITS_LEN]>),
    Whole(Box<[u8; PAGE_LEN]>),
}

struct Leaf([Option<Page>; FANOUT as usize]);
struct Branch([Option<Box<Leaf>>; FANOUT as usize]);

#[derive(Default)]
pub(crate) struct VolatileContent {
    branches: Vec<Option<Box<Branch>>>,
    /// The unit of the last page whose sectors are all the same.
    last: Rc<[u8; UNIT]>,
}

impl VolatileContent {
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        let mut at = 0;
        while at < out.len() {
            let position = offset + at as u64;
            let skip = (position % PAGE) as usize;
            let len = (PAGE_LEN - skip).min(out.len() - at);
            let piece = &mut out[at..at + len];
            match self.page(position / PAGE) {
                Some(page) => page.copy(skip, piece),
                None => piece.fill(0),
            }
            at += len;
        }
    }

    fn page(&self, index: u64) -> Option<&Page> {
        let (branch, leaf, page) = place(index);
        self.branches.get(branch)?.as_ref()?.0[leaf].as_ref()?.0[page].as_ref()
    }

    /// Returns a page, and creates it if it does not exist.
    fn page_mut(&mut self, index: u64) -> &mut Option<Page> {
        let (branch, leaf, page) = place(index);
        if self.branches.len() <= branch {
            self.branches.resize_with(branch + 1, || None);
        }
        let empty_branch = || Box::new(Branch([const { None }; FANOUT as usize]));
        let empty_leaf = || Box::new(Leaf([const { None }; FANOUT as usize]));
        let branch = self.branches[branch].get_or_insert_with(empty_branch);
        &mut branch.0[leaf].get_or_insert_with(empty_leaf).0[page]
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let mut position = offset;
        while position < end {
            let (index, skip) = (position / PAGE, (position % PAGE) as usize);
            let len = (PAGE - position % PAGE).min(end - position) as usize;
            let from = (position - offset) as usize;
            let bytes = &data[from..from + len];
            let mut last = self.last.clone();
            let page = self.page_mut(index);
            match bytes.try_into() {
                Ok(whole) => put(page, whole, &mut last),
                Err(_) => patch(page, skip, bytes, &mut last),
            }
            self.last = last;
            position += len as u64;
        }
    }

    /// Makes the range read as zeros. Pages that do not exist are not created.
    pub(crate) fn zero(&mut self, range: Range<u64>) {
        let inner = range.start.div_ceil(PAGE)..(range.end / PAGE).max(range.start.div_ceil(PAGE));
        for index in self.data_pages(inner).collect::<Vec<_>>() {
            *self.page_mut(index) = None;
        }
        self.zero_within(range.start / PAGE, &range);
        if range.start / PAGE != range.end / PAGE {
            self.zero_within(range.end / PAGE, &range);
        }
    }

    fn zero_within(&mut self, index: u64, range: &Range<u64>) {
        let start = range.start.max(index * PAGE);
        let end = range.end.min((index + 1) * PAGE);
        if start < end && self.page(index).is_some() {
            let zeros = [0; PAGE_LEN];
            let (skip, len, mut last) =
                ((start - index * PAGE) as usize, (end - start) as usize, self.last.clone());
            patch(self.page_mut(index), skip, &zeros[..len], &mut last);
        }
    }

    /// Returns the pages of `range` (page numbers) that were written, in order.
    pub(crate) fn data_pages(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
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

impl Page {
    fn copy(&self, skip: usize, out: &mut [u8]) {
        match self {
            Page::Whole(bytes) => out.copy_from_slice(&bytes[skip..skip + out.len()]),
            Page::Same(unit) if skip.is_multiple_of(UNIT) && out.len().is_multiple_of(UNIT) => {
                out.as_chunks_mut::<UNIT>().0.fill(**unit);
            }
            Page::Same(_) => out.copy_from_slice(&self.bytes()[skip..skip + out.len()]),
            Page::Repeating(units) => match out.try_into() {
                Ok(whole) => spread(units, whole),
                Err(_) => out.copy_from_slice(&self.bytes()[skip..skip + out.len()]),
            },
        }
    }

    fn bytes(&self) -> [u8; PAGE_LEN] {
        let mut whole = [0; PAGE_LEN];
        match self {
            Page::Whole(bytes) => whole.copy_from_slice(&bytes[..]),
            Page::Same(unit) => whole.as_chunks_mut::<UNIT>().0.fill(**unit),
            Page::Repeating(units) => spread(units, &mut whole),
        }
        whole
    }
}

fn spread(units: &[u8; UNITS_LEN], out: &mut [u8; PAGE_LEN]) {
    // The lengths are constants, so that the compiler stores registers and calls nothing.
    for (unit, sector) in units.as_chunks::<UNIT>().0.iter().zip(out.as_chunks_mut::<SECTOR_LEN>().0) {
        sector.as_chunks_mut::<UNIT>().0.fill(*unit);
    }
}

/// Replaces a page's content, in its present memory if it fits.
fn put(page: &mut Option<Page>, bytes: &[u8; PAGE_LEN], last: &mut Rc<[u8; UNIT]>) {
    let repeats = |sector: &[u8]| sector[..SECTOR_LEN - UNIT] == sector[UNIT..];
    if !bytes.chunks_exact(SECTOR_LEN).all(repeats) {
        match page {
            Some(Page::Whole(own)) => own.copy_from_slice(bytes),
            other => *other = Some(Page::Whole(Box::new(*bytes))),
        }
        return;
    }
    if bytes[..PAGE_LEN - UNIT] == bytes[UNIT..] {
        if last[..] != bytes[..UNIT] {
            *last = Rc::new(bytes[..UNIT].try_into().expect("a unit"));
        }
        *page = Some(Page::Same(last.clone()));
        return;
    }
    if !matches!(page, Some(Page::Repeating(_))) {
        *page = Some(Page::Repeating(Box::new([0; UNITS_LEN])));
    }
    if let Some(Page::Repeating(units)) = page {
        let sectors = bytes.chunks_exact(SECTOR_LEN);
        units.chunks_exact_mut(UNIT).zip(sectors).for_each(|(unit, s)| unit.copy_from_slice(&s[..UNIT]));
    }
}

fn patch(page: &mut Option<Page>, skip: usize, bytes: &[u8], last: &mut Rc<[u8; UNIT]>) {
    let mut whole = page.as_ref().map_or([0; PAGE_LEN], Page::bytes);
    whole[skip..skip + bytes.len()].copy_from_slice(bytes);
    put(page, &whole, last);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Compares with plain bytes, over random writes, zeros and reads.
    #[test]
    fn equals_plain_bytes() {
        const LEN: u64 = 5 * PAGE;
        let mut rng = Rng::new(3);
        // Includes the end of a leaf.
        let base = (FANOUT - 2) * PAGE;
        let (mut volatile, mut plain) = (VolatileContent::default(), vec![0; LEN as usize]);
        for step in 0..3000u64 {
            // Whole sectors, whole pages, and any bytes.
            let grain = [1, SECTOR, PAGE][rng.below(3) as usize];
            let start = rng.below(LEN / grain) * grain;
            let end = start + rng.below((LEN - start) / grain + 1) * grain;
            let range = start as usize..end as usize;
            match rng.below(4) {
                0 => {
                    plain[range.clone()].fill(step as u8 | 1);
                    volatile.write(base + start, &plain[range]);
                }
                1 => {
                    rng.fill(&mut plain[range.clone()]);
                    volatile.write(base + start, &plain[range]);
                }
                2 => {
                    plain[range].fill(0);
                    volatile.zero(base + start..base + end);
                }
                _ => {
                    let mut found = vec![9; range.len()];
                    volatile.read(base + start, &mut found);
                    assert!(found == plain[range], "step {step}");
                }
            }
        }
        let held: Vec<u64> = volatile.data_pages(0..4 * FANOUT).collect();
        assert!(held.iter().all(|page| (FANOUT - 2..FANOUT + 3).contains(page)), "{held:?}");
    }

    #[test]
    fn repeating_sectors_use_little_memory() {
        let mut volatile = VolatileContent::default();
        let mut bytes = vec![0; 2 * PAGE_LEN];
        for (n, sector) in bytes.chunks_exact_mut(SECTOR_LEN).enumerate() {
            sector.chunks_exact_mut(UNIT).for_each(|part| part[5] = n as u8);
        }
        bytes[PAGE_LEN + 3] = 1;
        volatile.write(0, &bytes);
        volatile.write(2 * PAGE, &[7; 2 * PAGE_LEN]);
        let shared =
            |page| matches!(volatile.page(page), Some(Page::Same(unit)) if Rc::strong_count(unit) == 3);
        assert!(shared(2) && shared(3));
        assert!(matches!(volatile.page(0), Some(Page::Repeating(_))));
        assert!(matches!(volatile.page(1), Some(Page::Whole(_))), "its first sector repeats nothing");
    }
}
