//! Record of the demo in the form of a lab run: samples, phases, stuns, and the resulting figures.

use std::path::Path;
use std::time::{Duration, Instant};

use api::client::Client;
use api::error::{Error, Result};
use api::name::VmName;
use api::units::as_us;
use api::{Store, Vm};

use crate::run::{Clock, Counters, End, Phase, Quantity, Record, Sample, Spread, Stun};
use crate::runner::Recorder;
use hdrhistogram::Histogram;

use crate::command::save;
use crate::demo::load;
use crate::demo::meter::Counts;
use crate::demo::stamp::BLOCK_BYTES;

/// Shortest sample. The rest of a phase belongs to its last sample, because rates over shorter times are noise.
const INTERVAL: Duration = Duration::from_secs(1);

pub struct Recording {
    recorder: Recorder,
    began: Instant,
    /// Start of the current sample, and the end of its counts.
    since: Instant,
    until: Instant,
    counts: Counts,
    /// Daemon's counters at both times.
    host_since: Counters,
    host_until: Counters,
}

impl Recording {
    /// Begins a recording. With `dir`, the part recorded so far is kept there at any time.
    pub async fn begin(client: &Client, vm: &VmName, seed: u64, dir: Option<&Path>) -> Result<Recording> {
        let vm = client.vm_show(vm).await?;
        let home: &Path = &vm.home;
        let storage = home.parent().unwrap_or(home).display().to_string();
        let mut head = Record::head("demo", "redo", &storage, Clock::Real, seed);
        head.title = "A snapshot taken, lived with and committed under load".into();
        head.source = format!(
            "unstun demo: random 4 KiB, 70 % reads, {} outstanding, a flush a second, and a writer at depth 1",
            load::DEPTH
        );
        head.command = "unstun demo".into();
        head.began_unix_us = jiff::Timestamp::now().as_microsecond();
        head.machine = crate::real::facts(home);
        head.notes.push("Gaps are those between two answers to the writer at depth 1.".into());
        head.notes.push("The host's I/Os are those of the disk's layers, as the daemon counts them.".into());
        let recorder = recorder(head, dir)?;
        let now = Instant::now();
        let host = host(&vm);
        Ok(Recording {
            recorder,
            began: now,
            since: now,
            until: now,
            counts: Counts::default(),
            host_since: host,
            host_until: host,
        })
    }

    fn at_us(&self, at: Instant) -> u64 {
        as_us(at.duration_since(self.began))
    }

    pub fn phase(&mut self, phase: Phase, label: &str) {
        let at_us = self.at_us(self.since);
        self.recorder.begin(phase, label, at_us, Some(0), true);
    }

    /// Adds the counts since the last call to the current sample, and begins a new sample if this one is long enough.
    pub async fn tick(&mut self, counts: &Counts, client: &Client, vm: &VmName) -> Result<()> {
        if self.until.duration_since(self.since) >= INTERVAL {
            self.sample();
        }
        self.add(counts, client, vm).await
    }

    async fn add(&mut self, counts: &Counts, client: &Client, vm: &VmName) -> Result<()> {
        self.counts.add(counts);
        self.host_until = host(&client.vm_show(vm).await?);
        self.until = Instant::now();
        Ok(())
    }

    fn sample(&mut self) {
        let counts = std::mem::take(&mut self.counts);
        let at_us = self.at_us(self.since);
        self.recorder.sample(Sample {
            at_us,
            interval_us: self.at_us(self.until) - at_us,
            reads: counts.reads,
            writes: counts.writes,
            read_bytes: counts.reads * BLOCK_BYTES as u64,
            written_bytes: counts.writes * BLOCK_BYTES as u64,
            read_latency: spread(&counts.read_latency_us),
            write_latency: spread(&counts.write_latency_us),
            host: self.host_until.since(&self.host_since),
            gap_us: counts.longest_gap_us,
        });
        (self.since, self.host_since) = (self.until, self.host_until);
    }

    /// Records a stun that has just ended, with the duration that the daemon counted. The stun may have begun before
    /// this phase.
    pub fn stun(&mut self, stun_us: u64, cause: &str) {
        let at_us = self.at_us(Instant::now()).saturating_sub(stun_us).max(self.at_us(self.since));
        self.recorder.stun(Stun { at_us, stun_us, disk: None, cause: cause.into() });
    }

    /// Records a figure of the phase.
    pub fn figure(&mut self, quantity: Quantity, value: f64) {
        self.recorder.figure(quantity, value, "");
    }

    /// Adds the counts since the last call, and ends the phase.
    pub async fn end_phase(&mut self, counts: &Counts, client: &Client, vm: &VmName) -> Result<()> {
        self.add(counts, client, vm).await?;
        self.sample();
        let at_us = self.at_us(self.since);
        self.recorder.finish(at_us);
        Ok(())
    }

    pub fn end(self) -> Record {
        let at_us = self.at_us(self.since);
        self.recorder.end(at_us, End::Complete)
    }
}

fn recorder(head: Record, dir: Option<&Path>) -> Result<Recorder> {
    dir.map(save::folder).transpose()?;
    let lines = dir.map(|dir| dir.join(save::LINES));
    Recorder::new(head, None, lines.as_deref()).map_err(|e| {
        let place = lines.unwrap_or_default();
        Error::failed(format!("{}: {e}", place.display()))
    })
}

/// Returns the I/O since the disk was opened. Native disks share a file, and each shows all of its I/O.
fn host(vm: &Vm) -> Counters {
    let apart = if vm.store == Store::Native { 1 } else { vm.disks.len() };
    let mut counters = Counters::default();
    for disk in vm.disks.iter().take(apart) {
        counters += Counters {
            reads: disk.io.device_reads,
            writes: disk.io.device_writes,
            flushes: disk.io.device_flushes,
            read_bytes: disk.io.device_read_bytes,
            written_bytes: disk.io.device_written_bytes,
            table_reads: disk.io.device_table_reads,
            table_writes: disk.io.device_table_writes,
            ..Counters::default()
        };
    }
    counters
}

fn spread(latency_us: &Histogram<u32>) -> Spread {
    if latency_us.is_empty() {
        return Spread::default();
    }
    let at = |quantile| latency_us.value_at_quantile(quantile) as f64;
    Spread {
        mean_us: latency_us.mean(),
        p50_us: at(0.5),
        p95_us: at(0.95),
        p99_us: at(0.99),
        max_us: latency_us.max() as f64,
    }
}
