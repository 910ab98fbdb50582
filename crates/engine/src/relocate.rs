//! A VM moves into another store while its guests run: its snapshots one after the other, then what runs, with every new
//! write going to both sides, and at last one step from which the other side alone is the VM.
//!
//! The source is whole until that step, and whoever asked for the move decides what the step is. Until then a crash, a
//! cancel or an error of the target leaves the source as it was, and the target is debris.

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
use crate::operations::Between;

/// Copied under one range lock: the longest a guest write can wait for the copy.
const PIECE_BYTES: u64 = 64 << 10;
/// Pieces of a sealed state under way at once: nobody writes there.
const SEALED_PIECE_BYTES: u64 = 1 << 20;
/// What is asked of a map at once.
const STATUS_BYTES: u64 = 1 << 30;
/// While guests are active the copy rests this many times the time its piece took.
const YIELD_FACTOR: u64 = 2;
const REST_US_MAX: u64 = 50_000;
/// How long all writes are held back, at first and at most, for those under way to end. A guest gives a request up after
/// 30 s; what takes longer than two waits for something else than a device.
const HOLD_US_MIN: u64 = 50_000;
const HOLD_US_MAX: u64 = 2_000_000;
/// When they did not end, all go on for this many times as long.
const HOLD_REST_FACTOR: u64 = 10;

/// A move under way.
pub struct Relocation {
    env: Env,
    source: Rc<dyn Machine>,
    /// With the same disks, empty, and no snapshots.
    target: Rc<dyn Machine>,
    /// The source when the copy began: its snapshots and disks stay that until the step.
    began: VmState,
    job: Rc<Job>,
    mirrors: RefCell<Vec<(u32, Rc<Mirror>)>>,
    /// Who keeps both sides' disks in use until the move is over.
    clients: RefCell<Vec<Rc<Client>>>,
}

impl Relocation {
    pub fn new(source: Rc<dyn Machine>, target: Rc<dyn Machine>, job: Rc<Job>) -> Relocation {
        let (env, began) = (source.env().clone(), source.state());
        let (mirrors, clients) = (RefCell::default(), RefCell::default());
        Relocation { env, source, target, began, job, mirrors, clients }
    }

    /// An operation that was under way when the move began may have ended since: what it has sealed or thrown away is
    /// not on the target, and the copy of what runs would begin behind it.
    fn refuse_when_changed(&self) -> Result<()> {
        let (then, now) = (&self.began, self.source.state());
        if (then.current, &then.snapshots, &then.disks) == (now.current, &now.snapshots, &now.disks) {
            return Ok(());
        }
        let cause = "its snapshots or disks were changed while it was being moved; move it again";
        Err(Error::refused(&now.name, cause))
    }

    /// The target was made for the disks that there are.
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
                "its disks were changed when the move began; move it again",
            )),
        }
    }

    /// Copies every snapshot, parents first. Guests go on; takes and commits of the source must not.
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

    /// What `to` shows other than `from`, into the target's running disk.
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

    /// The next part of what has to be copied, and up to where it goes; None at the end. Without a state that both sides
    /// share that is all that the source shows, and all that the target has to forget.
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
            let between = Between { disk: number, from: &from, to: to.as_deref(), start };
            let found = self.source.differences(between).await?;
            return Ok(Some((found.ranges, found.end)));
        }
        let end = size.min(start + STATUS_BYTES);
        let mut ranges = shown(source, start..end).await?;
        ranges.extend(shown(target, start..end).await?);
        Ok(Some((joined(ranges), end)))
    }

    /// Volumes that write to both sides, by disk. From when they serve the guests `copy_running` may begin.
    pub async fn mirrors(&self) -> Result<Vec<(u32, Rc<Mirror>)>> {
        for disk in self.source.state().disks {
            let (source, on_source) = self.source.attach(disk.number, "a move").await?;
            let (target, on_target) = self.target.attach(disk.number, "a move").await?;
            self.clients.borrow_mut().extend([on_source, on_target]);
            self.mirrors.borrow_mut().push((disk.number, Mirror::new(source, target)));
        }
        // Attaching has waited for whatever was under way.
        self.refuse_when_changed()?;
        Ok(self.mirrors.borrow().clone())
    }

    /// Copies what the guests have written since the latest snapshot, yielding to them.
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
            let rest_us = (self.env.now_ns() - began_ns) / 1000 * YIELD_FACTOR;
            self.job.rest_us(rest_us.min(REST_US_MAX)).await;
        }
        Ok(())
    }

    /// Since when none is under way, and none begins. One may wait for something else for ever: now and then the others go
    /// on, and a cancel gets through.
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

    /// Holds all writes back, makes both sides durable, and runs `step`, which makes the target the VM, durably. From
    /// there the mirrors are the target alone. Answers the microseconds that writes were held back at the end.
    pub async fn finish(&self, step: impl AsyncFnOnce() -> Result<()>) -> Result<u64> {
        let mirrors = self.mirrors.borrow().clone();
        // Most of it is durable before anybody has to wait.
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

/// What of `range` does not read as zeros for sure.
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

/// In order and apart from each other.
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

/// A snapshot is numbered after its parent, and keeps its number when it moves up.
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

/// Disks as a target of a move has to make them: what a reset goes back to is not known there.
pub fn refuse_unmovable(vm: &str, disks: &[DiskState]) -> Result<()> {
    match disks.iter().find(|disk| disk.mode == DiskMode::IndependentNonpersistent) {
        Some(disk) => {
            let cause = format!("disk{} is nonpersistent: a move would keep what a reset drops", disk.number);
            Err(Error::refused(vm, format!("{cause}; reset it and make it persistent first")))
        }
        None => Ok(()),
    }
}
