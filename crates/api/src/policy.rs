//! Policies: snapshots that the daemon takes and removes by itself.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calendar::Calendar;
use crate::name::{PolicyName, RepositoryName, SnapshotName, Tag, VmName};
use crate::retention::Retention;
use crate::window::Window;
use crate::{Quiesce, VmGlob};

/// Template of the names of snapshots, if a policy has no other.
pub const TEMPLATE_DEFAULT: &str = "{policy}-{time}";
/// Maximum number of schedules, patterns, tags and windows of a policy, each.
const PARTS_MAX: usize = 50;

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
    /// Where its snapshots are backed up; null: nowhere.
    #[serde(default)]
    pub backup: Option<PolicyBackup>,
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

/// Where the snapshots of a policy are backed up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyBackup {
    /// Repository, by its name in `/etc/unstun/repositories.toml` on the daemon's host.
    pub repository: RepositoryName,
    /// Backups of the policy that stay in the repository, of each VM.
    #[serde(default = "Retention::all")]
    pub keep: Retention,
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
        self.keep.check().map_err(|e| format!("keep{e}"))?;
        match &self.backup {
            Some(backup) => backup.keep.check().map_err(|e| format!("backup.keep{e}")),
            None => Ok(()),
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
    /// Its backups; null for a policy without.
    pub backups: Option<PolicyBackups>,
    /// Why snapshots could not be taken in the last run, not be backed up, or not be removed.
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

/// The backups of a policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyBackups {
    /// Number of VMs whose last snapshot of the policy is in the repository.
    pub done: u64,
    /// Number of VMs whose last snapshot is being backed up, or waits for that.
    pub waiting: u64,
    /// Oldest time of what the repository has of any of its VMs; null if there is a VM of which it has nothing.
    pub oldest: Option<Timestamp>,
}

impl PolicyBackups {
    pub fn sentence(&self) -> String {
        let waiting = if self.waiting > 0 { format!(", {} to do", self.waiting) } else { String::new() };
        let oldest = self.oldest.map_or(String::new(), |oldest| format!(", none older than {oldest:.0}"));
        format!("{} VMs done{waiting}{oldest}", self.done)
    }
}

words! {
    /// What a policy does to a snapshot.
    pub enum PolicyAction {
        Take = "take",
        Remove = "remove",
        Backup = "backup",
    }
}

/// Something that a policy could not do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyProblem {
    pub vm: VmName,
    pub action: PolicyAction,
    /// Null if no snapshot was taken.
    pub snapshot: Option<String>,
    pub cause: String,
    pub time: Timestamp,
}

impl PolicyProblem {
    /// Returns what was not done.
    pub fn what(&self) -> String {
        let snapshot = self.snapshot.as_deref().unwrap_or_default();
        match self.action {
            PolicyAction::Take => "no snapshot was taken".to_owned(),
            PolicyAction::Remove => format!("snapshot {snapshot} was not removed"),
            PolicyAction::Backup => format!("snapshot {snapshot} was not backed up"),
        }
    }

    pub fn sentence(&self) -> String {
        format!("VM {}: {}: {}", self.vm, self.what(), self.cause)
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
            (r#""backup": {"repository": "s3://bucket"}"#, "repository name"),
            (r#""backup": {"repository": "r", "keep": {}}"#, "backup.keep: expected a rule"),
            (r#""window": []"#, "unknown field `window`"),
        ] {
            let error = policy(&fields(changes)).unwrap_err();
            assert!(error.contains(expected), "{changes}: {error}");
        }
    }
}
