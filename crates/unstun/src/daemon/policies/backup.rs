//! Backups: the last snapshot of a policy of each of its VMs goes into the repository that the policy names.
//!
//! What is to be done follows from the labels of the snapshots, so that a restart forgets none of it. Later backups compare
//! with the last snapshot that is in the repository: no rule removes that one.

use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;

use api::error::{Error, Result};
use api::name::{PolicyName, RepositoryName, VmName};
use api::{Policy, PolicyAction, PolicyBackup, PolicyBackups, Store};
use blk::manifest::SnapshotState;
use futures_util::future::select;
use jiff::SignedDuration;
use tracing::{info, warn};

use super::backup_process::{self, What, Work};
use super::registry::UnderWay;
use crate::daemon::requests::api_types;
use crate::daemon::state::Daemon;
use crate::daemon::vm::labels::{BackupRef, Labels, SnapshotLabel};
use crate::daemon::vm::vm_record::VmRecord;
use crate::repository::refuse_unknown;

/// Maximum number of backups at the same time into one repository, and over all policies: each reads disks, and compresses,
/// beside the guests. A repository that does not answer leaves the others two.
const OF_REPOSITORY_MAX: usize = 2;
const BACKUPS_MAX: usize = 4;
/// Time after which a snapshot that waits for the backups of others is a problem.
const WAIT_MAX: SignedDuration = SignedDuration::from_hours(1);
/// Interval between two looks for backups that failed and are tried again.
const LOOK_US: u64 = 60_000_000;
/// Time after which a backup that failed is tried again.
const AGAIN: SignedDuration = SignedDuration::from_mins(15);

/// A backup to make.
struct Due {
    policy: Policy,
    to: PolicyBackup,
    entry: Rc<VmRecord>,
    snapshot: SnapshotState,
    /// Time of the VM's last state in the repository.
    last_unix_us: Option<i64>,
}

/// A policy's snapshots of a VM, the oldest first.
fn own<'a>(
    labels: &'a Labels,
    policy: &'a PolicyName,
    snapshots: &'a [SnapshotState],
) -> Vec<(&'a SnapshotState, &'a SnapshotLabel)> {
    let label = |s: &SnapshotState| labels.of_snapshot(s.id);
    let is_own = |label: &SnapshotLabel| label.policy.as_ref().is_some_and(|of| of.name == *policy);
    let mut own: Vec<_> =
        snapshots.iter().filter_map(|s| Some((s, label(s).filter(|label| is_own(label))?))).collect();
    own.sort_by_key(|(s, _)| s.created_unix_us);
    own
}

fn is_in(label: &SnapshotLabel, repository: &RepositoryName) -> bool {
    label.backup.as_ref().is_some_and(|backup| backup.repository == *repository)
}

/// Returns the backups that have to end before another one into `repository` begins; None if it may begin now.
fn before_it(under_way: &[UnderWay], repository: &RepositoryName) -> Option<String> {
    let there: Vec<&UnderWay> = under_way.iter().filter(|one| one.repository == *repository).collect();
    let all: Vec<&UnderWay> = under_way.iter().collect();
    let others = [(there, OF_REPOSITORY_MAX), (all, BACKUPS_MAX)];
    let (others, _) = others.into_iter().find(|(others, most)| others.len() >= *most)?;
    let said = others.iter().map(|one| {
        let vm = one.of.as_ref().map_or_else(|| format!("policy {}", one.policy), |(vm, _)| vm.to_string());
        format!("{vm} into {}, under way since {:.0}", one.repository, one.since)
    });
    Some(said.collect::<Vec<_>>().join(", and "))
}

fn note_of(policy: &PolicyName) -> String {
    format!("policy {policy}")
}

impl Daemon {
    /// Makes the backups of all policies, as long as the daemon runs.
    pub(in crate::daemon) async fn back_up_by_policies(self: Rc<Self>) {
        loop {
            let wanted = self.policies.to_back_up.wait();
            self.start_backups().await;
            select(pin!(self.env.sleep_us(LOOK_US)), pin!(wanted)).await;
        }
    }

    /// Starts the backups that are due, the longest due first, as many as run at the same time. A policy whose backups
    /// are all made removes those that none of its rules keeps.
    pub(super) async fn start_backups(self: &Rc<Self>) {
        let mut due = Vec::new();
        for policy in self.policies.enabled() {
            let Some(to) = policy.backup.clone() else { continue };
            let before = due.len();
            for entry in self.policy_vms(&policy).await {
                // Guests must not wait for the states of all VMs.
                self.env.next_turn().await;
                due.extend(self.due_backup(&policy, &to, &entry).await);
            }
            if due.len() == before {
                self.start_prune(&policy, &to).await;
            }
        }
        due.sort_by_key(|due| due.last_unix_us);
        for due in due {
            // Another policy with this repository may have begun with the VM.
            if self.backup_of(&due.entry, &due.to.repository).is_some() {
                continue;
            }
            let before = before_it(&self.policies.backups.borrow(), &due.to.repository);
            match before {
                Some(others) => self.note_late_backup(&due, &others),
                None => self.start_backup(due),
            }
        }
    }

    /// Refuses a policy whose backups could not begin.
    pub(super) async fn refuse_unknown_repository(&self, policy: &Policy) -> Result<()> {
        let Some(to) = policy.backup.clone() else { return Ok(()) };
        match self.policies.backup_maker.get() {
            None => self.env.blocking(move || refuse_unknown(&to.repository)).await,
            Some(_) => Ok(()),
        }
    }

    fn backup_of(&self, entry: &VmRecord, repository: &RepositoryName) -> Option<UnderWay> {
        let is_of = |one: &&UnderWay| {
            let of_vm = one.of.as_ref().is_some_and(|(vm, _)| vm.as_str() == entry.name);
            of_vm && one.repository == *repository
        };
        self.policies.backups.borrow().iter().find(is_of).cloned()
    }

    async fn due_backup(
        self: &Rc<Self>,
        policy: &Policy,
        to: &PolicyBackup,
        entry: &Rc<VmRecord>,
    ) -> Option<Due> {
        let snapshots = entry.running.state().await.snapshots;
        let vm = api_types::vm_name(&entry.name);
        let (snapshot, last_unix_us) = {
            let labels = entry.labels.get();
            let own = own(&labels, &policy.name, &snapshots);
            let (last, label) = own.last()?;
            if is_in(label, &to.repository) {
                return None;
            }
            let backed_up = own.iter().rev().find(|(_, label)| is_in(label, &to.repository));
            ((*last).clone(), backed_up.map(|(s, _)| s.created_unix_us))
        };
        if let Some(under_way) = self.backup_of(entry, &to.repository) {
            self.note_slow(policy, &vm, &snapshot, &under_way);
            return None;
        }
        let failed = self.policies.with_runs(&policy.name, |runs| {
            runs.not_backed_up.get(&vm).map(|problem| (problem.time, problem.snapshot.clone()))
        });
        let waits = failed.flatten().is_some_and(|(time, of)| {
            of.as_ref() == Some(&snapshot.name) && self.now().duration_since(time) < AGAIN
        });
        (!waits).then(|| Due {
            policy: policy.clone(),
            to: to.clone(),
            entry: entry.clone(),
            snapshot,
            last_unix_us,
        })
    }

    /// A backup that has not ended when the next one is due is a problem.
    fn note_slow(&self, policy: &Policy, vm: &VmName, snapshot: &SnapshotState, under_way: &UnderWay) {
        if under_way.of.as_ref().is_some_and(|(_, id)| *id == snapshot.id) || under_way.policy != policy.name
        {
            return;
        }
        let cause = format!("the backup before has been under way since {:.0}", under_way.since);
        let error = Error::failed(cause);
        self.keep_backup_problem(policy, vm, &snapshot.name, &error);
    }

    /// A snapshot that waits for long, because the backups of others do not end, is a problem. It is noted once.
    fn note_late_backup(&self, due: &Due, others: &str) {
        let (vm, snapshot) = (api_types::vm_name(&due.entry.name), &due.snapshot);
        let waited = self.now().duration_since(api_types::time(snapshot.created_unix_us));
        let noted = self.policies.with_runs(&due.policy.name, |runs| runs.not_backed_up.contains_key(&vm));
        if waited >= WAIT_MAX && noted == Some(false) {
            let cause = format!("the backup waits for those of {others}");
            self.keep_backup_problem(&due.policy, &vm, &snapshot.name, &Error::failed(cause));
        }
    }

    fn keep_backup_problem(&self, policy: &Policy, vm: &VmName, snapshot: &str, error: &Error) {
        let problem = self.problem(vm.clone(), PolicyAction::Backup, Some(snapshot), error);
        self.report_problem(&policy.name, &problem);
        self.policies.with_runs(&policy.name, |runs| runs.not_backed_up.insert(vm.clone(), problem));
    }

    fn start_backup(self: &Rc<Self>, due: Due) {
        let vm = api_types::vm_name(&due.entry.name);
        let under_way = UnderWay {
            policy: due.policy.name.clone(),
            repository: due.to.repository.clone(),
            of: Some((vm.clone(), due.snapshot.id)),
            since: self.now(),
        };
        self.policies.backups.borrow_mut().push(under_way.clone());
        let daemon = self.clone();
        self.env.spawn_detached(Box::pin(async move {
            let what = What::Make { vm: vm.clone(), snapshot: api_types::id(due.snapshot.id) };
            let done = daemon.work(&due.policy, &due.to, what).await;
            let labelled = match done {
                Ok(number) => daemon.note_backup(&due, number).await,
                Err(e) => Err(e),
            };
            let (policy, snapshot) = (&due.policy, &due.snapshot.name);
            match labelled {
                Ok(()) => {
                    daemon.policies.with_runs(&policy.name, |runs| {
                        runs.not_backed_up.remove(&vm);
                        runs.to_prune = !due.to.keep.all;
                    });
                }
                Err(e) => daemon.keep_backup_problem(policy, &vm, snapshot, &e),
            }
            daemon.end_of(&under_way);
        }));
    }

    fn end_of(&self, under_way: &UnderWay) {
        self.policies.backups.borrow_mut().retain(|one| one != under_way);
        self.policies.to_back_up.notify();
        // What the backup has held.
        self.policies.to_remove.notify();
    }

    async fn work(&self, policy: &Policy, to: &PolicyBackup, what: What) -> Result<u32> {
        let work = Work {
            datastore: self.main.root.clone(),
            repository: to.repository.clone(),
            note: note_of(&policy.name),
            what,
        };
        let run = self.policies.backup_maker.get().unwrap_or(backup_process::run);
        self.env.blocking(move || run(&work)).await
    }

    /// Durably notes which backup a snapshot has. Without the note it is backed up once more, which stores nothing.
    async fn note_backup(&self, due: &Due, number: u32) -> Result<()> {
        let Due { policy, to, entry, snapshot, .. } = due;
        let repository = &to.repository;
        info!(
            "policy {}: VM {}: snapshot {} is backup {number} in {repository}",
            policy.name, entry.name, snapshot.name
        );
        let message = format!(
            "policy {}: snapshot {} is backup {number} in repository {repository}",
            policy.name, snapshot.name
        );
        self.note(entry, &message);
        let label = entry.labels.get().of_snapshot(snapshot.id).cloned();
        let Some(label) = label else { return Ok(()) };
        let backup = Some(BackupRef { repository: repository.clone(), number });
        Ok(self.label_snapshot(entry, snapshot.id, SnapshotLabel { backup, ..label }).await?)
    }

    /// Removes the backups of a policy that none of its rules keeps.
    async fn start_prune(self: &Rc<Self>, policy: &Policy, to: &PolicyBackup) {
        let is_busy = self.policies.backups.borrow().iter().any(|one| one.policy == policy.name);
        let wanted = self.policies.with_runs(&policy.name, |runs| runs.to_prune);
        if is_busy || wanted != Some(true) {
            return;
        }
        let mut vms = Vec::new();
        for entry in self.policy_vms(policy).await {
            vms.push(api_types::id(entry.running.state().await.id));
        }
        self.policies.with_runs(&policy.name, |runs| runs.to_prune = false);
        let under_way = UnderWay {
            policy: policy.name.clone(),
            repository: to.repository.clone(),
            of: None,
            since: self.now(),
        };
        self.policies.backups.borrow_mut().push(under_way.clone());
        let (daemon, policy, to) = (self.clone(), policy.clone(), to.clone());
        self.env.spawn_detached(Box::pin(async move {
            let (name, repository) = (&policy.name, &to.repository);
            // The next backups are followed by another one.
            match daemon.work(&policy, &to, What::Prune { vms, keep: to.keep }).await {
                Ok(count) => info!("policy {name}: {count} backups are removed from {repository}"),
                Err(e) => warn!("policy {name}: old backups stay in {repository}: {e}"),
            }
            daemon.end_of(&under_way);
        }));
    }

    /// Returns the snapshots that no policy removes: those that are being backed up, and the last one that is in the
    /// policy's repository.
    pub(super) fn held_for_backups(
        &self,
        policy: &Policy,
        entry: &VmRecord,
        snapshots: &[SnapshotState],
    ) -> BTreeSet<u128> {
        let of_vm = |one: &UnderWay| {
            one.of.as_ref().filter(|(vm, _)| vm.as_str() == entry.name).map(|(_, snapshot)| *snapshot)
        };
        let mut held: BTreeSet<u128> = self.policies.backups.borrow().iter().filter_map(of_vm).collect();
        // In a redo store nothing is compared, and a snapshot that stays costs.
        if let (Some(to), Store::Native) = (&policy.backup, entry.kept.store()) {
            let labels = entry.labels.get();
            let own = own(&labels, &policy.name, snapshots);
            held.extend(own.iter().rev().find(|(_, label)| is_in(label, &to.repository)).map(|(s, _)| s.id));
        }
        held
    }

    /// Counts the VMs of a policy whose last snapshot is backed up.
    pub(super) async fn count_backups(
        &self,
        policy: &Policy,
        to: &PolicyBackup,
        entries: &[Rc<VmRecord>],
    ) -> PolicyBackups {
        let mut counts = PolicyBackups::default();
        let mut oldest = Some(i64::MAX);
        for entry in entries {
            let snapshots = entry.running.state().await.snapshots;
            let labels = entry.labels.get();
            let own = own(&labels, &policy.name, &snapshots);
            match own.last() {
                Some((_, label)) if is_in(label, &to.repository) => counts.done += 1,
                Some(_) => counts.waiting += 1,
                None => {}
            }
            let last = own.iter().rev().find(|(_, label)| is_in(label, &to.repository));
            oldest = oldest.and_then(|oldest| Some(oldest.min(last?.0.created_unix_us)));
        }
        counts.oldest = oldest.filter(|us| *us != i64::MAX).map(api_types::time);
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_that_does_not_answer_leaves_room_for_others() {
        let one = |repository: &str, vm: &str| UnderWay {
            policy: "nightly".parse().unwrap(),
            repository: repository.parse().unwrap(),
            of: Some((vm.parse().unwrap(), 1)),
            since: jiff::Timestamp::UNIX_EPOCH,
        };
        let (hung, other) = ("hung".parse().unwrap(), "other".parse().unwrap());
        let mut under_way = vec![one("hung", "a")];
        assert_eq!(before_it(&under_way, &hung), None);
        under_way.push(one("hung", "b"));
        let others = before_it(&under_way, &hung).unwrap();
        assert!(
            others.contains("a into hung, under way since 1970") && others.contains("b into"),
            "{others}"
        );
        assert_eq!(before_it(&under_way, &other), None);
        under_way.extend([one("other", "c"), one("third", "d")]);
        assert!(before_it(&under_way, &other).unwrap().contains("d into third"));
    }
}
