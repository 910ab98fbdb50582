//! A check that also reads all data, to find blocks that the device cannot read before a guest needs them.
//!
//! Data has no checksum of its own, so readable data counts as whole. The work goes node by node, each against its
//! base, so that a block is read once regardless of how many states show it. It goes in steps, each over the state of
//! that moment. Nothing is held between two steps, so a scrub may take days.

use std::cell::Cell;
use std::collections::BTreeMap;

use blk::{Buf, Error, ErrorKind, Result};
use futures_util::future::join_all;

use super::report::{Fault, Finding, Report};
use super::resolve::showing;
use super::walk::Location;
use crate::job::{Job, JobState};
use crate::native::diff_base::{DiffRange, diff_ranges};
use crate::native::difference::item_now;
use crate::native::layout::{BLOCK, Extent};
use crate::native::store::Store;
use crate::native::stored::NodeItem;
use crate::native::tree::{MapCache, Mapped, Nodes, Roots, WalkItem, survey};

/// Pages of maps that a step reads: at most 16 * 252 blocks of data, 16 MiB.
const STEP_PAGES: usize = 16;
/// Cache for pages of maps: the path to the work's position, in a state and its base.
const CACHE_BYTES: usize = 256 << 10;
/// Blocks of one read. A guest's request waits behind at most a few of these.
const READ_BLOCKS: u64 = (1 << 20) / BLOCK;
const READS_AT_ONCE: usize = 2;
/// While guests are active, a scrub pauses this many times as long as its last step took.
const REST_FACTOR: u64 = 2;
/// Longest pause between two steps.
const REST_US_MAX: u64 = 1_000_000;

/// Position at which a step begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScrubPosition {
    node: u64,
    block: u64,
}

/// The work of a step: a part of one tree over one base.
struct ScrubStep {
    at: ScrubPosition,
    roots: Roots,
    range: DiffRange,
}

impl Store {
    /// Checks the store, then reads every block of data in it. `job` shows the progress, and can pause, limit and
    /// cancel the scrub; it is over when this returns.
    ///
    /// # Errors
    /// `Cancelled`: the job was cancelled, or the store was closed.
    pub async fn scrub(&self, job: &Job) -> Result<Report> {
        let result = self.scrub_for(job).await;
        job.set_state(match &result {
            Ok(_) => JobState::Done,
            Err(e) if e.kind == ErrorKind::Cancelled => JobState::Cancelled,
            Err(_) => JobState::Failed,
        });
        if let Err(e) = &result {
            job.set_error(e.clone());
        }
        result
    }

    async fn scrub_for(&self, job: &Job) -> Result<Report> {
        let mut report = self.check().await?;
        job.bytes_total.set(report.data_blocks * BLOCK);
        let nodes = Nodes::new(self.file.clone(), self.id(), &MapCache::new(CACHE_BYTES));
        let mut at = ScrubPosition { node: 0, block: 0 };
        loop {
            job.checkpoint().await?;
            if self.closed.get() {
                return Err(Error::cancelled(format!("scrub of {}", self.path())));
            }
            let (began_ns, before) = (self.env.now_ns(), self.guest_requests());
            let Some((next, bytes)) = self.scrub_step(&nodes, at, &mut report).await? else { break };
            at = next;
            job.moved(bytes).await;
            if self.guest_requests() != before {
                let pause_us = (self.env.now_ns() - began_ns) / 1000 * REST_FACTOR;
                job.pause_us(pause_us.min(REST_US_MAX)).await;
            }
        }
        report.sort();
        Ok(report)
    }

    /// Scrubs one step. Returns the position of the next step, and the bytes read.
    async fn scrub_step(
        &self,
        nodes: &Nodes,
        at: ScrubPosition,
        report: &mut Report,
    ) -> Result<Option<(ScrubPosition, u64)>> {
        let _retained = self.space.retain(self.work.clone());
        let Some(step) = self.next_step(at).await? else { return Ok(None) };
        let (mut runs, mut lost) = (Vec::new(), Vec::new());
        let mut visit = |seen: WalkItem| match seen {
            WalkItem::Data(run) => runs.push(run),
            WalkItem::Damaged { addr, level, first, error } => lost.push((addr, level, first, error)),
            WalkItem::Page { .. } | WalkItem::UnknownBase(_) => {}
        };
        let (ScrubPosition { node, block }, end) = (step.at, step.range.end);
        let (root, base) = (step.roots.places.as_ref(), step.range.base.places.as_ref());
        let done = survey(nodes, root, base, block..end, STEP_PAGES, &mut visit).await?;
        // An older backing block is a place of an ancestor, with which it is read.
        let mut visit_backing = |seen: WalkItem| {
            if !matches!(&seen, WalkItem::Data(run) if run.birth <= step.range.since) {
                visit(seen);
            }
        };
        let (root, base) = (step.roots.backings.as_ref(), step.range.base.backings.as_ref());
        survey(nodes, root, base, block..done, usize::MAX, &mut visit_backing).await?;
        for (addr, level, first, error) in lost {
            let (extent, location) =
                (Extent { addr, len: 1 }, Location { node, level: Some(level), block: first });
            self.add_finding(nodes, Fault::Map, error, extent, location, report).await;
        }
        let bytes = runs.iter().map(|run| run.len * BLOCK).sum();
        let reads: Vec<Mapped> = joined(runs);
        for some in reads.chunks(READS_AT_ONCE) {
            let read = join_all(some.iter().map(|run| self.read_data(run))).await;
            for (run, result) in some.iter().zip(read) {
                if let Err(e) = result {
                    self.find_unreadable(nodes, node, run, e, report).await?;
                }
            }
        }
        let next = match done {
            u64::MAX => ScrubPosition { node: node + 1, block: 0 },
            block => ScrubPosition { node, block },
        };
        Ok(Some((next, bytes)))
    }

    /// Returns the part at or behind `at`. A checkpoint gives a tree to a state that has none.
    async fn next_step(&self, mut at: ScrubPosition) -> Result<Option<ScrubStep>> {
        loop {
            let Some(node) = self.lineage.borrow().next(at.node) else { return Ok(None) };
            if node.id != at.node {
                at = ScrubPosition { node: node.id, block: 0 };
            }
            let unmerged = Cell::new(false);
            let item_of = |id: u64| {
                let node = self.lineage.borrow().get(id)?;
                unmerged.set(unmerged.get() || node.roots().is_none());
                Some(item_now(&node))
            };
            let range = diff_ranges(at.node, &item_of).into_iter().find(|range| at.block < range.end);
            // In a read-only store the report says that it is behind.
            if unmerged.get() && self.broken().is_none() {
                self.checkpoint().await?;
                continue;
            }
            let Some(range) = range else {
                at = ScrubPosition { node: at.node + 1, block: 0 };
                continue;
            };
            at.block = at.block.max(range.start);
            return Ok(Some(ScrubStep { at, roots: node.roots().unwrap_or_default(), range }));
        }
    }

    async fn read_data(&self, run: &Mapped) -> Result<()> {
        let (_, result) = self.file.read(run.addr * BLOCK, Buf::alloc((run.len * BLOCK) as usize)).await;
        result
    }

    /// Finds the unreadable blocks of a run one by one: the other blocks may be readable.
    async fn find_unreadable(
        &self,
        nodes: &Nodes,
        node: u64,
        run: &Mapped,
        error: Error,
        report: &mut Report,
    ) -> Result<()> {
        if !matches!(error.kind, ErrorKind::Io | ErrorKind::Damaged) {
            return Err(error);
        }
        let mut bad = Vec::new();
        for n in 0..run.len {
            let block = Mapped { start: run.start + n, len: 1, addr: run.addr + n, birth: run.birth };
            if self.read_data(&block).await.is_err() {
                bad.push(block);
            }
        }
        for Mapped { start, len, addr, .. } in joined(bad) {
            let (extent, location) = (Extent { addr, len }, Location { node, level: None, block: start });
            let cause = format!("data in blocks {addr}..{} cannot be read: {}", addr + len, error.cause);
            let error = Error::new(error.kind, &error.place, cause);
            self.add_finding(nodes, Fault::Data, error, extent, location, report).await;
        }
        Ok(())
    }

    /// Adds a finding unless the check before, or the step of another state, found it too.
    async fn add_finding(
        &self,
        nodes: &Nodes,
        fault: Fault,
        error: Error,
        extent: Extent,
        location: Location,
        report: &mut Report,
    ) {
        let is_known = |finding: &Finding| finding.fault == fault && finding.extent == Some(extent);
        if report.findings.iter().any(is_known) {
            return;
        }
        let sources = self.sources();
        let lands = |id: u64| sources.iter().find(|source| source.landing == id);
        let kept: BTreeMap<u64, NodeItem> = {
            let lineage = self.lineage.borrow();
            let kept = lineage.all().filter(|node| !node.dropped.get() && lands(node.id).is_none());
            kept.map(|node| (node.id, item_now(node))).collect()
        };
        let (states, source) =
            (kept.iter().map(|(id, item)| (*id, item)), lands(location.node).map(|source| source.device));
        let affected = showing(&self.env, nodes, states, source, extent, location).await;
        report.add(fault, error, Some(extent), affected);
    }
}

/// Joins runs that are contiguous, up to the length of one read.
fn joined(runs: Vec<Mapped>) -> Vec<Mapped> {
    let mut out: Vec<Mapped> = Vec::new();
    for run in runs {
        match out.last_mut() {
            Some(last)
                if last.start + last.len == run.start
                    && last.addr + last.len == run.addr
                    && last.len + run.len <= READ_BLOCKS =>
            {
                last.len += run.len;
            }
            _ => out.push(run),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use blk::Env;
    use sim::{Action, OpKind, SimWorld};

    use super::*;
    use crate::job::SCRUB;
    use crate::native::change::Op;
    use crate::native::tests::{disk, fill, open_store, run};

    fn in_world(test: impl AsyncFnOnce(Env) + 'static) {
        let world = SimWorld::new(1, sim::Options::default());
        run(&world, |env| async move { test(env).await });
    }

    /// Node 1 is a child of node 2; of 3020 blocks 3000 are shared.
    async fn family(env: &Env) -> Rc<Store> {
        let store = open_store(env).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: 100_000 }]).unwrap();
        for n in 0..30 {
            fill(&disk(&store, 1), n * 200, 100, 1).await;
        }
        store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
        fill(&disk(&store, 1), 0, 20, 2).await;
        store
    }

    fn job(env: &Env) -> Rc<Job> {
        Job::new(env.clone(), 1, SCRUB, String::new())
    }

    /// Returns all blocks that a node shows, with their addresses.
    async fn data_of(store: &Store, node: u64) -> Vec<(u64, u64)> {
        let mut data = Vec::new();
        let root = store.node(node).unwrap().roots().unwrap().places;
        let mut visit = |seen| {
            if let WalkItem::Data(run) = seen {
                data.extend((0..run.len).map(|n| (run.addr + n, run.start + n)));
            }
        };
        survey(&store.nodes, root.as_ref(), None, 0..u64::MAX, usize::MAX, &mut visit).await.unwrap();
        data
    }

    #[test]
    fn every_block_is_read_once_even_if_several_states_share_it() {
        in_world(async |env| {
            let (store, job) = (family(&env).await, job(&env));
            store.checkpoint().await.unwrap();
            let before = store.file.counters().bytes_read;
            let report = store.scrub(&job).await.unwrap();
            assert!(report.is_sound() && job.state() == JobState::Done, "{report:?}");
            assert_eq!((job.bytes_done.get(), job.bytes_total.get()), (3020 * BLOCK, 3020 * BLOCK));
            let read = (store.file.counters().bytes_read - before) / BLOCK;
            assert!((3020..3200).contains(&read), "{read} blocks, those of maps and bitmaps with them");
            store.close().await.unwrap();
        });
    }

    /// Makes two reads fail: the `nth` of the scrub and, if that was of data, the read of one of its blocks alone.
    async fn scrub_with_errors(world: SimWorld, env: Env, nth: u64) -> (Rc<Store>, Report) {
        let (store, job) = (family(&env).await, job(&env));
        store.checkpoint().await.unwrap();
        job.pause().unwrap();
        let (worker, running) = (store.clone(), job.clone());
        let done = env.spawn(async move { worker.scrub(&running).await });
        env.sleep_us(10_000_000).await;
        for nth in [nth, nth + 6] {
            let (kind, action) = (Some(OpKind::Read), Action::Fail(blk::Errno::EIO));
            world.add_fault(sim::Fault { kind, name: None, nth, forever: false, action });
        }
        job.resume().unwrap();
        let report = done.join().await.unwrap();
        (store, report)
    }

    /// Checks that the finding is a single unreadable data block, or a page of a map, and that it names the right
    /// states.
    async fn check_named(store: &Store, finding: &Finding) {
        let Extent { addr, len } = finding.extent.unwrap();
        assert_eq!(len, 1);
        let mut expected = Vec::new();
        for node in [1, 2] {
            let at = data_of(store, node).await.into_iter().find(|(found, _)| *found == addr);
            expected.extend(at.map(|(_, block)| (node, block * BLOCK..(block + 1) * BLOCK)));
        }
        let affected: Vec<_> =
            finding.affected.iter().map(|affected| (affected.node, affected.bytes.clone())).collect();
        match finding.fault {
            Fault::Data => assert_eq!(affected, expected),
            fault => assert!(fault == Fault::Map && !affected.is_empty() && expected.is_empty()),
        }
    }

    #[test]
    fn unreadable_data_is_reported_block_by_block() {
        let found: Rc<RefCell<BTreeMap<Fault, usize>>> = Rc::default();
        for nth in 1..90 {
            let world = SimWorld::new(1, sim::Options::default());
            let (inside, found) = (world.clone(), found.clone());
            run(&world, |env| async move {
                let (store, report) = scrub_with_errors(inside.clone(), env, nth).await;
                inside.clear_faults();
                for finding in &report.findings {
                    check_named(&store, finding).await;
                    *found.borrow_mut().entry(finding.fault).or_default() += 1;
                }
                store.close().await.unwrap();
            });
        }
        let found = found.borrow();
        assert!(found[&Fault::Data] > 20 && found[&Fault::Map] > 5, "{found:?}");
    }

    #[test]
    fn a_scrub_waits_while_paused_and_ends_when_cancelled() {
        in_world(async |env| {
            let store = family(&env).await;
            let (job, cancelled) = (job(&env), job(&env));
            job.pause().unwrap();
            let (worker, running) = (store.clone(), job.clone());
            let done = env.spawn(async move { worker.scrub(&running).await });
            env.sleep_us(10_000_000).await;
            assert_eq!((job.state(), job.bytes_done.get()), (JobState::Paused, 0));
            job.resume().unwrap();
            assert!(done.join().await.unwrap().is_sound());
            cancelled.cancel().unwrap();
            assert_eq!(store.scrub(&cancelled).await.unwrap_err().kind, ErrorKind::Cancelled);
            assert_eq!(cancelled.state(), JobState::Cancelled);
            store.close().await.unwrap();
        });
    }

    #[test]
    fn a_scrub_ends_while_guests_write_and_snapshots_are_taken() {
        in_world(async |env| {
            let (store, job) = (family(&env).await, job(&env));
            let (worker, running) = (store.clone(), job.clone());
            let done = env.spawn(async move { worker.scrub(&running).await });
            let mut sealed = 10;
            while !job.state().is_over() {
                fill(&disk(&store, 1), sealed * 37 % 5000, 5, 3).await;
                store.change(&[Op::Take { running: 1, sealed }]).unwrap();
                sealed += 1;
                store.change(&[Op::Drop { node: sealed - 1 }]).unwrap();
                env.sleep_us(1000).await;
            }
            assert!(done.join().await.unwrap().is_sound());
            assert!(
                sealed > 12 && job.bytes_done.get() >= 3000 * BLOCK,
                "{sealed}, {}",
                job.bytes_done.get()
            );
            store.close().await.unwrap();
        });
    }
}
