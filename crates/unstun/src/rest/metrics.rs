//! `GET /metrics`: the text that Prometheus reads (prometheus.io, "Exposition formats", version 0.0.4).
//!
//! Labels are bounded by what exists: datastores, VMs, disks, operations, cores. No label has a name of a client or of a
//! snapshot.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::Arc;

use api::error::Error;
use api::{
    Alarm, AlarmChannel, AlarmRule, AlarmSeverity, Job, PolicyStatus, Status, Store, VmCondition, VmSummary,
};
use axum::extract::{Extension, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use blk::file::FileCounters;
use engine::latencies::{BOUNDS_NS, LatencyFigures};

use super::Failure;
use crate::access::authorize::Access;
use crate::alarms::Alarms;
use crate::daemon::{DiskFigures, Metrics, Subject, VmFigures};

const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Kind of a metric.
#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

pub(super) async fn metrics(
    State(access): State<Arc<Access>>,
    Extension(alarms): Extension<Arc<Alarms>>,
) -> Result<Response, Failure> {
    let figures = access.core.ask(Subject::None, async |daemon| daemon.metrics().await).await?;
    // The text of thousands of disks takes longer than other requests should wait.
    let (lasting, channels) = (alarms.list(false), alarms.channels.list().await);
    let make = move || {
        let mut text = text(&figures);
        of_alarms(&mut text, &lasting, &channels);
        text.0
    };
    let made = tokio::task::spawn_blocking(make).await;
    let made = made.map_err(|e| Error::failed(format!("the text of the metrics: {e}")))?;
    Ok(([(CONTENT_TYPE, FORMAT)], made).into_response())
}

/// The text under construction: one family of metrics after the other.
#[derive(Default)]
struct Text(String);

impl Text {
    /// Begins a family.
    fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Adds a value of the family. `labels` are pairs of a name and a value.
    fn add(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        let mut between = '{';
        for (label, text) in labels {
            let _ = write!(self.0, "{between}{label}=\"{}\"", escaped(text));
            between = ',';
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }

    /// Adds a histogram of seconds.
    fn add_latencies(&mut self, name: &str, labels: &[(&str, &str)], figures: &LatencyFigures) {
        let bucket = format!("{name}_bucket");
        let mut sum = 0;
        for (at, count) in figures.by_bound().iter().enumerate() {
            sum += count;
            let bound = BOUNDS_NS.get(at).map_or_else(|| "+Inf".to_owned(), |&ns| seconds(ns).to_string());
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.add(&bucket, &labels, sum);
        }
        self.add(&format!("{name}_sum"), labels, seconds(figures.sum_ns));
        self.add(&format!("{name}_count"), labels, sum);
    }
}

/// Escapes the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[allow(clippy::cast_precision_loss)]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn text(figures: &Metrics) -> Text {
    let mut text = Text::default();
    of_the_daemon(&mut text, &figures.status);
    of_datastores(&mut text, &figures.status);
    let growth = "unstun_datastore_worst_growth_bytes";
    text.family(
        growth,
        Kind::Gauge,
        "Bytes that the deltas and native disks of the datastore can still allocate.",
    );
    for (datastore, bytes) in &figures.worst_growth_bytes {
        text.add(growth, &[("datastore", datastore.as_str())], bytes);
    }
    of_vms(&mut text, &figures.vms, figures);
    of_disks(&mut text, figures);
    of_files(&mut text, figures);
    of_jobs(&mut text, &figures.jobs);
    of_policies(&mut text, &figures.policies);
    text.family(
        "unstun_stun_seconds",
        Kind::Histogram,
        "Time for which an operation held back the requests of a guest.",
    );
    for (operation, latencies) in &figures.stuns {
        text.add_latencies("unstun_stun_seconds", &[("operation", operation.as_str())], latencies);
    }
    let frozen = "unstun_guest_frozen_seconds";
    text.family(
        frozen,
        Kind::Histogram,
        "Time for which the file systems of a guest were frozen for a take.",
    );
    text.add_latencies(frozen, &[], &figures.frozen);
    text
}

fn of_the_daemon(text: &mut Text, status: &Status) {
    text.family("unstun_build_info", Kind::Gauge, "The version of the daemon; the value is 1.");
    text.add("unstun_build_info", &[("version", &status.version)], 1);
    text.family("unstun_start_time_seconds", Kind::Gauge, "Start of the daemon, seconds since 1970.");
    text.add("unstun_start_time_seconds", &[], status.started.as_second());
    text.family(
        "unstun_poll_longest_seconds",
        Kind::Gauge,
        "Longest time for which one task kept a core from all others.",
    );
    text.add("unstun_poll_longest_seconds", &[], seconds(status.longest_poll_us * 1000));
    text.family(
        "unstun_long_polls_total",
        Kind::Counter,
        "Times that a task kept a core for more than a millisecond.",
    );
    text.add("unstun_long_polls_total", &[], status.long_polls);
    text.family("unstun_core_clients", Kind::Gauge, "Clients over NBD and vhost-user of a core.");
    for core in &status.cores {
        text.add("unstun_core_clients", &[("core", &core.number.to_string())], core.nbd_clients);
    }
    text.family("unstun_core_vms", Kind::Gauge, "Open VMs of a core.");
    for core in &status.cores {
        text.add("unstun_core_vms", &[("core", &core.number.to_string())], core.vms);
    }
    text.family(
        "unstun_store_messages_total",
        Kind::Counter,
        "Requests that a core has sent to the native stores' core.",
    );
    for core in &status.cores {
        text.add("unstun_store_messages_total", &[("core", &core.number.to_string())], core.store_messages);
    }
}

fn of_datastores(text: &mut Text, status: &Status) {
    type Value = fn(&api::Datastore) -> Option<u64>;
    let families: [(&str, &str, Value); 5] = [
        ("unstun_datastore_up", "Whether the datastore answers.", |d| Some(u64::from(d.hung.is_none()))),
        ("unstun_datastore_free_bytes", "Free bytes on the file system and inside the store.", |d| {
            d.free_bytes
        }),
        ("unstun_datastore_total_bytes", "Size of the datastore.", |d| d.total_bytes),
        ("unstun_datastore_bin_bytes", "Bytes that the bin keeps.", |d| d.bin_bytes),
        ("unstun_datastore_reclaimable_bytes", "Bytes that are freed and not in use again yet.", |d| {
            d.reclaimable_bytes
        }),
    ];
    for (name, help, value) in families {
        text.family(name, Kind::Gauge, help);
        for datastore in &status.datastores {
            if let Some(value) = value(datastore) {
                text.add(name, &[("datastore", datastore.name.as_str())], value);
            }
        }
    }
    text.family(
        "unstun_datastore_full",
        Kind::Gauge,
        "Whether guest writes wait for space on the datastore.",
    );
    for datastore in &status.datastores {
        let is_full = status.full.iter().any(|full| full.datastore == datastore.name);
        text.add("unstun_datastore_full", &[("datastore", datastore.name.as_str())], u64::from(is_full));
    }
}

fn of_vms(text: &mut Text, vms: &[VmSummary], figures: &Metrics) {
    type Value = fn(&VmSummary, Option<&VmFigures>) -> Option<i64>;
    let families: [(&str, &str, Value); 7] = [
        ("unstun_vm_up", "Whether the VM is open.", |vm, _| {
            Some(i64::from(vm.condition == VmCondition::Open))
        }),
        ("unstun_vm_snapshots", "Number of snapshots.", |vm, _| vm.snapshots.map(u64::cast_signed)),
        (
            "unstun_vm_oldest_snapshot_seconds",
            "Time of the oldest snapshot, seconds since 1970.",
            |_, figures| Some(figures?.oldest_snapshot_us? / 1_000_000),
        ),
        ("unstun_vm_size_bytes", "Size of the disks as the guest sees it.", |vm, _| {
            vm.size_bytes.map(u64::cast_signed)
        }),
        ("unstun_vm_allocated_bytes", "Bytes that the disks and their snapshots use.", |vm, _| {
            vm.allocated_bytes.map(u64::cast_signed)
        }),
        ("unstun_vm_clients", "Clients that are connected.", |vm, _| Some(vm.nbd_clients.cast_signed())),
        ("unstun_vm_waiting_writes", "Guest writes that wait for space.", |vm, _| {
            Some(vm.waiting_writes.cast_signed())
        }),
    ];
    for (name, help, value) in families {
        text.family(name, Kind::Gauge, help);
        for vm in vms {
            if let Some(value) = value(vm, figures.figures.get(vm.name.as_str())) {
                text.add(name, &[("vm", vm.name.as_str()), ("datastore", vm.datastore.as_str())], value);
            }
        }
    }
    text.family(
        "unstun_vm_delayed_requests_total",
        Kind::Counter,
        "Requests that the VM's limits have delayed.",
    );
    for (vm, of) in &figures.figures {
        text.add("unstun_vm_delayed_requests_total", &[("vm", vm)], of.delayed_requests);
    }
}

fn of_disks(text: &mut Text, figures: &Metrics) {
    let numbered = |vm: &VmFigures| vm.disks.iter().map(|disk| disk.number.to_string()).collect::<Vec<_>>();
    let names: Vec<(&String, Vec<String>, &VmFigures)> =
        figures.figures.iter().map(|(vm, of)| (vm, numbered(of), of)).collect();
    let disks = || {
        names.iter().flat_map(|(vm, numbers, of)| {
            let disks = numbers.iter().zip(&of.disks);
            disks.map(move |(number, disk)| ([("vm", vm.as_str()), ("disk", number.as_str())], disk))
        })
    };
    text.family("unstun_io_duration_seconds", Kind::Histogram, "Latency of the guest's requests.");
    for (labels, disk) in disks() {
        for (operation, latencies) in
            [("read", &disk.reads), ("write", &disk.writes), ("flush", &disk.flushes)]
        {
            let labels = [labels[0], labels[1], ("op", operation)];
            text.add_latencies("unstun_io_duration_seconds", &labels, latencies);
        }
    }
    type Values = fn(&DiskFigures) -> [(&'static str, u64); 2];
    let by_operation: [(&str, &str, Values); 1] =
        [("unstun_io_bytes_total", "Bytes that the guest has read and written.", |d| {
            [("read", d.bytes_read), ("write", d.bytes_written)]
        })];
    for (name, help, values) in by_operation {
        text.family(name, Kind::Counter, help);
        for (labels, disk) in disks() {
            for (operation, value) in values(disk) {
                text.add(name, &[labels[0], labels[1], ("op", operation)], value);
            }
        }
    }
    type Value = fn(&DiskFigures) -> u64;
    let others: [(&str, Kind, &str, Value); 4] = [
        ("unstun_io_errors_total", Kind::Counter, "Requests of the guest that failed.", |d| d.errors),
        ("unstun_first_writes_total", Kind::Counter, "Ranges that were placed for the first time.", |d| {
            d.first_writes
        }),
        ("unstun_disk_size_bytes", Kind::Gauge, "Size of the disk.", |d| d.size_bytes),
        ("unstun_disk_layers", Kind::Gauge, "Layers of the disk: the base and its deltas.", |d| d.layers),
    ];
    for (name, kind, help, value) in others {
        text.family(name, kind, help);
        for (labels, disk) in disks() {
            text.add(name, &labels, value(disk));
        }
    }
}

/// The I/O of files: of each redo disk, and of each native store, which all native disks of its datastore share.
fn of_files(text: &mut Text, figures: &Metrics) {
    type Values = fn(&FileCounters) -> [(&'static str, u64); 3];
    let families: [(&str, &str, Values); 2] = [
        (
            "unstun_device_io_total",
            "Requests to the files, tables included; of a native store without the labels vm and disk.",
            |c| [("read", c.reads), ("write", c.writes), ("flush", c.flushes)],
        ),
        ("unstun_device_bytes_total", "Bytes of these requests.", |c| {
            [("read", c.bytes_read), ("write", c.bytes_written), ("flush", 0)]
        }),
    ];
    let mut stores: BTreeMap<&str, FileCounters> = BTreeMap::new();
    let mut disks = Vec::new();
    for vm in &figures.vms {
        let of = figures.figures.get(vm.name.as_str()).map(|of| of.disks.as_slice()).unwrap_or_default();
        for disk in of {
            match vm.store {
                // Every disk of a store has its counters; the last look is the newest.
                Store::Native => drop(stores.insert(vm.datastore.as_str(), disk.device)),
                Store::Redo => disks.push((vm, disk.number.to_string(), disk.device)),
            }
        }
    }
    for (name, help, values) in families {
        text.family(name, Kind::Counter, help);
        for (datastore, counters) in &stores {
            for (operation, value) in values(counters) {
                text.add(
                    name,
                    &[("datastore", datastore), ("vm", ""), ("disk", ""), ("op", operation)],
                    value,
                );
            }
        }
        for (vm, disk, counters) in &disks {
            for (operation, value) in values(counters) {
                let labels = [
                    ("datastore", vm.datastore.as_str()),
                    ("vm", vm.name.as_str()),
                    ("disk", disk),
                    ("op", operation),
                ];
                text.add(name, &labels, value);
            }
        }
    }
}

fn of_jobs(text: &mut Text, jobs: &[Job]) {
    type Value = fn(&Job) -> u64;
    let families: [(&str, &str, Value); 3] = [
        ("unstun_job_done_bytes", "Bytes that an open job has worked off.", |job| job.bytes_done),
        ("unstun_job_total_bytes", "Bytes of an open job.", |job| job.bytes_total),
        ("unstun_job_rate_bytes", "Bytes per second of an open job.", |job| job.rate_bytes_s),
    ];
    let open: Vec<_> = jobs.iter().filter(|job| job.state.is_open()).collect();
    for (name, help, value) in families {
        text.family(name, Kind::Gauge, help);
        for job in &open {
            let vm = job.vm.as_ref().map_or("", |vm| vm.as_str());
            let (id, operation) = (job.id.to_string(), job.operation.as_str());
            let labels =
                [("job", id.as_str()), ("operation", operation), ("vm", vm), ("state", job.state.as_str())];
            text.add(name, &labels, value(job));
        }
    }
    text.family(
        "unstun_jobs_failed",
        Kind::Gauge,
        "Jobs that have failed since the start and are still listed.",
    );
    let failed = jobs.iter().filter(|job| job.state == api::JobState::Failed).count();
    text.add("unstun_jobs_failed", &[], failed);
}

fn of_policies(text: &mut Text, policies: &[PolicyStatus]) {
    let problems = "unstun_policy_problems";
    text.family(
        problems,
        Kind::Gauge,
        "Snapshots that a policy could not take in its last run, not back up, or not remove.",
    );
    for one in policies {
        text.add(problems, &[("policy", one.policy.name.as_str())], one.problems.len());
    }
    let waiting = "unstun_policy_waiting_snapshots";
    text.family(
        waiting,
        Kind::Gauge,
        "Snapshots that no rule of their policy keeps and that are not removed yet.",
    );
    for one in policies {
        text.add(waiting, &[("policy", one.policy.name.as_str())], one.waiting);
    }
    let oldest = "unstun_policy_oldest_backup_timestamp_seconds";
    text.family(
        oldest,
        Kind::Gauge,
        "Oldest time, seconds since 1970, of what the repository of a policy has of any of its VMs; 0 if of one it has nothing.",
    );
    for (one, backups) in policies.iter().filter_map(|one| Some((one, one.backups.as_ref()?))) {
        let second = backups.oldest.map_or(0, |oldest| oldest.as_second());
        text.add(oldest, &[("policy", one.policy.name.as_str())], second);
    }
    let last = "unstun_policy_last_run_timestamp_seconds";
    text.family(last, Kind::Gauge, "Scheduled time of the last run of a policy, seconds since 1970.");
    for (one, run) in policies.iter().filter_map(|one| Some((one, one.last.as_ref()?))) {
        text.add(last, &[("policy", one.policy.name.as_str())], run.scheduled.as_second());
    }
}

fn of_alarms(text: &mut Text, lasting: &[Alarm], channels: &[AlarmChannel]) {
    let alarms = "unstun_alarms";
    text.family(alarms, Kind::Gauge, "Alarms that last.");
    let mut counts: BTreeMap<(AlarmRule, AlarmSeverity), u64> = BTreeMap::new();
    lasting.iter().for_each(|alarm| *counts.entry((alarm.rule, alarm.severity)).or_default() += 1);
    for ((rule, severity), count) in counts {
        text.add(alarms, &[("rule", rule.as_str()), ("severity", severity.as_str())], count);
    }
    let deliveries = "unstun_alarm_deliveries_total";
    text.family(deliveries, Kind::Counter, "Deliveries of alarms over a channel, by their outcome.");
    for one in channels {
        for (outcome, count) in [("delivered", one.delivered), ("failed", one.failed)] {
            text.add(deliveries, &[("channel", &one.name), ("outcome", outcome)], count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::latencies::COUNTS;

    #[test]
    fn a_histogram_is_cumulative_and_ends_with_all() {
        let mut text = Text::default();
        let figures = LatencyFigures { counts: [1; COUNTS], sum_ns: 1_500_000_000 };
        text.add_latencies("unstun_x_seconds", &[("vm", "a\"b")], &figures);
        let lines: Vec<&str> = text.0.lines().collect();
        assert_eq!(lines[0], r#"unstun_x_seconds_bucket{vm="a\"b",le="0.00005"} 4"#);
        assert_eq!(lines[12], r#"unstun_x_seconds_bucket{vm="a\"b",le="+Inf"} 49"#);
        assert_eq!(lines[13], r#"unstun_x_seconds_sum{vm="a\"b"} 1.5"#);
        assert_eq!(lines[14], r#"unstun_x_seconds_count{vm="a\"b"} 49"#);
    }
}
