//! Policies: snapshots that the daemon takes and removes by itself.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calendar::Calendar;
use crate::name::{PolicyName, SnapshotName, Tag, VmName};
use crate::window::Window;
use crate::{Quiesce, VmGlob};

/// Template of the names of snapshots, if a policy has no other.
pub const TEMPLATE_DEFAULT: &str = "{policy}-{time}";
/// Maximum number of schedules, patterns, tags and windows of a policy, each.
const PARTS_MAX: usize = 50;
/// Maximum number of snapshots that a rule of a retention keeps: a year of hours.
const KEPT_MAX: u32 = 10_000;
/// Maximum of `min_age_s`: a hundred years.
const AGE_S_MAX: u64 = 100 * 366 * 24 * 3600;

/// Body of `POST /policies` and `PUT /policies/NAME`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    pub name: PolicyName,
    /// When snapshots are taken: at the times of each expression.
    pub schedule: Vec<Calendar>,
    pub keep: Retention,
    /// VMs that the policy applies to: those that a pattern matches, and those that have one of the tags.
    #[serde(default)]
    pub vms: Vec<VmGlob>,
    #[serde(default)]
    pub tags: Vec<Tag>,
    /// Names of the snapshots. `{policy}`, `{vm}` and `{time}` are replaced; `{time}` is the time of the schedule in UTC.
    #[serde(default = "default_template")]
    pub template: String,
    /// Whether the last of the times that passed while the daemon was not running is caught up.
    #[serde(default = "yes")]
    pub catch_up: bool,
    /// When the commits that remove snapshots of redo VMs may run; empty: at any time. A removal in a native store costs
    /// nothing and needs no window.
    #[serde(default)]
    pub commit_window: Vec<Window>,
    #[serde(default)]
    pub removes: Removes,
    /// Whether the guests' file systems are frozen for its takes.
    #[serde(default)]
    pub quiesce: Quiesce,
    /// Whether the policy takes and removes snapshots.
    #[serde(default = "yes")]
    pub enabled: bool,
}

fn yes() -> bool {
    true
}

fn default_template() -> String {
    TEMPLATE_DEFAULT.to_owned()
}

words! {
    /// Which snapshots a policy removes when no rule keeps them. The command line shows the variants' comments as its help.
    #[derive(Default, clap::ValueEnum)]
    pub enum Removes {
        /// Those that the policy itself has taken
        #[default]
        Own = "own",
        /// All snapshots of its VMs, those that people and other policies took too
        All = "all",
    }
}

/// Snapshots that a policy keeps: each that one of the rules keeps. A rule about hours, days, weeks, months or years keeps
/// the last snapshot of each of so many of them that have one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    pub last: u32,
    pub hourly: u32,
    pub daily: u32,
    pub weekly: u32,
    pub monthly: u32,
    pub yearly: u32,
    /// Age in seconds below which no snapshot is removed.
    pub min_age_s: u64,
    /// Whether every snapshot is kept.
    pub all: bool,
}

impl Retention {
    /// Returns the rules that keep a number of snapshots, with their names.
    pub fn rules(&self) -> [(&'static str, u32); 6] {
        [
            ("last", self.last),
            ("hourly", self.hourly),
            ("daily", self.daily),
            ("weekly", self.weekly),
            ("monthly", self.monthly),
            ("yearly", self.yearly),
        ]
    }

    /// Returns the rules in words.
    pub fn describe(&self) -> String {
        if self.all {
            return "all".to_owned();
        }
        let rules = self.rules().into_iter().filter(|(_, count)| *count > 0);
        rules.map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    }
}

impl Policy {
    pub fn applies_to(&self, vm: &str, tags: &[Tag]) -> bool {
        self.vms.iter().any(|glob| glob.matches(vm)) || tags.iter().any(|tag| self.tags.contains(tag))
    }

    /// Returns the patterns and tags of its VMs, in words.
    pub fn describe_vms(&self) -> String {
        let patterns = self.vms.iter().map(ToString::to_string);
        patterns.chain(self.tags.iter().map(|tag| format!("tag {tag}"))).collect::<Vec<_>>().join(", ")
    }

    /// Returns the first scheduled time after `after`.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.schedule.iter().filter_map(|calendar| calendar.next(after)).min()
    }

    /// Returns the last scheduled time at or before `at` and after `after`.
    pub fn last_between(&self, after: Timestamp, at: Timestamp) -> Option<Timestamp> {
        self.schedule.iter().filter_map(|calendar| calendar.last_between(after, at)).max()
    }

    /// Returns the name of the snapshot of a VM for a scheduled time.
    pub fn snapshot_name(&self, vm: &str, scheduled: Timestamp) -> Result<SnapshotName, String> {
        let time = scheduled.strftime("%Y%m%dT%H%M%SZ").to_string();
        let name = self.template.replace("{time}", &time).replace("{policy}", self.name.as_str());
        name.replace("{vm}", vm).parse()
    }

    /// Returns whether commits may run.
    pub fn may_commit(&self, at: Timestamp) -> bool {
        self.commit_window.is_empty() || self.commit_window.iter().any(|window| window.contains(at))
    }

    pub fn check(&self) -> Result<(), String> {
        let counts = [self.schedule.len(), self.vms.len(), self.tags.len(), self.commit_window.len()];
        if let Some(count) = counts.into_iter().find(|&count| count > PARTS_MAX) {
            return Err(format!("policy with {count} parts of one kind: expected at most {PARTS_MAX}"));
        }
        if self.schedule.is_empty() {
            return Err("schedule: expected at least one calendar expression, such as daily".to_owned());
        }
        if self.vms.is_empty() && self.tags.is_empty() {
            return Err("vms, tags: the policy applies to no VM; the pattern * stands for all".to_owned());
        }
        if !self.template.contains("{time}") {
            return Err(
                "template: expected {time} in it, because the names of a VM's snapshots differ".to_owned()
            );
        }
        self.snapshot_name("x", Timestamp::UNIX_EPOCH).map_err(|e| format!("template: {e}"))?;
        self.check_retention()
    }

    fn check_retention(&self) -> Result<(), String> {
        let rules = self.keep.rules();
        if let Some((name, count)) = rules.into_iter().find(|(_, count)| *count > KEPT_MAX) {
            return Err(format!("keep.{name}: found {count}, expected at most {KEPT_MAX}"));
        }
        if self.keep.min_age_s > AGE_S_MAX {
            return Err(format!(
                "keep.min_age_s: found {}, expected at most {AGE_S_MAX}",
                self.keep.min_age_s
            ));
        }
        let keeps = rules.into_iter().any(|(_, count)| count > 0);
        match (self.keep.all, keeps) {
            (false, false) => Err("keep: expected a rule, such as last: 7, or all: true".to_owned()),
            (true, true) => Err("keep: expected rules or all: true, not both".to_owned()),
            _ => Ok(()),
        }
    }
}

/// A row of `policy list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyStatus {
    pub policy: Policy,
    pub created: Timestamp,
    /// Who created it, or changed it last.
    pub by: String,
    /// The next scheduled time; null for a policy that is disabled, or whose schedule has no more times.
    pub next: Option<Timestamp>,
    /// Open VMs that it applies to.
    pub vms: Vec<VmName>,
    /// The last run, or the one under way.
    pub last: Option<PolicyRun>,
    /// Snapshots that no rule keeps and that are not removed yet.
    pub waiting: u64,
    /// Why snapshots could not be taken in the last run, or not be removed.
    pub problems: Vec<PolicyProblem>,
}

/// The takes of a policy for one scheduled time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyRun {
    pub scheduled: Timestamp,
    pub started: Timestamp,
    /// Null while VMs are left whose snapshot is tried again.
    pub ended: Option<Timestamp>,
    /// Number of snapshots that were taken.
    pub taken: u64,
    /// Number of VMs of which no snapshot was taken.
    pub failed: u64,
}

/// Something that a policy could not do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyProblem {
    pub vm: VmName,
    /// Null if no snapshot was taken.
    pub snapshot: Option<String>,
    pub cause: String,
    pub time: Timestamp,
}

impl PolicyProblem {
    pub fn sentence(&self) -> String {
        let what = match &self.snapshot {
            None => "no snapshot was taken".to_owned(),
            Some(snapshot) => format!("snapshot {snapshot} was not removed"),
        };
        format!("VM {}: {what}: {}", self.vm, self.cause)
    }
}

/// Output of `policy preview`: what a policy will do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyPreview {
    pub policy: Policy,
    /// The next scheduled times.
    pub next: Vec<Timestamp>,
    /// Open VMs that it applies to.
    pub vms: Vec<PolicyPreviewVm>,
}

impl PolicyPreview {
    /// Returns the number of existing snapshots that the policy removes as soon as it is in force.
    pub fn removals(&self) -> usize {
        if self.policy.enabled { self.vms.iter().map(|vm| vm.removed.len()).sum() } else { 0 }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyPreviewVm {
    pub vm: VmName,
    /// Name of its next snapshot; null without a next time.
    pub next_snapshot: Option<String>,
    /// Number of its snapshots that the policy may remove, and that a rule keeps now.
    pub kept: u64,
    /// Snapshots that no rule keeps, the oldest first.
    pub removed: Vec<PolicyRemoval>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyRemoval {
    pub snapshot: String,
    pub created: Timestamp,
    /// Native VM: bytes that become free. Redo VM: bytes that the commit moves, at most.
    pub bytes: u64,
}

/// Body of `POST /policies/NAME/apply`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyApply {
    /// VMs to apply it to; empty: all of its VMs.
    pub vms: Vec<VmName>,
}

/// Output of `policy apply`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyApplied {
    pub taken: Vec<PolicyTaken>,
    pub problems: Vec<PolicyProblem>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyTaken {
    pub vm: VmName,
    pub snapshot: String,
    pub stun_us: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Result<Policy, String> {
        let policy: Policy = serde_json::from_str(text).map_err(|e| e.to_string())?;
        policy.check().map(|()| policy)
    }

    #[test]
    fn a_policy_has_defaults() {
        let text = r#"{"name": "nightly", "schedule": ["daily"], "keep": {"last": 7}, "vms": ["web*"]}"#;
        let policy = policy(text).unwrap();
        assert!(policy.enabled && policy.catch_up && policy.removes == Removes::Own);
        assert!(policy.applies_to("web-1", &[]) && !policy.applies_to("db", &[]));
        let name = policy.snapshot_name("web", "2026-11-27T02:00:00Z".parse().unwrap()).unwrap();
        assert_eq!(name.as_str(), "nightly-20261127T020000Z");
        let again: Policy = serde_json::from_str(&serde_json::to_string(&policy).unwrap()).unwrap();
        assert_eq!(again, policy);
    }

    #[test]
    fn what_is_no_policy_is_refused_with_the_field() {
        let fields = |changes: &str| {
            let all = r#""name": "n", "schedule": ["daily"], "keep": {"last": 7}, "vms": ["*"]"#;
            let mut value: serde_json::Value = serde_json::from_str(&format!("{{{all}}}")).unwrap();
            let change: serde_json::Value = serde_json::from_str(&format!("{{{changes}}}")).unwrap();
            for (key, changed) in change.as_object().unwrap() {
                value[key] = changed.clone();
            }
            value.to_string()
        };
        for (changes, expected) in [
            (r#""schedule": []"#, "schedule: expected at least one"),
            (r#""schedule": ["nightly"]"#, "examples are `daily`"),
            (r#""keep": {}"#, "keep: expected a rule"),
            (r#""keep": {"last": 1, "all": true}"#, "not both"),
            (r#""keep": {"last": -1}"#, "-1"),
            (r#""keep": {"dayly": 1}"#, "unknown field `dayly`"),
            (r#""vms": []"#, "applies to no VM"),
            (r#""template": "x""#, "{time}"),
            (r#""template": "a/{time}""#, "template: snapshot name"),
            (r#""commit_window": ["22:00"]"#, "HH:MM-HH:MM"),
            (r#""removes": "some""#, "unknown variant `some`"),
            (r#""window": []"#, "unknown field `window`"),
        ] {
            let error = policy(&fields(changes)).unwrap_err();
            assert!(error.contains(expected), "{changes}: {error}");
        }
    }
}
