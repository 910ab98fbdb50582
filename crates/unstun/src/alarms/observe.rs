//! What a look finds: the rules applied to the figures of the daemon.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use api::name::Tag;
use api::units::{format_bytes, format_seconds};
use api::{
    AlarmRule, AlarmSeverity, AlarmThreshold, Datastore, DatastoreCondition, Job, JobState, SourceState,
    VmCondition, VmSummary,
};
use jiff::Timestamp;

use super::evaluate::{Finding, Grade};
use super::forecast::Forecasts;
use super::thresholds;
use crate::daemon::AlarmFigures;
use crate::recorder::Recorder;

/// Part of a threshold, in percent, below which an alarm is cleared. Between the two it stays as it is.
const CLEAR_PERCENT: f64 = 90.0;
/// Time over which the growth of snapshots is measured: a shorter one takes a burst for a trend.
const GROWTH_S: f64 = 1800.0;
/// Number of the last minute's twelve parts of 5 s that must have requests; all that have must be above the threshold.
const LATENCY_PARTS_MIN: usize = 6;
/// Days before a datastore is full in which that is serious.
const SERIOUS_DAYS: f64 = 1.0;

/// Rules about a VM whose figures are those of its files.
const OF_FILES: [AlarmRule; 4] =
    [AlarmRule::VmBroken, AlarmRule::SnapshotOld, AlarmRule::SnapshotSpace, AlarmRule::SnapshotGrowth];

/// What is known from the looks before.
pub(super) struct Observer {
    recorder: Arc<Recorder>,
    /// Failed requests of each VM.
    errors: BTreeMap<String, u64>,
    /// Bytes of each VM's snapshots, the oldest first.
    snapshot_bytes: BTreeMap<String, VecDeque<(Instant, u64)>>,
    /// Bytes done by each open job, and since when.
    jobs: BTreeMap<u64, (u64, Instant)>,
}

/// The findings of a look.
struct Findings<'a> {
    all: Vec<Finding>,
    thresholds: &'a [AlarmThreshold],
}

impl Findings<'_> {
    fn add(&mut self, rule: AlarmRule, object: &str, vm: Option<&str>, grade: Grade, message: String) {
        let (object, vm) = (object.to_owned(), vm.map(str::to_owned));
        self.all.push(Finding { rule, object, vm, grade, message });
    }

    fn of_vm(&self, rule: AlarmRule, vm: &VmSummary) -> Option<u64> {
        thresholds::of(self.thresholds, rule, Some((vm.name.as_str(), &vm.tags)))
    }

    fn of_all(&self, rule: AlarmRule) -> Option<u64> {
        thresholds::of(self.thresholds, rule, None)
    }

    /// Adds a finding about a VM whose value reaches the threshold, or is close below it.
    fn above(&mut self, rule: AlarmRule, vm: &VmSummary, value: f64, message: impl FnOnce(u64) -> String) {
        let Some(threshold) = self.of_vm(rule, vm) else { return };
        let grade = match value {
            value if value >= threshold as f64 => Grade::Reason(AlarmSeverity::Warning),
            value if value >= threshold as f64 * CLEAR_PERCENT / 100.0 => Grade::Hold,
            _ => return,
        };
        let name = vm.name.as_str();
        self.add(rule, name, Some(name), grade, message(threshold));
    }
}

impl Observer {
    pub(super) fn new(recorder: Arc<Recorder>) -> Observer {
        Observer { recorder, errors: BTreeMap::new(), snapshot_bytes: BTreeMap::new(), jobs: BTreeMap::new() }
    }

    pub(super) fn observe(
        &mut self,
        figures: &AlarmFigures,
        thresholds: &[AlarmThreshold],
        forecasts: &Forecasts,
        now: Timestamp,
    ) -> Vec<Finding> {
        let mut findings = Findings { all: Vec::new(), thresholds };
        of_datastores(&mut findings, figures, forecasts);
        for vm in &figures.metrics.vms {
            self.of_vm(&mut findings, vm, figures, now);
        }
        self.of_jobs(&mut findings, &figures.metrics.jobs, &figures.metrics.vms);
        of_sources(&mut findings, figures);
        of_policies(&mut findings, figures);
        of_guests(&mut findings, figures);
        let is_open = |name: &String| figures.snapshots.contains_key(name);
        self.snapshot_bytes.retain(|name, _| is_open(name));
        self.errors.retain(|name, _| is_open(name));
        findings.all
    }

    fn of_vm(&mut self, findings: &mut Findings<'_>, vm: &VmSummary, figures: &AlarmFigures, now: Timestamp) {
        let name = vm.name.as_str();
        let is_hung = |one: &Datastore| one.name == vm.datastore && one.hung.is_some();
        if figures.metrics.status.datastores.iter().any(is_hung) {
            // The datastore has an alarm. What is said about its VMs stays as it is.
            return OF_FILES
                .into_iter()
                .for_each(|rule| findings.add(rule, name, Some(name), Grade::Hold, String::new()));
        }
        if let Some(cause) = vm.message.as_ref().filter(|_| vm.condition != VmCondition::Closed)
            && findings.of_vm(AlarmRule::VmBroken, vm).is_some()
        {
            let message = format!("VM {name}: {cause}; `unstun vm list` shows it");
            findings.add(
                AlarmRule::VmBroken,
                name,
                Some(name),
                Grade::Reason(AlarmSeverity::Critical),
                message,
            );
        }
        let Some(snapshots) = figures.snapshots.get(name) else { return };
        if let Some((snapshot, created_us)) = &snapshots.oldest {
            let age_h = (now.as_microsecond() - created_us) as f64 / 3.6e9;
            findings.above(AlarmRule::SnapshotOld, vm, age_h, |limit| {
                let remedy =
                    format!("`unstun snapshot commit {name} {snapshot}` keeps what was written since");
                format!("snapshot {snapshot} of VM {name} is {age_h:.0} hours old (limit {limit}); {remedy}")
            });
        }
        let of_bytes = [AlarmRule::SnapshotSpace, AlarmRule::SnapshotGrowth];
        match snapshots.bytes {
            Some(bytes) => self.of_snapshot_bytes(findings, vm, bytes),
            // Unknown: such alarms stay as they are.
            None => of_bytes
                .into_iter()
                .for_each(|rule| findings.add(rule, name, Some(name), Grade::Hold, String::new())),
        }
        self.of_requests(findings, vm, figures);
    }

    fn of_snapshot_bytes(&mut self, findings: &mut Findings<'_>, vm: &VmSummary, bytes: u64) {
        let name = vm.name.as_str();
        let shown = format_bytes(bytes);
        let share = bytes as f64 * 100.0 / vm.size_bytes.unwrap_or(0).max(1) as f64;
        findings.above(AlarmRule::SnapshotSpace, vm, share, |limit| {
            let remedy = format!("`unstun space {name}` shows which");
            format!("the snapshots of VM {name} use {shown}, {share:.0} % of its disks (limit {limit} %); {remedy}")
        });
        let samples = self.snapshot_bytes.entry(name.to_owned()).or_default();
        let now = Instant::now();
        samples.push_back((now, bytes));
        // One sample from before the time stays, to measure from.
        while samples.get(1).is_some_and(|(at, _)| now.duration_since(*at).as_secs_f64() >= GROWTH_S) {
            samples.pop_front();
        }
        let Some(&(first, before)) = samples.front() else { return };
        let span_s = now.duration_since(first).as_secs_f64();
        if span_s < GROWTH_S {
            return;
        }
        let gib_h = bytes.saturating_sub(before) as f64 * 3600.0 / span_s / (1_u64 << 30) as f64;
        findings.above(AlarmRule::SnapshotGrowth, vm, gib_h, |limit| {
            let remedy = format!("`unstun space {name}` shows them");
            format!("the snapshots of VM {name} grow by {gib_h:.1} GiB per hour (limit {limit}), to {shown}; {remedy}")
        });
    }

    fn of_requests(&mut self, findings: &mut Findings<'_>, vm: &VmSummary, figures: &AlarmFigures) {
        let name = vm.name.as_str();
        let latencies = self.recorder.recent_p99_us(name);
        if latencies.len() >= LATENCY_PARTS_MIN {
            let least_ms = latencies.into_iter().fold(f64::INFINITY, f64::min) / 1000.0;
            findings.above(AlarmRule::Latency, vm, least_ms, |limit| {
                let remedy = format!("`unstun events {name}` shows what goes on");
                format!("one of a hundred requests of VM {name} takes {least_ms:.0} ms or more for a minute (limit {limit} ms); {remedy}")
            });
        }
        let errors =
            figures.metrics.figures.get(name).map(|of| of.disks.iter().map(|disk| disk.errors).sum::<u64>());
        let Some(errors) = errors else { return };
        let before = self.errors.insert(name.to_owned(), errors);
        let more = errors.saturating_sub(before.unwrap_or(errors));
        if more > 0 && findings.of_vm(AlarmRule::IoErrors, vm).is_some() {
            let message = format!(
                "{more} requests of VM {name} failed within a minute; the daemon's log and `unstun status` show why"
            );
            findings.add(
                AlarmRule::IoErrors,
                name,
                Some(name),
                Grade::Reason(AlarmSeverity::Critical),
                message,
            );
        }
    }

    fn of_jobs(&mut self, findings: &mut Findings<'_>, jobs: &[Job], vms: &[VmSummary]) {
        let now = Instant::now();
        self.jobs.retain(|id, _| jobs.iter().any(|job| job.id == *id && job.state.is_open()));
        for job in jobs {
            let vm = job.vm.as_ref().map(|vm| vm.as_str());
            let tags: &[Tag] = vms.iter().find(|of| Some(of.name.as_str()) == vm).map_or(&[], |of| &of.tags);
            let of_job = |rule| thresholds::of(findings.thresholds, rule, vm.map(|vm| (vm, tags)));
            let (id, what) = (job.id.to_string(), describe(job));
            if job.state == JobState::Failed && of_job(AlarmRule::JobFailed).is_some() {
                let cause = job.error.as_ref().map_or("", |error| error.message.as_str());
                let message =
                    format!("{what} failed: {cause}; `unstun job list` shows it until the daemon ends");
                findings.add(AlarmRule::JobFailed, &id, vm, Grade::Reason(AlarmSeverity::Serious), message);
            }
            let waits = matches!(job.state, JobState::Running | JobState::WaitingForSpace);
            let (Some(minutes), true) = (of_job(AlarmRule::JobStalled), waits) else {
                self.jobs.remove(&job.id);
                continue;
            };
            let since = self.jobs.entry(job.id).or_insert((job.bytes_done, now));
            if since.0 != job.bytes_done {
                *since = (job.bytes_done, now);
            }
            let still_s = now.duration_since(since.1).as_secs();
            if still_s >= minutes * 60 {
                let remedy = "`unstun status` shows whether its datastore is full or does not answer";
                let message =
                    format!("{what} has made no progress for {}; {remedy}", format_seconds(still_s));
                findings.add(AlarmRule::JobStalled, &id, vm, Grade::Reason(AlarmSeverity::Serious), message);
            }
        }
    }
}

fn describe(job: &Job) -> String {
    let of = job.vm.as_ref().map_or(String::new(), |vm| format!(" of VM {vm}"));
    format!("job {} ({}{of})", job.id, job.operation.as_str())
}

fn of_datastores(findings: &mut Findings<'_>, figures: &AlarmFigures, forecasts: &Forecasts) {
    let status = &figures.metrics.status;
    for full in
        status.full.iter().filter(|_| findings.of_all(AlarmRule::DatastoreFull).is_some()).collect::<Vec<_>>()
    {
        let vms: Vec<_> = full.waiting.iter().map(|waiting| waiting.vm.as_str()).take(5).collect();
        let message = format!(
            "datastore {} is full: writes of {} wait; `unstun status` lists the snapshots whose commit frees most",
            full.datastore,
            vms.join(", ")
        );
        let name = full.datastore.as_str();
        findings.add(AlarmRule::DatastoreFull, name, None, Grade::Reason(AlarmSeverity::Critical), message);
    }
    for one in &status.datastores {
        of_datastore(findings, one, figures, forecasts);
    }
}

fn of_datastore(findings: &mut Findings<'_>, one: &Datastore, figures: &AlarmFigures, forecasts: &Forecasts) {
    let name = one.name.as_str();
    let critical = Grade::Reason(AlarmSeverity::Critical);
    if let Some(hung) = one.hung.as_ref().filter(|_| findings.of_all(AlarmRule::DatastoreHung).is_some()) {
        let message = format!(
            "datastore {name} has not answered for {} s ({}); `unstun datastore list` shows it",
            hung.for_s, hung.doing
        );
        findings.add(AlarmRule::DatastoreHung, name, None, critical, message);
        // What depends on its figures stays as it is.
        return findings.add(AlarmRule::DatastoreFills, name, None, Grade::Hold, String::new());
    }
    let failed = figures.failed.iter().find(|(of, _)| *of == one.name).map(|(_, cause)| cause.clone());
    let failed =
        failed.or_else(|| one.message.clone().filter(|_| one.condition == DatastoreCondition::Broken));
    if let Some(cause) = failed.filter(|_| findings.of_all(AlarmRule::DatastoreFailed).is_some()) {
        let message =
            format!("datastore {name} cannot be written: {cause}; `unstun datastore list` shows it");
        findings.add(AlarmRule::DatastoreFailed, name, None, critical, message);
    }
    let days = one.free_bytes.and_then(|free| forecasts.days_left(name, free));
    let (Some(days), Some(limit)) = (days, findings.of_all(AlarmRule::DatastoreFills)) else { return };
    let grade = match days {
        days if days <= SERIOUS_DAYS.min(limit as f64) => Grade::Reason(AlarmSeverity::Serious),
        days if days <= limit as f64 => Grade::Reason(AlarmSeverity::Warning),
        days if days <= limit as f64 * 100.0 / CLEAR_PERCENT => Grade::Hold,
        _ => return,
    };
    let free = format_bytes(one.free_bytes.unwrap_or(0));
    let remedy = "`unstun status` and `unstun space` show what can be freed";
    let message = format!(
        "datastore {name} has {free} free and is full in {days:.1} days at its growth of the last days; {remedy}"
    );
    findings.add(AlarmRule::DatastoreFills, name, None, grade, message);
}

fn of_sources(findings: &mut Findings<'_>, figures: &AlarmFigures) {
    if findings.of_all(AlarmRule::Source).is_none() {
        return;
    }
    for source in &figures.sources {
        let Some(cause) = &source.message else { continue };
        let (severity, what) = match source.state {
            SourceState::Unavailable => {
                (AlarmSeverity::Critical, "cannot be read, and what was not copied of it cannot either")
            }
            _ => (AlarmSeverity::Serious, "is needed at the next start"),
        };
        let (uri, disks) = (&source.uri, source.disks.join(", "));
        let message = format!("the image {uri} below {disks} {what}: {cause}; `unstun source list` shows it");
        let object = format!("{}/{}", source.datastore, source.number);
        findings.add(AlarmRule::Source, &object, None, Grade::Reason(severity), message);
    }
}

fn of_policies(findings: &mut Findings<'_>, figures: &AlarmFigures) {
    if findings.of_all(AlarmRule::Policy).is_none() {
        return;
    }
    let serious = Grade::Reason(AlarmSeverity::Serious);
    if let Some(fault) = &figures.policies_fault {
        return findings.add(AlarmRule::Policy, "all", None, serious, fault.clone());
    }
    for one in &figures.metrics.policies {
        let Some(first) = one.problems.first().filter(|_| one.policy.enabled) else { continue };
        let name = one.policy.name.as_str();
        let more = match one.problems.len() - 1 {
            0 => String::new(),
            n => format!(", and {n} more"),
        };
        let message = format!(
            "policy {name} could not do its work: {}{more}; `unstun policy show {name}` lists it",
            first.sentence()
        );
        findings.add(AlarmRule::Policy, name, None, serious, message);
    }
}

fn of_guests(findings: &mut Findings<'_>, figures: &AlarmFigures) {
    for (vm, sentence) in &figures.unthawed {
        let known = figures.metrics.vms.iter().find(|one| one.name == *vm);
        let tags: &[Tag] = known.map_or(&[], |known| &known.tags);
        let name = vm.as_str();
        if thresholds::of(findings.thresholds, AlarmRule::GuestFrozen, Some((name, tags))).is_some() {
            let critical = Grade::Reason(AlarmSeverity::Critical);
            findings.add(
                AlarmRule::GuestFrozen,
                name,
                Some(name),
                critical,
                format!("VM {name}: {sentence}"),
            );
        }
    }
}
