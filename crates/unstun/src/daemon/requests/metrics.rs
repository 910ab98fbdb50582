//! What the metrics are made of. The core only copies figures; another thread makes the text (`rest/metrics.rs`).

use std::collections::BTreeMap;

use api::error::Result;
use api::name::DatastoreName;
use api::{Job, Operation, PolicyStatus, Status, VmSummary};
use blk::file::FileCounters;
use engine::latencies::LatencyFigures;

use crate::daemon::datastore::asked;
use crate::daemon::running::figures::{VmCounters, VmFigures};
use crate::daemon::state::Daemon;

/// Counters of all open VMs, by name, and of their stores, by the datastore's name.
#[derive(Default)]
pub(crate) struct Counters {
    pub vms: BTreeMap<String, VmCounters>,
    pub stores: BTreeMap<String, FileCounters>,
}

/// All figures at one time.
pub(crate) struct Metrics {
    pub status: Status,
    pub vms: Vec<VmSummary>,
    /// Of the open VMs, by name.
    pub figures: BTreeMap<String, VmFigures>,
    pub jobs: Vec<Job>,
    pub policies: Vec<PolicyStatus>,
    pub stuns: Vec<(Operation, LatencyFigures)>,
    /// Times for which guests were frozen.
    pub frozen: LatencyFigures,
    /// Bytes that the deltas and native disks of each datastore can still allocate.
    pub worst_growth_bytes: Vec<(DatastoreName, u64)>,
}

impl Daemon {
    /// Returns the counters of all open VMs and of their stores, for the recorder alone.
    pub(crate) async fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        for core in self.cores.all() {
            let vms = core.run(async |running| running.vm_counters().await).await;
            // The VMs of a store have one opening of its file on each core.
            let mut here = BTreeMap::new();
            for (name, vm) in &vms {
                if let (Some(store), Ok(entry)) = (vm.store, self.entry(name)) {
                    here.insert(entry.datastore.name.to_string(), store);
                }
            }
            if std::ptr::eq(&**core, &**self.cores.own()) {
                here.extend(self.datastores().iter().filter_map(|datastore| {
                    Some((datastore.name.to_string(), datastore.native.opened()?.device_counters()))
                }));
            }
            here.into_iter().for_each(|(name, store)| *counters.stores.entry(name).or_default() += store);
            counters.vms.extend(vms);
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
        let (stuns, frozen) = (self.stuns.figures(), self.frozen_guests.times());
        Ok(Metrics { status, vms, figures, jobs, policies, stuns, frozen, worst_growth_bytes })
    }
}
