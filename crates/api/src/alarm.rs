//! Alarms: what an administrator should know and do something about.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::VmGlob;
use crate::name::{Tag, VmName};

words! {
    /// What an alarm is about. The command line shows the variants' comments as its help.
    #[derive(PartialOrd, Ord, clap::ValueEnum)]
    pub enum AlarmRule {
        /// A snapshot that no policy took is older than N hours
        #[value(name = "snapshot_old")]
        SnapshotOld = "snapshot_old",
        /// The snapshots of a VM use more than N percent of the size of its disks
        #[value(name = "snapshot_space")]
        SnapshotSpace = "snapshot_space",
        /// The snapshots of a VM grow faster than N GiB per hour
        #[value(name = "snapshot_growth")]
        SnapshotGrowth = "snapshot_growth",
        /// A datastore is full within N days at its present growth
        #[value(name = "datastore_fills")]
        DatastoreFills = "datastore_fills",
        /// Guest writes wait because a datastore is full
        #[value(name = "datastore_full")]
        DatastoreFull = "datastore_full",
        /// A datastore does not answer
        #[value(name = "datastore_hung")]
        DatastoreHung = "datastore_hung",
        /// A datastore cannot be served, or is read-only because its store failed or its lease was lost
        #[value(name = "datastore_failed")]
        DatastoreFailed = "datastore_failed",
        /// A VM cannot be opened, or its files cannot be read
        #[value(name = "vm_broken")]
        VmBroken = "vm_broken",
        /// The file systems of a VM's guest may have stayed frozen after a snapshot
        #[value(name = "guest_frozen")]
        GuestFrozen = "guest_frozen",
        /// One of a hundred requests of a VM takes longer than N milliseconds, for a minute
        #[value(name = "latency")]
        Latency = "latency",
        /// Requests of a VM fail
        #[value(name = "io_errors")]
        IoErrors = "io_errors",
        /// A job makes no progress for N minutes
        #[value(name = "job_stalled")]
        JobStalled = "job_stalled",
        /// A job has failed
        #[value(name = "job_failed")]
        JobFailed = "job_failed",
        /// An image below disks cannot be read, or will not be at the daemon's next start
        #[value(name = "source")]
        Source = "source",
        /// A policy could not take or remove snapshots
        #[value(name = "policy")]
        Policy = "policy",
    }
}

impl AlarmRule {
    pub const ALL: [AlarmRule; 15] = [
        AlarmRule::SnapshotOld,
        AlarmRule::SnapshotSpace,
        AlarmRule::SnapshotGrowth,
        AlarmRule::DatastoreFills,
        AlarmRule::DatastoreFull,
        AlarmRule::DatastoreHung,
        AlarmRule::DatastoreFailed,
        AlarmRule::VmBroken,
        AlarmRule::GuestFrozen,
        AlarmRule::Latency,
        AlarmRule::IoErrors,
        AlarmRule::JobStalled,
        AlarmRule::JobFailed,
        AlarmRule::Source,
        AlarmRule::Policy,
    ];

    /// Returns the default threshold and its unit; None for a rule that has no number.
    pub fn threshold(self) -> Option<(u64, &'static str)> {
        match self {
            Self::SnapshotOld => Some((72, "hours")),
            Self::SnapshotSpace => Some((50, "percent")),
            Self::SnapshotGrowth => Some((20, "GiB per hour")),
            Self::DatastoreFills => Some((7, "days")),
            Self::Latency => Some((500, "ms")),
            Self::JobStalled => Some((10, "minutes")),
            _ => None,
        }
    }

    /// Returns whether the rule is about VMs, so that their patterns and tags can change it.
    pub fn is_of_vms(self) -> bool {
        !matches!(
            self,
            Self::DatastoreFills
                | Self::DatastoreFull
                | Self::DatastoreHung
                | Self::DatastoreFailed
                | Self::Source
                | Self::Policy
        )
    }
}

words! {
    #[derive(PartialOrd, Ord, clap::ValueEnum)]
    pub enum AlarmSeverity {
        /// To be seen to in the next days
        Warning = "warning",
        /// To be seen to today
        Serious = "serious",
        /// To be seen to now
        Critical = "critical",
    }
}

/// A row of `alarm list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Alarm {
    /// Rule and object: `snapshot_old:web`.
    pub id: String,
    pub rule: AlarmRule,
    pub severity: AlarmSeverity,
    /// Name of the VM, the datastore or the policy, or number of the job.
    pub object: String,
    /// The VM that it is about; null for others.
    pub vm: Option<VmName>,
    /// What is so, and what to do.
    pub message: String,
    pub raised: Timestamp,
    /// Null while it lasts.
    pub cleared: Option<Timestamp>,
    pub acknowledged: Option<Acknowledged>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Acknowledged {
    /// Who, as in the audit.
    pub by: String,
    pub time: Timestamp,
    pub note: String,
}

/// Body of `POST /alarms/ID/acknowledge`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AlarmAcknowledge {
    /// One line of text.
    pub note: String,
}

/// Body of `POST /alarms/mutes`: alarms that are not delivered for a time. One of `alarm` and `rule` is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AlarmMute {
    /// Id of one alarm.
    pub alarm: Option<String>,
    pub rule: Option<AlarmRule>,
    /// Limits a rule to these VMs.
    pub vm: Option<VmGlob>,
    pub for_s: u64,
}

/// A row of `alarm mutes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlarmMuted {
    /// Number by which it is ended.
    pub id: u64,
    pub alarm: Option<String>,
    pub rule: Option<AlarmRule>,
    pub vm: Option<VmGlob>,
    pub until: Timestamp,
    pub by: String,
}

/// Body of `PUT /alarms/rules`: the threshold of a rule for some VMs, or for all objects. The one that names a pattern applies
/// before the one that names a tag, and that before the one that names neither.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlarmThreshold {
    pub rule: AlarmRule,
    #[serde(default)]
    pub vm: Option<VmGlob>,
    #[serde(default)]
    pub tag: Option<Tag>,
    /// Null switches the rule off; a rule without a number takes 1.
    pub value: Option<u64>,
}

/// A row of `alarm rules`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlarmRuleShown {
    pub rule: AlarmRule,
    /// Default threshold; null for a rule that has no number.
    pub default: Option<u64>,
    pub unit: Option<String>,
    pub thresholds: Vec<AlarmThreshold>,
}

/// A row of `alarm channels`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlarmChannel {
    /// Name of its file without `.toml`.
    pub name: String,
    /// `webhook`, `email` or `command`; null if the file cannot be used.
    pub kind: Option<String>,
    /// Why the file cannot be used.
    pub fault: Option<String>,
    pub delivered: u64,
    pub failed: u64,
    /// When the last delivery ended, and why it failed if it did.
    pub last: Option<Timestamp>,
    pub last_error: Option<String>,
}

/// What a channel delivers: the body of a webhook, and the input of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlarmMessage {
    /// Name of the host.
    pub host: String,
    /// Path of the daemon's main datastore.
    pub datastore: String,
    pub time: Timestamp,
    /// Alarms that were raised, or have become more severe, or were cleared.
    pub alarms: Vec<Alarm>,
    /// Number of further alarms that the message leaves out.
    pub more: u64,
    /// Whether `unstun alarm test` sent it.
    pub test: bool,
}

const TEXT_BYTES_MAX: usize = 200;
/// Maximum of `for_s`: a year.
const MUTE_S_MAX: u64 = 366 * 24 * 3600;
const VALUE_MAX: u64 = 1_000_000;

impl AlarmMute {
    pub fn check(&self) -> Result<(), String> {
        if self.alarm.is_some() == self.rule.is_some() {
            return Err("expected an alarm or a rule, and not both".to_owned());
        }
        if self.alarm.as_ref().is_some_and(|id| id.len() > TEXT_BYTES_MAX) {
            return Err(format!("alarm: expected at most {TEXT_BYTES_MAX} bytes"));
        }
        if self.vm.is_some() && !self.rule.is_some_and(AlarmRule::is_of_vms) {
            return Err("vm: expected a rule about VMs with it".to_owned());
        }
        match self.for_s {
            1..=MUTE_S_MAX => Ok(()),
            found => Err(format!("for_s: found {found}, expected 1 to {MUTE_S_MAX} seconds")),
        }
    }
}

impl AlarmMuted {
    /// Returns what is muted, in words.
    pub fn what(&self) -> String {
        let of = self.vm.as_ref().map_or(String::new(), |vm| format!(" of VMs {vm}"));
        match (&self.alarm, self.rule) {
            (Some(alarm), _) => format!("alarm {alarm}"),
            (None, rule) => format!("rule {}{of}", rule.map_or("", AlarmRule::as_str)),
        }
    }
}

impl AlarmRuleShown {
    /// Returns the threshold of all objects that no other one names.
    pub fn general(&self) -> Option<u64> {
        let set = self.thresholds.iter().find(|one| one.vm.is_none() && one.tag.is_none());
        set.map_or(Some(self.default.unwrap_or(1)), |one| one.value)
    }

    /// Returns a threshold in words.
    pub fn describe(&self, value: Option<u64>) -> String {
        match (value, self.default) {
            (None, _) => "off".to_owned(),
            (Some(_), None) => "on".to_owned(),
            (Some(value), Some(_)) => format!("{value} {}", self.unit.as_deref().unwrap_or_default()),
        }
    }
}

impl AlarmThreshold {
    /// Returns the objects that the threshold is for, in words.
    pub fn objects(&self) -> String {
        match (&self.vm, &self.tag) {
            (Some(vm), _) => vm.to_string(),
            (None, Some(tag)) => format!("tag {tag}"),
            (None, None) => "all".to_owned(),
        }
    }

    pub fn check(&self) -> Result<(), String> {
        let rule = self.rule.as_str();
        if (self.vm.is_some() || self.tag.is_some()) && !self.rule.is_of_vms() {
            return Err(format!("rule {rule} is not about VMs: expected no pattern and no tag"));
        }
        if self.vm.is_some() && self.tag.is_some() {
            return Err("expected a pattern or a tag, and not both".to_owned());
        }
        match (self.value, self.rule.threshold()) {
            (None, _) | (Some(1), None) => Ok(()),
            (Some(found), None) => {
                Err(format!("rule {rule} has no number: found {found}, expected 1 (on) or null (off)"))
            }
            (Some(1..=VALUE_MAX), Some(_)) => Ok(()),
            (Some(found), Some((_, unit))) => {
                Err(format!("rule {rule}: found {found}, expected 1 to {VALUE_MAX} {unit}, or null (off)"))
            }
        }
    }
}
