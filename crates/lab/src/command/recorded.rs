//! What the daemon recorded of a VM, as a run of the lab.

use std::path::Path;

use api::client::{Client, runtime};
use api::error::{Error, Result};
use api::name::VmName;
use api::{Event, Latency, Load, Operation, Recorded, SnapshotCost, Store, VmCost};
use jiff::Timestamp;

use crate::run::{
    Clock, Counters, Fact, Mark, Phase, PhaseSpan, Quantity, Record, Row, Sample, Spread, Stun,
};

/// Reads a VM's record between two times from the daemon.
pub(super) fn record(
    vm: &VmName,
    since: Timestamp,
    until: Timestamp,
    datastore: Option<&Path>,
) -> Result<Record> {
    let client = Client::for_command(datastore)?;
    let (recorded, cost, events) = runtime()?.block_on(async {
        let recorded = client.vm_recorded(vm, since, until, 0).await?;
        Ok::<_, Error>((recorded, client.vm_cost(vm, since, until).await?, client.events(vm, 0).await?))
    })?;
    Ok(of(&recorded, &cost, &events))
}

/// Returns the record: its times are those since the first step.
fn of(recorded: &Recorded, cost: &VmCost, events: &[Event]) -> Record {
    let until = recorded.from.as_second() + (recorded.step_s * recorded.steps.len() as u64).cast_signed();
    let times = Times { begin_us: recorded.from.as_microsecond(), end_us: until * 1_000_000 };
    let mut record = Record::head("record", recorded.store.as_str(), "that of the VM", Clock::Real, 0);
    record.title = format!("VM {}", recorded.vm);
    record.source = "the record of unstun's daemon".to_owned();
    record.command =
        format!("unstun lab report --vm {} --since {} --until {}", recorded.vm, cost.since, cost.until);
    record.began_unix_us = times.begin_us;
    record.machine = vec![Fact { name: "VM".to_owned(), value: recorded.vm.to_string() }];
    record.notes = vec![
        "A gap is the latency of the slowest request of its step: no time without a completion was longer."
            .to_owned(),
        "Latencies are between bounds that are up to 75 % apart, and evenly spread between two.".to_owned(),
    ];
    if recorded.store == Store::Native {
        record.notes.push("The host's I/O is that of the VM's whole store.".to_owned());
    }
    record.samples = samples(recorded);
    for event in events.iter().filter(|event| times.contains(event.time)) {
        add_event(&mut record, event, times);
    }
    for snapshot in &cost.snapshots {
        add_snapshot(&mut record, snapshot, times);
    }
    record
}

/// The times of a record.
#[derive(Clone, Copy)]
struct Times {
    begin_us: i64,
    end_us: i64,
}

impl Times {
    fn contains(self, at: Timestamp) -> bool {
        (self.begin_us..self.end_us).contains(&at.as_microsecond())
    }

    /// Returns the microseconds since the begin, within the record.
    fn place(self, at: Timestamp) -> u64 {
        (at.as_microsecond().clamp(self.begin_us, self.end_us) - self.begin_us).unsigned_abs()
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn samples(recorded: &Recorded) -> Vec<Sample> {
    let interval_us = recorded.step_s * 1_000_000;
    let observed = recorded.steps.iter().enumerate().filter(|(_, load)| load.observed_s > 0);
    let sample = |(at, load): (usize, &Load)| {
        let count = |rate: f64| (rate * load.observed_s as f64).round() as u64;
        Sample {
            at_us: at as u64 * interval_us,
            interval_us: load.observed_s.min(recorded.step_s) * 1_000_000,
            reads: count(load.reads_s),
            writes: count(load.writes_s),
            read_bytes: count(load.read_bytes_s),
            written_bytes: count(load.written_bytes_s),
            read_latency: spread(load.read_latency, load.longest_us),
            write_latency: spread(load.write_latency, load.longest_us),
            host: Some(Counters {
                reads: count(load.host_reads_s),
                writes: count(load.host_writes_s),
                read_bytes: count(load.host_read_bytes_s),
                written_bytes: count(load.host_written_bytes_s),
                ..Counters::default()
            }),
            gap_us: load.longest_us,
        }
    };
    observed.map(sample).collect()
}

/// Returns the latencies of one direction. Which one the slowest request had is not recorded.
fn spread(latency: Option<Latency>, longest_us: u64) -> Spread {
    let Some(Latency { mean_us, median_us, p99_us }) = latency else { return Spread::default() };
    Spread { mean_us, p50_us: median_us, p95_us: 0.0, p99_us, max_us: longest_us as f64 }
}

fn add_event(record: &mut Record, event: &Event, times: Times) {
    let at_us = times.place(event.time);
    let cause = event.operation.as_str().to_owned();
    if event.stun_us > 0 {
        record.stuns.push(Stun { at_us, stun_us: event.stun_us, disk: None, cause: cause.clone() });
    }
    if !matches!(event.operation, Operation::Home) {
        let subject = event.snapshot.as_deref().unwrap_or("");
        record.marks.push(Mark { at_us, text: format!("{cause} {subject}").trim_end().to_owned() });
    }
}

/// Adds the phases of a snapshot that are within the record, and their figures.
fn add_snapshot(record: &mut Record, cost: &SnapshotCost, times: Times) {
    let begin = Timestamp::from_microsecond(times.begin_us).unwrap_or(Timestamp::UNIX_EPOCH);
    let end = Timestamp::from_microsecond(times.end_us).unwrap_or(Timestamp::UNIX_EPOCH);
    let (taken, ended) = (cost.taken.unwrap_or(begin), cost.ended.unwrap_or(end));
    let gone = cost.commit_began.unwrap_or(ended);
    let phases = [
        (Phase::Baseline, begin, taken, "before", &cost.before),
        (Phase::Snapshot, taken, gone, "with", &cost.with),
        (Phase::Commit, gone, ended, "commit of", &cost.committing),
        (Phase::After, ended, end, "after", &cost.after),
    ];
    for (phase, from, until, word, load) in phases {
        let (begin_us, end_us) = (times.place(from), times.place(until));
        if load.observed_s == 0 || begin_us >= end_us {
            continue;
        }
        let label = format!("{word} {}", cost.name);
        record.phases.push(PhaseSpan::new(phase, label.clone(), begin_us, end_us));
        let figures = [
            (Quantity::ReadsPerS, Some(load.reads_s)),
            (Quantity::WritesPerS, Some(load.writes_s)),
            (Quantity::Iops, Some(load.guest_s())),
            (Quantity::LatencyUs, load.latency.map(|latency| latency.mean_us)),
            (Quantity::HostReadsPerS, Some(load.host_reads_s)),
            (Quantity::HostWritesPerS, Some(load.host_writes_s)),
            (Quantity::Seconds, Some(load.observed_s as f64)),
        ];
        for (quantity, value) in figures {
            let Some(value) = value else { continue };
            record.rows.push(Row { note: label.clone(), ..Row::measured("record", phase, quantity, value) });
        }
        let stun_us = match phase {
            Phase::Snapshot => cost.take_stun_us,
            Phase::Commit => cost.commit_stun_us,
            _ => continue,
        };
        let stun = Row::measured("record", phase, Quantity::StunUs, stun_us as f64);
        record.rows.push(Row { note: label, ..stun });
    }
}
