//! The part of a job that users watch and control. It has no locks that a guest's request takes, and other cores than the
//! worker's may use it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use blk::sync::SharedSignal;
use blk::{Error, Result};

use crate::operations::DefragmentOutcome;

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

const STATES: [JobState; 6] = [
    JobState::Running,
    JobState::Paused,
    JobState::WaitingForSpace,
    JobState::Done,
    JobState::Failed,
    JobState::Cancelled,
];

/// A number that the worker sets and others read.
#[derive(Debug, Default)]
pub struct JobFigure(AtomicU64);

impl JobFigure {
    /// Returns the number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the number.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// State, figures and requests of one job.
pub struct JobControl {
    /// Number of the job, unique among those of its VM.
    pub id: u64,
    /// `COMMIT`, `CONSOLIDATE`, `MOVE`, `LAND`, `VERIFY`, `DEFRAGMENT` or `SCRUB`.
    pub operation: &'static str,
    /// Names of the snapshots or disks it works on, separated by commas; empty for a consolidation, and for a job that
    /// resumes after a restart.
    pub subject: String,
    /// Time of the start, by [`blk::Env::now_ns`].
    pub started_ns: u64,
    /// Time of the start, in microseconds since 1970 UTC.
    pub started_unix_us: i64,
    /// Bytes that were moved, or read by a scrub.
    pub bytes_done: JobFigure,
    /// Bytes that the job works on in all, as known so far.
    pub bytes_total: JobFigure,
    /// Place of the state in `STATES`. Its change publishes the time of the end and the error.
    state: AtomicU8,
    ended_ns: AtomicU64,
    ended_unix_us: AtomicI64,
    /// Limit in bytes a second; 0 is no limit.
    limit: AtomicU64,
    cancel: AtomicBool,
    error: Mutex<Option<Error>>,
    /// What a defragmentation has done so far.
    defragmented: Mutex<DefragmentOutcome>,
    changed: SharedSignal,
}

impl JobControl {
    pub(crate) fn new(
        id: u64,
        operation: &'static str,
        subject: String,
        started_ns: u64,
        started_unix_us: i64,
    ) -> JobControl {
        JobControl {
            id,
            operation,
            subject,
            started_ns,
            started_unix_us,
            bytes_done: JobFigure::default(),
            bytes_total: JobFigure::default(),
            state: AtomicU8::new(JobState::Running as u8),
            ended_ns: AtomicU64::new(0),
            ended_unix_us: AtomicI64::new(0),
            limit: AtomicU64::new(0),
            cancel: AtomicBool::new(false),
            error: Mutex::default(),
            defragmented: Mutex::default(),
            changed: SharedSignal::default(),
        }
    }

    /// Returns the present state.
    pub fn state(&self) -> JobState {
        STATES[usize::from(self.state.load(Ordering::Acquire))]
    }

    pub(crate) fn set_state(&self, state: JobState, now_ns: u64, unix_us: i64) {
        if state.is_over() {
            self.ended_ns.store(now_ns, Ordering::Relaxed);
            self.ended_unix_us.store(unix_us, Ordering::Relaxed);
        }
        self.state.store(state as u8, Ordering::Release);
        self.changed.notify();
    }

    /// Changes the state if it is `from`.
    pub(crate) fn change_state(&self, from: JobState, to: JobState) {
        let changed = self.state.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Relaxed);
        if changed.is_ok() {
            self.changed.notify();
        }
    }

    /// Changes the state of a job that is not over.
    fn request_state(&self, to: JobState) -> Result<()> {
        loop {
            let now = self.state.load(Ordering::Acquire);
            self.refuse_when_over()?;
            let changed = self.state.compare_exchange(now, to as u8, Ordering::AcqRel, Ordering::Relaxed);
            if changed.is_ok() {
                self.changed.notify();
                return Ok(());
            }
        }
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
        self.request_state(JobState::Paused)
    }

    /// Lets a paused job continue. `Refused` when the job is over.
    pub fn resume(&self) -> Result<()> {
        self.request_state(JobState::Running)
    }

    /// Requests the worker to stop at its next safe point. `Refused` when the job is over.
    pub fn cancel(&self) -> Result<()> {
        self.refuse_when_over()?;
        self.cancel.store(true, Ordering::Release);
        self.changed.notify();
        Ok(())
    }

    /// Returns whether the user has requested the end; the worker may not have stopped yet.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Acquire)
    }

    /// Limits the job to `bytes_per_s`; 0 is no limit. `Refused` when the job is over.
    pub fn set_limit(&self, bytes_per_s: u64) -> Result<()> {
        self.refuse_when_over()?;
        self.limit.store(bytes_per_s, Ordering::Relaxed);
        self.changed.notify();
        Ok(())
    }

    /// Returns the limit in bytes a second; 0 is no limit.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Returns why the job has failed.
    pub fn error(&self) -> Option<Error> {
        self.lock_error().clone()
    }

    pub(crate) fn set_error(&self, error: Error) {
        *self.lock_error() = Some(error);
    }

    fn lock_error(&self) -> MutexGuard<'_, Option<Error>> {
        self.error.lock().expect("no panic inside")
    }

    /// Returns what a defragmentation has done so far, whether it goes on or has ended in any way.
    pub fn defragmented(&self) -> DefragmentOutcome {
        *self.lock_defragmented()
    }

    /// Adds what a defragmentation has done.
    pub(crate) fn add_defragmented(&self, done: &DefragmentOutcome) {
        self.lock_defragmented().add(done);
    }

    fn lock_defragmented(&self) -> MutexGuard<'_, DefragmentOutcome> {
        self.defragmented.lock().expect("no panic inside")
    }

    /// Returns the time of the end, in microseconds since 1970 UTC.
    pub fn ended_unix_us(&self) -> Option<i64> {
        self.state().is_over().then(|| self.ended_unix_us.load(Ordering::Relaxed))
    }

    /// Returns the time from the start to the end, or to `now_ns`.
    pub fn spent_ns(&self, now_ns: u64) -> u64 {
        let until = if self.state().is_over() { self.ended_ns.load(Ordering::Relaxed) } else { now_ns };
        until.saturating_sub(self.started_ns)
    }

    /// Returns the seconds left at the mean rate so far. None while too little time has passed for a rate, and while
    /// nothing is known to be left.
    pub fn eta_s(&self, now_ns: u64) -> Option<u64> {
        let (done, spent_ns) = (self.bytes_done.get(), self.spent_ns(now_ns));
        if done == 0 || spent_ns < ESTIMATE_AFTER_NS || self.state().is_over() {
            return None;
        }
        let spent_ns = u128::from(spent_ns);
        let left = u128::from(self.bytes_total.get().checked_sub(done).filter(|left| *left > 0)?);
        Some((left * spent_ns / u128::from(done) / 1_000_000_000) as u64)
    }

    /// Resolves when the job is over.
    pub async fn wait(&self) -> JobState {
        loop {
            let changed = self.changed();
            let state = self.state();
            if state.is_over() {
                return state;
            }
            changed.await;
        }
    }

    pub(crate) fn notify(&self) {
        self.changed.notify();
    }

    /// Resolves at the next change of the job's state, limit or requests after this call.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.changed.wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::COMMIT;

    fn job() -> JobControl {
        JobControl::new(1, COMMIT, String::new(), 1_000, 5)
    }

    #[test]
    fn no_request_changes_a_job_that_is_over() {
        let job = job();
        job.pause().unwrap();
        job.change_state(JobState::Running, JobState::WaitingForSpace);
        assert_eq!(job.state(), JobState::Paused, "only a running job waits for space");
        job.resume().unwrap();
        job.set_state(JobState::Done, 3_000, 9);
        for refused in [job.pause(), job.resume(), job.cancel(), job.set_limit(1)] {
            assert!(refused.unwrap_err().to_string().contains("already done"));
        }
        assert_eq!((job.state(), job.ended_unix_us(), job.spent_ns(9_000)), (JobState::Done, Some(9), 2_000));
    }

    #[test]
    fn the_rest_takes_as_long_as_its_share_of_the_bytes() {
        let job = job();
        job.bytes_total.set(400);
        assert_eq!(job.eta_s(10_000_001_000), None, "nothing is done yet");
        job.bytes_done.set(100);
        assert_eq!((job.eta_s(2_000_000_000), job.eta_s(10_000_001_000)), (None, Some(30)));
    }

    #[test]
    fn every_state_has_its_place() {
        for (place, state) in STATES.into_iter().enumerate() {
            assert_eq!(place, state as usize);
        }
    }
}
