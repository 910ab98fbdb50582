//! The phases of a demo, one after the other, under one uninterrupted load.

use std::cell::Cell;
use std::time::{Duration, Instant};

use api::client::Client;
use api::error::{Error, Result};
use api::name::{SnapshotName, VmName};
use api::output::Output;
use api::units::{format_bytes, format_rate, format_us};
use api::{CommitTarget, Job, JobState, Operation, SnapshotTake, SnapshotTaken};

use crate::run::{Phase as Part, Quantity, Record};

use crate::demo::load::Load;
use crate::demo::meter::Counts;
use crate::demo::recording::Recording;
use crate::demo::report::{self, Phase, Report};
use crate::demo::screen::Screen;
use crate::demo::{Plan, Stage};

/// Interval of screen updates, and of queries for the commit's progress.
const TICK: Duration = Duration::from_millis(250);

pub struct Run<'a> {
    client: &'a Client,
    plan: &'a Plan,
    stage: &'a Cell<Stage>,
    vm: VmName,
    snapshot: SnapshotName,
    load: Load,
    screen: Screen,
    recording: Recording,
    ended: Vec<Phase>,
    reads_checked: u64,
    reads_wrong: u64,
}

/// The phase that is running.
struct Current {
    name: &'static str,
    started: Instant,
    counts: Counts,
    stun_us: Option<u64>,
}

impl<'a> Run<'a> {
    pub fn new(
        client: &'a Client,
        output: Output,
        plan: &'a Plan,
        stage: &'a Cell<Stage>,
        (vm, snapshot): (VmName, SnapshotName),
        load: Load,
        recording: Recording,
    ) -> Self {
        let screen = Screen::new(output);
        Self {
            client,
            plan,
            stage,
            vm,
            snapshot,
            load,
            screen,
            recording,
            ended: Vec::new(),
            reads_checked: 0,
            reads_wrong: 0,
        }
    }

    pub async fn phases(mut self, nbd_uri: String) -> Result<(Report, Record)> {
        self.quiet(Part::Prepare, report::WARM_UP, self.plan.warm_up).await?;
        self.quiet(Part::Baseline, report::BASELINE, self.plan.baseline).await?;
        let taken = self.with_snapshot().await?;
        let (job, commit_stun_us) = self.commit().await?;
        self.quiet(Part::After, report::AFTER, self.plan.after).await?;
        self.load.stop()?;
        let report = Report {
            attach: format!("qemu-system-x86_64 -m 1G -drive 'file={nbd_uri},format=raw,if=virtio'"),
            nbd_uri,
            phases: self.ended,
            take_stun_us: taken.stun_us,
            commit_stun_us,
            commit_seconds: report::commit_seconds(&job),
            commit_bytes_held: job.bytes_total,
            commit_bytes_moved: job.bytes_done,
            reads_checked: self.reads_checked,
            reads_wrong: self.reads_wrong,
        };
        Ok((report, self.recording.end()))
    }

    /// Runs a phase with nothing but the load.
    async fn quiet(&mut self, part: Part, name: &'static str, length: Duration) -> Result<()> {
        let mut current = self.begin(part, name);
        while current.started.elapsed() < length {
            self.tick(&mut current, "").await?;
        }
        self.end(current).await
    }

    fn begin(&mut self, part: Part, name: &'static str) -> Current {
        self.recording.phase(part, name);
        Current { name, started: Instant::now(), counts: Counts::default(), stun_us: None }
    }

    async fn with_snapshot(&mut self) -> Result<SnapshotTaken> {
        let mut current = self.begin(Part::Snapshot, report::SNAPSHOT);
        let message = "taken by unstun demo".to_owned();
        let request = SnapshotTake { name: self.snapshot.clone(), message };
        self.stage.set(Stage::Taken);
        let taken = self.client.snapshot_take(&self.vm, &request).await?;
        current.stun_us = Some(taken.stun_us);
        self.recording.stun(taken.stun_us, "take");
        while current.started.elapsed() < self.plan.snapshot {
            self.tick(&mut current, "every first write to a block goes to the delta").await?;
        }
        self.end(current).await?;
        Ok(taken)
    }

    /// Commits the snapshot under the same load, and follows the commit until it ends.
    async fn commit(&mut self) -> Result<(Job, Option<u64>)> {
        let seen = self.client.events(&self.vm, 0).await?.last().map_or(0, |event| event.id);
        let mut current = self.begin(Part::Commit, report::COMMIT);
        let target = CommitTarget::Snapshot((&self.snapshot).into());
        let mut job = self.client.snapshot_commit(&self.vm, &target).await?;
        self.stage.set(Stage::Committing);
        while job.state.is_open() {
            self.tick(&mut current, &describe(&job)).await?;
            job = self.client.job_show(job.id).await?;
        }
        if job.state != JobState::Done {
            let cause = job.error.as_ref().map_or("", |error| error.message.as_str());
            return Err(Error::failed(format!("job {} {}: {cause}", job.id, job.state.as_str())));
        }
        self.stage.set(Stage::NothingTaken);
        let events = self.client.events(&self.vm, seen).await?;
        let of_commit = |operation| matches!(operation, Operation::CommitStart | Operation::Commit);
        for event in events.iter().filter(|event| of_commit(event.operation)) {
            current.stun_us = current.stun_us.max(Some(event.stun_us));
            self.recording.stun(event.stun_us, event.operation.as_str());
        }
        self.recording.figure(Quantity::Seconds, report::commit_seconds(&job));
        self.recording.figure(Quantity::Converged, 1.0);
        self.recording.figure(Quantity::HelperBytes, job.bytes_done as f64);
        let stun_us = current.stun_us;
        self.end(current).await?;
        Ok((job, stun_us))
    }

    async fn tick(&mut self, current: &mut Current, note: &str) -> Result<()> {
        tokio::time::sleep(TICK).await;
        self.load.meter.failure().map_or(Ok(()), Err)?;
        let counts = self.load.meter.take();
        current.counts.add(&counts);
        self.recording.tick(&counts, self.client, &self.vm).await?;
        let phase = self.phase(current);
        self.screen.show(&phase, note)
    }

    fn phase(&self, current: &Current) -> Phase {
        let baseline = self.ended.iter().find(|phase| phase.name == report::BASELINE);
        let seconds = current.started.elapsed().as_secs_f64();
        let phase = Phase::new(current.name, seconds, &current.counts, baseline);
        Phase { stun_us: current.stun_us, ..phase }
    }

    async fn end(&mut self, mut current: Current) -> Result<()> {
        let counts = self.load.meter.take();
        current.counts.add(&counts);
        self.recording.end_phase(&counts, self.client, &self.vm).await?;
        self.reads_checked += current.counts.reads;
        self.reads_wrong += current.counts.wrong;
        let phase = self.phase(&current);
        self.ended.push(phase.clone());
        self.screen.end(phase)
    }
}

fn describe(job: &Job) -> String {
    let (done, total) = (format_bytes(job.bytes_done), format_bytes(job.bytes_total));
    let latency = job.guest_latency_us.map_or("-".to_owned(), format_us);
    format!("job {}: {done} of {total}, {}, guest {latency}", job.id, format_rate(job.rate_bytes_s))
}
