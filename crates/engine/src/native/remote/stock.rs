//! Blocks that the store's core hands out in advance: another core writes redirected data to them without a message, and
//! sends only their records.
//!
//! All disks of a store on that core use the same blocks, one behind the other, so their writes are coalesced. A batch of
//! blocks counts as placed for data that no record refers to. It has a mark like a grant: the store recalls
//! the batch when it is short of space, or when the core serves none of its disks any more, and the blocks are free once no
//! write to them is under way. A record for blocks that were recalled is refused, and the write is repeated as a message.
//! A record names its batch by the mark: the same blocks may have been handed out again before the record arrives.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use super::super::layout::Extent;
use super::super::store::Store;
use super::mark::{Mark, SharedDisk};
use super::withdraw::wait_until;
use crate::options::Defect;

/// A core gets another batch when it has fewer blocks left than a batch divided by this.
const LOW_DIVISOR: u64 = 2;
/// Batches that must be free in the store when one is handed out.
const FREE_BATCHES: u64 = 4;

/// Blocks on their way to the VM's core.
pub(super) struct HandedOut {
    extent: Extent,
    mark: Arc<Mark>,
}

/// Data that is complete in blocks that were handed out.
pub(super) struct WrittenBlocks {
    /// First block of the disk.
    pub start: u64,
    pub place: Extent,
    pub checksum: u64,
    /// Mark of the batch that the blocks are from.
    batch: Arc<Mark>,
}

/// The blocks that another core has of a store, as the store's core sees them.
#[derive(Default)]
pub(crate) struct StoreStock {
    batches: RefCell<Vec<(Extent, Arc<Mark>)>>,
    /// Signals the end of writes to recalled blocks.
    shared: Arc<SharedDisk>,
}

impl StoreStock {
    /// Hands out another batch if few blocks are left and space is not short.
    pub(super) fn refill(&self, store: &Store) -> Option<HandedOut> {
        let mut batches = self.batches.borrow_mut();
        let left: u64 = batches.iter().map(|(extent, _)| extent.len).sum();
        let batch = store.options.handed_out_blocks;
        let is_short = store.starved.get() || store.space.totals().free_data < FREE_BATCHES * batch;
        if left * LOW_DIVISOR >= batch || store.is_behind() || is_short {
            return None;
        }
        let extent = store.space.try_place(batch, None)?;
        store.unpublished.borrow_mut().push(extent);
        let mark = Mark::new(&self.shared);
        batches.push((extent, mark.clone()));
        Some(HandedOut { extent, mark })
    }

    /// Takes blocks for which a record has arrived: they count as placed for one write from here on. Returns false if
    /// their batch was recalled.
    pub(super) fn take(&self, store: &Store, written: &WrittenBlocks) -> bool {
        let (mut batches, part) = (self.batches.borrow_mut(), written.place);
        let has = |(whole, mark): &(Extent, Arc<Mark>)| {
            Arc::ptr_eq(mark, &written.batch) && whole.addr <= part.addr && part.end() <= whole.end()
        };
        let Some(at) = batches.iter().position(has) else { return false };
        let (whole, mark) = batches.swap_remove(at);
        store.split_unpublished(whole, part);
        for rest in around(whole, part) {
            batches.push((rest, mark.clone()));
        }
        true
    }

    /// Ends all writes to blocks that no record refers to: the store is being closed.
    pub(in super::super) fn end(&self, store: &Store) {
        for (_, mark) in self.batches.take().into_iter().filter(|(_, mark)| mark.withdraw()) {
            store.admit_until_over(mark);
        }
    }

    /// Recalls all blocks. They are free once no write to them is under way.
    pub(super) fn recall(&self, store: &Rc<Store>) {
        for (extent, mark) in self.batches.take() {
            if !mark.withdraw() || store.options.defects.has(Defect::ForgetRemoteIo) {
                store.unplace(extent);
                continue;
            }
            let waiting = store.clone();
            store.env.spawn_detached(Box::pin(async move {
                wait_until(&mark.disk, || mark.is_over()).await;
                waiting.unplace(extent);
            }));
        }
    }
}

/// Returns what is left of an extent without a part of it.
fn around(whole: Extent, part: Extent) -> impl Iterator<Item = Extent> {
    let before = Extent { addr: whole.addr, len: part.addr - whole.addr };
    let behind = Extent { addr: part.end(), len: whole.end() - part.end() };
    [before, behind].into_iter().filter(|extent| extent.len > 0)
}

impl Store {
    /// Divides a placed extent, which no record refers to, into a part and what is around it.
    fn split_unpublished(&self, whole: Extent, part: Extent) {
        let mut unpublished = self.unpublished.borrow_mut();
        let at = unpublished.iter().position(|extent| *extent == whole).expect("handed out before");
        unpublished[at] = part;
        unpublished.extend(around(whole, part));
    }
}

/// The blocks that disks of a store may redirect to, on the VM's core.
#[derive(Default)]
pub(super) struct VmStock(RefCell<VecDeque<HandedOut>>);

/// Blocks that are being written. Dropping it ends the write.
pub(super) struct TakenBlocks {
    pub extent: Extent,
    mark: Arc<Mark>,
}

impl TakenBlocks {
    /// Returns the record of the data that was written to the blocks.
    pub(super) fn written(&self, start: u64, checksum: u64) -> WrittenBlocks {
        WrittenBlocks { start, place: self.extent, checksum, batch: self.mark.clone() }
    }
}

impl Drop for TakenBlocks {
    fn drop(&mut self) {
        self.mark.leave();
    }
}

impl VmStock {
    pub(super) fn add(&self, handed_out: HandedOut) {
        self.0.borrow_mut().push_back(handed_out);
    }

    /// Takes `want` blocks for a write, mostly in one piece. None if there are not as many.
    pub(super) fn take(&self, want: u64) -> Option<Vec<TakenBlocks>> {
        let mut batches = self.0.borrow_mut();
        batches.retain(|batch| batch.extent.len > 0 && !batch.mark.is_withdrawn());
        let mut taken = Vec::new();
        let mut missing = want;
        for batch in batches.iter_mut().filter(|batch| batch.mark.enter()) {
            let len = missing.min(batch.extent.len);
            taken.push(TakenBlocks {
                extent: Extent { addr: batch.extent.addr, len },
                mark: batch.mark.clone(),
            });
            batch.extent = Extent { addr: batch.extent.addr + len, len: batch.extent.len - len };
            missing -= len;
            if missing == 0 {
                return Some(taken);
            }
        }
        drop(batches);
        self.put_back(taken);
        None
    }

    /// Puts blocks back that were not written, or whose write failed.
    pub(super) fn put_back(&self, taken: Vec<TakenBlocks>) {
        let mut batches = self.0.borrow_mut();
        for TakenBlocks { extent, mark } in taken.iter().rev() {
            batches.push_front(HandedOut { extent: *extent, mark: mark.clone() });
        }
    }
}
