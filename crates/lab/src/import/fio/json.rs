//! fio's JSON output: jobs, or `client_stats` of a server run. Warnings before it are skipped.

use blk::{Error, Result};
use serde::Deserialize;
use serde_json::Value;

use super::super::{Lines, SERIES_MAX, Skips, base, text};
use crate::run::{Fact, Phase, PhaseSpan, Quantity, Record, Sample, Spread};

/// Largest file; one of a thousand jobs with all bins is 30 MB.
const BYTES_MAX: u64 = 256 << 20;
/// Most jobs kept; further ones still count in the sum.
const JOBS_MAX: usize = 1_000;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Output {
    #[serde(rename = "fio version")]
    version: String,
    timestamp_ms: Option<i64>,
    timestamp: Option<i64>,
    jobs: Vec<Value>,
    client_stats: Vec<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Job {
    jobname: String,
    /// Of a client of a server run; empty for a job of this machine.
    hostname: String,
    error: i64,
    read: Direction,
    write: Direction,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Direction {
    io_bytes: u64,
    iops: f64,
    /// Milliseconds.
    runtime: u64,
    total_ios: u64,
    clat_ns: Option<Latency>,
    lat_ns: Option<Latency>,
    /// Microseconds; versions before 3.
    clat: Option<Latency>,
    lat: Option<Latency>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Latency {
    max: f64,
    mean: f64,
    percentile: std::collections::BTreeMap<String, f64>,
}

impl Direction {
    /// Returns the completion latency: percentiles, mean and maximum are all of it, so that they agree.
    fn spread(&self) -> Spread {
        let kinds = [(&self.clat_ns, 1e3), (&self.lat_ns, 1e3), (&self.clat, 1.0), (&self.lat, 1.0)];
        let Some((latency, unit)) = kinds.into_iter().find_map(|(l, unit)| Some((l.as_ref()?, unit))) else {
            return Spread::default();
        };
        let at = |wanted: f64| {
            let found = latency.percentile.iter().find(|(name, _)| name.parse() == Ok(wanted));
            found.map_or(0.0, |(_, value)| value / unit)
        };
        Spread {
            mean_us: latency.mean / unit,
            p50_us: at(50.0),
            p95_us: at(95.0),
            p99_us: at(99.0),
            max_us: latency.max / unit,
        }
    }
}

pub(crate) fn read(name: &str, lines: &mut Lines<'_>, skips: &mut Skips) -> Result<Vec<Record>> {
    let bytes = lines.rest(BYTES_MAX).map_err(|e| Error::new(blk::ErrorKind::Io, name, e.to_string()))?;
    let too_long = || Error::unsupported(name, format!("more than {BYTES_MAX} bytes of JSON"));
    let bytes = bytes.ok_or_else(too_long)?;
    let begin = begin(&bytes);
    if begin > 0 {
        let lines = bytes[..begin].iter().filter(|b| **b == b'\n').count();
        skips.file(format!("{lines} lines before the JSON"));
    }
    // Anything after the object is ignored, such as the output of a second run.
    let mut outputs = serde_json::Deserializer::from_slice(&bytes[begin..]).into_iter::<Output>();
    let output = outputs.next().unwrap_or_else(|| Err(serde::de::Error::custom("no object")));
    let output = output.map_err(|e| Error::damaged(name, format!("fio's JSON: {e}")))?;
    Ok(records(name, output, skips))
}

/// Returns the position of the first line that starts an object.
fn begin(bytes: &[u8]) -> usize {
    let mut at = 0;
    for line in bytes.split_inclusive(|b| *b == b'\n') {
        if line.first() == Some(&b'{') {
            return at;
        }
        at += line.len();
    }
    0
}

/// Returns one record, or one for each host whose jobs a server ran.
fn records(name: &str, output: Output, skips: &mut Skips) -> Vec<Record> {
    let Output { version, timestamp_ms, timestamp, jobs, client_stats } = output;
    let mut hosts: Vec<(String, Vec<Job>)> = Vec::new();
    for (n, value) in if jobs.is_empty() { client_stats } else { jobs }.into_iter().enumerate() {
        let job = match serde_json::from_value::<Job>(value) {
            // fio adds the sum of its clients as a job of this name; the clients are already included.
            Ok(job) if job.jobname == "All clients" => continue,
            Ok(job) => job,
            Err(e) => {
                skips.file(format!("job {n}: {e}"));
                continue;
            }
        };
        match hosts.iter().position(|(host, _)| *host == job.hostname) {
            Some(place) => hosts[place].1.push(job),
            None if hosts.len() < SERIES_MAX => hosts.push((job.hostname.clone(), vec![job])),
            None => skips.file(format!("job {n}: of a host beyond the first {SERIES_MAX}")),
        }
    }
    let ended = timestamp_ms.or(timestamp.and_then(|s| s.checked_mul(1_000)));
    let ended_us = ended.and_then(|ms| ms.checked_mul(1_000)).unwrap_or(0);
    let is_one = hosts.len() == 1;
    let named = |host: &str| (!is_one && !host.is_empty()).then(|| text(host));
    hosts.iter().map(|(host, jobs)| record(name, &version, named(host), ended_us, jobs)).collect()
}

fn record(name: &str, version: &str, host: Option<String>, ended_us: i64, jobs: &[Job]) -> Record {
    let mut record = base::record(name, "A run of fio");
    record.subject = host.unwrap_or(record.subject);
    record.machine.push(Fact { name: "fio".into(), value: text(version) });
    let sample = sum(jobs);
    record.began_unix_us = ended_us.saturating_sub_unsigned(sample.interval_us).max(0);
    record.phases.push(PhaseSpan::new(Phase::Baseline, String::new(), 0, sample.interval_us));
    record.samples.push(sample);
    record.notes.push("fio's JSON has totals alone: one interval. Its logs have the course of time.".into());
    jobs.iter().take(JOBS_MAX).for_each(|job| rows(&mut record, job));
    record
}

fn rows(record: &mut Record, job: &Job) {
    let name = &job.jobname;
    if job.error != 0 {
        record.notes.push(format!("Job {} ended with error {}.", text(name), job.error));
    }
    let sides =
        [(&job.read, Quantity::ReadsPerS, "of reads"), (&job.write, Quantity::WritesPerS, "of writes")];
    for (direction, quantity, note) in sides {
        if direction.total_ios > 0 || direction.iops != 0.0 {
            let latency = base::measured(name, Quantity::LatencyUs, direction.spread().mean_us, note);
            record.rows.extend([base::measured(name, quantity, direction.iops, ""), latency]);
        }
    }
}

/// Returns all jobs as one interval, as long as the longest job. Percentiles cannot be added, so only a lone job has
/// them.
fn sum(jobs: &[Job]) -> Sample {
    let directions = || jobs.iter().flat_map(|job| [&job.read, &job.write]);
    let longest = directions().map(|d| d.runtime).max().unwrap_or(0);
    let interval_us = longest.saturating_mul(1_000);
    let mut sample = Sample { interval_us, ..Sample::default() };
    for job in jobs {
        sample.reads = sample.reads.saturating_add(job.read.total_ios);
        sample.writes = sample.writes.saturating_add(job.write.total_ios);
        sample.read_bytes = sample.read_bytes.saturating_add(job.read.io_bytes);
        sample.written_bytes = sample.written_bytes.saturating_add(job.write.io_bytes);
    }
    sample.read_latency = joined(jobs.iter().map(|job| &job.read));
    sample.write_latency = joined(jobs.iter().map(|job| &job.write));
    sample
}

fn joined<'a>(directions: impl Iterator<Item = &'a Direction>) -> Spread {
    let with_ios: Vec<_> = directions.filter(|d| d.total_ios > 0).collect();
    if let [one] = with_ios[..] {
        return one.spread();
    }
    let ios: f64 = with_ios.iter().map(|d| d.total_ios as f64).sum();
    let total: f64 = with_ios.iter().map(|d| d.spread().mean_us * d.total_ios as f64).sum();
    let max_us = with_ios.iter().map(|d| d.spread().max_us).fold(0.0, f64::max);
    Spread { mean_us: if ios > 0.0 { total / ios } else { 0.0 }, max_us, ..Spread::default() }
}
