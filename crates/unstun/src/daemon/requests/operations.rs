//! Operations of the API, carried out with the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use api::CommitTarget;
use api::error::{Error, Result};
use api::name::VmName;
use api::units::total;
use engine::{CommitWhat, DefragmentRequest, JobControl};
use jiff::Timestamp;

use crate::daemon::datastore::{Datastore, asked};
use crate::daemon::requests::api_types;
use crate::daemon::running::running_vms::CoreFigures;
use crate::daemon::state::Daemon;
use crate::daemon::tracked::Tracked;
use crate::daemon::vm::mark;
use crate::daemon::vm::vm_record::{Kept, VmRecord};

/// Minimum number of bytes that a commit must move for its rate to predict the next one's.
const MEASURED_BYTES_MIN: u64 = 16 << 20;

/// What the recorder needs of a VM.
pub(crate) struct RecordedVm {
    pub id: u128,
    pub store: api::Store,
    pub datastore: String,
    /// The last ones, the oldest first.
    pub events: Vec<api::Event>,
    /// Names and times of the present snapshots.
    pub snapshots: Vec<(String, jiff::Timestamp)>,
}

impl Daemon {
    pub(crate) async fn status(&self) -> Result<api::Status> {
        let space = self.main.outside_space().await?;
        let datastores = self.datastore_list().await;
        let direct_io = datastores.first().and_then(|main| main.direct_io).unwrap_or(false);
        let entries = self.entries();
        let (mut disks, mut snapshots) = (0, 0);
        for entry in &entries {
            let state = entry.running.state().await;
            disks += state.disks.len() as u64;
            snapshots += state.snapshots.len() as u64;
        }
        let cores = self.core_figures().await;
        let polls =
            cores.iter().map(|core| core.polls).max_by_key(|polls| polls.longest_us).unwrap_or_default();
        let open_jobs =
            self.tracked(|t| !t.job.state().is_over()).into_iter().filter(|&open| open).count() as u64;
        Ok(api::Status {
            full: self.full_datastores().await,
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            started: self.started,
            datastore: self.main.root.clone(),
            free_bytes: space.free_bytes,
            total_bytes: space.total_bytes,
            direct_io,
            nbd: self.nbd.iter().map(|n| n.uri("")).collect(),
            web: self.web.borrow().clone(),
            nbd_clients: cores.iter().map(|core| core.nbd_clients).sum(),
            vms: entries.len() as u64,
            disks,
            snapshots,
            open_jobs,
            longest_poll_us: polls.longest_us,
            longest_poll_task: polls.longest_task.map(|line| format!("{}:{}", line.file(), line.line())),
            long_polls: cores.iter().map(|core| core.polls.over_limit).sum(),
            cores: cores.iter().map(|core| self.show_core(core)).collect(),
            datastores,
        })
    }

    async fn core_figures(&self) -> Vec<CoreFigures> {
        let mut all = Vec::new();
        for core in self.cores.all() {
            all.push(core.run(async |running| running.figures()).await);
        }
        all
    }

    fn show_core(&self, core: &CoreFigures) -> api::Core {
        let vms =
            self.entries().into_iter().filter(|entry| entry.running.core() == core.number).count() as u64;
        let (store_messages, store_batches) = core.store_messages;
        let (number, nbd_clients) = (core.number as u64, core.nbd_clients);
        api::Core { number, vms, nbd_clients, store_messages, store_batches }
    }

    /// Returns the VMs sorted by name.
    pub(crate) async fn vm_list(&self) -> Result<Vec<api::VmSummary>> {
        let mut rows = Vec::new();
        for entry in self.entries() {
            rows.push(self.summary(&entry).await);
        }
        for idle in self.idle() {
            let datastore = idle.home.datastore.clone();
            let native = asked(&datastore, mark::exists(&self.env, &idle.home.path)).await;
            rows.push(api_types::idle(idle, native));
        }
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(rows)
    }

    /// Summarizes an open VM. A VM whose files cannot be read does not hide the others.
    async fn summary(&self, entry: &VmRecord) -> api::VmSummary {
        let view = entry.running.view().await;
        let (allocated_bytes, message) = match asked(&entry.datastore, entry.running.listing()).await {
            Ok(Ok(listing)) => {
                let layers = listing.iter().flat_map(|disk| &disk.layers);
                (Some(total(layers.map(|layer| layer.allocated_bytes)) + entry.memory_bytes()), None)
            }
            Ok(Err(error)) => (None, Some(error.to_string())),
            Err(hang) => (None, Some(hang.found())),
        };
        let labels = entry.labels.get().shown();
        api::VmSummary {
            name: api_types::vm_name(&entry.name),
            condition: api::VmCondition::Open,
            message,
            datastore: entry.datastore.name.clone(),
            home: entry.home.clone(),
            id: Some(api_types::id(view.state.id)),
            store: entry.kept.store(),
            disks: Some(view.state.disks.len() as u64),
            size_bytes: Some(total(view.state.disks.iter().map(|disk| disk.size_bytes))),
            allocated_bytes,
            snapshots: Some(view.state.snapshots.len() as u64),
            nbd_clients: view.clients.len() as u64,
            waiting_writes: view.waiting_writes,
            tags: labels.tags,
            note: labels.note,
        }
    }

    pub(crate) async fn vm_show(&self, vm: &VmName) -> Result<api::Vm> {
        let entry = self.entry(vm.as_str())?;
        self.show(&entry).await
    }

    pub(crate) async fn show(&self, entry: &Rc<VmRecord>) -> Result<api::Vm> {
        let (view, listing) = entry.running.view_with_layers().await;
        let (state, listing) = (&view.state, listing?);
        let disks = listing.iter().filter_map(|disk| api_types::disk(self, entry, &view, disk)).collect();
        let snapshot_dir = match &entry.kept {
            Kept::Redo => entry.running.with_files(async |files| files.snapshot_dir().await).await?,
            Kept::Native(_) => None,
        };
        let mut notices = entry.notices.borrow().clone();
        if let Kept::Native(vm) = &entry.kept
            && let Some(cause) = vm.store.broken()
        {
            notices.push(format!("the store is read-only: {cause}"));
        }
        if matches!(entry.kept, Kept::Native(_)) {
            notices.extend(entry.datastore.native.unlinked().await.map(|cause| cause.to_string()));
        }
        let current = state.snapshots.iter().find(|s| Some(s.id) == state.current);
        let (labels, guest) = (entry.labels.get().shown(), entry.labels.get().guest());
        Ok(api::Vm {
            id: api_types::id(state.id),
            name: api_types::vm_name(&entry.name),
            datastore: entry.datastore.name.clone(),
            home: entry.home.clone(),
            snapshot_dir,
            store: entry.kept.store(),
            core: entry.running.core() as u64,
            when_full: entry.when_full,
            shared_writers: view.shared_writers,
            limits: entry.limits.get(),
            tags: labels.tags,
            note: labels.note,
            guest,
            delayed_requests: view.delayed_requests,
            generation: state.generation.present,
            fenced: !state.generation.is_opened(),
            current_snapshot: current.map(|s| s.name.clone()),
            snapshots: state.snapshots.len() as u64,
            needs_consolidation: listing.iter().any(|disk| !disk.unowned.is_empty()),
            nbd_clients: view.clients.len() as u64,
            waiting_writes: view.waiting_writes,
            clients: view.clients.clone(),
            notices,
            space: self.space(&entry.datastore).await?,
            disks,
        })
    }

    /// Returns the space of a datastore. In the worst case, every delta grows to the size of its disk.
    pub(crate) async fn space(&self, datastore: &Rc<Datastore>) -> Result<api::Space> {
        let free_bytes = datastore.space().await?.free_bytes;
        let mut worst_growth_bytes: u64 = 0;
        for entry in self.entries().into_iter().filter(|entry| Rc::ptr_eq(&entry.datastore, datastore)) {
            worst_growth_bytes = worst_growth_bytes.saturating_add(entry.running.worst_growth_bytes().await?);
        }
        let (bin_bytes, reclaimable_bytes) =
            (self.bin_bytes(datastore), self.reclaimable_bytes(datastore).await);
        Ok(api::Space { free_bytes, worst_growth_bytes, bin_bytes, reclaimable_bytes })
    }

    /// Returns the bytes of a datastore that are freed and not in use again yet: in the store, and in deltas that no
    /// snapshot owns.
    pub(crate) async fn reclaimable_bytes(&self, datastore: &Rc<Datastore>) -> u64 {
        let used = datastore.native.opened().map(|store| store.store_usage()).unwrap_or_default();
        let mut bytes = used.waiting.saturating_add(used.held);
        for entry in self.entries().into_iter().filter(|entry| Rc::ptr_eq(&entry.datastore, datastore)) {
            // A VM that cannot be read now is reported elsewhere.
            bytes = bytes.saturating_add(entry.running.unowned_bytes().await.unwrap_or_default());
        }
        bytes
    }

    /// Fails with `Refused` if there is nothing to commit.
    pub(crate) async fn commit_preview(
        &self,
        vm: &VmName,
        target: CommitTarget,
    ) -> Result<api::CommitPreview> {
        let entry = self.entry(vm.as_str())?;
        let preview = entry.running.commit_preview(&what(&target)).await?;
        let mut warning = api::CommitPreview::warning_for(&preview.names);
        match preview.evicted.len() {
            0 => {}
            1 => {
                warning
                    .push_str("; 1 state in the bin is removed too, because it needs a layer that changes");
            }
            n => warning.push_str(&format!(
                "; {n} states in the bin are removed too, because they need layers that change"
            )),
        }
        Ok(api::CommitPreview {
            vm: vm.clone(),
            warning,
            stays: preview.stays,
            snapshots: preview.names.into_iter().rev().collect(),
            bytes_to_move: preview.bytes_to_move,
            bytes_freed: preview.bytes_freed,
            estimated_s: self.estimated_s(preview.bytes_to_move),
            forecast: None,
        })
    }

    /// Returns the estimated seconds of a commit that moves `bytes`, at the rate of the last one that moved enough
    /// bytes. None before there was such a commit.
    fn estimated_s(&self, bytes: u64) -> Option<u64> {
        if bytes == 0 {
            return Some(0);
        }
        let commits = self.tracked(|t| {
            let moves = api_types::job_bytes(t) == api::JobBytes::Moved;
            moves.then(|| (t.job.bytes_done.get(), t.job.spent_ns(self.env.now_ns()).max(1)))
        });
        let (moved, ns) =
            commits.into_iter().flatten().rev().find(|(moved, _)| *moved > MEASURED_BYTES_MIN)?;
        let bytes_s = (u128::from(moved) * 1_000_000_000 / u128::from(ns)).max(1);
        Some(u128::from(bytes).div_ceil(bytes_s) as u64)
    }

    /// Returns the job as soon as its start is durable. The snapshots are already removed from the tree.
    pub(crate) async fn snapshot_commit(&self, vm: &VmName, target: CommitTarget) -> Result<api::Job> {
        let job = self.snapshot_commit_job(vm, target).await?;
        self.show_started(&*self.entry(vm.as_str())?, &job).await
    }

    /// Does the same, and returns the job itself.
    pub(crate) async fn snapshot_commit_job(
        &self,
        vm: &VmName,
        target: CommitTarget,
    ) -> Result<Arc<JobControl>> {
        let entry = self.entry_to_change(vm.as_str())?;
        let commit = async || Ok(entry.running.commit(&what(&target)).await?);
        self.with_bin(&entry.datastore, commit).await
    }

    /// Returns the job as soon as it has started. Fails with `Refused` for a redo VM.
    pub(crate) async fn vm_defragment(&self, vm: &VmName, request: api::VmDefragment) -> Result<api::Job> {
        let entry = self.entry_to_change(vm.as_str())?;
        let api::VmDefragment { disk, copy_shared } = request;
        let job = entry.running.defragment(DefragmentRequest { disk, copy_shared }).await?;
        self.show_started(&entry, &job).await
    }

    async fn show_started(&self, entry: &VmRecord, job: &Arc<JobControl>) -> Result<api::Job> {
        let latency_us = entry.running.guest_latency_us().await;
        let shown = self.tracked(|t| Arc::ptr_eq(&t.job, job).then(|| api_types::job(t, latency_us)));
        let found = shown.into_iter().flatten().next();
        found.ok_or_else(|| Error::failed(format!("VM {}: the job has ended already", entry.name)))
    }

    /// Returns the jobs, the oldest first. Ended jobs stay listed until the daemon stops.
    pub(crate) async fn job_list(&self) -> Vec<api::Job> {
        let vms: BTreeSet<String> = self.tracked(|t| t.vm.clone()).into_iter().flatten().collect();
        let mut latencies_us = BTreeMap::new();
        for vm in vms {
            let latency_us = self.guest_latency_us(&vm).await;
            latencies_us.insert(vm, latency_us);
        }
        let latency_us = |t: &Tracked| t.vm.as_ref().and_then(|vm| *latencies_us.get(vm)?);
        self.tracked(|t| api_types::job(t, latency_us(t)))
    }

    async fn guest_latency_us(&self, vm: &str) -> Option<u64> {
        self.entry(vm).ok()?.running.guest_latency_us().await
    }

    fn job(&self, id: u64) -> Result<Arc<JobControl>> {
        let found = self.tracked(|t| (t.id == id).then(|| t.job.clone())).into_iter().flatten().next();
        found.ok_or_else(|| Error::not_found(format!("no job {id}; see `unstun job list`")))
    }

    /// Changes a job and returns it. Pause, resume and cancel fail with `Refused` for an ended job.
    pub(crate) async fn job_do(
        &self,
        id: u64,
        change: impl FnOnce(&JobControl) -> blk::Result<()>,
    ) -> Result<api::Job> {
        change(&*self.job(id)?)?;
        let vm = self.tracked(|t| t.vm.clone().filter(|_| t.id == id)).into_iter().flatten().next();
        let latency_us = match vm {
            Some(vm) => self.guest_latency_us(&vm).await,
            None => None,
        };
        let shown = self.tracked(|t| (t.id == id).then(|| api_types::job(t, latency_us)));
        let shown = shown.into_iter().flatten().next();
        shown.ok_or_else(|| Error::not_found(format!("no job {id}")))
    }

    /// Cancels a job, and returns when the job has reached its safe point.
    pub(crate) async fn job_cancel(&self, id: u64) -> Result<api::Job> {
        let job = self.job(id)?;
        job.cancel()?;
        job.wait().await;
        self.job_do(id, |_| Ok(())).await
    }

    /// Returns the last `count` events of all VMs since a time, the newest first.
    pub(crate) async fn last_events(&self, since: Timestamp, count: usize) -> Vec<api::Event> {
        let (mut all, mut since): (Vec<api::Event>, _) = (Vec::new(), since);
        for entry in self.entries() {
            // Guests must not wait for the events of all VMs.
            self.env.next_turn().await;
            let own = entry.events.borrow();
            all.extend(own.iter().rev().filter(|event| event.time >= since).take(count).cloned());
            drop(own);
            if all.len() >= count.saturating_mul(2) {
                all.sort_by_key(|event| std::cmp::Reverse(event.time));
                all.truncate(count);
                since = all.last().map_or(since, |oldest| oldest.time);
            }
        }
        all.sort_by_key(|event| std::cmp::Reverse(event.time));
        all.truncate(count);
        all
    }

    /// Returns what the recorder needs of a VM.
    pub(crate) async fn recorded_vm(&self, vm: &VmName) -> Result<RecordedVm> {
        let entry = self.entry(vm.as_str())?;
        let state = entry.running.state().await;
        let snapshots = state.snapshots.iter().map(|s| (s.name.clone(), api_types::time(s.created_unix_us)));
        Ok(RecordedVm {
            id: state.id,
            store: entry.kept.store(),
            datastore: entry.datastore.name.to_string(),
            events: entry.events.borrow().clone(),
            snapshots: snapshots.collect(),
        })
    }

    /// Returns the events of a VM, in rising order.
    pub(crate) fn events(&self, vm: &VmName) -> Result<Vec<api::Event>> {
        Ok(self.entry(vm.as_str())?.events.borrow().clone())
    }
}

fn what(target: &CommitTarget) -> CommitWhat {
    match target {
        CommitTarget::All => CommitWhat::All,
        CommitTarget::Unowned => CommitWhat::Unowned,
        CommitTarget::Snapshot(name) => CommitWhat::One(name.as_str().to_string()),
    }
}
