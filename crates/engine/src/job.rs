//! Jobs: background work that a user can watch, pause, limit and cancel.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;

use blk::sync::Signal;
use blk::{Env, Error, Result};
use futures_util::future::{Either, select};

/// Operation of a job that commits snapshots.
pub const COMMIT: &str = "commit";
/// Operation of a job that moves a VM into another store.
pub const MOVE: &str = "move";
/// Operation of a job that commits deltas that no snapshot owns.
pub const CONSOLIDATE: &str = "consolidation";
/// Operation of a job that reads all data of a native store.
pub const SCRUB: &str = "scrub";

/// Shortest time for an estimate: over less time the rate is that of the caches.
const ESTIMATE_AFTER_NS: u64 = 3_000_000_000;

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// The worker works, or is about to begin.
    Running,
    /// The user has paused it.
    Paused,
    /// The datastore is full; the work resumes when space returns.
    WaitingForSpace,
    /// Ended as planned.
    Done,
    /// Ended with `Job::error`.
    Failed,
    /// Ended by the user; what was done stays done.
    Cancelled,
}

impl JobState {
    /// Returns the word of the REST API and of `--json`.
    pub fn name(self) -> &'static str {
        match self {
            JobState::Running => "running",
            JobState::Paused => "paused",
            JobState::WaitingForSpace => "waiting-for-space",
            JobState::Done => "done",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }

    /// Returns whether the state is final.
    pub fn is_over(self) -> bool {
        matches!(self, JobState::Done | JobState::Failed | JobState::Cancelled)
    }
}

/// One job, shared by its worker and by all who watch it.
pub struct Job {
    env: Env,
    /// Number of the job, unique among those of its VM.
    pub id: u64,
    /// `COMMIT`, `CONSOLIDATE`, `MOVE` or `SCRUB`.
    pub operation: &'static str,
    /// Names of the snapshots it works on, separated by commas; empty for a consolidation, and for a job that resumes
    /// after a restart.
    pub subject: String,
    /// Time of the start, by [`Env::now_ns`].
    pub started_ns: u64,
    /// Time of the start, in microseconds since 1970 UTC.
    pub started_unix_us: i64,
    /// Time of the end: (monotonic nanoseconds, microseconds since 1970).
    ended: Cell<Option<(u64, i64)>>,
    state: Cell<JobState>,
    /// Bytes that were moved, or read by a scrub.
    pub bytes_done: Cell<u64>,
    /// Bytes that the job works on in all, as known so far.
    pub bytes_total: Cell<u64>,
    /// Bytes held by the deltas that are processed later.
    pub(crate) bytes_later: Cell<u64>,
    /// Limit in bytes a second; 0 is no limit.
    limit: Cell<u64>,
    /// Time at which the limit lets the next byte pass.
    next_ns: Cell<u64>,
    cancel: Cell<bool>,
    closing: Cell<bool>,
    /// Why the job has failed.
    pub error: RefCell<Option<Error>>,
    changed: Signal,
}

impl Job {
    /// Makes a running job without progress; the caller starts its worker.
    pub fn new(env: Env, id: u64, operation: &'static str, subject: String) -> Rc<Job> {
        Rc::new(Job {
            id,
            operation,
            subject,
            started_ns: env.now_ns(),
            started_unix_us: env.unix_us(),
            env,
            ended: Cell::new(None),
            state: Cell::new(JobState::Running),
            bytes_done: Cell::new(0),
            bytes_total: Cell::new(0),
            bytes_later: Cell::new(0),
            limit: Cell::new(0),
            next_ns: Cell::new(0),
            cancel: Cell::new(false),
            closing: Cell::new(false),
            error: RefCell::new(None),
            changed: Signal::default(),
        })
    }

    /// Returns the present state.
    pub fn state(&self) -> JobState {
        self.state.get()
    }

    pub(crate) fn set_state(&self, state: JobState) {
        if state.is_over() {
            self.ended.set(Some((self.env.now_ns(), self.env.unix_us())));
        }
        self.state.set(state);
        self.changed.notify();
    }

    /// Ends the job: done, cancelled or failed.
    pub fn end(&self, result: Result<()>) {
        let state = match result {
            Ok(()) => JobState::Done,
            Err(_) if self.is_cancelled() => JobState::Cancelled,
            Err(e) => {
                *self.error.borrow_mut() = Some(e);
                JobState::Failed
            }
        };
        self.set_state(state);
    }

    /// Returns the time of the end, in microseconds since 1970 UTC.
    pub fn ended_unix_us(&self) -> Option<i64> {
        self.ended.get().map(|(_, unix_us)| unix_us)
    }

    /// Returns the present time by the clock of `started_ns`.
    pub fn now_ns(&self) -> u64 {
        self.env.now_ns()
    }

    /// Returns the time from the start to the end, or to now.
    pub fn spent_ns(&self) -> u64 {
        self.ended.get().map_or_else(|| self.env.now_ns(), |(ns, _)| ns) - self.started_ns
    }

    fn refuse_when_over(&self) -> Result<()> {
        if self.state().is_over() {
            let cause = format!("the job is already {}", self.state().name());
            return Err(Error::refused(format!("job {}", self.id), cause));
        }
        Ok(())
    }

    /// Holds the worker at its next safe point. `Refused` when the job is over.
    pub fn pause(&self) -> Result<()> {
        self.refuse_when_over()?;
        self.set_state(JobState::Paused);
        Ok(())
    }

    /// Lets a paused job continue. `Refused` when the job is over.
    pub fn resume(&self) -> Result<()> {
        self.refuse_when_over()?;
        self.set_state(JobState::Running);
        Ok(())
    }

    /// Requests the worker to stop at its next safe point.
    pub fn cancel(&self) -> Result<()> {
        self.refuse_when_over()?;
        self.cancel.set(true);
        self.changed.notify();
        Ok(())
    }

    /// Stops the work at its next safe point because the VM is being closed. It resumes when the home is opened again.
    pub(crate) fn stop_for_close(&self) {
        self.closing.set(true);
        self.changed.notify();
    }

    pub(crate) fn is_stopped_for_close(&self) -> bool {
        self.closing.get()
    }

    /// Limits the job to `bytes_per_s`; 0 is no limit. `Refused` when the job is over.
    pub fn set_limit(&self, bytes_per_s: u64) -> Result<()> {
        self.refuse_when_over()?;
        self.limit.set(bytes_per_s);
        self.next_ns.set(0);
        self.changed.notify();
        Ok(())
    }

    /// Returns the limit in bytes a second; 0 is no limit.
    pub fn limit(&self) -> u64 {
        self.limit.get()
    }

    /// Returns whether the user has requested the end; the worker may not have stopped yet.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.get()
    }

    /// Resolves when the job is over.
    pub async fn wait(&self) -> JobState {
        while !self.state().is_over() {
            self.changed.wait().await;
        }
        self.state()
    }

    /// Resolves at the next change of the job's state, limit or requests after this call.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.changed.wait()
    }

    /// Passes a safe point of the worker: waits while the job is paused.
    ///
    /// # Errors
    /// `Cancelled`: the work has to end.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        loop {
            self.refuse_when_unwanted()?;
            if self.state() != JobState::Paused {
                return Ok(());
            }
            self.changed.wait().await;
        }
    }

    fn is_unwanted(&self) -> bool {
        self.cancel.get() || self.closing.get()
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
            let changed = self.changed.wait();
            self.refuse_when_unwanted()?;
            if let Either::Left((done, _)) = select(work.as_mut(), pin!(changed)).await {
                return Ok(done);
            }
        }
    }

    /// Waits until `until_ns`. Returns earlier when the job is cancelled, its VM is closed or its limit is changed.
    async fn rest_until(&self, until_ns: u64) {
        let limit = self.limit.get();
        while self.env.now_ns() < until_ns && !self.is_unwanted() && self.limit.get() == limit {
            let changed = self.changed.wait();
            select(pin!(changed), pin!(self.env.sleep_until(until_ns))).await;
        }
    }

    /// Waits `us` microseconds. Returns earlier when the job is cancelled, its VM is closed or its limit is changed.
    pub(crate) async fn pause_us(&self, us: u64) {
        self.rest_until(self.env.now_ns() + us * 1000).await;
    }

    pub(crate) async fn wait_for_space(&self, retry_us: u64) {
        if self.state() == JobState::Running {
            self.set_state(JobState::WaitingForSpace);
        }
        self.pause_us(retry_us).await;
        if self.state() == JobState::WaitingForSpace {
            self.set_state(JobState::Running);
        }
    }

    /// Accounts for bytes moved, and delays the worker to keep the limit unless the job is to end.
    pub(crate) async fn moved(&self, bytes: u64) {
        self.bytes_done.set(self.bytes_done.get() + bytes);
        let limit = self.limit.get();
        if limit == 0 {
            return;
        }
        let now = self.env.now_ns();
        let at = self.next_ns.get().max(now);
        self.next_ns.set(at.saturating_add(bytes.saturating_mul(1_000_000_000) / limit));
        self.rest_until(at).await;
    }

    /// Returns the seconds left at the mean rate so far. None while too little time has passed for a rate, and while
    /// nothing is known to be left.
    pub fn eta_s(&self) -> Option<u64> {
        let (done, spent_ns) = (self.bytes_done.get(), self.spent_ns());
        if done == 0 || spent_ns < ESTIMATE_AFTER_NS || self.state().is_over() {
            return None;
        }
        let spent_ns = u128::from(spent_ns);
        let left = u128::from(self.bytes_total.get().checked_sub(done).filter(|left| *left > 0)?);
        Some((left * spent_ns / u128::from(done) / 1_000_000_000) as u64)
    }
}
