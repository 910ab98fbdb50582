//! Transaction groups: what a group writes, and when it ends.

use std::collections::BTreeSet;
use std::rc::Rc;

use blk::{Buf, Result, Slice};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::limits::{
    BLOCK_BYTES, DEFERRED_GROUPS, DIRTY_BYTES_MAX, END_BLOCKS, GROUP_S, GROUP_WRITES, JOINED_BYTES,
    POINTER_BYTES, POINTER_COPIES, POINTERS_BYTES, SYNC_PERCENT,
};
use super::volume::Volume;
use crate::vmware::host::Purpose;

/// Length of the file of metadata, which is written from front to back and then again.
const META_BYTES: u64 = 1 << 30;

impl Volume {
    /// Starts the timer of the open group, or ends the group where much data waits.
    pub(super) fn end_group_later(self: &Rc<Self>) {
        let is_much = self.dirty_bytes() >= DIRTY_BYTES_MAX * SYNC_PERCENT / 100;
        if is_much && !self.sync_wanted.replace(true) {
            let volume = self.clone();
            self.vm.env.spawn_detached(Box::pin(async move { volume.end_in_background().await }));
        }
        if !self.timer_runs.replace(true) {
            let volume = self.clone();
            self.vm.env.spawn_detached(Box::pin(async move {
                volume.vm.env.sleep_us(GROUP_S * 1_000_000).await;
                volume.timer_runs.set(false);
                volume.end_in_background().await;
            }));
        }
    }

    /// Ends the group. A failure is that of the storage, which the guest's next read or write meets as well.
    async fn end_in_background(&self) {
        let _ = self.end_group(|_| ()).await;
    }

    /// Writes the open group, with `change` at its end. Resolves when the group is durable.
    pub(super) async fn end_group(&self, change: impl FnOnce(&Volume)) -> Result<()> {
        let _own = self.group_lock.lock().await;
        self.sync_wanted.set(false);
        *self.syncing.borrow_mut() = self.open.take();
        // What was in the group is not needed in the log any more.
        self.log_bytes.set(0);
        let written = self.write_group().await;
        change(self);
        self.syncing.take();
        self.freed.notify();
        written
    }

    async fn write_group(&self) -> Result<()> {
        let blocks: Vec<(u64, Slice)> =
            self.syncing.borrow().0.iter().map(|(block, bytes)| (*block, bytes.clone())).collect();
        let placed: Vec<(u64, u64, Slice)> =
            blocks.into_iter().map(|(block, bytes)| (block, self.versions.allocate(), bytes)).collect();
        let writes = stream::iter(joined(&placed))
            .map(|(place, bytes)| self.vm.host.write(&self.data, place * BLOCK_BYTES, bytes, Purpose::Guest));
        writes.buffer_unordered(GROUP_WRITES).try_collect::<()>().await?;
        let pointers = self.changed_pointers(placed.iter().map(|(block, ..)| *block));
        let replaced = placed.into_iter().filter_map(|(block, place, _)| self.versions.replace(block, place));
        let replaced = replaced.collect();
        self.write_pointers(pointers * POINTER_COPIES).await?;
        self.vm.host.flush(&self.data).await?;
        self.write_meta(END_BLOCKS, 4096).await?;
        self.vm.host.flush(&self.meta).await?;
        self.defer(replaced);
        Ok(())
    }

    /// Returns the number of blocks of pointers above the changed blocks, on all levels.
    fn changed_pointers(&self, changed: impl Iterator<Item = u64>) -> u64 {
        let fan_out = POINTERS_BYTES / POINTER_BYTES;
        let mut level: BTreeSet<u64> = changed.map(|block| block / fan_out).collect();
        let mut width = self.size_bytes.div_ceil(BLOCK_BYTES).div_ceil(fan_out);
        let mut count = level.len() as u64;
        while width > 1 {
            level = level.into_iter().map(|block| block / fan_out).collect();
            width = width.div_ceil(fan_out);
            count += level.len() as u64;
        }
        count
    }

    async fn write_pointers(&self, count: u64) -> Result<()> {
        let writes = stream::iter(0..count).map(|_| self.write_meta(1, POINTERS_BYTES));
        writes.buffer_unordered(GROUP_WRITES).try_collect::<()>().await
    }

    async fn write_meta(&self, count: u64, bytes: u64) -> Result<()> {
        for _ in 0..count {
            let at = self.meta_at.get() % META_BYTES;
            self.meta_at.set(at + bytes);
            let data = Buf::zeroed(bytes as usize).freeze();
            self.vm.host.write(&self.meta, at, data, Purpose::Table).await?;
        }
        Ok(())
    }

    /// Frees places some groups later.
    fn defer(&self, places: Vec<u64>) {
        let mut deferred = self.deferred.borrow_mut();
        deferred.push(places);
        if deferred.len() > DEFERRED_GROUPS {
            let oldest = deferred.remove(0);
            self.versions.release(oldest);
        }
    }

    /// Destroys a snapshot: reads its list of dead blocks and frees them, with a transaction group before and after.
    pub(super) async fn destroy(self: &Rc<Self>, number: usize) -> Result<()> {
        let unneeded = std::cell::RefCell::new(Vec::new());
        self.end_group(|volume| *unneeded.borrow_mut() = volume.versions.remove(number)).await?;
        let unneeded = unneeded.into_inner();
        let list_bytes = unneeded.len() as u64 * POINTER_BYTES;
        for at in (0..list_bytes).step_by(POINTERS_BYTES as usize) {
            self.vm.check_stopping()?;
            let buf = Buf::alloc(POINTERS_BYTES as usize);
            self.vm.host.read(&self.meta, at % META_BYTES, buf, Purpose::Table).await.1?;
        }
        self.deferred.borrow_mut().push(unneeded);
        self.end_group(|_| ()).await
    }
}

/// Joins blocks in a row into one write.
fn joined(placed: &[(u64, u64, Slice)]) -> Vec<(u64, Slice)> {
    let limit = (JOINED_BYTES / BLOCK_BYTES) as usize;
    let mut writes = Vec::new();
    let mut left = placed;
    while let Some((_, first, bytes)) = left.first() {
        let in_row = (*first..).zip(left).take_while(|(at, (_, place, _))| at == place).count().min(limit);
        let (row, rest) = left.split_at(in_row);
        left = rest;
        if in_row == 1 {
            writes.push((*first, bytes.clone()));
            continue;
        }
        let mut whole = Buf::alloc(in_row * BLOCK_BYTES as usize);
        for (part, (.., bytes)) in whole.chunks_mut(BLOCK_BYTES as usize).zip(row) {
            part.copy_from_slice(bytes);
        }
        writes.push((*first, whole.freeze()));
    }
    writes
}
