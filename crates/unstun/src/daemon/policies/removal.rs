//! Removal: the commits of snapshots that no rule of their policy keeps any more.

use std::pin::pin;
use std::rc::Rc;

use api::error::Result;
use api::name::{SnapshotRef, VmName};
use api::{CommitTarget, Policy, PolicyAction, Removes, Store};
use blk::Env;
use blk::manifest::SnapshotState;
use engine::{JobControl, JobState};
use futures_util::future::{Either, select};
use jiff::tz::TimeZone;
use tracing::info;

use crate::daemon::requests::answer::Subject;
use crate::daemon::requests::api_types;
use crate::daemon::state::Daemon;
use crate::daemon::vm::vm_record::VmRecord;
use crate::retention;

/// Interval between two looks at what has to be removed of redo VMs: their windows begin at any time.
const LOOK_US: u64 = 60_000_000;
/// The same for native VMs: beside runs, only an age changes anything.
const NATIVE_LOOK_US: u64 = 10 * LOOK_US;
/// Interval between two looks at a commit under way, whose window may end.
const WINDOW_LOOK_US: u64 = 10_000_000;

/// Snapshots of a VM that a policy may remove, by whether a rule keeps them.
pub(super) struct Judged {
    pub kept: u64,
    /// The oldest first.
    pub expired: Vec<SnapshotState>,
}

impl Daemon {
    /// Removes snapshots of VMs of one kind of store, as long as the daemon runs. Commits of redo VMs move data; a native
    /// store need not wait for them.
    pub(in crate::daemon) async fn remove_by_policies(self: Rc<Self>, store: Store) {
        loop {
            let wanted = self.policies.to_remove.wait();
            self.remove_expired(store).await;
            let us = if store == Store::Native { NATIVE_LOOK_US } else { LOOK_US };
            select(pin!(self.env.sleep_us(us)), pin!(wanted)).await;
        }
    }

    /// Removes what no rule keeps: in a redo store one snapshot after the other, and only when commits may run.
    pub(super) async fn remove_expired(self: &Rc<Self>, store: Store) {
        for policy in self.policies.enabled().into_iter().filter(|policy| !policy.keep.all) {
            for entry in
                self.policy_vms(&policy).await.into_iter().filter(|entry| entry.kept.store() == store)
            {
                // Guests must not wait for the states of all VMs.
                self.env.next_turn().await;
                self.remove_expired_of(&policy, &entry).await;
            }
        }
    }

    async fn remove_expired_of(self: &Rc<Self>, policy: &Policy, entry: &Rc<VmRecord>) {
        let vm = api_types::vm_name(&entry.name);
        let expired = self.judge(policy, entry).await.expired;
        self.note_waiting(policy, &vm, expired.len());
        self.policies.with_runs(&policy.name, |runs| {
            runs.not_removed.retain(|(of, name), _| *of != vm || expired.iter().any(|s| s.name == *name));
        });
        for (n, snapshot) in expired.iter().enumerate() {
            let is_redo = entry.kept.store() == Store::Redo;
            // A commit of a redo VM may take long; the policy, or whether it applies to the VM, may have changed meanwhile.
            if !self.applies_still(policy, entry)
                || is_redo && (!policy.may_commit(self.now()) || entry.running.has_open_job())
            {
                return;
            }
            let removed = self.remove_one(policy, entry, snapshot).await;
            self.note_waiting(policy, &vm, expired.len() - n - usize::from(removed.is_ok()));
            let key = (vm.clone(), snapshot.name.clone());
            match removed {
                Ok(()) => {
                    self.policies.with_runs(&policy.name, |runs| runs.not_removed.remove(&key));
                }
                Err(e) => {
                    let problem = self.problem(vm.clone(), PolicyAction::Remove, Some(&snapshot.name), &e);
                    self.report_problem(&policy.name, &problem);
                    self.policies.with_runs(&policy.name, |runs| runs.not_removed.insert(key, problem));
                }
            }
        }
    }

    fn applies_still(&self, policy: &Policy, entry: &Rc<VmRecord>) -> bool {
        let is_same = self.policies.get(&policy.name).is_ok_and(|stored| stored.policy == *policy);
        let is_there = self.entry(&entry.name).is_ok_and(|now| Rc::ptr_eq(&now, entry));
        is_same && is_there && policy.applies_to(&entry.name, &entry.labels.get().tags)
    }

    fn note_waiting(&self, policy: &Policy, vm: &VmName, count: usize) {
        self.policies.with_runs(&policy.name, |runs| {
            runs.waiting.remove(vm);
            if count > 0 {
                runs.waiting.insert(vm.clone(), count as u64);
            }
        });
    }

    /// Returns the snapshots of a VM that a policy may remove.
    pub(super) async fn judge(&self, policy: &Policy, entry: &VmRecord) -> Judged {
        let mut snapshots = entry.running.state().await.snapshots;
        let labels = entry.labels.get();
        let is_own = |s: &SnapshotState| {
            let label = labels.of_snapshot(s.id).and_then(|label| label.policy.as_ref());
            label.is_some_and(|of| of.name == policy.name)
        };
        snapshots.retain(|s| policy.removes == Removes::All || is_own(s));
        snapshots.sort_by_key(|s| s.created_unix_us);
        let held = self.held_for_backups(policy, entry, &snapshots);
        let taken: Vec<_> = snapshots.iter().map(|s| api_types::time(s.created_unix_us)).collect();
        let zone = policy.schedule.first().map_or(TimeZone::UTC, |calendar| calendar.zone());
        let mut kept = retention::kept(&taken, &policy.keep, &zone, self.now(), self.now_for_ages());
        kept.iter_mut().zip(&snapshots).for_each(|(kept, s)| *kept |= held.contains(&s.id));
        let count = kept.iter().filter(|kept| **kept).count() as u64;
        let expired = snapshots.into_iter().zip(kept).filter(|(_, kept)| !kept).map(|(s, _)| s).collect();
        Judged { kept: count, expired }
    }

    async fn remove_one(
        self: &Rc<Self>,
        policy: &Policy,
        entry: &Rc<VmRecord>,
        snapshot: &SnapshotState,
    ) -> Result<()> {
        let vm: VmName = api_types::vm_name(&entry.name);
        let id: SnapshotRef = api_types::id(snapshot.id).parse().expect("an id is a reference");
        let (daemon, of) = (self.clone(), vm.clone());
        let start = async move { daemon.snapshot_commit_job(&of, CommitTarget::Snapshot(id)).await };
        let job = self.answer(Subject::Vm(vm), start).await?;
        info!("policy {}: VM {}: snapshot {} is removed", policy.name, entry.name, snapshot.name);
        self.note(entry, &format!("policy {} removes snapshot {}", policy.name, snapshot.name));
        if !policy.commit_window.is_empty() {
            let (env, policy, job) = (self.env.clone(), policy.clone(), job.clone());
            self.env.spawn_detached(Box::pin(async move { keep_in_window(&env, &policy, &job).await }));
        }
        self.until_ended_or_held_up(&job).await;
        job.error().map_or(Ok(()), |e| Err(e.into()))
    }

    /// Waits until a commit has ended. One that is paused or waits for space does not hold up the others.
    async fn until_ended_or_held_up(&self, job: &JobControl) {
        loop {
            let (ended, look) = (pin!(job.wait()), pin!(self.env.sleep_us(WINDOW_LOOK_US)));
            if let Either::Left(_) = select(ended, look).await {
                return;
            }
            if job.state() != JobState::Running {
                return;
            }
        }
    }
}

/// Pauses a commit while the window of its policy is closed, until it has ended. A commit that a person has paused or
/// resumed meanwhile stays as it is.
async fn keep_in_window(env: &Env, policy: &Policy, job: &JobControl) {
    let mut paused = false;
    loop {
        let (ended, look) = (pin!(job.wait()), pin!(env.sleep_us(WINDOW_LOOK_US)));
        if let Either::Left(_) = select(ended, look).await {
            return;
        }
        match (job.state(), policy.may_commit(api_types::time(env.unix_us()))) {
            (JobState::Running, false) if !paused => paused = job.pause().is_ok(),
            (JobState::Paused, true) if paused => {
                paused = false;
                // It may have ended.
                let _ = job.resume();
            }
            _ => {}
        }
    }
}
