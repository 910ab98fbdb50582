//! What the `Control` in memory knows: VMs, trees, jobs and events, and how they change.

use std::collections::BTreeMap;

use api::error::{Error, ErrorKind, Result};
use api::name::VmName;
use api::*;

pub(crate) const DELTA_BYTES: u64 = 64 << 20;
/// Of every take and commit, by its own account: longer than any test lasts.
pub(crate) const STUN_US: u64 = 600_000_000;
/// A job ends at the fourth look at it.
const JOB_STEPS: u64 = 4;
pub(crate) const TIME: &str = "2026-11-20T12:00:00Z";

#[derive(Default)]
pub(crate) struct State {
    pub vms: BTreeMap<String, Vm>,
    pub trees: BTreeMap<String, Vec<Snapshot>>,
    pub jobs: Vec<Job>,
    pub events: Vec<Event>,
    pub bin: Vec<(BinEntry, Vm)>,
}

pub(crate) fn space() -> Space {
    Space { free_bytes: 100 << 30, worst_growth_bytes: 20 << 30, bin_bytes: 0, reclaimable_bytes: 0 }
}

pub(crate) fn datastore(name: &str) -> Datastore {
    Datastore {
        name: name.parse().unwrap(),
        path: "/datastore".into(),
        is_main: true,
        is_device: false,
        condition: DatastoreCondition::Open,
        message: None,
        hung: None,
        notices: Vec::new(),
        free_bytes: Some(100 << 30),
        total_bytes: Some(200 << 30),
        bin_bytes: Some(0),
        reclaimable_bytes: Some(0),
        direct_io: Some(true),
        vms: Some(1),
        native_store: true,
        map_cache_bytes: Some(64 << 20),
    }
}

pub(crate) fn bin_entry(vm: &Vm) -> BinEntry {
    BinEntry {
        id: "0123456789abcdef".to_owned(),
        kind: BinKind::Vm,
        vm: vm.name.clone(),
        datastore: vm.datastore.clone(),
        store: vm.store,
        operation: Operation::Remove,
        subject: None,
        removed: TIME.parse().unwrap(),
        kept_until: TIME.parse().unwrap(),
        bytes: Some(DELTA_BYTES),
        path: Some(vm.home.clone()),
    }
}

pub(crate) fn client() -> VmClient {
    let access = ClientAccess::Writes;
    VmClient { disk: Some(0), snapshot: None, client: "unix".to_owned(), access }
}

impl State {
    pub(crate) fn vm(&self, vm: &VmName) -> Result<&Vm> {
        self.vms.get(vm.as_str()).ok_or_else(|| Error::not_found(format!("VM {vm}: no such VM")))
    }

    pub(crate) fn tree(&self, vm: &VmName) -> Result<&Vec<Snapshot>> {
        self.vm(vm).map(|_| &self.trees[vm.as_str()])
    }

    pub(crate) fn names(&self, vm: &VmName, target: &CommitTarget) -> Result<Vec<String>> {
        let all = self.tree(vm)?;
        match target {
            CommitTarget::All if all.is_empty() => Err(Error::refused(format!("VM {vm} has no snapshots"))),
            CommitTarget::Unowned => Ok(Vec::new()),
            CommitTarget::All => Ok(all.iter().map(|s| s.name.clone()).collect()),
            CommitTarget::Snapshot(name) if all.iter().any(|s| s.name == name.as_str()) => {
                Ok(vec![name.to_string()])
            }
            CommitTarget::Snapshot(name) => Err(Error::not_found(format!("VM {vm} has no snapshot {name}"))),
        }
    }

    pub(crate) fn take(&mut self, vm: &VmName, request: &SnapshotTake) -> Result<SnapshotTaken> {
        let tree = self.tree(vm)?;
        if tree.iter().any(|s| s.name == request.name.as_str()) {
            return Err(Error::new(ErrorKind::Exists, format!("VM {vm} has a snapshot {}", request.name)));
        }
        let snapshot = Snapshot {
            id: format!("{:032x}", tree.len() + 1),
            name: request.name.to_string(),
            parent: tree.last().map(|s| s.id.clone()),
            created: TIME.parse().unwrap(),
            current: true,
            sealed: true,
            message: request.message.clone(),
            delta_bytes: DELTA_BYTES,
        };
        let tree = self.trees.get_mut(vm.as_str()).unwrap();
        tree.iter_mut().for_each(|s| s.current = false);
        tree.push(snapshot.clone());
        self.event(vm, Operation::Take, Some(request.name.to_string()));
        Ok(SnapshotTaken { vm: vm.clone(), snapshot, stun_us: STUN_US, space: space() })
    }

    pub(crate) fn loss(
        &self,
        vm: &VmName,
        operation: Operation,
        target: Option<&str>,
        disconnect: bool,
    ) -> Result<Loss> {
        let tree = self.tree(vm)?;
        if let Some(name) = target
            && !tree.iter().any(|s| s.name == name)
        {
            return Err(Error::not_found(format!("VM {vm} has no snapshot {name}")));
        }
        let mut loss = Loss {
            vm: vm.clone(),
            operation,
            target: target.map(str::to_owned),
            taken: None,
            snapshots: Vec::new(),
            layers: vec!["/datastore/web/web-000001.vmdk".into()],
            bytes_lost: DELTA_BYTES,
            reverts: true,
            clients: vec![client()],
            kept_until: None,
            not_kept: None,
            warning: String::new(),
        };
        loss.warning = loss.sentence();
        // As the engine does it: a look is free, a change needs the clients gone.
        match disconnect {
            true => Ok(loss),
            false => Err(Error::refused(format!("VM {vm}: unix writes to disk0"))),
        }
    }

    pub(crate) fn disk(&mut self, vm: &VmName, number: u32) -> Result<&mut Disk> {
        self.vm(vm)?;
        let disks = &mut self.vms.get_mut(vm.as_str()).unwrap().disks;
        let missing = || Error::not_found(format!("VM {vm}: no disk{number}"));
        disks.iter_mut().find(|disk| disk.number == number).ok_or_else(missing)
    }

    pub(crate) fn event(&mut self, vm: &VmName, operation: Operation, snapshot: Option<String>) {
        self.events.push(Event {
            id: self.events.len() as u64 + 1,
            time: TIME.parse().unwrap(),
            vm: vm.clone(),
            operation,
            snapshot,
            stun_us: STUN_US,
            disks: vec![EventDisk { number: 0, stun_us: STUN_US, flush_us: 1500, bytes_moved: 0 }],
            message: None,
        });
    }

    pub(crate) fn commit(&mut self, vm: &VmName, target: &CommitTarget) -> Result<Job> {
        let snapshots = self.names(vm, target)?;
        self.trees.get_mut(vm.as_str()).unwrap().retain(|s| !snapshots.contains(&s.name));
        let job = Job {
            id: self.jobs.len() as u64 + 1,
            operation: Operation::Commit,
            vm: Some(vm.clone()),
            datastore: "main".parse().unwrap(),
            snapshots,
            state: JobState::Running,
            started: TIME.parse().unwrap(),
            ended: None,
            bytes: JobBytes::Moved,
            bytes_done: 0,
            bytes_total: DELTA_BYTES,
            rate_bytes_s: 100 << 20,
            limit_bytes_s: None,
            eta_s: Some(1),
            guest_latency_us: Some(300),
            error: None,
        };
        self.jobs.push(job.clone());
        self.event(vm, Operation::CommitStart, job.snapshots.first().cloned());
        Ok(job)
    }

    pub(crate) fn job(&mut self, id: u64) -> Result<&mut Job> {
        self.jobs
            .iter_mut()
            .find(|job| job.id == id)
            .ok_or_else(|| Error::not_found(format!("job {id}: no such job")))
    }

    pub(crate) fn step(&mut self, id: u64) -> Result<Job> {
        let job = self.job(id)?;
        if job.state == JobState::Running {
            job.bytes_done += job.bytes_total / JOB_STEPS;
        }
        if job.bytes_done == job.bytes_total && job.state == JobState::Running {
            (job.state, job.ended, job.eta_s, job.rate_bytes_s) =
                (JobState::Done, Some(TIME.parse().unwrap()), None, 0);
        }
        Ok(job.clone())
    }

    pub(crate) fn set_state(&mut self, id: u64, state: JobState) -> Result<Job> {
        let job = self.job(id)?;
        if !job.state.is_open() {
            return Err(Error::refused(format!("job {id} has ended")));
        }
        job.state = state;
        Ok(job.clone())
    }
}
