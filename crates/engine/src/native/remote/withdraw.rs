//! The store's side of grants: which nodes have some, and their withdrawal before a change of the map.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::super::lineage::Node;
use super::super::store::Store;
use super::mark::{Mark, SharedDisk};
use super::windows_of;
use crate::options::Defect;

/// Fewest marks of a node among which given up ones are looked for.
const SWEPT_MIN: usize = 1024;

/// A disk that another core serves, as its node sees it.
pub(crate) struct GrantedDisk {
    /// Number of the disk among those of its core, over all stores. A disk of another core may have the same.
    pub(super) number: u64,
    pub(in super::super) shared: Arc<SharedDisk>,
    /// Withdrawals of the permission to write whose writes are under way: nothing may be written in place meanwhile.
    pub(super) draining: Cell<u32>,
}

/// What other cores may do with a node's blocks.
#[derive(Default)]
pub(crate) struct NodeGrants {
    disks: RefCell<Vec<Rc<GrantedDisk>>>,
    /// Marks by window and number of the disk.
    marks: RefCell<BTreeMap<(u64, u64), Arc<Mark>>>,
    /// Number of marks at which those that the other core has given up are removed.
    swept_at: Cell<usize>,
}

impl NodeGrants {
    pub(super) fn add_disk(&self, disk: Rc<GrantedDisk>) {
        self.disks.borrow_mut().push(disk);
    }

    pub(super) fn remove_disk(&self, disk: &Rc<GrantedDisk>) {
        self.disks.borrow_mut().retain(|other| !Rc::ptr_eq(other, disk));
    }

    /// Adds a mark. The one before is withdrawn.
    pub(super) fn add(&self, window: u64, disk: u64, mark: &Arc<Mark>) {
        let mut marks = self.marks.borrow_mut();
        if marks.len() >= self.swept_at.get().max(SWEPT_MIN) {
            marks.retain(|_, mark| !mark.is_over());
            self.swept_at.set(2 * marks.len());
        }
        marks.insert((window, disk), mark.clone());
    }

    /// Returns the mark of a grant that is in force.
    pub(super) fn mark(&self, window: u64, disk: u64) -> Option<Arc<Mark>> {
        self.marks.borrow().get(&(window, disk)).filter(|mark| !mark.is_withdrawn()).cloned()
    }

    pub(super) fn has(&self, window: u64, disk: u64) -> bool {
        self.mark(window, disk).is_some()
    }

    fn is_empty(&self) -> bool {
        self.disks.borrow().is_empty()
    }

    fn take(&self, which: impl Fn(&(u64, u64)) -> bool, windows: Range<u64>) -> Vec<Arc<Mark>> {
        let mut marks = self.marks.borrow_mut();
        let keys = marks.range((windows.start, 0)..(windows.end, 0)).map(|(key, _)| *key);
        let keys: Vec<(u64, u64)> = keys.filter(which).collect();
        keys.iter().filter_map(|key| marks.remove(key)).collect()
    }
}

impl Store {
    /// Withdraws the grants of blocks whose places are about to change. It has no await.
    pub(in super::super) fn withdraw(&self, node: &Node, blocks: Range<u64>) {
        if node.grants.is_empty() || blocks.is_empty() || self.options.defects.has(Defect::KeepGrants) {
            return;
        }
        let windows = windows_of(&blocks);
        self.withdraw_all(node.grants.take(|_| true, *windows.start()..windows.end() + 1));
        self.env.crossing();
    }

    /// Withdraws a disk's grants of one window.
    pub(super) fn withdraw_window(&self, node: &Node, window: u64, disk: u64) {
        self.withdraw_all(node.grants.take(|key| key.1 == disk, window..window + 1));
    }

    /// Withdraws all grants of a disk.
    pub(super) fn withdraw_disk(&self, node: &Node, disk: u64) {
        self.withdraw_all(node.grants.take(|key| key.1 == disk, 0..u64::MAX));
    }

    fn withdraw_all(&self, marks: Vec<Arc<Mark>>) {
        for mark in marks.into_iter().filter(|mark| mark.withdraw()) {
            if self.options.defects.has(Defect::ForgetRemoteIo) {
                continue;
            }
            // What is freed from now on is not used again before this I/O has ended.
            self.admit_until_over(mark);
        }
    }

    /// Counts the I/O under a withdrawn mark among the store's own until it has ended.
    pub(super) fn admit_until_over(&self, mark: Arc<Mark>) {
        let admitted = (self.reads.enter(), self.writes.enter());
        self.env.spawn_detached(Box::pin(async move {
            wait_until(&mark.disk, || mark.is_over()).await;
            drop(admitted);
        }));
    }

    /// Recalls the blocks that other cores have in advance.
    pub(in super::super) fn recall_stocks(self: &Rc<Self>) {
        self.remote_stocks.borrow().iter().for_each(|stock| stock.recall(self));
    }

    /// Ends the permission of other cores to write a node's blocks in place. The writes under way count as admitted
    /// until they end. It has no await.
    pub(in super::super) fn end_remote_writes(&self, node: &Node) {
        if self.options.defects.has(Defect::WriteSealedInPlace) {
            return;
        }
        for disk in node.grants.disks.borrow().iter() {
            self.env.crossing();
            if !disk.shared.end_writes() || self.options.defects.has(Defect::ForgetRemoteIo) {
                continue;
            }
            disk.draining.update(|n| n + 1);
            let (disk, admitted) = (disk.clone(), self.writes.enter());
            self.env.spawn_detached(Box::pin(async move {
                wait_until(&disk.shared, || !disk.shared.has_writes()).await;
                disk.draining.update(|n| n - 1);
                drop(admitted);
            }));
        }
        self.env.crossing();
    }

    /// Ends all that other cores may do with a node's blocks: nothing refers to the node any more, or the store is being
    /// closed.
    pub(in super::super) fn end_grants(&self, node: &Node) {
        if !node.grants.is_empty() {
            self.end_remote_writes(node);
            self.withdraw_all(node.grants.take(|_| true, 0..u64::MAX));
        }
    }

    /// Ends the permission of other cores to write anything in place.
    pub(in super::super) fn end_all_remote_writes(&self) {
        self.lineage.borrow().all().for_each(|node| self.end_remote_writes(node));
    }

    /// Notes a node's size for the cores that serve it.
    pub(in super::super) fn publish_size(&self, node: &Node) {
        node.grants.disks.borrow().iter().for_each(|disk| disk.shared.set_size(node.size_bytes()));
    }
}

/// Waits for a condition that the VM's core signals.
pub(super) async fn wait_until(disk: &SharedDisk, is_met: impl Fn() -> bool) {
    loop {
        let signalled = disk.drained.wait();
        if is_met() {
            return;
        }
        signalled.await;
    }
}
