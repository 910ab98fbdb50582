//! What the metrics are made of. The core only copies figures; another thread makes the text (`rest/metrics.rs`).

use std::collections::BTreeMap;

use api::error::Result;
use api::name::DatastoreName;
use api::{Job, Operation, PolicyStatus, Status, VmSummary};
use engine::latencies::LatencyFigures;

use crate::daemon::datastore::asked;
use crate::daemon::running::figures::{VmCounters, VmFigures};
use crate::daemon::state::Daemon;

/// All figures at one time.
pub(crate) struct Metrics {
    pub status: Status,
    pub vms: Vec<VmSummary>,
    /// Of the open VMs, by name.
    pub figures: BTreeMap<String, VmFigures>,
    pub jobs: Vec<Job>,
    pub policies: Vec<PolicyStatus>,
    pub stuns: Vec<(Operation, LatencyFigures)>,
    /// Bytes that the deltas and native disks of each datastore can still allocate.
    pub worst_growth_bytes: Vec<(DatastoreName, u64)>,
}

impl Daemon {
    /// Returns the counters of all open VMs, by name.
    pub(crate) async fn vm_counters(&self) -> BTreeMap<String, VmCounters> {
        let mut counters = BTreeMap::new();
        for core in self.cores.all() {
            counters.extend(core.run(async |running| running.vm_counters().await).await);
        }
        counters
    }

    pub(crate) async fn metrics(&self) -> Result<Metrics> {
        // The list brings the copies of the states up to date.
        let (status, vms, jobs) = (self.status().await?, self.vm_list().await?, self.job_list().await);
        let mut figures = BTreeMap::new();
        for core in self.cores.all() {
            figures.extend(core.run(async |running| running.vm_figures().await).await);
        }
        let mut worst_growth_bytes = Vec::new();
        for datastore in self.datastores() {
            if let Ok(Ok(space)) = asked(&datastore, self.space(&datastore)).await {
                worst_growth_bytes.push((datastore.name.clone(), space.worst_growth_bytes));
            }
        }
        // Damaged policies are reported elsewhere.
        let policies = self.policy_list().await.unwrap_or_default();
        let stuns = self.stuns.figures();
        Ok(Metrics { status, vms, figures, jobs, policies, stuns, worst_growth_bytes })
    }
}
