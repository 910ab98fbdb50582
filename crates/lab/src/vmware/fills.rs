//! First writes whose data is under way: their grains are reserved and hold no data yet.

use std::cell::RefCell;
use std::ops::Range;

use blk::sync::Signal;

#[derive(Default)]
pub(super) struct Fills {
    /// Byte ranges of the disk, at most as many as guest I/Os under way.
    under_way: RefCell<Vec<Range<u64>>>,
    ended: Signal,
}

/// The data of a first write under way; dropped when the data has been written.
pub(super) struct Fill<'a> {
    fills: &'a Fills,
    range: Range<u64>,
}

impl Fills {
    pub(super) fn begin(&self, range: Range<u64>) -> Fill<'_> {
        self.under_way.borrow_mut().push(range.clone());
        Fill { fills: self, range }
    }

    /// Resolves when no part of `range` is being filled.
    pub(super) async fn passed(&self, range: &Range<u64>) {
        while self.under_way.borrow().iter().any(|fill| fill.start < range.end && range.start < fill.end) {
            self.ended.wait().await;
        }
    }
}

impl Drop for Fill<'_> {
    fn drop(&mut self) {
        let mut under_way = self.fills.under_way.borrow_mut();
        let at =
            under_way.iter().position(|fill| *fill == self.range).expect("a fill is listed until it ends");
        under_way.swap_remove(at);
        drop(under_way);
        self.fills.ended.notify();
    }
}
