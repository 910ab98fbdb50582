//! The path of a guest's I/O through a chain of deltas, following the rules.
//!
//! A read looks the range up in each delta, newest first, until all of it is found; then it reads the data. A write to
//! grains that the topmost delta holds overwrites them. Otherwise the delta allocates grains; the write stores its data
//! and then the tables. The hypothesis decides which of these steps exclude one another.

use std::ops::Range;

use blk::{Buf, Result, Slice};
use futures_util::future::join;

use super::chain::Chain;
use super::delta::Delta;
use super::disk::Disk;
use super::fifo_lock::FifoGuard;
use super::host::Purpose;
use super::rules::Serial;

/// On whose behalf a delta is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// A guest; the write follows the rules of the hypothesis.
    Guest,
    /// The committer, or a guest's write that goes to both sides: no other writer uses the delta below.
    Commit,
}

impl Disk {
    pub(super) async fn read_chain(&self, chain: &Chain, offset: u64, buf: Buf) -> (Buf, Result<()>) {
        let range = offset..offset + buf.len() as u64;
        let held = match self.look_up(chain, range.clone()).await {
            Ok(held) => held,
            Err(error) => return (buf, Err(error)),
        };
        // No other task runs between here and the submission of the reads.
        self.fills.passed(&range).await;
        let answer = chain.read(&self.host, chain.deltas.len(), offset, buf).await;
        drop(held);
        answer
    }

    /// Reads tables, newest delta first, until all of the range is found. The caller holds the returned lock until its
    /// data is read.
    async fn look_up(&self, chain: &Chain, range: Range<u64>) -> Result<Option<FifoGuard>> {
        let serial = self.rules.serial;
        let mut held = match serial {
            Serial::Everything | Serial::Tables | Serial::Reads => Some(self.lock.lock().await),
            Serial::Nothing | Serial::Delta => None,
        };
        let mut left = range;
        for (level, delta) in chain.deltas.iter().enumerate().rev() {
            if serial == Serial::Delta {
                drop(held.take());
                held = Some(delta.lock.lock().await);
            }
            delta.look_up_read(&left).await?;
            if level > 0 {
                left = delta.trim(left);
            }
            if left.is_empty() {
                break;
            }
        }
        Ok(held.filter(|_| serial != Serial::Tables))
    }

    /// Writes guest data. The gate has admitted the write, and the chain has a delta.
    pub(super) async fn write_chain(&self, chain: &Chain, offset: u64, data: Slice) -> Result<()> {
        let top = chain.deltas.len() - 1;
        let range = offset..offset + data.len() as u64;
        let delta = &chain.deltas[top];
        let grains = delta.layout.format.round_out(&range);
        let _own = self.writes.lock(grains.clone()).await;
        if self.mirrored_to.get().is_none_or(|to| to <= range.start) {
            return self.write_delta(chain, top, offset, data, Writer::Guest).await;
        }
        let above = self.write_delta(chain, top, offset, data.clone(), Writer::Guest);
        let below = self.write_below(chain, top, offset, data);
        // Completing a partial grain reads from below. It must not find the same grain there, reserved and not yet
        // written.
        if top > 0 && grains != range && !delta.trim(grains).is_empty() {
            above.await?;
            return below.await;
        }
        let (above, below) = join(above, below).await;
        above.and(below)
    }

    /// Writes into the delta or base below the delta `level`.
    pub(super) async fn write_below(
        &self,
        chain: &Chain,
        level: usize,
        offset: u64,
        data: Slice,
    ) -> Result<()> {
        match level.checked_sub(1) {
            Some(below) => self.write_delta(chain, below, offset, data, Writer::Commit).await,
            None => chain.base.write(&self.host, offset, data, Purpose::Commit).await,
        }
    }

    async fn write_delta(
        &self,
        chain: &Chain,
        level: usize,
        offset: u64,
        data: Slice,
        writer: Writer,
    ) -> Result<()> {
        let delta = &*chain.deltas[level];
        let range = offset..offset + data.len() as u64;
        let purpose = if writer == Writer::Guest { Purpose::Guest } else { Purpose::Commit };
        let mut guard = self.lock_for_write(delta, writer).await;
        if writer == Writer::Guest && self.rules.look_up_on_write {
            delta.look_up(&range).await?;
        }
        let grains = delta.layout.format.round_out(&range);
        let Some(new) = delta.reserve(&grains).await? else {
            self.release_for_data(&mut guard);
            return delta.write_held(&self.host, offset, data, purpose).await;
        };
        // The fill begins at the instant of the reservation: from now on readers find grains that hold no data yet.
        // Data that a commit writes is still in the delta above, which readers search first.
        let fill = (writer == Writer::Guest).then(|| self.fills.begin(new.clone()));
        self.release_for_data(&mut guard);
        let (offset, data) = self.whole_grains(chain, level, &new, offset, data).await?;
        delta.write_held(&self.host, offset, data, purpose).await?;
        drop(fill);
        if guard.is_none() {
            guard = self.lock_for_write(delta, writer).await;
        }
        let written = delta.write_tables(&new).await;
        drop(guard);
        written
    }

    async fn lock_for_write(&self, delta: &Delta, writer: Writer) -> Option<FifoGuard> {
        match (writer, self.rules.serial) {
            (Writer::Commit, _) | (_, Serial::Nothing | Serial::Reads) => None,
            (_, Serial::Everything | Serial::Tables) => Some(self.lock.lock().await),
            (_, Serial::Delta) => Some(delta.lock.lock().await),
        }
    }

    /// Releases the lock before data is written. `Serial::Everything` keeps it, because there whole I/Os exclude one
    /// another.
    fn release_for_data(&self, guard: &mut Option<FifoGuard>) {
        if self.rules.serial != Serial::Everything {
            drop(guard.take());
        }
    }

    /// Completes new grains that the data covers in part: reads them from below and merges the data in.
    async fn whole_grains(
        &self,
        chain: &Chain,
        level: usize,
        new: &Range<u64>,
        offset: u64,
        data: Slice,
    ) -> Result<(u64, Slice)> {
        let end = offset + data.len() as u64;
        // A partial grain at either end is new exactly when the new stretch reaches beyond the data.
        let (start, past) = (new.start.min(offset), new.end.max(end));
        if (start, past) == (offset, end) {
            return Ok((offset, data));
        }
        let mut whole = Buf::alloc((past - start) as usize);
        for gap in [start..offset, end..past] {
            let inside = (gap.start - start) as usize;
            let part = self.read_lower(chain, level, gap).await?;
            whole[inside..inside + part.len()].copy_from_slice(&part);
        }
        let inside = (offset - start) as usize;
        whole[inside..inside + data.len()].copy_from_slice(&data);
        Ok((start, whole.freeze()))
    }

    /// Reads `range` from below the delta `level`, after looking up the tables there.
    async fn read_lower(&self, chain: &Chain, level: usize, range: Range<u64>) -> Result<Buf> {
        let buf = Buf::alloc((range.end - range.start) as usize);
        if range.is_empty() {
            return Ok(buf);
        }
        chain.look_up(level, range.clone()).await?;
        let (buf, result) = chain.read(&self.host, level, range.start, buf).await;
        result.map(|()| buf)
    }
}
