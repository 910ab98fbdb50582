//! First writes whose data is under way: their grains have a place, and nothing is in it yet.

use std::cell::RefCell;
use std::ops::Range;

use blk::sync::Signal;

#[derive(Default)]
pub struct Fills {
    /// At most as many as guest I/Os are under way. Byte ranges of the disk.
    under_way: RefCell<Vec<Range<u64>>>,
    ended: Signal,
}

/// A first write's data; dropped when it has been written.
pub struct Fill<'a> {
    fills: &'a Fills,
    range: Range<u64>,
}

impl Fills {
    pub fn begin(&self, range: Range<u64>) -> Fill<'_> {
        self.under_way.borrow_mut().push(range.clone());
        Fill { fills: self, range }
    }

    /// Resolves when nothing in `range` is being filled.
    pub async fn passed(&self, range: &Range<u64>) {
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
