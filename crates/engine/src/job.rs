//! Jobs: background work that a user can watch, pause, limit and cancel.

use std::cell::Cell;
use std::ops::Deref;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use blk::{Env, Error, Result};
use futures_util::future::{Either, select};

use crate::job_control::JobControl;
pub use crate::job_control::JobState;

/// Operation of a job that commits snapshots.
pub const COMMIT: &str = "commit";
/// Operation of a job that moves a VM into another store.
pub const MOVE: &str = "move";
/// Operation of a job that commits deltas that no snapshot owns.
pub const CONSOLIDATE: &str = "consolidation";
/// Operation of a job that copies a source's image into a native store.
pub const LAND: &str = "landing";
/// Operation of a job that compares the hash of a source's image.
pub const VERIFY: &str = "verification";
/// Operation of a job that lays a native disk out in order.
pub const DEFRAGMENT: &str = "defragmentation";
/// Operation of a job that reads all data of a native store.
pub const SCRUB: &str = "scrub";

/// One job as its worker has it. What others watch and control is in [`JobControl`], to which it dereferences.
pub struct Job {
    env: Env,
    control: Arc<JobControl>,
    /// Bytes held by the deltas that are processed later.
    pub(crate) bytes_later: Cell<u64>,
    /// Time at which the limit lets the next byte pass, and the limit that it was computed from.
    next: Cell<(u64, u64)>,
    closing: Cell<bool>,
}

impl Deref for Job {
    type Target = JobControl;

    fn deref(&self) -> &JobControl {
        &self.control
    }
}

impl Job {
    /// Makes a running job without progress; the caller starts its worker.
    pub fn new(env: Env, id: u64, operation: &'static str, subject: String) -> Rc<Job> {
        let control = Arc::new(JobControl::new(id, operation, subject, env.now_ns(), env.unix_us()));
        Rc::new(Job {
            env,
            control,
            bytes_later: Cell::new(0),
            next: Cell::new((0, 0)),
            closing: Cell::new(false),
        })
    }

    /// Returns the part of the job that other cores may use.
    pub fn control(&self) -> &Arc<JobControl> {
        &self.control
    }

    pub(crate) fn set_state(&self, state: JobState) {
        self.control.set_state(state, self.env.now_ns(), self.env.unix_us());
    }

    /// Ends the job: done, cancelled or failed.
    pub fn end(&self, result: Result<()>) {
        let state = match result {
            Ok(()) => JobState::Done,
            Err(_) if self.is_cancelled() => JobState::Cancelled,
            Err(e) => {
                self.set_error(e);
                JobState::Failed
            }
        };
        self.set_state(state);
    }

    /// Stops the work at its next safe point because the VM is being closed. It resumes when the home is opened again.
    pub(crate) fn stop_for_close(&self) {
        self.closing.set(true);
        self.control.notify();
    }

    pub(crate) fn is_stopped_for_close(&self) -> bool {
        self.closing.get()
    }

    /// Passes a safe point of the worker: waits while the job is paused.
    ///
    /// # Errors
    /// `Cancelled`: the work has to end.
    pub async fn checkpoint(&self) -> Result<()> {
        loop {
            let changed = self.changed();
            self.refuse_when_unwanted()?;
            if self.state() != JobState::Paused {
                return Ok(());
            }
            changed.await;
        }
    }

    fn is_unwanted(&self) -> bool {
        self.is_cancelled() || self.closing.get()
    }

    fn refuse_when_unwanted(&self) -> Result<()> {
        match self.is_unwanted() {
            true => Err(Error::cancelled(format!("job {}", self.id))),
            false => Ok(()),
        }
    }

    /// Runs work that others may delay without limit, and that may be dropped.
    ///
    /// # Errors
    /// `Cancelled` as soon as the job is cancelled or its VM is closed.
    pub async fn or_cancelled<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let mut work = pin!(work);
        loop {
            let changed = self.changed();
            self.refuse_when_unwanted()?;
            if let Either::Left((done, _)) = select(work.as_mut(), pin!(changed)).await {
                return Ok(done);
            }
        }
    }

    /// Waits until `until_ns`. Returns earlier when the job is cancelled, its VM is closed or its limit is changed.
    async fn rest_until(&self, until_ns: u64) {
        let limit = self.limit();
        loop {
            let changed = self.changed();
            if self.env.now_ns() >= until_ns || self.is_unwanted() || self.limit() != limit {
                return;
            }
            select(pin!(changed), pin!(self.env.sleep_until(until_ns))).await;
        }
    }

    /// Waits `us` microseconds. Returns earlier when the job is cancelled, its VM is closed or its limit is changed.
    pub(crate) async fn pause_us(&self, us: u64) {
        self.rest_until(self.env.now_ns() + us * 1000).await;
    }

    pub(crate) async fn wait_for_space(&self, retry_us: u64) {
        self.control.change_state(JobState::Running, JobState::WaitingForSpace);
        self.pause_us(retry_us).await;
        self.control.change_state(JobState::WaitingForSpace, JobState::Running);
    }

    /// Accounts for bytes moved, and delays the worker to keep the limit unless the job is to end.
    pub async fn moved(&self, bytes: u64) {
        self.bytes_done.set(self.bytes_done.get() + bytes);
        self.keep_limit(bytes).await;
    }

    /// Delays the worker for bytes that do not count as progress.
    pub(crate) async fn keep_limit(&self, bytes: u64) {
        let limit = self.limit();
        if limit == 0 {
            return;
        }
        let now = self.env.now_ns();
        // A changed limit applies from now on.
        let (next_ns, of_limit) = self.next.get();
        let at = if of_limit == limit { next_ns.max(now) } else { now };
        let next_ns = at.saturating_add(bytes.saturating_mul(1_000_000_000) / limit);
        self.next.set((next_ns, limit));
        self.rest_until(at).await;
    }
}
