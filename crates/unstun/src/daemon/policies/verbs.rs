//! Operations on policies.

use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::name::{PolicyName, VmName};
use api::{
    Policy, PolicyAction, PolicyApplied, PolicyApply, PolicyPreview, PolicyPreviewVm, PolicyProblem,
    PolicyRemoval, PolicyStatus, VmGlob,
};
use jiff::Timestamp;
use tracing::warn;

use super::registry::{Runs, StoredPolicy, missing};
use super::stored;
use crate::daemon::requests::api_types;
use crate::daemon::state::Daemon;
use crate::daemon::vm::vm_record::VmRecord;

/// Maximum number of policies; a daemon serves hundreds of VMs, of which each may have some.
const POLICIES_MAX: usize = 1000;
/// Number of scheduled times that a preview shows.
const TIMES_SHOWN: usize = 5;

fn refuse_too_many(count: usize) -> Result<()> {
    match count > POLICIES_MAX {
        false => Ok(()),
        true => Err(Error::refused(format!("{count} policies: expected at most {POLICIES_MAX}"))),
    }
}

impl Daemon {
    /// Creates a policy. Fails with `Exists` if the name is taken.
    pub(crate) async fn policy_create(self: &Rc<Self>, policy: Policy, by: String) -> Result<PolicyStatus> {
        let name = policy.name.clone();
        let now = self.now();
        self.refuse_unknown_repository(&policy).await?;
        self.change_policies(|all| {
            if all.contains_key(&policy.name) {
                let message = format!("policy {} exists; `unstun policy set` changes it", policy.name);
                return Err(Error::new(ErrorKind::Exists, message));
            }
            refuse_too_many(all.len() + 1)?;
            all.insert(policy.name.clone(), StoredPolicy { policy, created: now, changed: now, by });
            Ok(())
        })
        .await?;
        self.policies.runs.borrow_mut().insert(name.clone(), Runs::new(now, None));
        self.policies.wake();
        self.policy_show(&name).await
    }

    /// Replaces a policy. Times that have passed are not caught up.
    pub(crate) async fn policy_set(
        self: &Rc<Self>,
        name: &PolicyName,
        policy: Policy,
        by: String,
    ) -> Result<PolicyStatus> {
        if policy.name != *name {
            return Err(Error::invalid(format!("policy {name}: found the name {} in the body", policy.name)));
        }
        let now = self.now();
        let repository = |policy: &Policy| policy.backup.as_ref().map(|to| to.repository.clone());
        // One that is gone since must not keep the policy from being switched off.
        if repository(&policy) != repository(&self.policies.get(name)?.policy) {
            self.refuse_unknown_repository(&policy).await?;
        }
        self.change_policies(|all| {
            // Another client may have removed it.
            let stored = all.get_mut(name).ok_or_else(|| missing(name))?;
            *stored = StoredPolicy { policy, created: stored.created, changed: now, by };
            Ok(())
        })
        .await?;
        self.policies.with_runs(name, |runs| {
            (runs.handled, runs.pending) = (now, None);
            runs.not_removed.clear();
            runs.not_backed_up.clear();
            runs.waiting.clear();
        });
        stored::write_runs(self).await?;
        self.policies.wake();
        self.policy_show(name).await
    }

    /// Adds policies; each replaces the one of its name. All of them are in force then, or on an error none.
    pub(crate) async fn policies_import(self: &Rc<Self>, policies: Vec<Policy>, by: String) -> Result<()> {
        if policies.is_empty() {
            return Ok(());
        }
        let now = self.now();
        let names: Vec<_> = policies.iter().map(|policy| policy.name.clone()).collect();
        self.change_policies(|all| {
            for policy in policies {
                let created = all.get(&policy.name).map_or(now, |stored| stored.created);
                let stored = StoredPolicy { policy, created, changed: now, by: by.clone() };
                all.insert(stored.policy.name.clone(), stored);
            }
            refuse_too_many(all.len())
        })
        .await?;
        for name in names {
            let last = self.policies.with_runs(&name, |runs| runs.last.take()).flatten();
            self.policies.runs.borrow_mut().insert(name, Runs::new(now, last));
        }
        // The policies are in force. Without the file a time that has passed may be caught up after a restart.
        if let Err(e) = stored::write_runs(self).await {
            warn!("the runs of policies are not on file: {e}");
        }
        self.policies.wake();
        Ok(())
    }

    /// Removes a policy. Its snapshots stay.
    pub(crate) async fn policy_remove(self: &Rc<Self>, name: &PolicyName) -> Result<PolicyStatus> {
        let removed = self.policy_show(name).await?;
        self.change_policies(|all| {
            all.remove(name);
            Ok(())
        })
        .await?;
        self.policies.runs.borrow_mut().remove(name);
        Ok(removed)
    }

    /// Changes the policies: first on file, then in force.
    async fn change_policies(
        self: &Rc<Self>,
        change: impl FnOnce(&mut std::collections::BTreeMap<PolicyName, StoredPolicy>) -> Result<()>,
    ) -> Result<()> {
        let _turn = self.policies.changing.lock().await;
        self.policies.refuse_broken()?;
        let mut all = self.policies.all.borrow().clone();
        change(&mut all)?;
        stored::write(self, &all).await?;
        self.policies.all.replace(all);
        Ok(())
    }

    /// Adds a name to the policies that name the VM `old`, or removes it. A pattern stays what it is.
    pub(crate) async fn policies_name(
        self: &Rc<Self>,
        old: &VmName,
        change: impl Fn(&mut Vec<VmGlob>),
    ) -> Result<()> {
        let names = |stored: &StoredPolicy| stored.policy.vms.iter().any(|vm| vm.as_str() == old.as_str());
        if !self.policies.all.borrow().values().any(names) {
            return Ok(());
        }
        self.change_policies(|all| {
            all.values_mut().filter(|stored| names(stored)).for_each(|stored| change(&mut stored.policy.vms));
            Ok(())
        })
        .await
    }

    pub(crate) async fn policy_list(&self) -> Result<Vec<PolicyStatus>> {
        self.policies.refuse_broken()?;
        let all: Vec<_> = self.policies.all.borrow().values().cloned().collect();
        let mut shown = Vec::new();
        for stored in all {
            shown.push(self.show_policy(stored).await);
        }
        Ok(shown)
    }

    pub(crate) async fn policy_show(&self, name: &PolicyName) -> Result<PolicyStatus> {
        Ok(self.show_policy(self.policies.get(name)?).await)
    }

    async fn show_policy(&self, stored: StoredPolicy) -> PolicyStatus {
        let StoredPolicy { policy, created, by, .. } = stored;
        let entries = self.policy_vms(&policy).await;
        let (last, waiting, problems) = self
            .policies
            .with_runs(&policy.name, |runs| {
                let all = runs.not_taken.values().chain(runs.not_backed_up.values());
                let all = all.chain(runs.not_removed.values());
                // Those of VMs that the policy does not apply to any more are over.
                let is_now =
                    |problem: &&PolicyProblem| entries.iter().any(|entry| entry.name == problem.vm.as_str());
                let problems: Vec<PolicyProblem> = all.filter(is_now).cloned().collect();
                let waiting =
                    entries.iter().filter_map(|entry| runs.waiting.get(&api_types::vm_name(&entry.name)));
                (runs.last.clone(), waiting.sum(), problems)
            })
            .unwrap_or_default();
        let backups = match &policy.backup {
            Some(to) => Some(self.count_backups(&policy, to, &entries).await),
            None => None,
        };
        PolicyStatus {
            backups,
            next: policy.next(self.now()).filter(|_| policy.enabled),
            vms: entries.iter().map(|entry| api_types::vm_name(&entry.name)).collect(),
            policy,
            created,
            by,
            last,
            waiting,
            problems,
        }
    }

    /// Returns what a policy will do, whether it exists or not.
    pub(crate) async fn policy_preview(&self, policy: Policy) -> Result<PolicyPreview> {
        let mut next = Vec::new();
        let mut from = self.now();
        while let Some(time) = policy.next(from).filter(|_| next.len() < TIMES_SHOWN) {
            next.push(time);
            from = time;
        }
        let mut vms = Vec::new();
        for entry in self.policy_vms(&policy).await {
            self.env.next_turn().await;
            vms.push(self.preview_vm(&policy, next.first().copied(), &entry).await?);
        }
        Ok(PolicyPreview { policy, next, vms })
    }

    async fn preview_vm(
        &self,
        policy: &Policy,
        next: Option<Timestamp>,
        entry: &VmRecord,
    ) -> Result<PolicyPreviewVm> {
        let judged = self.judge(policy, entry).await;
        let bytes = match judged.expired.is_empty() {
            true => std::collections::BTreeMap::new(),
            false => entry.running.delta_bytes().await?,
        };
        let removed = judged.expired.iter().map(|snapshot| PolicyRemoval {
            snapshot: snapshot.name.clone(),
            created: api_types::time(snapshot.created_unix_us),
            bytes: bytes.get(&snapshot.id).copied().unwrap_or(0),
        });
        let name = next.map(|next| policy.snapshot_name(&entry.name, next)).transpose();
        Ok(PolicyPreviewVm {
            vm: api_types::vm_name(&entry.name),
            next_snapshot: name.map_err(Error::invalid)?.map(|name| name.to_string()),
            kept: judged.kept,
            removed: removed.collect(),
        })
    }

    /// Takes the snapshots of a policy now, and lets those be removed that no rule keeps. The schedule stays as it is.
    pub(crate) async fn policy_apply(
        self: &Rc<Self>,
        name: &PolicyName,
        request: PolicyApply,
    ) -> Result<PolicyApplied> {
        let policy = self.policies.get(name)?.policy;
        let entries = self.policy_vms(&policy).await;
        if let Some(vm) = request.vms.iter().find(|vm| !entries.iter().any(|entry| entry.name == vm.as_str()))
        {
            let vms: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).take(20).collect();
            let message =
                format!("policy {name} applies to no open VM {vm}; it applies to: {}", vms.join(", "));
            return Err(Error::refused(message));
        }
        let is_wanted = |vm: &str| {
            request.vms.is_empty() || request.vms.iter().any(|wanted: &VmName| wanted.as_str() == vm)
        };
        let wanted: Vec<_> = entries.into_iter().filter(|entry| is_wanted(&entry.name)).collect();
        let now = Timestamp::from_second(self.now().as_second()).unwrap_or_else(|_| self.now());
        let mut applied = PolicyApplied { taken: Vec::new(), problems: Vec::new() };
        for (vm, outcome) in self.take_for(&policy, now, &wanted).await {
            match outcome {
                Ok(taken) => applied.taken.extend(taken),
                Err(e) => {
                    applied.problems.push(self.problem(vm, PolicyAction::Take, None, &e));
                }
            }
        }
        self.policies.to_remove.notify();
        self.policies.to_back_up.notify();
        Ok(applied)
    }
}
