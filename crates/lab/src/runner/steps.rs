use std::cell::Cell;
use std::future::pending;
use std::pin::{Pin, pin};
use std::rc::Rc;

use blk::Result as Answer;

use super::backup::Copier;
use super::monitor::{Ended, Monitor};
use super::protocol::{Action, Step};
use crate::run::{End, Quantity};
use crate::subject::CommitEnd;

/// Limit for the I/Os under way when the load stops: the 60 s that a guest's own SCSI layer waits, with its one retry.
const STOP_US: u64 = 120_000_000;
/// Limit of a take, after which it hangs: vCenter's time limit for tasks, 15 minutes.
const TAKE_US: u64 = 900_000_000;

/// A commit under way.
type Commit = Pin<Box<dyn Future<Output = Answer<CommitEnd>>>>;

/// Carries out a protocol's steps. An error ends the run.
pub(super) struct Steps<'a> {
    pub monitor: &'a mut Monitor,
    /// A commit that outlived its step, and its begin in microseconds of the run.
    commit: Option<(Commit, u64)>,
}

impl<'a> Steps<'a> {
    pub(super) fn new(monitor: &'a mut Monitor) -> Steps<'a> {
        Steps { monitor, commit: None }
    }

    pub(super) async fn carry_out(&mut self, step: &Step) -> Result<(), End> {
        self.monitor.check_running()?;
        match &step.action {
            Action::Prepare { block_bytes, outstanding } => {
                self.prepare(step, *block_bytes, *outstanding).await
            }
            Action::Run { seconds, warm_up_seconds } => {
                self.set_load(true).await?;
                self.monitor.begin(step.phase, step.title(), Some(us(*warm_up_seconds)), true);
                self.pass(*seconds).await
            }
            Action::Idle { seconds } => {
                self.set_load(false).await?;
                self.monitor.begin(step.phase, step.title(), Some(0), false);
                self.pass(*seconds).await
            }
            Action::Take { name, count, load } => {
                self.set_load(*load).await?;
                self.take(step, &names(name, *count)).await
            }
            Action::Commit { name, count, limit_seconds, load } => {
                self.set_load(*load).await?;
                self.commit(step, &names(name, *count), *limit_seconds, *load).await
            }
            Action::Drain { limit_seconds } => self.drain(step, *limit_seconds).await,
            Action::Backup { name, block_bytes, outstanding, bytes, limit_seconds, load } => {
                self.set_load(*load).await?;
                let copier = Copier { block_bytes: *block_bytes, outstanding: *outstanding, bytes: *bytes };
                self.backup(step, name, copier, *limit_seconds).await
            }
        }
    }

    pub(super) async fn set_load(&mut self, on: bool) -> Result<(), End> {
        if on {
            self.monitor.driver.start();
            return Ok(());
        }
        let driver = self.monitor.driver.clone();
        match self.monitor.wait(pin!(driver.stop()), Some(STOP_US)).await? {
            Ended::Done(()) => Ok(()),
            Ended::Limit => Err(End::Failed(format!(
                "the load was stopped, and after {} s I/Os are still under way: the disks hang",
                STOP_US / 1_000_000
            ))),
        }
    }

    async fn pass(&mut self, seconds: f64) -> Result<(), End> {
        self.monitor.wait(pin!(pending::<()>()), Some(us(seconds))).await?;
        self.monitor.finish();
        Ok(())
    }

    async fn prepare(&mut self, step: &Step, block_bytes: u32, outstanding: u32) -> Result<(), End> {
        self.set_load(false).await?;
        self.monitor.begin(step.phase, step.title(), Some(0), true);
        let (driver, began_us) = (self.monitor.driver.clone(), self.monitor.now_us());
        let waited = self.monitor.wait(pin!(driver.prepare(block_bytes, outstanding)), None).await;
        // After an interruption the writers end with their I/O under way.
        driver.halt();
        waited?;
        self.monitor.check_running()?;
        self.seconds_since(began_us);
        self.monitor.finish();
        Ok(())
    }

    async fn take(&mut self, step: &Step, names: &[String]) -> Result<(), End> {
        self.monitor.begin(step.phase, step.title(), None, false);
        let began_us = self.monitor.now_us();
        for name in names {
            self.mark(format!("take of {name}"));
            let (subject, wanted) = (self.monitor.subject.clone(), name.clone());
            let taken = self.monitor.env.spawn(async move { subject.take(&wanted).await });
            match self.monitor.wait(pin!(taken.join()), Some(TAKE_US)).await? {
                Ended::Done(Ok(())) => {}
                Ended::Done(Err(e)) => return Err(End::Failed(format!("take of {name}: {e}"))),
                Ended::Limit => {
                    let seconds = TAKE_US / 1_000_000;
                    return Err(End::Failed(format!("take of {name}: no end after {seconds} s")));
                }
            }
        }
        self.seconds_since(began_us);
        self.monitor.finish();
        Ok(())
    }

    async fn commit(
        &mut self,
        step: &Step,
        names: &[String],
        limit_seconds: Option<f64>,
        loaded: bool,
    ) -> Result<(), End> {
        if self.commit.is_some() {
            return Err(End::Failed(format!(
                "commit of {}: the one before goes on; drain it first",
                names[0]
            )));
        }
        self.monitor.begin(step.phase, step.title(), Some(0), loaded);
        let began_us = self.monitor.now_us();
        for name in names {
            self.mark(format!("commit of {name}"));
            let (subject, wanted) = (self.monitor.subject.clone(), name.clone());
            let commit = self.monitor.env.spawn(async move { subject.commit(&wanted).await });
            self.monitor.commit_begins();
            self.commit = Some((Box::pin(commit.join()), self.monitor.now_us()));
            let limit_us =
                limit_seconds.map(|seconds| us(seconds).saturating_sub(self.monitor.now_us() - began_us));
            if !self.wait_for_commit(limit_us).await? {
                self.monitor.finish();
                return Ok(());
            }
        }
        self.seconds_since(began_us);
        self.monitor.recorder.figure(Quantity::Converged, 1.0, step.title());
        self.monitor.finish();
        Ok(())
    }

    /// Waits for the commit. Returns false if it did not converge, which the record then notes.
    async fn wait_for_commit(&mut self, limit_us: Option<u64>) -> Result<bool, End> {
        let (commit, since_us) = self.commit.as_mut().expect("a commit is under way");
        let since_us = *since_us;
        let text = match self.monitor.wait(commit.as_mut(), limit_us).await? {
            Ended::Limit => {
                let seconds = self.full_seconds_since(since_us);
                format!("not converged after {seconds} s")
            }
            Ended::Done(ended) => {
                self.commit = None;
                self.monitor.commit_ended();
                self.mark("commit ended".into());
                match ended {
                    Ok(CommitEnd::Done) => return Ok(true),
                    Ok(CommitEnd::GaveUp(why)) => format!("gave up: {why}"),
                    Err(e) => {
                        self.monitor.recorder.figure(Quantity::Converged, 0.0, &format!("failed: {e}"));
                        return Err(End::Failed(format!("commit: {e}")));
                    }
                }
            }
        };
        self.mark(format!("commit {text}"));
        self.monitor.recorder.figure(Quantity::Converged, 0.0, &text);
        Ok(false)
    }

    async fn drain(&mut self, step: &Step, limit_seconds: Option<f64>) -> Result<(), End> {
        self.set_load(false).await?;
        if self.commit.is_none() {
            return Ok(());
        }
        self.monitor.begin(step.phase, step.title(), Some(0), false);
        let began_us = self.monitor.now_us();
        if self.wait_for_commit(limit_seconds.map(us)).await? {
            self.seconds_since(began_us);
            self.monitor.recorder.figure(Quantity::Converged, 1.0, step.title());
        }
        self.monitor.finish();
        Ok(())
    }

    async fn backup(
        &mut self,
        step: &Step,
        name: &str,
        copier: Copier,
        limit_seconds: Option<f64>,
    ) -> Result<(), End> {
        self.monitor.begin(step.phase, step.title(), Some(0), self.monitor.driver.is_running());
        let began_us = self.monitor.now_us();
        let (subject, env, wanted) =
            (self.monitor.subject.clone(), self.monitor.env.clone(), name.to_string());
        let over = Rc::new(Cell::new(false));
        let stop = over.clone();
        let copied = self.monitor.env.spawn(async move {
            let (disks, _in_use) = subject.frozen(&wanted).await?;
            copier.run(env, disks, stop).await
        });
        let mut copied = pin!(copied.join());
        match self.monitor.wait(copied.as_mut(), limit_seconds.map(us)).await? {
            Ended::Done(Ok(bytes)) => {
                self.mark(format!("{bytes} bytes of {name} copied out"));
                self.seconds_since(began_us);
            }
            Ended::Done(Err(e)) => return Err(End::Failed(format!("backup of {name}: {e}"))),
            Ended::Limit => {
                let seconds = self.full_seconds_since(began_us);
                self.mark(format!("backup of {name}: not ended after {seconds} s"));
                over.set(true);
                // The next commit must not begin while a reader is active.
                self.monitor.wait(copied, Some(STOP_US)).await?;
            }
        }
        self.monitor.finish();
        Ok(())
    }

    fn mark(&mut self, text: String) {
        let now_us = self.monitor.now_us();
        self.monitor.recorder.mark(now_us, text);
    }

    /// Returns whole seconds at full scale, for texts.
    fn full_seconds_since(&self, began_us: u64) -> u64 {
        self.monitor.recorder.at_full_scale(self.monitor.now_us() - began_us) / 1_000_000
    }

    fn seconds_since(&mut self, began_us: u64) {
        let seconds = (self.monitor.now_us() - began_us) as f64 / 1e6;
        self.monitor.recorder.figure(Quantity::Seconds, seconds, "");
    }
}

fn us(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

fn names(name: &str, count: Option<u32>) -> Vec<String> {
    match count {
        None => vec![name.to_string()],
        Some(count) => (1..=count).map(|n| format!("{name}-{n}")).collect(),
    }
}
