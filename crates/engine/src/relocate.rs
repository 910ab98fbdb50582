//! Moves a VM into another store while its guests run. First its snapshots are copied one by one, then the running
//! state, while every new write goes to both sides. One last step makes the target alone the VM.
//!
//! The source stays complete until that step, and the caller of the move supplies the step. Before it, a crash, a
//! cancel or an error of the target leaves the source unchanged, and the target is debris.

use std::cell::RefCell;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;

use blk::manifest::{DiskMode, DiskState, SnapshotState, VmState};
use blk::sync::RangeGuard;
use blk::volume::Volume;
use blk::{Env, Error, Result};
use futures_util::future::{Either, join_all, select};

use crate::client::Client;
use crate::job::Job;
use crate::join::all;
use crate::machine::Machine;
use crate::mirror::{Mirror, copy};
use crate::operations::DiffRequest;

/// Bytes copied under one range lock: the longest that a guest write can wait for the copy.
const PIECE_BYTES: u64 = 64 << 10;
/// Size of a piece of a sealed state. It may be larger: no guest writes there.
const SEALED_PIECE_BYTES: u64 = 1 << 20;
/// Bytes of a disk whose status one call looks up.
const STATUS_BYTES: u64 = 1 << 30;
/// While guests are active, the copy pauses this many times as long as its last piece took.
const YIELD_FACTOR: u64 = 2;
const REST_US_MAX: u64 = 50_000;
/// How long all writes are held back, at first and at most, until those under way have ended. A guest gives up a
/// request after 30 s; a write that takes longer than two does not wait for a device.
const HOLD_US_MIN: u64 = 50_000;
const HOLD_US_MAX: u64 = 2_000_000;
/// After a hold that timed out, writes go on for this many times its length.
const HOLD_REST_FACTOR: u64 = 10;

/// A move under way.
pub struct Relocation {
    env: Env,
    source: Rc<dyn Machine>,
    /// Has the same disks, empty, and no snapshots.
    target: Rc<dyn Machine>,
    /// State of the source when the copy began. Its snapshots and disks must not change before the last step.
    began: VmState,
    job: Rc<Job>,
    mirrors: RefCell<Vec<(u32, Rc<Mirror>)>>,
    /// Clients that keep the disks of both sides in use until the move is over.
    clients: RefCell<Vec<Rc<Client>>>,
}

impl Relocation {
    /// Plans the move of `source` into the empty VM `target`; `job` shows its progress.
    pub fn new(source: Rc<dyn Machine>, target: Rc<dyn Machine>, job: Rc<Job>) -> Relocation {
        let (env, began) = (source.env().clone(), source.state());
        let (mirrors, clients) = (RefCell::default(), RefCell::default());
        Relocation { env, source, target, began, job, mirrors, clients }
    }

    /// Refuses a source that has changed since the copy began. An operation that was under way then may have sealed or
    /// thrown away data that is not on the target; the copy of the running state would start from the wrong snapshot.
    fn refuse_when_changed(&self) -> Result<()> {
        let (then, now) = (&self.began, self.source.state());
        if (then.current, &then.snapshots, &then.disks) == (now.current, &now.snapshots, &now.disks) {
            return Ok(());
        }
        let cause = "its snapshots or disks were changed during the move; start the move again";
        Err(Error::refused(&now.name, cause))
    }

    /// Refuses a target whose disks are not those of the source.
    fn refuse_other_disks(&self) -> Result<()> {
        let disks = |state: &VmState| {
            let mut disks: Vec<_> = state.disks.iter().map(|d| (d.number, d.size_bytes, d.mode)).collect();
            disks.sort_unstable_by_key(|(number, ..)| *number);
            disks
        };
        match disks(&self.began) == disks(&self.target.state()) {
            true => Ok(()),
            false => Err(Error::refused(
                &self.began.name,
                "its disks were changed when the move began; start the move again",
            )),
        }
    }

    /// Copies every snapshot, parents first. Guests go on; takes and commits of the source must not run.
    pub async fn copy_snapshots(&self) -> Result<()> {
        self.refuse_other_disks()?;
        let state = &self.began;
        if state.current.is_none() && !state.snapshots.is_empty() {
            let cause = "it has snapshots but no current snapshot, which the target cannot represent";
            return Err(Error::refused(&state.name, format!("{cause}; take a snapshot, then move it")));
        }
        let mut at: Option<SnapshotState> = None;
        for snapshot in parents_first(state) {
            self.job.checkpoint().await?;
            if let Some(parent) = snapshot.parent
                && at.as_ref().is_some_and(|at| at.id != parent)
            {
                self.target.clone().revert(Some(&hex(parent)), None, false).await?;
                at = state.snapshots.iter().find(|s| s.id == parent).cloned();
            }
            for (number, _) in &snapshot.disks {
                self.copy_sealed(*number, at.as_ref(), &snapshot).await?;
            }
            self.target.clone().take_copy(&snapshot).await?;
            at = Some(snapshot);
        }
        if let Some(current) = state.current.filter(|id| at.as_ref().is_some_and(|at| at.id != *id)) {
            self.target.clone().revert(Some(&hex(current)), None, false).await?;
        }
        Ok(())
    }

    /// Copies the differences between `from` and `to` into the target's running disk.
    async fn copy_sealed(&self, number: u32, from: Option<&SnapshotState>, to: &SnapshotState) -> Result<()> {
        let (source, _view) = self.source.open_view(&hex(to.id), number, "a move").await?;
        let (target, _client) = self.target.attach(number, "a move").await?;
        let from = from.filter(|from| from.disks.iter().any(|(n, _)| *n == number));
        let mut start = 0;
        while let Some((ranges, end)) =
            self.next_ranges(number, from, Some(to), (&source, &target), start).await?
        {
            for piece in pieces(&ranges, SEALED_PIECE_BYTES) {
                self.job.checkpoint().await?;
                let len = piece.end - piece.start;
                copy(&source, &target, piece).await?;
                self.job.moved(len).await;
            }
            start = end;
        }
        Ok(())
    }

    /// Returns the next ranges to copy and the end of the part that they cover; None at the end of the disk. Without a
    /// state that both sides share, these are all non-zero ranges of the source and of the target.
    async fn next_ranges(
        &self,
        number: u32,
        from: Option<&SnapshotState>,
        to: Option<&SnapshotState>,
        (source, target): (&Rc<dyn Volume>, &Rc<dyn Volume>),
        start: u64,
    ) -> Result<Option<(Vec<Range<u64>>, u64)>> {
        let size = source.info().size_bytes;
        if start >= size {
            return Ok(None);
        }
        if let Some(from) = from {
            let (from, to) = (hex(from.id), to.map(|to| hex(to.id)));
            let between = DiffRequest { disk: number, from: &from, to: to.as_deref(), start, end: u64::MAX };
            let found = self.source.differences(between).await?;
            return Ok(Some((found.ranges, found.end)));
        }
        let end = size.min(start + STATUS_BYTES);
        let mut ranges = shown(source, start..end).await?;
        ranges.extend(shown(target, start..end).await?);
        Ok(Some((joined(ranges), end)))
    }

    /// Creates the volumes that write to both sides, by disk. `copy_running` may begin once they serve the guests.
    pub async fn mirrors(&self) -> Result<Vec<(u32, Rc<Mirror>)>> {
        for disk in self.source.state().disks {
            let (source, on_source) = self.source.attach(disk.number, "a move").await?;
            let (target, on_target) = self.target.attach(disk.number, "a move").await?;
            self.clients.borrow_mut().extend([on_source, on_target]);
            self.mirrors.borrow_mut().push((disk.number, Mirror::new(source, target)));
        }
        // The attach has waited for the operations under way.
        self.refuse_when_changed()?;
        Ok(self.mirrors.borrow().clone())
    }

    /// Copies what the guests have written since the current snapshot, and yields to them.
    pub async fn copy_running(&self) -> Result<()> {
        let state = &self.began;
        let current = state.snapshots.iter().find(|s| Some(s.id) == state.current).cloned();
        let mirrors = self.mirrors.borrow().clone();
        for (number, mirror) in &mirrors {
            let from = current.as_ref().filter(|s| s.disks.iter().any(|(n, _)| n == number));
            let mut start = 0;
            while let Some((ranges, end)) =
                self.next_ranges(*number, from, None, (&mirror.source, &mirror.target), start).await?
            {
                for piece in pieces(&ranges, PIECE_BYTES) {
                    self.copy_yielding(&mirrors, mirror, piece).await?;
                }
                start = end;
            }
        }
        Ok(())
    }

    async fn copy_yielding(
        &self,
        mirrors: &[(u32, Rc<Mirror>)],
        mirror: &Mirror,
        piece: Range<u64>,
    ) -> Result<()> {
        self.job.checkpoint().await?;
        let writes = || mirrors.iter().map(|(_, m)| m.writes.get()).sum::<u64>();
        let (before, began_ns, len) = (writes(), self.env.now_ns(), piece.end - piece.start);
        mirror.copy_piece(piece, &self.job).await?;
        self.job.moved(len).await;
        if writes() != before {
            let pause_us = (self.env.now_ns() - began_ns) / 1000 * YIELD_FACTOR;
            self.job.pause_us(pause_us.min(REST_US_MAX)).await;
        }
        Ok(())
    }

    /// Holds back all writes and waits until none is under way. Returns the start of the hold in nanoseconds, and its
    /// guards. A write may wait for something else without limit: between the attempts the others go on, and a cancel
    /// takes effect.
    async fn hold_writes(&self, mirrors: &[(u32, Rc<Mirror>)]) -> Result<(u64, Vec<RangeGuard>)> {
        let mut limit_us = HOLD_US_MIN;
        loop {
            let began_ns = self.env.now_ns();
            {
                let held = pin!(join_all(mirrors.iter().map(|(_, mirror)| mirror.ranges.lock(0..u64::MAX))));
                let late = pin!(self.env.sleep_us(limit_us));
                if let Either::Left((held, _)) = self.job.or_cancelled(select(held, late)).await? {
                    return Ok((began_ns, held));
                }
            }
            self.job.or_cancelled(self.env.sleep_us(limit_us * HOLD_REST_FACTOR)).await?;
            limit_us = (limit_us * 2).min(HOLD_US_MAX);
        }
    }

    /// Holds back all writes, makes both sides durable, and runs `step`, which durably makes the target the VM. After
    /// it the mirrors use the target alone. Returns how long the writes were held back, in microseconds.
    pub async fn finish(&self, step: impl AsyncFnOnce() -> Result<()>) -> Result<u64> {
        let mirrors = self.mirrors.borrow().clone();
        // This flush makes most data durable before any write has to wait.
        all(mirrors.iter().map(|(_, mirror)| mirror.target.clone().flush())).await?;
        let (began_ns, _held) = self.hold_writes(&mirrors).await?;
        for (_, mirror) in &mirrors {
            mirror.refuse_when_failed()?;
        }
        self.refuse_when_changed()?;
        all(mirrors.iter().map(|(_, mirror)| mirror.source.clone().flush())).await?;
        all(mirrors.iter().map(|(_, mirror)| mirror.target.clone().flush())).await?;
        step().await?;
        mirrors.iter().for_each(|(_, mirror)| mirror.has_moved());
        self.clients.borrow_mut().clear();
        Ok((self.env.now_ns() - began_ns).div_ceil(1000))
    }
}

/// Returns the parts of `range` that may not read as zeros.
async fn shown(volume: &Rc<dyn Volume>, range: Range<u64>) -> Result<Vec<Range<u64>>> {
    let mut found = Vec::new();
    let mut at = range.start;
    while at < range.end {
        for status in volume.clone().status(at..range.end).await? {
            if !status.zero {
                found.push(at..at + status.len);
            }
            at += status.len;
        }
    }
    Ok(found)
}

/// Sorts the ranges and joins those that touch.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut apart: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match apart.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => apart.push(range),
        }
    }
    apart
}

fn hex(id: u128) -> String {
    format!("{id:032x}")
}

/// Returns the snapshots in the order of their numbers: a snapshot's number is greater than its parent's, also after it
/// has moved up.
fn parents_first(state: &VmState) -> Vec<SnapshotState> {
    let mut ordered = state.snapshots.clone();
    ordered.sort_by_key(|s| s.uid);
    ordered
}

fn pieces(ranges: &[Range<u64>], unit: u64) -> impl Iterator<Item = Range<u64>> + '_ {
    ranges.iter().flat_map(move |range| {
        let (start, end) = (range.start, range.end);
        (start / unit..end.div_ceil(unit)).map(move |n| start.max(n * unit)..end.min((n + 1) * unit))
    })
}

/// Refuses disks that a target of a move cannot have: it does not know the state that a reset goes back to.
pub fn refuse_unmovable(vm: &str, disks: &[DiskState]) -> Result<()> {
    match disks.iter().find(|disk| disk.mode == DiskMode::IndependentNonpersistent) {
        Some(disk) => {
            let cause = format!("disk{} is nonpersistent: a move would keep what a reset drops", disk.number);
            Err(Error::refused(vm, format!("{cause}; reset it and make it persistent first")))
        }
        None => Ok(()),
    }
}
