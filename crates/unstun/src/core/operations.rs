//! What the API asks, done with the engine.

use std::rc::Rc;

use blk::manifest::LayerInfo;
use engine::{CommitWhat, Job};

use super::node::{Entry, Node};
use super::{formats, present};
use crate::api::{self, CommitTarget};
use crate::error::{Error, ErrorKind, Result};
use crate::name::VmName;

/// Assumed before anything was measured: a mover that yields to a busy guest on an ordinary disk.
const ASSUMED_BYTES_S: u64 = 50 << 20;

impl Node {
    pub async fn status(&self) -> Result<api::Status> {
        let space = self.dir.space().await?;
        let entries = self.entries();
        let count = |f: &dyn Fn(&Entry) -> usize| entries.iter().map(|e| f(e) as u64).sum();
        let open_jobs =
            self.tracked(|t| !t.job.state().is_over()).into_iter().filter(|&open| open).count() as u64;
        Ok(api::Status {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            started: self.started,
            datastore: self.root.clone(),
            free_bytes: space.free_bytes,
            total_bytes: space.total_bytes,
            direct_io: formats::is_direct(&self.dir).await,
            nbd: self.nbd.iter().map(|n| n.uri("")).collect(),
            nbd_clients: self.doors.sessions().len() as u64,
            vms: entries.len() as u64,
            disks: count(&|e| e.vm.disks().len()),
            snapshots: count(&|e| e.vm.state().snapshots.len()),
            open_jobs,
        })
    }

    pub async fn vm_create(self: &Rc<Self>, request: api::VmCreate) -> Result<api::Vm> {
        let name = request.name.as_str();
        let api::Store::Redo = request.store;
        if self.is_taken(name) || self.home(name).exists() {
            let home = self.home(name);
            let message = format!("{}: exists; expected a free VM name", home.display());
            return Err(Error::new(ErrorKind::Exists, message));
        }
        let sizes: Vec<u64> = request.disks.iter().map(|d| d.size_bytes).collect();
        formats::create_vm(&self.dir, name, &sizes, request.when_full).await?;
        let entry = self.open_vm(name).await?;
        self.show(&entry).await
    }

    pub async fn vm_list(&self) -> Result<Vec<api::VmSummary>> {
        let mut rows = Vec::new();
        for entry in self.entries() {
            let state = entry.vm.state();
            let mut allocated_bytes = 0;
            for disk in &state.disks {
                allocated_bytes +=
                    self.layers(&entry, &disk.top).await?.iter().map(|l| l.allocated_bytes).sum::<u64>();
            }
            rows.push(api::VmSummary {
                id: present::id(state.id),
                name: present::vm_name(&entry.vm.name),
                store: api::Store::Redo,
                disks: state.disks.len() as u64,
                size_bytes: state.disks.iter().map(|d| d.size_bytes).sum(),
                allocated_bytes,
                snapshots: state.snapshots.len() as u64,
                nbd_clients: entry.clients(),
            });
        }
        Ok(rows)
    }

    pub async fn vm_show(&self, vm: &VmName) -> Result<api::Vm> {
        let entry = self.entry(vm.as_str())?;
        self.show(&entry).await
    }

    async fn layers(&self, entry: &Entry, top: &str) -> Result<Vec<LayerInfo>> {
        Ok(entry.vm.manifest().chain(top).await?)
    }

    async fn show(&self, entry: &Rc<Entry>) -> Result<api::Vm> {
        let state = entry.vm.state();
        let mut disks = Vec::new();
        let mut unowned = false;
        for disk in &state.disks {
            let layers = self.layers(entry, &disk.top).await?;
            let named =
                |l: &LayerInfo| state.snapshots.iter().any(|s| s.disks.iter().any(|(_, n)| *n == l.name));
            unowned |= layers.iter().rev().skip(1).any(|l| !named(l));
            disks.extend(present::disk(self, entry, &state, disk.number, &layers));
        }
        Ok(api::Vm {
            id: present::id(state.id),
            name: present::vm_name(&entry.vm.name),
            home: entry.home.clone(),
            store: api::Store::Redo,
            when_full: entry.when_full,
            current_snapshot: state
                .current
                .and_then(|id| state.snapshots.iter().find(|s| s.id == id))
                .map(|s| s.name.clone()),
            snapshots: state.snapshots.len() as u64,
            needs_consolidation: unowned,
            nbd_clients: entry.clients(),
            space: self.space().await?,
            disks,
        })
    }

    /// Every delta may grow to the size of its disk: the worst that can come.
    async fn space(&self) -> Result<api::Space> {
        let free_bytes = self.dir.space().await?.free_bytes;
        let mut worst_growth_bytes = 0;
        for entry in self.entries() {
            for disk in entry.vm.disks() {
                let chain = disk.chain();
                let top = &chain.top().layer;
                if !top.shape().flat {
                    worst_growth_bytes += disk.size_bytes().saturating_sub(top.usage().held_bytes);
                }
            }
        }
        Ok(api::Space { free_bytes, worst_growth_bytes })
    }

    pub async fn vm_remove(&self, vm: &VmName, delete_disks: bool) -> Result<api::VmRemoved> {
        let name = vm.as_str();
        let entry = self.entry(name)?;
        let clients = entry.clients();
        if clients > 0 {
            let message = format!("VM {name}: {clients} clients are attached; disconnect them first");
            return Err(Error::refused(message));
        }
        if entry.vm.jobs().iter().any(|j| !j.state().is_over()) {
            let message =
                format!("VM {name}: a commit is under way; wait for it or cancel it (unstun job list)");
            return Err(Error::refused(message));
        }
        entry.vm.close().await?;
        self.forget(name);
        formats::unregister(&self.dir, name, delete_disks).await?;
        Ok(api::VmRemoved { name: vm.clone(), home: entry.home.clone(), disks_deleted: delete_disks })
    }

    pub async fn snapshot_take(&self, vm: &VmName, request: api::SnapshotTake) -> Result<api::SnapshotTaken> {
        let entry = self.entry(vm.as_str())?;
        let taken = entry.vm.take(request.name.as_str(), &request.message).await?;
        // Its own event: another operation may have reported one meanwhile.
        let own = |e: &&api::Event| {
            e.operation == api::Operation::Take && e.snapshot.as_deref() == Some(taken.name.as_str())
        };
        let stun_us = entry.events.borrow().iter().rev().find(own).map_or(0, |e| e.stun_us);
        let tree = self.snapshot_tree(vm).await?;
        let id = present::id(taken.id);
        let snapshot = tree.snapshots.into_iter().find(|s| s.id == id);
        let gone =
            || Error::failed(format!("VM {vm}: snapshot {} was committed at once by another", taken.name));
        Ok(api::SnapshotTaken {
            vm: vm.clone(),
            snapshot: snapshot.ok_or_else(gone)?,
            stun_us,
            space: self.space().await?,
        })
    }

    pub async fn snapshot_tree(&self, vm: &VmName) -> Result<api::SnapshotTree> {
        let entry = self.entry(vm.as_str())?;
        let delta_bytes = |snapshot: &blk::manifest::SnapshotState| {
            let disks = entry.vm.disks();
            disks
                .iter()
                .filter_map(|disk| {
                    let (_, frozen) = snapshot.disks.iter().find(|(n, _)| *n == disk.number)?;
                    let chain = disk.chain();
                    let at = chain.links.iter().position(|l| l.layer.name() == frozen)?;
                    Some(chain.links.get(at + 1)?.layer.usage().file_bytes)
                })
                .sum()
        };
        let snapshots = present::snapshots(&entry, &entry.vm.state(), delta_bytes);
        Ok(api::SnapshotTree { vm: vm.clone(), snapshots })
    }

    pub async fn commit_preview(&self, vm: &VmName, target: CommitTarget) -> Result<api::CommitPreview> {
        let entry = self.entry(vm.as_str())?;
        let preview = entry.vm.commit_preview(&what(&target)).await?;
        let rates = self.tracked(|t| (t.job.bytes_done.get(), t.job.spent_ns().max(1)));
        let measured = rates.iter().rev().find(|(bytes, _)| *bytes > 16 << 20);
        let bytes_s = measured.map_or(ASSUMED_BYTES_S, |(b, ns)| {
            (u128::from(*b) * 1_000_000_000 / u128::from(*ns)).max(1) as u64
        });
        Ok(api::CommitPreview {
            vm: vm.clone(),
            warning: api::CommitPreview::warning_for(&preview.names),
            snapshots: preview.names.into_iter().rev().collect(),
            bytes_to_move: preview.bytes_to_move,
            bytes_freed: preview.bytes_freed,
            estimated_s: Some(preview.bytes_to_move.div_ceil(bytes_s)),
        })
    }

    pub async fn snapshot_commit(&self, vm: &VmName, target: CommitTarget) -> Result<api::Job> {
        let entry = self.entry(vm.as_str())?;
        let job = entry.vm.commit(&what(&target)).await?;
        let shown = self.tracked(|t| Rc::ptr_eq(&t.job, &job).then(|| present::job(t)));
        let found = shown.into_iter().flatten().next();
        found.ok_or_else(|| Error::failed(format!("VM {vm}: the job is gone already")))
    }

    pub fn job_list(&self) -> Vec<api::Job> {
        self.tracked(present::job)
    }

    fn job(&self, id: u64) -> Result<Rc<Job>> {
        let found = self.tracked(|t| (t.id == id).then(|| t.job.clone())).into_iter().flatten().next();
        found.ok_or_else(|| Error::not_found(format!("no job {id}; see unstun job list")))
    }

    pub fn job_do(&self, id: u64, change: impl FnOnce(&Job) -> blk::Result<()>) -> Result<api::Job> {
        change(&*self.job(id)?)?;
        let shown = self.tracked(|t| (t.id == id).then(|| present::job(t))).into_iter().flatten().next();
        shown.ok_or_else(|| Error::not_found(format!("no job {id}")))
    }

    /// Answers when the job has come to its safe point.
    pub async fn job_cancel(&self, id: u64) -> Result<api::Job> {
        let job = self.job(id)?;
        job.cancel()?;
        job.wait().await;
        self.job_do(id, |_| Ok(()))
    }

    pub fn events(&self, vm: &VmName, after: u64) -> Result<Vec<api::Event>> {
        let entry = self.entry(vm.as_str())?;
        let events = entry.events.borrow();
        Ok(events.iter().filter(|e| e.id > after).cloned().collect())
    }
}

fn what(target: &CommitTarget) -> CommitWhat {
    match target {
        CommitTarget::All => CommitWhat::All,
        CommitTarget::Snapshot(name) => CommitWhat::One(name.as_str().to_string()),
    }
}
