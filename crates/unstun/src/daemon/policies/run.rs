//! Runs: the takes of a policy for a scheduled time.

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::name::{PolicyName, VmName};
use api::{Policy, PolicyAction, PolicyProblem, PolicyRun, PolicyTaken, SnapshotTake};
use blk::sync::OneShot;
use futures_util::future::{Either, join_all, select};
use futures_util::stream::{self, StreamExt};
use jiff::{SignedDuration, Timestamp};
use tracing::{info, warn};

use super::registry::Pending;
use super::stored;
use crate::daemon::requests::answer::Subject;
use crate::daemon::requests::api_types;
use crate::daemon::state::Daemon;
use crate::daemon::vm::labels::SnapshotLabel;
use crate::daemon::vm::vm_record::VmRecord;

/// Longest time between two looks at the policies: a clock that was changed is noticed within it.
const LOOK_US: u64 = 60_000_000;
/// Time after the scheduled one up to which it is tried again, if no other time is scheduled before.
const AGAIN_MAX: SignedDuration = SignedDuration::from_hours(1);
/// Delay up to which a scheduled time is not missed: a daemon that is replaced takes seconds.
const LATE_MAX: SignedDuration = SignedDuration::from_mins(5);
/// Difference of two looks at the clock above which it was set back.
const SET_BACK_MIN: SignedDuration = SignedDuration::from_mins(1);
/// Maximum number of VMs of which one policy takes snapshots at the same time.
const TAKES_OF_ONE_MAX: usize = 8;
/// Time that a run waits for its takes, and that it waits at least for each. A take that waits longer, for space for
/// example, continues, and holds up neither the others nor the other policies.
const TAKES_US_MAX: u64 = 60_000_000;
const TAKE_US_MIN: u64 = 1_000_000;

/// What was taken of one VM.
type Outcome = (VmName, Result<Option<PolicyTaken>>);

/// The same words at each try, so that the cause is reported once.
fn under_way() -> Error {
    let cause = "the take waits for space or for another operation of the VM, and continues then";
    Error::new(ErrorKind::Unavailable, cause)
}

impl Daemon {
    /// Takes the snapshots of all policies at their times, as long as the daemon runs.
    pub(in crate::daemon) async fn run_policies(self: Rc<Self>) {
        loop {
            let changed = self.policies.changed.wait();
            self.run_due_policies().await;
            let us = self.until_next_run_us().await;
            select(pin!(self.env.sleep_us(us)), pin!(changed)).await;
        }
    }

    /// Takes what is due now.
    pub(super) async fn run_due_policies(self: &Rc<Self>) {
        let mut due = Vec::new();
        for policy in self.policies.enabled() {
            // Calendar expressions are calculated; guests must not wait for those of all policies.
            self.env.next_turn().await;
            due.extend(self.due(&policy).map(|pending| (policy, pending)));
        }
        // Side by side: takes of one policy that wait must not make another so late that it catches nothing up.
        let runs = due.iter().map(async |(policy, pending)| {
            self.run_policy(policy, pending.clone()).await;
            self.policies.to_remove.notify();
            self.policies.to_back_up.notify();
        });
        join_all(runs).await;
    }

    async fn until_next_run_us(&self) -> u64 {
        let now = self.now();
        let mut next = None;
        for policy in self.policies.enabled() {
            self.env.next_turn().await;
            next = policy.next(now).into_iter().chain(next).min();
        }
        let until =
            next.map_or(i64::MAX, |next| i64::try_from(next.duration_since(now).as_micros()).unwrap_or(0));
        // A little later than the time itself.
        u64::try_from(until).unwrap_or(0).saturating_add(1000).min(LOOK_US)
    }

    /// Returns the run of a policy that has begun or begins now.
    fn due(&self, policy: &Policy) -> Option<Pending> {
        let now = self.now();
        let handled = self.policies.with_runs(&policy.name, |runs| {
            if runs.handled.duration_since(now) > SET_BACK_MIN {
                runs.handled = now;
                runs.pending = None;
            }
            runs.handled
        })?;
        let Some(scheduled) = policy.last_between(handled, now) else {
            return self.policies.with_runs(&policy.name, |runs| runs.pending.clone()).flatten();
        };
        let begins = policy.catch_up || now.duration_since(scheduled) <= LATE_MAX;
        if !begins {
            info!(
                "policy {}: the time {scheduled} has passed, and the policy catches nothing up",
                policy.name
            );
        }
        let next = policy.next(scheduled).unwrap_or(Timestamp::MAX);
        let deadline = now.saturating_add(AGAIN_MAX).map_or(next, |latest| latest.min(next));
        let pending = begins.then_some(Pending { scheduled, before: handled, deadline });
        self.policies.with_runs(&policy.name, |runs| {
            (runs.handled, runs.pending) = (scheduled, pending.clone());
            runs.not_taken.clear();
        });
        pending
    }

    async fn run_policy(self: &Rc<Self>, policy: &Policy, pending: Pending) {
        let Pending { scheduled, deadline, .. } = pending;
        let started = self.now();
        let outcomes = self.take_for(policy, scheduled, &self.policy_vms(policy).await).await;
        let failed = self.note_failures(policy, &outcomes);
        let taken = outcomes.iter().filter(|(_, taken)| matches!(taken, Ok(Some(_)))).count() as u64;
        let now = self.now();
        let is_over = failed == 0 || now >= deadline;
        self.policies.with_runs(&policy.name, |runs| {
            let first = runs.last.take().filter(|run| run.scheduled == scheduled && run.ended.is_none());
            let (began, before) = first.map_or((started, 0), |run| (run.started, run.taken));
            let ended = is_over.then_some(now);
            runs.last = Some(PolicyRun { scheduled, started: began, ended, taken: before + taken, failed });
            if is_over {
                runs.pending = None;
            }
        });
        if !is_over {
            return;
        }
        // Without the record the run begins again after a restart, and finds its snapshots.
        if let Err(e) = stored::write_runs(self).await {
            warn!("policy {}: its run is not recorded: {e}", policy.name);
        }
    }

    /// Takes the snapshots of a policy for a scheduled time, of VMs that have none for it yet.
    pub(super) async fn take_for(
        self: &Rc<Self>,
        policy: &Policy,
        scheduled: Timestamp,
        entries: &[Rc<VmRecord>],
    ) -> Vec<Outcome> {
        let until_us = self.env.now_ns() / 1000 + TAKES_US_MAX;
        let takes = entries.iter().map(|entry| {
            let (daemon, entry, policy) = (self.clone(), entry.clone(), policy.clone());
            async move {
                let _turn = daemon.policies.take_turn().await;
                let vm = api_types::vm_name(&entry.name);
                let taker = daemon.clone();
                let take = async move { taker.take_once(&policy, scheduled, &entry).await };
                let work = daemon.clone().or_continue(until_us, take);
                (vm.clone(), daemon.answer(Subject::Vm(vm), work).await)
            }
        });
        stream::iter(takes).buffered(TAKES_OF_ONE_MAX).collect().await
    }

    /// Waits for a take until a time of the monotonic clock. The take continues after that.
    async fn or_continue<T: 'static>(
        self: Rc<Self>,
        until_us: u64,
        take: impl Future<Output = Result<T>> + 'static,
    ) -> Result<T> {
        let taken = Rc::new(OneShot::default());
        let answer = taken.clone();
        self.env.spawn_detached(Box::pin(async move { answer.set(take.await) }));
        let us = until_us.saturating_sub(self.env.now_ns() / 1000).max(TAKE_US_MIN);
        match select(pin!(taken.take()), pin!(self.env.sleep_us(us))).await {
            Either::Left((taken, _)) => taken,
            Either::Right(_) => Err(under_way()),
        }
    }

    /// Takes the snapshot of a VM for a scheduled time; None if it has been taken.
    async fn take_once(
        self: &Rc<Self>,
        policy: &Policy,
        scheduled: Timestamp,
        entry: &Rc<VmRecord>,
    ) -> Result<Option<PolicyTaken>> {
        let label = SnapshotLabel::of_policy(&policy.name, scheduled);
        if entry.labels.is_taking(&label) {
            return Err(under_way());
        }
        let take = entry.labels.begin_take(label);
        let state = entry.running.state().await;
        if state.snapshots.iter().any(|s| {
            entry.labels.get().of_snapshot(s.id).is_some_and(|label| label.policy == take.label.policy)
        }) {
            return Ok(None);
        }
        self.entry_to_change(&entry.name)?;
        let name = policy.snapshot_name(&entry.name, scheduled).map_err(Error::invalid)?;
        let request = SnapshotTake { quiesce: policy.quiesce, ..SnapshotTake::named(name) };
        let taken = self.take_and_show(entry, request, take).await?;
        Ok(Some(PolicyTaken { vm: taken.vm, snapshot: taken.snapshot.name, stun_us: taken.stun_us }))
    }

    /// Keeps why snapshots were not taken, for `policy show`. A cause is news once. Returns the number of VMs.
    fn note_failures(&self, policy: &Policy, outcomes: &[Outcome]) -> u64 {
        let mut problems = BTreeMap::new();
        for (vm, outcome) in outcomes {
            let Err(error) = outcome else { continue };
            let problem = self.problem(vm.clone(), PolicyAction::Take, None, error);
            self.report_problem(&policy.name, &problem);
            problems.insert(vm.clone(), problem);
        }
        let count = problems.len() as u64;
        self.policies.with_runs(&policy.name, |runs| runs.not_taken = problems);
        count
    }

    /// Returns a problem of this moment.
    pub(super) fn problem(
        &self,
        vm: VmName,
        action: PolicyAction,
        snapshot: Option<&str>,
        error: &Error,
    ) -> PolicyProblem {
        let (snapshot, cause) = (snapshot.map(str::to_owned), error.to_string());
        PolicyProblem { vm, action, snapshot, cause, time: self.now() }
    }

    /// Reports a problem in the log and as an event of the VM, unless it is known already.
    pub(super) fn report_problem(&self, policy: &PolicyName, problem: &PolicyProblem) {
        let PolicyProblem { vm, action, snapshot, cause, .. } = problem;
        let known = self.policies.with_runs(policy, |runs| {
            let known = match action {
                PolicyAction::Take => runs.not_taken.get(vm),
                PolicyAction::Backup => runs.not_backed_up.get(vm),
                PolicyAction::Remove => {
                    runs.not_removed.get(&(vm.clone(), snapshot.clone().unwrap_or_default()))
                }
            };
            known.map(|known| known.cause.clone())
        });
        if known.flatten().as_ref() == Some(cause) {
            return;
        }
        let what = problem.what();
        warn!("policy {policy}: VM {vm}: {what}: {cause}");
        if let Ok(entry) = self.entry(vm.as_str()) {
            self.note(&entry, &format!("policy {policy}: {what}: {cause}"));
        }
    }
}
