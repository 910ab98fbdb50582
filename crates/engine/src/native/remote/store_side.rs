//! The store's side: carries out the requests that other cores send, and grants windows with the answers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use blk::mailbox::Outbox;
use blk::volume::Volume;
use blk::{Env, Error, ErrorKind, Result};

use super::super::blocks::NewPart;
use super::super::disk::{NativeDisk, blocks_of};
use super::super::layout::{BLOCK, has_space};
use super::super::store::Store;
use super::super::table::LookupRun;
use super::super::view::Scratch;
use super::grant::Grant;
use super::link::{Answer, DiskTicket, Reply, Request, StoreEnd, Work, closed};
use super::mark::SharedDisk;
use super::served_vm::ServedVm;
use super::stock::{HandedOut, StoreStock, WrittenBlocks};
use super::withdraw::GrantedDisk;
use super::{WINDOW_BLOCKS, WINDOWS_AT_ONCE, windows_of};
use crate::options::Defect;

/// A disk that another core serves.
struct ServedDisk {
    disk: Rc<NativeDisk>,
    granted: Rc<GrantedDisk>,
    /// Buffer of lookups.
    scratch: RefCell<Scratch>,
    stock: Rc<StoreStock>,
}

/// A store of which the other core serves disks.
struct ServedStore {
    number: u64,
    store: Rc<Store>,
    stock: Rc<StoreStock>,
}

/// Serves the disks of this core's stores to one other core.
pub struct StoreSide {
    pub(super) env: Env,
    replies: Rc<Outbox<Reply>>,
    disks: RefCell<BTreeMap<u64, Rc<ServedDisk>>>,
    stores: RefCell<Vec<ServedStore>>,
    pub(super) vms: RefCell<BTreeMap<u64, Rc<ServedVm>>>,
    next_number: Cell<u64>,
}

impl StoreSide {
    /// Starts to serve on the core of `env`, which is the stores'. It ends with the other core's end.
    pub fn start(env: &Env, end: StoreEnd) -> Rc<StoreSide> {
        let StoreEnd { mut requests, replies } = end;
        let side = Rc::new(StoreSide {
            env: env.clone(),
            replies: Outbox::start(env, replies),
            disks: RefCell::default(),
            stores: RefCell::default(),
            vms: RefCell::default(),
            next_number: Cell::new(1),
        });
        let serving = side.clone();
        env.spawn_detached(Box::pin(async move {
            while let Some(batch) = requests.receive().await {
                batch.into_iter().for_each(|request| serving.begin(request));
            }
            serving.end();
        }));
        side
    }

    /// Returns the number of batches of answers so far.
    pub fn batches(&self) -> u64 {
        self.replies.batches()
    }

    /// Lets the other core serve a disk. Until it closes the disk, the disk must not be written by anything else: only
    /// that core orders overlapping writes.
    ///
    /// # Errors
    /// `NoDescriptors` if there is none for the store's file.
    pub fn serve(&self, disk: Rc<NativeDisk>) -> Result<DiskTicket> {
        let number = self.new_number();
        let shared = Arc::<SharedDisk>::default();
        shared.set_size(disk.size_bytes());
        let (store, stock) = self.store_of(&disk);
        let ticket = DiskTicket {
            number,
            store,
            name: disk.name.clone(),
            read_only: disk.read_only,
            shared: shared.clone(),
            file: disk.store.file.share()?,
            flushed_lsn: disk.store.journal.shared_flushed_lsn(),
        };
        let granted = Rc::new(GrantedDisk { number, shared, draining: Cell::new(0) });
        disk.node.grants.add_disk(granted.clone());
        disk.store.remote_disks.borrow_mut().push(granted.clone());
        self.disks
            .borrow_mut()
            .insert(number, Rc::new(ServedDisk { disk, granted, scratch: RefCell::default(), stock }));
        Ok(ticket)
    }

    /// Returns the number of a disk's store, and its blocks for this core.
    fn store_of(&self, disk: &NativeDisk) -> (u64, Rc<StoreStock>) {
        let mut stores = self.stores.borrow_mut();
        if let Some(known) = stores.iter().find(|known| Rc::ptr_eq(&known.store, &disk.store)) {
            return (known.number, known.stock.clone());
        }
        let (number, stock, store) = (self.new_number(), Rc::<StoreStock>::default(), disk.store.clone());
        store.remote_stocks.borrow_mut().push(stock.clone());
        stores.push(ServedStore { number, store, stock: stock.clone() });
        (number, stock)
    }

    /// Recalls the blocks of a store, and forgets the store if none of its disks is served.
    fn recall(&self, number: u64) {
        let mut stores = self.stores.borrow_mut();
        let Some(at) = stores.iter().position(|known| known.number == number) else { return };
        let ServedStore { store, stock, .. } = &stores[at];
        stock.recall(store);
        if !self.disks.borrow().values().any(|served| Rc::ptr_eq(&served.stock, stock)) {
            store.remote_stocks.borrow_mut().retain(|other| !Rc::ptr_eq(other, stock));
            stores.swap_remove(at);
        }
    }

    pub(super) fn new_number(&self) -> u64 {
        self.next_number.replace(self.next_number.get() + 1)
    }

    pub(super) fn answer(&self, disk: u64, id: u32, answer: Answer) {
        self.replies.push(Reply { disk, id, answer, grants: Vec::new(), stock: None });
    }

    fn begin(self: &Rc<Self>, request: Request) {
        let Request { disk, id, work } = request;
        let work = match work {
            Work::Close => return self.close(disk),
            Work::Recall => return self.recall(disk),
            Work::Vm(work) => return self.begin_vm(disk, id, work),
            work => work,
        };
        let Some(served) = self.disks.borrow().get(&disk).cloned() else {
            return self.answer(disk, id, Answer::Done(Err(closed())));
        };
        if let Work::Publish(written) = &work {
            if !served.take_from_stock(written) {
                let recalled = Error::new(ErrorKind::NoSpace, &served.disk.name, "the blocks were recalled");
                return self.answer(disk, id, Answer::Done(Err(recalled)));
            }
            if let Some((result, grants)) = served.publish_now(written) {
                let (answer, stock) = (Answer::Done(result), served.refill());
                return self.replies.push(Reply { disk, id, answer, grants, stock });
            }
        }
        let side = self.clone();
        self.env.spawn_detached(Box::pin(async move {
            let redirects = matches!(work, Work::Publish(_) | Work::Write { .. });
            let (answer, grants) = served.carry_out(work).await;
            let is_served = redirects && side.has(disk);
            let stock = if is_served { served.refill() } else { None };
            side.replies.push(Reply { disk, id, answer, grants, stock });
        }));
    }

    /// Returns whether the other core has not closed the disk.
    pub(super) fn has(&self, number: u64) -> bool {
        self.disks.borrow().contains_key(&number)
    }

    /// Ends a disk's grants. Its requests under way go on.
    fn close(&self, number: u64) {
        let Some(served) = self.disks.borrow_mut().remove(&number) else { return };
        let (disk, granted) = (&served.disk, &served.granted);
        disk.store.end_remote_writes(&disk.node);
        disk.store.withdraw_disk(&disk.node, number);
        disk.node.grants.remove_disk(number);
        disk.store.remote_disks.borrow_mut().retain(|other| !Rc::ptr_eq(other, granted));
        disk.store.requests.update(|n| n + granted.shared.requests());
    }

    fn end(&self) {
        let numbers: Vec<u64> = self.disks.borrow().keys().copied().collect();
        numbers.into_iter().for_each(|number| self.close(number));
        let numbers: Vec<u64> = self.stores.borrow().iter().map(|known| known.number).collect();
        numbers.into_iter().for_each(|number| self.recall(number));
        self.vms.borrow_mut().clear();
        self.replies.end();
    }
}

impl ServedDisk {
    async fn carry_out(&self, work: Work) -> (Answer, Vec<Grant>) {
        let disk = self.disk.clone();
        match work {
            Work::Read { offset, buf } => {
                let range = offset..offset.saturating_add(buf.len() as u64);
                let (buf, result) = disk.read(offset, buf).await;
                let grants = if result.is_ok() { self.grants(range, false).await } else { Vec::new() };
                (Answer::Buf(Some(buf), result), grants)
            }
            Work::Write { offset, data } => {
                let range = offset..offset.saturating_add(data.len() as u64);
                let data = data.freeze();
                let result = disk.write(offset, data.clone()).await;
                let grants = if result.is_ok() { self.grants(range, true).await } else { Vec::new() };
                (Answer::Buf(data.try_into_buf(), result), grants)
            }
            Work::Publish(written) => {
                let blocks = |part: &WrittenBlocks| part.start * BLOCK..(part.start + part.place.len) * BLOCK;
                let range = written.iter().map(blocks).reduce(|all, part| all.start..part.end);
                let result = self.publish(written).await;
                let grants = match range.filter(|_| result.is_ok()) {
                    Some(range) => self.grants(range, true).await,
                    None => Vec::new(),
                };
                (Answer::Done(result), grants)
            }
            Work::Flush => (Answer::Done(disk.flush().await), Vec::new()),
            Work::Discard(range) => (Answer::Done(disk.discard(range).await), Vec::new()),
            Work::Zero(range, mode) => (Answer::Done(disk.write_zeroes(range, mode).await), Vec::new()),
            Work::Status(range) => (Answer::Status(disk.status(range).await), Vec::new()),
            Work::Close | Work::Recall | Work::Vm(_) => unreachable!("handled where it arrives"),
        }
    }

    fn refill(&self) -> Option<HandedOut> {
        self.may_write().then(|| self.stock.refill(&self.disk.store)).flatten()
    }

    /// Takes the blocks of records that have arrived. Returns false if one was recalled; all are free then.
    fn take_from_stock(&self, written: &[WrittenBlocks]) -> bool {
        let store = &self.disk.store;
        for (at, part) in written.iter().enumerate() {
            if !self.stock.take(store, part.place) {
                written[..at].iter().for_each(|part| store.unplace(part.place));
                return false;
            }
        }
        true
    }

    /// Makes data part of the disk that another core has written to blocks handed out in advance.
    async fn publish(&self, written: Vec<WrittenBlocks>) -> Result<()> {
        let paced = self.disk.store.pace().await;
        self.publish_admitted(&written, paced)
    }

    /// Does the same at once, with grants. None if the store is behind. A window whose part of the map is
    /// not in memory is not granted.
    fn publish_now(&self, written: &[WrittenBlocks]) -> Option<(Result<()>, Vec<Grant>)> {
        if self.disk.store.is_behind() {
            return None;
        }
        let result = self.publish_admitted(written, Ok(()));
        let mut grants = Vec::new();
        if let (Ok(()), Some(first), Some(last)) = (&result, written.first(), written.last()) {
            let mut found = self.scratch.take();
            let windows = windows_of(&(first.start..last.start + last.place.len));
            grants.extend(windows.filter_map(|window| self.grant_cached(window, &mut found)));
            self.keep_scratch(found);
        }
        Some((result, grants))
    }

    fn keep_scratch(&self, scratch: Scratch) {
        if scratch.is_small() {
            self.scratch.replace(scratch);
        }
    }

    fn publish_admitted(&self, written: &[WrittenBlocks], admitted: Result<()>) -> Result<()> {
        let (disk, store) = (&self.disk, &self.disk.store);
        let mut left = written.iter();
        let mut result = admitted.and_then(|()| self.check(written));
        while result.is_ok()
            && let Some(&WrittenBlocks { start, place, checksum }) = left.next()
        {
            let part = NewPart { start, place, partial: None, checksum };
            // This core holds no lock of the blocks: a defragmentation may be looking them up just now.
            disk.changes.note(&(start..start + place.len));
            result = store.publish(&disk.node, place, std::iter::once(part));
        }
        left.for_each(|part| store.unplace(part.place));
        disk.stats.first_writes.update(|n| n + 1);
        store.requests.update(|n| n + 2);
        result
    }

    /// Checks that the disk may be written.
    fn check(&self, written: &[WrittenBlocks]) -> Result<()> {
        let (disk, store) = (&self.disk, &self.disk.store);
        store.refuse_when_broken()?;
        if store.closed.get() {
            return Err(closed());
        }
        written.iter().try_for_each(|part| disk.check_write(part.start * BLOCK, part.place.len * BLOCK))
    }

    /// Grants the windows of a range of bytes: after a read those that are not granted, after a write all, because more
    /// blocks may be overwritten in place now.
    async fn grants(&self, range: Range<u64>, written: bool) -> Vec<Grant> {
        let blocks = blocks_of(range.start, range.end - range.start);
        if blocks.is_empty() {
            return Vec::new();
        }
        let mut grants = Vec::new();
        for window in windows_of(&blocks).take(WINDOWS_AT_ONCE as usize) {
            if (written || !self.disk.node.grants.has(window, self.granted.number))
                && let Some(grant) = self.grant(window).await
            {
                grants.push(grant);
            }
        }
        grants
    }

    async fn grant(&self, window: u64) -> Option<Grant> {
        let mut found = self.scratch.take();
        if let Some(grant) = self.grant_cached(window, &mut found) {
            self.keep_scratch(found);
            return Some(grant);
        }
        // Pages of the map are missing in memory. What is found while they are read may be old.
        let admitted = self.disk.store.reads.enter();
        let read = self.disk.store.find(&self.disk.node, self.blocks(window), &mut found).await;
        drop(admitted);
        read.ok().and_then(|()| self.grant_cached(window, &mut found))
    }

    fn blocks(&self, window: u64) -> Range<u64> {
        let (start, size) = (window * WINDOW_BLOCKS, self.disk.node.size_blocks.get());
        start.min(size)..(start + WINDOW_BLOCKS).min(size)
    }

    /// Grants a window, if its part of the map is in memory. It has no await, so the map cannot change before the grant is
    /// noted.
    fn grant_cached(&self, window: u64, found: &mut Scratch) -> Option<Grant> {
        let (disk, node) = (&self.disk, &self.disk.node);
        let (store, number) = (&disk.store, self.granted.number);
        if node.dropped.get() || store.closed.get() || !store.find_cached(node, self.blocks(window), found) {
            return None;
        }
        found.found.sort_unstable_by_key(|found| found.start);
        store.withdraw_window(node, window, number);
        let may_write = self.may_write() && !disk.changes.are_noted(&self.blocks(window));
        let early = store.options.defects.has(Defect::EarlyFlushedLsn);
        let settled_at = |run: &LookupRun| {
            let is_own = has_space(run.addr) && run.birth > node.since.get();
            (may_write && is_own).then_some(if early { 0 } else { run.lsn })
        };
        let grant = Grant::new(window, &found.found, &self.granted.shared, settled_at);
        node.grants.add(window, number, &grant.mark);
        Some(grant)
    }

    fn may_write(&self) -> bool {
        let disk = &self.disk;
        let is_open = disk.node.is_running() && !disk.read_only && !disk.closing.get();
        is_open && disk.store.broken().is_none() && self.granted.draining.get() == 0
    }
}
