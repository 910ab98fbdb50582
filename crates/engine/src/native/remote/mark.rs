//! The words by which two cores agree on a grant: whether it counts, and how many I/Os under it are under way.
//!
//! One word has both, so there is one order of its changes: an I/O that enters after the withdrawal finds it, and one
//! that entered before is in the number that the withdrawal returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blk::sync::SharedSignal;

const WITHDRAWN: u64 = 1 << 63;
/// The number of writes under way is below this; the epoch above.
const EPOCH: u64 = 1 << 32;

/// State of a disk that the store's core and the VM's core share.
#[derive(Default)]
pub(crate) struct SharedDisk {
    /// Epoch of the permissions to write, and the number of writes in place under way.
    writers: AtomicU64,
    size_bytes: AtomicU64,
    /// Requests that ended on the VM's core without a message.
    requests: AtomicU64,
    /// Signals that the last I/O under withdrawn grants may have ended.
    pub(super) drained: SharedSignal,
}

impl SharedDisk {
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    pub(super) fn set_size(&self, bytes: u64) {
        self.size_bytes.store(bytes, Ordering::Release);
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Counts a request. The VM's core alone calls it.
    pub(super) fn count_request(&self) {
        self.requests.store(self.requests() + 1, Ordering::Relaxed);
    }

    /// Returns the epoch that permissions to write get now.
    pub(super) fn epoch(&self) -> u64 {
        self.writers.load(Ordering::Acquire) / EPOCH
    }

    /// Begins a write in place by a permission of `epoch`. Returns false if the permission does not count any more.
    pub(super) fn enter_write(&self, epoch: u64) -> bool {
        let enter = |word: u64| (word / EPOCH == epoch).then_some(word + 1);
        self.writers.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).is_ok()
    }

    pub(super) fn leave_write(&self, epoch: u64) {
        let left = self.writers.fetch_sub(1, Ordering::AcqRel) - 1;
        if left / EPOCH != epoch && left.is_multiple_of(EPOCH) {
            self.drained.notify();
        }
    }

    /// Ends all permissions to write so far. Returns whether writes in place are under way.
    pub(super) fn end_writes(&self) -> bool {
        !self.writers.fetch_add(EPOCH, Ordering::AcqRel).is_multiple_of(EPOCH)
    }

    pub(super) fn has_writes(&self) -> bool {
        !self.writers.load(Ordering::Acquire).is_multiple_of(EPOCH)
    }
}

/// The mark of one grant.
pub(super) struct Mark {
    word: AtomicU64,
    pub disk: Arc<SharedDisk>,
}

impl Mark {
    pub(super) fn new(disk: &Arc<SharedDisk>) -> Arc<Mark> {
        Arc::new(Mark { word: AtomicU64::new(0), disk: disk.clone() })
    }

    /// Begins an I/O under the grant. Returns false if the grant is withdrawn.
    pub(super) fn enter(&self) -> bool {
        let enter = |word: u64| (word & WITHDRAWN == 0).then_some(word + 1);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).is_ok()
    }

    pub(super) fn leave(&self) {
        if self.word.fetch_sub(1, Ordering::AcqRel) == WITHDRAWN + 1 {
            self.disk.drained.notify();
        }
    }

    /// Withdraws the grant. Returns whether I/O under it is under way.
    pub(super) fn withdraw(&self) -> bool {
        self.word.fetch_or(WITHDRAWN, Ordering::AcqRel) & !WITHDRAWN != 0
    }

    pub(super) fn is_withdrawn(&self) -> bool {
        self.word.load(Ordering::Acquire) & WITHDRAWN != 0
    }

    /// Returns whether the grant is withdrawn and no I/O under it is under way.
    pub(super) fn is_over(&self) -> bool {
        self.word.load(Ordering::Acquire) == WITHDRAWN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_withdrawal_finds_what_entered_and_ends_what_comes_later() {
        let mark = Mark::new(&Arc::default());
        assert!(mark.enter() && mark.enter());
        mark.leave();
        assert!(mark.withdraw() && mark.is_withdrawn() && !mark.is_over());
        assert!(!mark.enter());
        mark.leave();
        assert!(mark.is_over() && !mark.withdraw());
    }

    #[test]
    fn an_epoch_ends_all_permissions_to_write() {
        let disk = SharedDisk::default();
        let epoch = disk.epoch();
        assert!(!disk.end_writes());
        assert!(!disk.enter_write(epoch) && disk.enter_write(epoch + 1));
        assert!(disk.end_writes() && disk.has_writes());
        disk.leave_write(epoch + 1);
        assert!(!disk.has_writes() && !disk.enter_write(epoch + 1));
    }
}
