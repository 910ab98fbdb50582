//! The files of the policies, in the own folder of the main datastore: `policies` with a line of JSON for each, and
//! `policy-runs` with a line for the runs of each.

use std::collections::BTreeMap;

use api::PolicyRun;
use api::error::Result;
use api::name::PolicyName;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::error;

use super::registry::{Runs, StoredPolicy};
use crate::daemon::own_files::{lines, parse_lines};
use crate::daemon::state::Daemon;

const POLICIES_NAME: &str = "policies";
const RUNS_NAME: &str = "policy-runs";

#[derive(Serialize, Deserialize)]
struct StoredRuns {
    name: PolicyName,
    handled: Timestamp,
    last: Option<PolicyRun>,
}

impl Daemon {
    /// Reads the policies. If their file cannot be read, the disks are served all the same.
    pub(in crate::daemon) async fn read_policies(&self) {
        match read(self).await {
            Ok((all, runs)) => {
                self.policies.all.replace(all);
                self.policies.runs.replace(runs);
            }
            Err(e) => {
                error!("no policy runs: {e}");
                self.policies.broken.replace(Some(e));
            }
        }
    }
}

type Read = (BTreeMap<PolicyName, StoredPolicy>, BTreeMap<PolicyName, Runs>);

/// Returns the policies and their runs. Without the file of the runs no time is due that has passed.
async fn read(daemon: &Daemon) -> Result<Read> {
    let stored: Vec<StoredPolicy> = parse_lines(POLICIES_NAME, &daemon.own_file(POLICIES_NAME).await?)?;
    let runs: Result<Vec<StoredRuns>> =
        async { parse_lines(RUNS_NAME, &daemon.own_file(RUNS_NAME).await?) }.await;
    let is_lost = runs.is_err();
    let runs = runs.unwrap_or_else(|e| {
        error!("{e}; the times of policies that have passed are not caught up");
        Vec::new()
    });
    let mut runs: BTreeMap<_, _> = runs.into_iter().map(|runs| (runs.name.clone(), runs)).collect();
    let (mut all, mut known) = (BTreeMap::new(), BTreeMap::new());
    for stored in stored {
        let name = stored.policy.name.clone();
        let since = if is_lost { daemon.now() } else { stored.changed };
        let runs = match runs.remove(&name) {
            // They may be of a former policy of this name.
            Some(StoredRuns { handled, last, .. }) => Runs::new(handled.max(stored.changed), last),
            None => Runs::new(since, None),
        };
        known.insert(name.clone(), runs);
        all.insert(name, stored);
    }
    Ok((all, known))
}

/// Durably replaces the policies on file.
pub(super) async fn write(
    daemon: &std::rc::Rc<Daemon>,
    all: &BTreeMap<PolicyName, StoredPolicy>,
) -> Result<()> {
    daemon.replace_own_file(POLICIES_NAME, lines(all.values()).as_bytes()).await
}

/// Durably replaces the runs on file. A run under way is not on file: after a crash it begins again.
pub(super) async fn write_runs(daemon: &std::rc::Rc<Daemon>) -> Result<()> {
    let _turn = daemon.policies.changing.lock().await;
    let content = {
        let runs = daemon.policies.runs.borrow();
        let stored = runs.iter().map(|(name, runs)| {
            let handled = runs.pending.as_ref().map_or(runs.handled, |pending| pending.before);
            StoredRuns {
                name: name.clone(),
                handled,
                last: runs.last.clone().filter(|run| run.ended.is_some()),
            }
        });
        lines(stored)
    };
    daemon.replace_own_file(RUNS_NAME, content.as_bytes()).await
}
