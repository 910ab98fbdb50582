//! A disk whose store is on another core: it reads and overwrites in place by grants, and sends the rest to the store.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blk::file::FileCounters;
use blk::sync::{RangeGuard, RangeLock};
use blk::volume::{BlockStatus, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Error, ErrorKind, File, Local, Result, Slice};
use futures_util::future::join_all;

use super::super::disk::blocks_of;
use super::super::layout::{BLOCK, checksum};
use super::grant::{Grant, Piece};
use super::grant_cache::GrantCache;
use super::link::{Answer, DiskTicket, NewGrant, Work};
use super::mark::SharedDisk;
use super::stock::{HandedOut, TakenBlocks, WrittenBlocks};
use super::vm_side::{GrantedHere, StoreHere, VmSide};
use super::windows_of;
use crate::join::all;
use crate::machine::RunningDisk;
use crate::stats::{DiskStats, LayerCounters};

/// Longest write that is redirected here; a longer one costs little more as a message.
const REDIRECTED_BYTES_MAX: u64 = 64 << 10;

/// A disk of a store on another core.
pub struct RemoteDisk {
    side: Rc<VmSide>,
    /// Number of the disk among those of the store's core.
    pub(super) number: u64,
    /// Name for messages: `web/disk0`.
    pub name: String,
    read_only: bool,
    file: File,
    shared: Arc<SharedDisk>,
    flushed_lsn: Arc<AtomicU64>,
    grants: RefCell<GrantCache>,
    store: Rc<StoreHere>,
    /// Ranges that a write works on, in blocks: here or at the store.
    writes: RangeLock,
    /// Requests since the disk was opened here.
    pub stats: DiskStats,
}

/// Grants that an I/O uses. They stay in force until it is dropped, at the end of the I/O.
struct Entered<'a> {
    disk: &'a RemoteDisk,
    first: Option<Rc<Grant>>,
    more: Vec<Rc<Grant>>,
    /// Epoch by which the I/O writes.
    writes: Option<u64>,
    pieces: Pieces,
}

/// The pieces of an I/O, mostly one.
#[derive(Default)]
struct Pieces {
    first: Option<Piece>,
    more: Vec<Piece>,
}

impl Pieces {
    fn add(&mut self, piece: Piece) {
        match self.more.last_mut().or(self.first.as_mut()).map(|last| last.extend(&piece)) {
            Some(true) => {}
            Some(false) => self.more.push(piece),
            None => self.first = Some(piece),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.first.iter().chain(&self.more)
    }

    /// Returns the piece if there is one alone.
    fn only(&self) -> Option<&Piece> {
        self.first.as_ref().filter(|_| self.more.is_empty())
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(epoch) = self.writes {
            self.disk.shared.leave_write(epoch);
        }
        self.first.iter().chain(&self.more).for_each(|grant| grant.mark.leave());
    }
}

impl VmSide {
    /// Serves a disk on this core.
    ///
    /// # Errors
    /// Those of opening the store's file here.
    pub fn open(self: &Rc<Self>, ticket: DiskTicket) -> Result<Rc<RemoteDisk>> {
        let (number, store) = (ticket.number, ticket.store);
        match RemoteDisk::open(self, ticket) {
            Ok(disk) => {
                let here: Weak<dyn GrantedHere> = Rc::<RemoteDisk>::downgrade(&disk);
                self.disks.borrow_mut().insert(number, here);
                Ok(disk)
            }
            Err(e) => {
                self.close(number);
                self.recall(store);
                Err(e)
            }
        }
    }
}

impl RemoteDisk {
    pub(super) fn open(side: &Rc<VmSide>, ticket: DiskTicket) -> Result<Rc<RemoteDisk>> {
        let store = side.store_here(ticket.store, ticket.file)?;
        Ok(Rc::new(RemoteDisk {
            file: store.file.clone(),
            store,
            side: side.clone(),
            number: ticket.number,
            name: ticket.name,
            read_only: ticket.read_only,
            shared: ticket.shared,
            flushed_lsn: ticket.flushed_lsn,
            grants: RefCell::default(),
            writes: RangeLock::default(),
            stats: DiskStats::default(),
        }))
    }

    fn has(&self, offset: u64, len: u64) -> bool {
        len > 0 && offset.checked_add(len).is_some_and(|end| end <= self.shared.size_bytes())
    }

    /// Returns whether this core may write the file. If the device's blocks are larger than the store's, a write changes
    /// its neighbours too, and each opening of the file orders only its own writes.
    fn may_write_here(&self) -> bool {
        u64::from(self.file.limits().logical_block) <= BLOCK
    }

    /// Begins an I/O of these bytes under grants. None if some of them need the store.
    fn enter(&self, offset: u64, len: u64, writes: bool) -> Option<Entered<'_>> {
        let is_here = self.has(offset, len) && (!writes || self.may_write_here());
        if !is_here || !self.file.may_answer() {
            return None;
        }
        let blocks = blocks_of(offset, len);
        let grants = self.grants.borrow();
        let pieces = Pieces::default();
        let mut entered = Entered { disk: self, first: None, more: Vec::new(), writes: None, pieces };
        for window in windows_of(&blocks) {
            let grant = grants.get(window)?;
            // With a withdrawn grant, what was entered so far is left.
            if !grant.mark.enter() {
                return None;
            }
            match entered.first {
                None => entered.first = Some(grant.clone()),
                Some(_) => entered.more.push(grant.clone()),
            }
            if !grant.places(&blocks, &mut |piece| entered.pieces.add(piece)) {
                return None;
            }
        }
        match writes {
            true => self.may_overwrite(entered),
            false => Some(entered),
        }
    }

    /// Continues a write if all of its blocks may be overwritten in place, and counts it among those under way.
    fn may_overwrite<'a>(&'a self, mut entered: Entered<'a>) -> Option<Entered<'a>> {
        let flushed_lsn = self.flushed_lsn.load(Ordering::Acquire);
        if !entered.pieces.iter().all(|piece| !piece.is_hole() && piece.settled_at <= flushed_lsn) {
            return None;
        }
        let mut epochs = entered.first.iter().chain(&entered.more).map(|grant| grant.epoch);
        let epoch = epochs.next()?;
        let is_one = epochs.all(|other| other == epoch);
        if !is_one || !self.shared.enter_write(epoch) {
            return None;
        }
        entered.writes = Some(epoch);
        Some(entered)
    }

    async fn read_range(&self, offset: u64, buf: Buf) -> (Buf, Result<()>) {
        let len = buf.len() as u64;
        let buf = match self.enter(offset, len, false) {
            None => buf,
            Some(entered) => {
                let (buf, result) = self.read_pieces(&entered.pieces, offset, buf).await;
                drop(entered);
                if !result.as_ref().is_err_and(is_for_the_store) {
                    self.shared.count_request();
                    return (buf, result);
                }
                buf
            }
        };
        match self.side.request(self.number, Work::Read { offset, buf }, None).await {
            Answer::Buf(Some(buf), result) => (buf, result),
            Answer::Done(result) => (Buf::alloc(len as usize), result.and_then(|()| Err(self.confused()))),
            _ => (Buf::alloc(len as usize), Err(self.confused())),
        }
    }

    async fn read_pieces(&self, pieces: &Pieces, offset: u64, mut buf: Buf) -> (Buf, Result<()>) {
        if let Some(only) = pieces.only() {
            if only.is_hole() {
                buf.fill(0);
                return (buf, Ok(()));
            }
            return self.file.read(only.addr * BLOCK + (offset - only.start * BLOCK), buf).await;
        }
        let end = offset + buf.len() as u64;
        let reads = pieces.iter().map(async |piece| {
            let (from, to) = (offset.max(piece.start * BLOCK), end.min(piece.end() * BLOCK));
            let len = (to - from) as usize;
            let (part, result) = match piece.is_hole() {
                true => (Buf::zeroed(len), Ok(())),
                false => {
                    let at = piece.addr * BLOCK + (from - piece.start * BLOCK);
                    self.file.read(at, Buf::alloc(len)).await
                }
            };
            (from, part, result)
        });
        let mut result = Ok(());
        for (from, part, outcome) in join_all(reads).await {
            let at = (from - offset) as usize;
            buf[at..at + part.len()].copy_from_slice(&part);
            result = result.and(outcome);
        }
        (buf, result)
    }

    async fn write_range(&self, offset: u64, data: Slice) -> Result<()> {
        let range = self.lock(offset..offset.saturating_add(data.len() as u64)).await;
        if let Some(entered) = self.enter(offset, data.len() as u64, true) {
            let result = self.overwrite(&entered.pieces, offset, data.clone()).await;
            drop(entered);
            if !result.as_ref().is_err_and(is_for_the_store) {
                self.shared.count_request();
                return result;
            }
        }
        let range = match self.take_for_redirect(offset, data.len() as u64) {
            None => range,
            Some(taken) => {
                let published = self.redirect(offset, &data, taken, range).await;
                if !published.as_ref().is_err_and(is_for_the_store) {
                    return published;
                }
                self.lock(offset..offset.saturating_add(data.len() as u64)).await
            }
        };
        self.done(Work::Write { offset, data: data.into_buf() }, Some(range)).await
    }

    /// Takes blocks for a write of whole blocks, none of which may be overwritten in place.
    fn take_for_redirect(&self, offset: u64, len: u64) -> Option<Vec<TakenBlocks>> {
        let is_whole = offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
        let is_here = is_whole && self.has(offset, len) && self.may_write_here();
        if !is_here || len > REDIRECTED_BYTES_MAX {
            return None;
        }
        let blocks = blocks_of(offset, len);
        let (grants, flushed_lsn) = (self.grants.borrow(), self.flushed_lsn.load(Ordering::Acquire));
        for window in windows_of(&blocks) {
            let mut none_in_place = true;
            let grant = grants.get(window).filter(|grant| !grant.mark.is_withdrawn())?;
            let is_current = grant.epoch == self.shared.epoch();
            let mut look = |piece: Piece| {
                none_in_place &= piece.is_hole() || !is_current || piece.settled_at > flushed_lsn;
            };
            if !grant.places(&blocks, &mut look) || !none_in_place {
                return None;
            }
        }
        self.store.stock.take(len / BLOCK)
    }

    /// Writes data to blocks handed out in advance, and lets the store record them.
    async fn redirect(
        &self,
        offset: u64,
        data: &Slice,
        taken: Vec<TakenBlocks>,
        range: RangeGuard,
    ) -> Result<()> {
        let mut from = 0;
        let parts: Vec<(WrittenBlocks, Slice)> = taken
            .iter()
            .map(|blocks| {
                let part = data.slice(from..from + (blocks.extent.len * BLOCK) as usize);
                let start = (offset + from as u64) / BLOCK;
                from += part.len();
                (blocks.written(start, checksum(&part)), part)
            })
            .collect();
        let writes =
            parts.iter().map(|(written, part)| self.store.coalescer.write(written.place.addr, part.clone()));
        if let Err(e) = all(writes).await {
            self.store.stock.put_back(taken);
            return Err(e);
        }
        drop(taken);
        let written = parts.into_iter().map(|(written, _)| written).collect();
        self.done(Work::Publish(written), Some(range)).await
    }

    async fn overwrite(&self, pieces: &Pieces, offset: u64, data: Slice) -> Result<()> {
        if let Some(only) = pieces.only() {
            return self.file.write(only.addr * BLOCK + (offset - only.start * BLOCK), data).await;
        }
        let end = offset + data.len() as u64;
        let writes = pieces.iter().map(async |piece| {
            let (from, to) = (offset.max(piece.start * BLOCK), end.min(piece.end() * BLOCK));
            let part = data.slice((from - offset) as usize..(to - offset) as usize);
            self.file.write(piece.addr * BLOCK + (from - piece.start * BLOCK), part).await
        });
        all(writes).await
    }

    /// Waits for the earlier writes to the blocks of a range of bytes.
    fn lock(&self, range: Range<u64>) -> impl Future<Output = RangeGuard> + use<> {
        self.writes.lock(range.start / BLOCK..range.end.div_ceil(BLOCK))
    }

    async fn done(&self, work: Work, range: Option<RangeGuard>) -> Result<()> {
        match self.side.request(self.number, work, range).await {
            Answer::Done(result) | Answer::Buf(_, result) => result,
            _ => Err(self.confused()),
        }
    }

    fn confused(&self) -> Error {
        Error::new(ErrorKind::Io, &self.name, "the store's core answered another request")
    }

    fn now_ns(&self) -> u64 {
        self.side.env.now_ns()
    }
}

impl GrantedHere for RemoteDisk {
    fn take_grants(&self, grants: Vec<NewGrant>, stock: Option<HandedOut>) {
        stock.into_iter().for_each(|batch| self.store.stock.add(batch));
        let mut known = self.grants.borrow_mut();
        let before = known.bytes();
        grants.into_iter().for_each(|grant| known.take(grant));
        self.side.grant_bytes.update(|n| n + known.bytes() - before);
    }

    fn grant_bytes(&self) -> usize {
        self.grants.borrow().bytes()
    }

    fn give_up_oldest(&self) {
        let mut known = self.grants.borrow_mut();
        let before = known.bytes();
        known.give_up_oldest();
        self.side.grant_bytes.update(|n| n + known.bytes() - before);
    }
}

impl RunningDisk for RemoteDisk {
    fn stats(&self) -> &DiskStats {
        &self.stats
    }

    fn device_counters(&self) -> FileCounters {
        self.file.counters()
    }

    fn layer_counters(&self) -> Vec<LayerCounters> {
        Vec::new()
    }

    /// Returns the most: the store's core alone has the map.
    fn worst_growth_bytes(&self) -> Local<'_, Result<u64>> {
        Box::pin(std::future::ready(Ok(self.shared.size_bytes())))
    }
}

impl Drop for RemoteDisk {
    fn drop(&mut self) {
        let bytes = self.grants.get_mut().bytes();
        self.side.grant_bytes.update(|n| n - bytes);
        self.side.close(self.number);
    }
}

/// Returns whether the store may succeed where this core could not, as it waits for space and for its lease, or has the
/// reason of a failure.
fn is_for_the_store(error: &Error) -> bool {
    error.may_pass() || matches!(error.kind, ErrorKind::LeaseLost | ErrorKind::Latched)
}

impl Volume for RemoteDisk {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: self.shared.size_bytes(),
            read_only: self.read_only,
            preferred_bytes: BLOCK as u32,
            fast_zero: !self.read_only,
        }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move {
            let began_ns = self.now_ns();
            let (buf, result) = self.read_range(offset, buf).await;
            self.stats.read_done(buf.len(), self.now_ns() - began_ns, result.is_ok());
            (buf, result)
        })
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        Box::pin(async move {
            let (began_ns, len) = (self.now_ns(), data.len());
            let result = self.write_range(offset, data).await;
            if !result.as_ref().is_err_and(Error::is_no_space) {
                self.stats.write_done(len, self.now_ns() - began_ns, result.is_ok());
            }
            result
        })
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async move {
            if self.read_only {
                return Ok(());
            }
            let began_ns = self.now_ns();
            let result = self.done(Work::Flush, None).await;
            self.stats.flush_done(self.now_ns() - began_ns, result.is_ok());
            result
        })
    }

    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>> {
        Box::pin(async move {
            let held = self.lock(range.clone()).await;
            self.done(Work::Discard(range), Some(held)).await
        })
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        Box::pin(async move {
            let held = self.lock(range.clone()).await;
            self.done(Work::Zero(range, mode), Some(held)).await
        })
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        Box::pin(async move {
            match self.side.request(self.number, Work::Status(range), None).await {
                Answer::Status(result) => result,
                Answer::Done(result) => result.and_then(|()| Err(self.confused())),
                _ => Err(self.confused()),
            }
        })
    }
}
