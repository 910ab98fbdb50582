use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blk::Env;
use futures_util::future::{Either, select};

use super::layers::Layers;
use super::pings::Pings;
use super::recorder::Recorder;
use crate::probe::{Meter, Totals};
use crate::run::{Counters, End, Phase, Quantity, Stun};
use crate::subject::{CommitProgress, Subject};
use crate::workload::Driver;

/// Interval at which the run is checked. It limits the delay with which interruptions, stuns and rounds are seen.
const POLL_NS: u64 = 200_000_000;
/// Note of a row of a commit's seconds: the time until the delta's content at the commit's request was copied.
pub const FIRST_ROUND: &str = "first round";

/// State of a run that is shown to the user.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub phase: Phase,
    pub label: String,
    /// Microseconds since the run began.
    pub at_us: u64,
    /// Microseconds left of the step; None where that is unknown.
    pub left_us: Option<u64>,
    pub reads_per_s: f64,
    pub writes_per_s: f64,
    /// Progress of the commit under way.
    pub commit: Option<CommitProgress>,
}

/// Receiver of the progress, which may also end the run.
#[derive(Clone)]
pub struct RunObserver {
    pub progress: Rc<dyn Fn(&Progress)>,
    /// May be set from any thread: the run ends with what was sampled.
    pub interrupted: Arc<AtomicBool>,
}

impl RunObserver {
    /// Returns an observer that ignores the progress, and ends the run when the flag is set.
    pub fn until(interrupted: &Arc<AtomicBool>) -> RunObserver {
        RunObserver { interrupted: interrupted.clone(), ..RunObserver::none() }
    }

    /// Returns an observer that ignores the progress and never interrupts.
    pub fn none() -> RunObserver {
        RunObserver { progress: Rc::new(|_| {}), interrupted: Arc::default() }
    }
}

/// The end of a wait.
pub(super) enum Ended<T> {
    Done(T),
    /// The time limit passed first.
    Limit,
}

/// A run under observation.
pub(super) struct Monitor {
    pub env: Env,
    pub subject: Rc<dyn Subject>,
    pub driver: Driver,
    pub meter: Rc<Meter>,
    pub recorder: Recorder,
    observer: RunObserver,
    /// Present in a run in real time.
    pings: Option<Pings>,
    began_ns: u64,
    interval_ns: u64,
    /// Begin and end of the sample under way.
    sampled_ns: u64,
    sample_ns: u64,
    host: Option<Counters>,
    layers: Layers,
    step: (Phase, String),
    /// Time of the last check, and the totals at that time.
    looked: (u64, Totals),
    /// When the commit under way was requested, and the number of its rounds seen so far.
    commit: Option<(u64, usize)>,
}

impl Monitor {
    pub(super) fn new(
        env: &Env,
        subject: Rc<dyn Subject>,
        driver: Driver,
        meter: Rc<Meter>,
        recorder: Recorder,
        observer: RunObserver,
        interval_us: u64,
    ) -> Monitor {
        let now_ns = env.now_ns();
        // Stuns from before the run do not belong to it.
        drop(subject.take_stuns());
        let mut layers = Layers::default();
        layers.add(subject.layers());
        Monitor {
            env: env.clone(),
            host: subject.counters(),
            layers,
            subject,
            driver,
            looked: (now_ns, meter.totals()),
            meter,
            recorder,
            observer,
            pings: None,
            began_ns: now_ns,
            interval_ns: interval_us * 1000,
            sampled_ns: now_ns,
            sample_ns: now_ns + interval_us * 1000,
            step: (Phase::Prepare, String::new()),
            commit: None,
        }
    }

    /// Starts to read the first disk once a second.
    pub(super) fn ping(&mut self) {
        self.pings = Some(Pings::start(&self.env, self.subject.clone()));
    }

    pub(super) fn stop_pings(&mut self) {
        self.pings = None;
    }

    /// Returns the microseconds since the run began.
    pub(super) fn now_us(&self) -> u64 {
        self.env.now_ns() / 1000 - self.began_ns / 1000
    }

    /// Begins a span, and with it a new sample.
    pub(super) fn begin(&mut self, phase: Phase, label: &str, warm_up_us: Option<u64>, loaded: bool) {
        self.sample();
        // I/O between two spans belongs to no span.
        drop(self.layers.take());
        self.step = (phase, label.to_string());
        // The span begins with its first sample. A later begin would leave that sample out of the span's rates.
        let begin_us = self.sampled_ns / 1000 - self.began_ns / 1000;
        self.recorder.begin(phase, label, begin_us, warm_up_us, loaded);
        // A sample must not extend across the end of the warm-up.
        if let Some(us) = warm_up_us.filter(|us| *us > 0) {
            self.sample_ns = self.sample_ns.min(self.sampled_ns.saturating_add(us.saturating_mul(1000)));
        }
    }

    pub(super) fn finish(&mut self) {
        self.poll();
        self.sample();
        self.recorder.layers(self.layers.take());
        let now_us = self.now_us();
        self.recorder.finish(now_us);
    }

    pub(super) fn commit_begins(&mut self) {
        self.commit = Some((self.env.now_ns(), self.subject.progress().helper_bytes.len()));
    }

    pub(super) fn commit_ended(&mut self) {
        self.note_rounds();
        self.commit = None;
    }

    /// Waits for `work` while the run is sampled. An error ends the run: it was interrupted, or the load failed.
    pub(super) async fn wait<T>(
        &mut self,
        mut work: Pin<&mut dyn Future<Output = T>>,
        limit_us: Option<u64>,
    ) -> Result<Ended<T>, End> {
        let limit_ns = limit_us.map(|us| self.env.now_ns().saturating_add(us.saturating_mul(1000)));
        loop {
            let next_poll_ns = self.env.now_ns() + POLL_NS;
            let wake_ns = next_poll_ns.min(self.sample_ns).min(limit_ns.unwrap_or(u64::MAX));
            let done = {
                let nap = pin!(self.env.sleep_until(wake_ns));
                match select(work.as_mut(), nap).await {
                    Either::Left((value, _)) => Some(value),
                    Either::Right(_) => None,
                }
            };
            self.poll();
            if let Some(value) = done {
                return Ok(Ended::Done(value));
            }
            self.check_running()?;
            if limit_ns.is_some_and(|limit| self.env.now_ns() >= limit) {
                return Ok(Ended::Limit);
            }
            self.report_progress(limit_ns);
        }
    }

    /// Returns an error if the load failed or the user interrupted the run.
    pub(super) fn check_running(&self) -> Result<(), End> {
        if let Some(failure) = self.driver.failure() {
            return Err(End::Failed(failure));
        }
        match self.observer.interrupted.load(Ordering::Relaxed) {
            true => Err(End::Interrupted),
            false => Ok(()),
        }
    }

    /// Records stuns, beats and rounds since the last check, and takes a sample when one is due.
    fn poll(&mut self) {
        for stun in self.subject.take_stuns() {
            let at_us = stun.at_us.saturating_sub(self.began_ns / 1000);
            self.recorder.stun(Stun { at_us, ..stun });
        }
        for beat in self.pings.iter().flat_map(Pings::take) {
            self.recorder.beat(beat);
        }
        self.note_rounds();
        if self.env.now_ns() >= self.sample_ns {
            self.sample();
        }
    }

    /// Ends the interval under way. An interval without a length continues instead.
    fn sample(&mut self) {
        let now_ns = self.env.now_ns();
        self.sample_ns = now_ns + self.interval_ns;
        if now_ns / 1000 == self.sampled_ns / 1000 {
            return;
        }
        self.sampled_ns = now_ns;
        let mut sample = self.meter.cut(now_ns);
        let host = self.subject.counters();
        sample.host = host.zip(self.host).and_then(|(now, before)| now.since(&before));
        self.host = host;
        self.layers.add(self.subject.layers());
        sample.at_us = sample.at_us.saturating_sub(self.began_ns / 1000);
        self.recorder.sample(sample);
    }

    /// Records rounds of helpers that have ended since the last check.
    fn note_rounds(&mut self) {
        let Some((began_ns, seen)) = self.commit.filter(|_| self.recorder.is_in_span()) else { return };
        let rounds = self.subject.progress().helper_bytes;
        let now_ns = self.env.now_ns();
        for (n, bytes) in rounds.iter().enumerate().skip(seen) {
            let at_us = self.now_us();
            let holds = self.recorder.at_full_scale(*bytes);
            self.recorder.mark(at_us, format!("round {} ended, its helper holds {holds} bytes", n + 1));
            if n == 0 {
                let seconds = (now_ns - began_ns) as f64 / 1e9;
                self.recorder.figure(Quantity::Seconds, seconds, FIRST_ROUND);
            }
            self.recorder.figure(Quantity::HelperBytes, *bytes as f64, &format!("round {}", n + 1));
        }
        self.commit = Some((began_ns, rounds.len().max(seen)));
    }

    fn report_progress(&mut self, limit_ns: Option<u64>) {
        let (now_ns, totals) = (self.env.now_ns(), self.meter.totals());
        let (before_ns, before) = std::mem::replace(&mut self.looked, (now_ns, totals));
        let rate = |now: u64, then: u64| (now - then) as f64 * 1e9 / (now_ns - before_ns).max(1) as f64;
        (self.observer.progress)(&Progress {
            phase: self.step.0,
            label: self.step.1.clone(),
            at_us: self.now_us(),
            left_us: limit_ns.map(|limit| (limit - now_ns) / 1000),
            reads_per_s: rate(totals.reads, before.reads),
            writes_per_s: rate(totals.writes, before.writes),
            commit: self.commit.map(|_| self.subject.progress()),
        });
    }
}
