//! The policies, and what is known of their runs.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use api::error::{Error, Result};
use api::name::{PolicyName, RepositoryName, VmName};
use api::{Policy, PolicyProblem, PolicyRun};
use blk::sync::{Signal, TaskMutex};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::backup_process::Work;

/// Maximum number of takes that all policies wait for at the same time: each freezes a guest, or stuns one for less than a
/// millisecond.
const TAKES_MAX: usize = 32;

/// Does the work of a backup, as `backup_process::run` does.
pub(super) type BackupMaker = fn(&Work) -> Result<u32>;

/// A backup or a prune under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnderWay {
    pub policy: PolicyName,
    pub repository: RepositoryName,
    /// The VM with the snapshot that is backed up; None for a prune.
    pub of: Option<(VmName, u128)>,
    pub since: Timestamp,
}

/// A run under way.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub scheduled: Timestamp,
    /// `Runs::handled` before the run.
    pub before: Timestamp,
    /// End of the tries.
    pub deadline: Timestamp,
}

/// A policy on file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StoredPolicy {
    #[serde(flatten)]
    pub(super) policy: Policy,
    pub(super) created: Timestamp,
    /// Time of the last change.
    pub(super) changed: Timestamp,
    pub(super) by: String,
}

/// What is known of the runs of a policy.
#[derive(Debug)]
pub(super) struct Runs {
    /// The last scheduled time that has been seen to; later ones are due.
    pub(super) handled: Timestamp,
    /// The run under way.
    pub(super) pending: Option<Pending>,
    pub(super) last: Option<PolicyRun>,
    /// Snapshots that no rule keeps, by VM, as of the last look at them.
    pub(super) waiting: BTreeMap<VmName, u64>,
    /// Why no snapshot was taken of a VM, and why one was not removed.
    pub(super) not_taken: BTreeMap<VmName, PolicyProblem>,
    pub(super) not_removed: BTreeMap<(VmName, String), PolicyProblem>,
    /// Why the last snapshot of a VM was not backed up.
    pub(super) not_backed_up: BTreeMap<VmName, PolicyProblem>,
    /// Whether there are new backups beside which older ones may be removed.
    pub(super) to_prune: bool,
}

pub(super) fn missing(name: &PolicyName) -> Error {
    Error::not_found(format!("no policy {name}; see `unstun policy list`"))
}

impl Runs {
    pub(super) fn new(handled: Timestamp, last: Option<PolicyRun>) -> Runs {
        Runs {
            handled,
            pending: None,
            last,
            waiting: BTreeMap::new(),
            not_taken: BTreeMap::new(),
            not_removed: BTreeMap::new(),
            not_backed_up: BTreeMap::new(),
            to_prune: false,
        }
    }
}

/// The policies of the daemon, which are on file in its main datastore.
#[derive(Default)]
pub(crate) struct Policies {
    pub(super) all: RefCell<BTreeMap<PolicyName, StoredPolicy>>,
    pub(super) runs: RefCell<BTreeMap<PolicyName, Runs>>,
    /// Why the file could not be read. No policy runs then, and none is changed.
    pub(super) broken: RefCell<Option<Error>>,
    /// One change at a time: each writes the whole file.
    pub(super) changing: TaskMutex,
    pub(super) changed: Signal,
    pub(super) to_remove: Signal,
    pub(super) to_back_up: Signal,
    /// Backups and prunes under way.
    pub(super) backups: RefCell<Vec<UnderWay>>,
    /// What makes backups in tests; otherwise a process does.
    pub(super) backup_maker: Cell<Option<BackupMaker>>,
    /// Takes of all policies that are waited for, and the end of one.
    taking: Cell<usize>,
    took: Signal,
}

/// The right to one of the takes that policies wait for at the same time.
pub(super) struct TakeTurn<'a>(&'a Policies);

impl Drop for TakeTurn<'_> {
    fn drop(&mut self) {
        self.0.taking.set(self.0.taking.get() - 1);
        self.0.took.notify();
    }
}

impl Policies {
    /// Lets the tasks look at the policies again: one was changed, or the VMs that they apply to.
    pub(crate) fn wake(&self) {
        self.changed.notify();
        self.to_remove.notify();
        self.to_back_up.notify();
    }

    /// Waits until a policy may begin a take.
    pub(super) async fn take_turn(&self) -> TakeTurn<'_> {
        while self.taking.get() >= TAKES_MAX {
            self.took.wait().await;
        }
        self.taking.set(self.taking.get() + 1);
        TakeTurn(self)
    }

    /// Returns why no policy runs, if their file could not be read.
    pub(crate) fn fault(&self) -> Option<String> {
        self.refuse_broken().err().map(|e| e.message)
    }

    pub(super) fn refuse_broken(&self) -> Result<()> {
        let Some(e) = &*self.broken.borrow() else { return Ok(()) };
        let message = format!(
            "{e}; no policy runs until the file is repaired, or moved aside, and the daemon is started again"
        );
        Err(Error::new(e.kind, message))
    }

    pub(super) fn get(&self, name: &PolicyName) -> Result<StoredPolicy> {
        self.refuse_broken()?;
        let found = self.all.borrow().get(name).cloned();
        found.ok_or_else(|| missing(name))
    }

    pub(super) fn enabled(&self) -> Vec<Policy> {
        let all = self.all.borrow();
        all.values().map(|stored| &stored.policy).filter(|policy| policy.enabled).cloned().collect()
    }

    /// Changes what is known of the runs of a policy, if it still exists.
    pub(super) fn with_runs<T>(&self, name: &PolicyName, change: impl FnOnce(&mut Runs) -> T) -> Option<T> {
        self.runs.borrow_mut().get_mut(name).map(change)
    }
}
