//! The volume: its blocks in memory and on disk, and the guest's reads, writes and flushes.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::sync::{RangeLock, Signal};
use blk::{Buf, File, Result, Slice};
use futures_util::future::join_all;

use super::changed::Changed;
use super::limits::{
    BLOCK_BYTES, CALL_US, DELAY_MAX_NS, DELAY_PERCENT, DELAY_SCALE_NS, DIRTY_BYTES_MAX, IN_LOG_BYTES,
    LOG_BLOCK_BYTES, POINTER_BYTES, SPACE,
};
use crate::peers::versions::Versions;
use crate::peers::vm::Vm;
use crate::vmware::fifo_lock::FifoLock;
use crate::vmware::host::Purpose;

pub(super) struct Volume {
    pub(super) vm: Rc<Vm>,
    pub(super) size_bytes: u64,
    pub(super) data: File,
    pub(super) log: File,
    pub(super) meta: File,
    pub(super) versions: Versions,
    /// Blocks that are changed in memory.
    pub(super) using: RangeLock,
    pub(super) processor: FifoLock,
    /// Blocks that were changed in the open group, and in the group that is being written.
    pub(super) open: RefCell<Changed>,
    pub(super) syncing: RefCell<Changed>,
    /// Bytes of writes since the last flush that the intent log takes.
    pub(super) log_bytes: Cell<u64>,
    pub(super) log_at: Cell<u64>,
    pub(super) meta_at: Cell<u64>,
    /// Held while a group is written.
    pub(super) group_lock: FifoLock,
    /// A group was written, so that its memory is free.
    pub(super) freed: Signal,
    /// Places that were freed by the last groups, oldest first.
    pub(super) deferred: RefCell<Vec<Vec<u64>>>,
    pub(super) timer_runs: Cell<bool>,
    pub(super) sync_wanted: Cell<bool>,
}

fn blocks(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)
}

impl Volume {
    pub(super) async fn create(vm: &Rc<Vm>, number: usize, size_bytes: u64) -> Result<Volume> {
        let data = vm.create_file(&format!("disk{number}.zvol")).await?;
        let log = vm.create_file(&format!("disk{number}.zil")).await?;
        let meta = vm.create_file(&format!("disk{number}.metadata")).await?;
        Ok(Volume {
            vm: vm.clone(),
            size_bytes,
            data,
            log,
            meta,
            versions: Versions::new(size_bytes / BLOCK_BYTES * SPACE),
            using: RangeLock::default(),
            processor: FifoLock::default(),
            open: RefCell::default(),
            syncing: RefCell::default(),
            log_bytes: Cell::new(0),
            log_at: Cell::new(0),
            meta_at: Cell::new(0),
            group_lock: FifoLock::default(),
            freed: Signal::default(),
            deferred: RefCell::default(),
            timer_runs: Cell::new(false),
            sync_wanted: Cell::new(false),
        })
    }

    pub(super) fn dirty_bytes(&self) -> u64 {
        (self.open.borrow().len() + self.syncing.borrow().len()) * BLOCK_BYTES
    }

    pub(super) async fn call(&self) {
        let _own = self.processor.lock().await;
        self.vm.env.sleep_us(CALL_US).await;
    }

    /// Returns a block that is in memory because it is not yet written.
    pub(super) fn in_memory(&self, block: u64) -> Option<Slice> {
        let open = self.open.borrow().get(block);
        open.or_else(|| self.syncing.borrow().get(block))
    }

    /// Reads whole blocks, since their checksums cover all of them; several in a row with one request.
    pub(super) async fn read_blocks(
        &self,
        offset: u64,
        mut buf: Buf,
        in_memory: impl Fn(u64) -> Option<Slice>,
        find: impl Fn(u64) -> Option<u64>,
    ) -> (Buf, Result<()>) {
        let range = offset..offset + buf.len() as u64;
        let (mut reads, mut firsts) = (Vec::new(), Vec::new());
        let mut block = blocks(&range).start;
        while block < blocks(&range).end {
            if let Some(bytes) = in_memory(block) {
                fill(&mut buf, offset, block, &bytes);
                block += 1;
                continue;
            }
            let first = find(block);
            let follows =
                |next: &u64| in_memory(*next).is_none() && find(*next) == first.map(|at| at + next - block);
            let count = 1 + (block + 1..blocks(&range).end).take_while(follows).count() as u64;
            match first {
                Some(place) => {
                    let bytes = Buf::alloc((count * BLOCK_BYTES) as usize);
                    reads.push(self.vm.host.read(&self.data, place * BLOCK_BYTES, bytes, Purpose::Guest));
                    firsts.push(block);
                }
                None => (block..block + count).for_each(|hole| zero(&mut buf, offset, hole)),
            }
            block += count;
        }
        for (first, (bytes, result)) in firsts.into_iter().zip(join_all(reads).await) {
            if result.is_err() {
                return (buf, result);
            }
            for (block, bytes) in (first..).zip(bytes.chunks(BLOCK_BYTES as usize)) {
                fill(&mut buf, offset, block, bytes);
            }
        }
        (buf, Ok(()))
    }

    pub(super) async fn write_blocks(self: &Rc<Self>, offset: u64, data: Slice) -> Result<()> {
        self.call().await;
        self.delay().await;
        let range = offset..offset + data.len() as u64;
        let _alone = self.using.lock(blocks(&range)).await;
        for block in blocks(&range) {
            let start = range.start.max(block * BLOCK_BYTES);
            let end = range.end.min((block + 1) * BLOCK_BYTES);
            let part = data.slice((start - offset) as usize..(end - offset) as usize);
            let whole = match part.len() as u64 == BLOCK_BYTES {
                true => part,
                false => self.patched(block, start % BLOCK_BYTES, &part).await?,
            };
            self.open.borrow_mut().put(block, whole);
        }
        let in_log = if data.len() as u64 <= IN_LOG_BYTES { data.len() as u64 } else { POINTER_BYTES };
        self.log_bytes.set(self.log_bytes.get() + in_log);
        self.end_group_later();
        Ok(())
    }

    /// Returns the block with a part of it replaced. The rest is read, unless it is in memory.
    async fn patched(&self, block: u64, inside: u64, part: &[u8]) -> Result<Slice> {
        let mut whole = Buf::zeroed(BLOCK_BYTES as usize);
        match (self.in_memory(block), self.versions.find(block)) {
            (Some(bytes), _) => whole.copy_from_slice(&bytes),
            (None, Some(place)) => {
                let (read, result) =
                    self.vm.host.read(&self.data, place * BLOCK_BYTES, whole, Purpose::Guest).await;
                result?;
                whole = read;
            }
            (None, None) => {}
        }
        whole[inside as usize..][..part.len()].copy_from_slice(part);
        Ok(whole.freeze())
    }

    /// Delays a write as more data waits in memory, and stops it where no more may wait.
    async fn delay(self: &Rc<Self>) {
        while self.dirty_bytes() >= DIRTY_BYTES_MAX {
            self.end_group_later();
            self.freed.wait().await;
        }
        let (dirty, least) = (self.dirty_bytes(), DIRTY_BYTES_MAX * DELAY_PERCENT / 100);
        if dirty > least {
            let ns = DELAY_SCALE_NS * (dirty - least) / (DIRTY_BYTES_MAX - dirty);
            self.vm.env.sleep_us(ns.min(DELAY_MAX_NS) / 1000).await;
        }
    }

    /// Writes the intent log: what was written since the last flush.
    pub(super) async fn write_log(&self) -> Result<()> {
        let mut left = self.log_bytes.take().next_multiple_of(4096);
        while left > 0 {
            let len = left.min(LOG_BLOCK_BYTES);
            let at = self.log_at.get() % DIRTY_BYTES_MAX;
            self.log_at.set(at + len);
            let data = Buf::zeroed(len as usize).freeze();
            self.vm.host.write(&self.log, at, data, Purpose::Table).await?;
            left -= len;
        }
        self.vm.host.flush(&self.log).await
    }
}

/// Copies the part of a block that is in the range of `buf`.
fn fill(buf: &mut Buf, offset: u64, block: u64, bytes: &[u8]) {
    let (first, end) = (block * BLOCK_BYTES, offset + buf.len() as u64);
    let part = first.max(offset)..(first + BLOCK_BYTES).min(end);
    let from = (part.start - first) as usize..(part.end - first) as usize;
    buf[(part.start - offset) as usize..(part.end - offset) as usize].copy_from_slice(&bytes[from]);
}

fn zero(buf: &mut Buf, offset: u64, block: u64) {
    fill(buf, offset, block, &[0; BLOCK_BYTES as usize]);
}
