//! Commit: the names leave the tree and their states are dropped; no data is copied. The job tracks the reclaim of
//! their space.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::rc::Rc;

use blk::manifest::{JOB_NUMBER_MAX, SnapshotState, next_number};
use blk::{Error, Result};
use futures_util::future::{Either, select};

use super::super::change::Op;
use super::super::layout::BLOCK;
use super::NativeVm;
use super::items::node_of;
use super::remove_names::drop_snapshot;
use crate::event::{Event, EventKind};
use crate::job::{COMMIT, CONSOLIDATE, Job, JobState};
use crate::operations::{CommitPreview, CommitWhat};
use crate::tree;

impl NativeVm {
    /// See [`crate::Machine::commit_preview`].
    pub async fn commit_preview(&self, what: &CommitWhat) -> Result<CommitPreview> {
        let gone = self.plan_commit(what)?;
        let ops: Vec<Op> = gone.iter().flat_map(|s| drop_snapshot(self.id(), s)).collect();
        Ok(CommitPreview {
            names: gone.iter().map(|s| s.name.clone()).collect(),
            bytes_to_move: 0,
            bytes_freed: self.only_in(&ops).await?,
            layers: 0,
            stays: Vec::new(),
            evicted: Vec::new(),
        })
    }

    /// Commits snapshots. When this returns, the names have durably left the tree.
    pub async fn commit(self: &Rc<Self>, what: &CommitWhat) -> Result<Rc<Job>> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let gone = self.plan_commit(what)?;
        let mut head = self.head();
        let id = next_number(&self.name, "numbers of jobs", head.last_job, JOB_NUMBER_MAX)?;
        let ids: BTreeSet<u128> = gone.iter().map(|s| s.id).collect();
        self.activity.refuse_viewed(&self.state.borrow(), |id| ids.contains(id))?;
        let mut nodes: Vec<u64> =
            gone.iter().flat_map(|s| &s.disks).map(|(_, layer)| node_of(layer)).collect();
        nodes.extend(std::mem::take(&mut *self.given_up.borrow_mut()));
        self.store.hold_back(&nodes, false);
        let leaving = tree::leaving(&self.state.borrow(), &ids);
        (head.current, head.last_job) = (leaving.current, id);
        self.remove_names(head, &gone, &leaving.moved, None).await?;
        self.store.flush().await?;
        let names: Vec<_> = gone.iter().map(|s| s.name.clone()).collect();
        let names = names.join(", ");
        self.activity.note(EventKind::CommitStart, &names, "");
        let operation = if *what == CommitWhat::Unowned { CONSOLIDATE } else { COMMIT };
        let job = Job::new(self.env.clone(), id, operation, names);
        self.activity.add_job(job.clone());
        let (vm, worker) = (self.clone(), job.clone());
        self.env.spawn_detached(Box::pin(async move { vm.watch_space_come_back(worker, nodes).await }));
        Ok(job)
    }

    fn plan_commit(&self, what: &CommitWhat) -> Result<Vec<SnapshotState>> {
        let state = self.state.borrow();
        let gone = match what {
            CommitWhat::One(wanted) => vec![tree::find_committable(&state, wanted)?.clone()],
            CommitWhat::All => tree::running_names(&state),
            CommitWhat::Unowned => Vec::new(),
        };
        self.activity.refuse_unsealed(&gone)?;
        if gone.is_empty() && self.given_up.borrow().is_empty() {
            let cause = match what {
                CommitWhat::Unowned => "nothing to consolidate: a native disk has no deltas",
                _ => "nothing to commit: it has no snapshots",
            };
            return Err(Error::refused(&self.name, cause));
        }
        Ok(gone)
    }

    /// Tracks the reclaim of the nodes' space, which the store does by itself. The job shows the progress, and can hold
    /// the reclaim back.
    async fn watch_space_come_back(self: Rc<Self>, job: Rc<Job>, nodes: Vec<u64>) {
        let began_ns = self.env.now_ns();
        // The count can take long beside guests; a pause, a cancel and a close do not wait for it.
        let (count, reclaim) =
            (pin!(self.count_total(&job, &nodes)), pin!(self.follow_reclaim(&job, &nodes)));
        let (state, kind) = match select(count, reclaim).await {
            Either::Left((never, _)) => match never {},
            Either::Right((ended, _)) => ended,
        };
        let message = job.error().map(|e| e.to_string()).unwrap_or_default();
        let event = self.activity.event(kind, &job.subject, &message);
        self.activity.report(Event { total_us: (self.env.now_ns() - began_ns) / 1000, ..event });
        job.set_state(state);
    }

    /// Sets the job's total when it is known.
    async fn count_total(&self, job: &Job, nodes: &[u64]) -> Infallible {
        if let Ok(bytes) = self.store.exclusive_bytes_for_job(nodes).await {
            job.bytes_total.set(job.bytes_total.get().max(bytes));
        }
        pending().await
    }

    /// Follows the reclaim to its end, or to the end of the job.
    async fn follow_reclaim(&self, job: &Job, nodes: &[u64]) -> (JobState, EventKind) {
        loop {
            let left = self.store.left_to_reclaim(nodes);
            if left.is_empty() {
                job.bytes_done.set(job.bytes_total.get());
                return (JobState::Done, EventKind::Commit);
            }
            if job.is_stopped_for_close() {
                // A paused job does not outlive the close.
                self.store.hold_back(&left, false);
                return (JobState::Cancelled, EventKind::CommitCancelled);
            }
            if job.is_cancelled() {
                self.store.hold_back(&left, true);
                self.given_up.borrow_mut().extend(left);
                return (JobState::Cancelled, EventKind::CommitCancelled);
            }
            if let Some(e) = self.store.broken().or_else(|| self.store.reclaim_error(&left)) {
                self.given_up.borrow_mut().extend(left);
                job.set_error(e);
                return (JobState::Failed, EventKind::CommitFailed);
            }
            self.follow(job, &left).await;
        }
    }

    /// Waits until the store has made progress, or the user has changed the job.
    async fn follow(&self, job: &Job, left: &[u64]) {
        let (changed, progress) = (job.changed(), self.store.progress.wait());
        self.store.hold_back(left, job.state() == JobState::Paused);
        let before = self.store.reclaimed_blocks();
        select(pin!(changed), pin!(progress)).await;
        let bytes = (self.store.reclaimed_blocks() - before) * BLOCK;
        if bytes > 0 && job.limit() > 0 {
            self.store.hold_back(left, true);
        }
        // The total may not be known yet. A checkpoint may also merge a dropped state before it is reclaimed: its new map
        // pages are given back too.
        job.bytes_total.set(job.bytes_total.get().max(job.bytes_done.get() + bytes));
        job.moved(bytes).await;
    }
}
