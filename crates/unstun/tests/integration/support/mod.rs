//! A `Control` in memory, and a daemon that serves it on the API socket of a temporary datastore.

#![allow(dead_code, reason = "every test binary uses its own part")]

pub(crate) mod state;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::client::Client;
use api::error::{Error, ErrorKind, Result};
use api::location::Datastore;
use api::name::{DatastoreName, VmName};
use api::{Datastore as Listed, *};
use tempfile::TempDir;
use tokio::sync::oneshot;
use unstun::control::{Control, Reply};
use unstun::rest;

pub(crate) use state::DELTA_BYTES;
use state::{State, TIME, client, datastore, space};

pub(crate) struct Fake {
    state: Mutex<State>,
    nbd_uri: String,
}

impl Fake {
    /// Every disk is said to be at `nbd_uri`.
    pub(crate) fn new(nbd_uri: &str) -> Self {
        Self { state: Mutex::default(), nbd_uri: nbd_uri.to_owned() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_vm(&self, request: &VmCreate) -> Vm {
        let home = PathBuf::from("/datastore").join(request.name.as_str());
        let disks =
            (0..).zip(&request.disks).map(|(number, disk)| self.new_disk(&home, number, disk)).collect();
        Vm {
            id: format!("{:032x}", 1),
            name: request.name.clone(),
            datastore: "main".parse().unwrap(),
            home,
            store: request.store,
            when_full: request.when_full,
            current_snapshot: None,
            snapshots: 0,
            needs_consolidation: false,
            nbd_clients: 1,
            waiting_writes: 0,
            clients: vec![client()],
            notices: Vec::new(),
            snapshot_dir: None,
            shared_writers: false,
            generation: 1,
            fenced: false,
            space: space(),
            disks,
        }
    }

    fn new_disk(&self, home: &Path, number: u32, disk: &DiskCreate) -> Disk {
        let descriptor = home.join(format!("disk{number}.vmdk"));
        let layer = Layer {
            descriptor: descriptor.clone(),
            format: "vmfs".to_owned(),
            allocated_bytes: 0,
            writable: true,
            foreign: false,
            snapshot: None,
            io: Some(LayerIo::default()),
        };
        Disk {
            id: format!("{number:032x}"),
            number,
            slot: format!("scsi0:{number}"),
            store: Store::Redo,
            mode: disk.mode,
            size_bytes: disk.size_bytes,
            nbd_uri: self.nbd_uri.clone(),
            descriptor,
            layers: vec![layer],
            io: DiskIo::default(),
        }
    }
}

fn ready<'a, T: Send + 'a>(result: Result<T>) -> Reply<'a, T> {
    Box::pin(std::future::ready(result))
}

impl Control for Fake {
    fn status(&self) -> Reply<'_, Status> {
        let vms = self.state().vms.len() as u64;
        ready(Ok(Status {
            full: Vec::new(),
            version: "0".to_owned(),
            pid: 1,
            started: TIME.parse().unwrap(),
            datastore: "/datastore".into(),
            free_bytes: 100 << 30,
            total_bytes: 200 << 30,
            direct_io: true,
            nbd: vec!["nbd+unix:///?socket=/datastore/.unstun/nbd.sock".to_owned()],
            nbd_clients: 0,
            vms,
            disks: vms,
            snapshots: 0,
            open_jobs: 0,
            longest_poll_us: 0,
            longest_poll_task: None,
            long_polls: 0,
            datastores: vec![datastore("main")],
        }))
    }

    fn vm_create(&self, request: VmCreate) -> Reply<'_, Vm> {
        let mut state = self.state();
        if state.vms.contains_key(request.name.as_str()) {
            return ready(Err(Error::new(ErrorKind::Exists, format!("VM {}: exists", request.name))));
        }
        let vm = self.new_vm(&request);
        state.trees.insert(vm.name.to_string(), Vec::new());
        state.vms.insert(vm.name.to_string(), vm.clone());
        ready(Ok(vm))
    }

    fn vm_list(&self) -> Reply<'_, Vec<VmSummary>> {
        let summary = |vm: &Vm| VmSummary {
            id: Some(vm.id.clone()),
            name: vm.name.clone(),
            condition: VmCondition::Open,
            message: None,
            datastore: vm.datastore.clone(),
            home: vm.home.clone(),
            store: vm.store,
            disks: Some(vm.disks.len() as u64),
            size_bytes: Some(vm.disks.iter().map(|disk| disk.size_bytes).sum()),
            allocated_bytes: Some(0),
            snapshots: Some(vm.snapshots),
            nbd_clients: vm.nbd_clients,
            waiting_writes: vm.waiting_writes,
        };
        ready(Ok(self.state().vms.values().map(summary).collect()))
    }

    fn vm_show(&self, vm: VmName) -> Reply<'_, Vm> {
        ready(self.state().vm(&vm).cloned())
    }

    fn vm_space(&self, vm: VmName) -> Reply<'_, VmSpace> {
        let state = self.state();
        let snapshot = |s: &Snapshot| SnapshotSpace {
            id: s.id.clone(),
            name: s.name.clone(),
            created: s.created,
            age_s: 60,
            delta_bytes: s.delta_bytes,
        };
        ready(state.tree(&vm).map(|tree| VmSpace {
            vm: vm.clone(),
            datastore: "main".parse().unwrap(),
            store: Store::Redo,
            logical_bytes: 1 << 30,
            allocated_bytes: DELTA_BYTES,
            shared_bytes: 0,
            snapshots: tree.iter().map(snapshot).collect(),
            space: space(),
        }))
    }

    /// Two parts, and a range that goes on from one into the other.
    fn snapshot_diff(&self, vm: VmName, request: Diff) -> Reply<'_, Differences> {
        let (start_bytes, end_bytes) = if request.start_bytes == 0 { (512, 1024) } else { (1024, 2048) };
        let state = self.state();
        ready(state.vm(&vm).map(|_| Differences {
            vm: vm.clone(),
            disk: request.disk,
            from: request.from.to_string(),
            to: request.to.map(|to| to.to_string()),
            size_bytes: 2048,
            start_bytes: request.start_bytes,
            end_bytes,
            ranges: vec![DiskRange { start_bytes, length_bytes: 512 }],
        }))
    }

    fn vm_import(&self, request: VmImport) -> Reply<'_, Vm> {
        let name = request.name.unwrap_or_else(|| "imported".parse().unwrap());
        let disks = vec![DiskCreate::new(1 << 30)];
        let VmImport { when_full, datastore, .. } = request;
        self.vm_create(VmCreate { name, disks, store: Store::Redo, when_full, datastore })
    }

    fn vm_clone(&self, vm: VmName, request: VmClone) -> Reply<'_, Vm> {
        let parent = self.state().vm(&vm).cloned();
        match parent {
            Err(error) => ready(Err(error)),
            Ok(parent) => {
                let disks = vec![DiskCreate::new(1 << 30)];
                let when_full = parent.when_full;
                let (name, store) = (request.name, Store::Redo);
                self.vm_create(VmCreate { name, disks, store, when_full, datastore: None })
            }
        }
    }

    fn vm_move(&self, vm: VmName, _: VmMove) -> Reply<'_, Job> {
        let mut state = self.state();
        let moving = state.commit(&vm, &CommitTarget::Unowned);
        ready(moving.map(|job| Job { operation: Operation::Move, ..job }))
    }

    fn vm_close(&self, vm: VmName, disconnect: bool) -> Reply<'_, VmClosed> {
        let home = self.state().vm(&vm).map(|vm| vm.home.clone());
        let clients = if disconnect { vec![client()] } else { Vec::new() };
        ready(home.map(|home| VmClosed { name: vm, home, clients }))
    }

    fn vm_open(&self, vm: VmName, _take_over: bool) -> Reply<'_, Vm> {
        self.vm_show(vm)
    }

    fn vm_set_shared_writers(&self, vm: VmName, shared: bool) -> Reply<'_, Vm> {
        let mut state = self.state();
        if let Some(vm) = state.vms.get_mut(vm.as_str()) {
            vm.shared_writers = shared;
        }
        ready(state.vm(&vm).cloned())
    }

    fn vm_set_snapshot_dir(&self, vm: VmName, request: SnapshotDir) -> Reply<'_, Vm> {
        let mut state = self.state();
        let shown = state.vm(&vm).cloned();
        if let Some(vm) = state.vms.get_mut(vm.as_str()) {
            vm.snapshot_dir.clone_from(&request.dir);
        }
        ready(shown.map(|shown| Vm { snapshot_dir: request.dir, ..shown }))
    }

    fn reset_preview(&self, vm: VmName, _: Reset) -> Reply<'_, Loss> {
        ready(self.state().loss(&vm, Operation::Reset, None, true))
    }

    fn vm_reset(&self, vm: VmName, request: Reset) -> Reply<'_, Loss> {
        ready(self.state().loss(&vm, Operation::Reset, None, request.disconnect))
    }

    fn disk_add(&self, vm: VmName, disk: DiskCreate) -> Reply<'_, Disk> {
        let mut state = self.state();
        let added = state.vm(&vm).map(|vm| self.new_disk(&vm.home, vm.disks.len() as u32, &disk));
        if let Ok(added) = &added {
            state.vms.get_mut(vm.as_str()).unwrap().disks.push(added.clone());
        }
        ready(added)
    }

    fn disk_remove(&self, vm: VmName, number: u32, delete_files: bool) -> Reply<'_, DiskRemoved> {
        let layers = self.state().disk(&vm, number).map(|disk| vec![disk.descriptor.clone()]);
        ready(layers.map(|layers| DiskRemoved { number, layers, files_deleted: delete_files }))
    }

    fn disk_grow(&self, vm: VmName, number: u32, size_bytes: u64) -> Reply<'_, DiskGrown> {
        ready(self.state().disk(&vm, number).map(|disk| {
            disk.size_bytes = size_bytes;
            DiskGrown { disk: disk.clone(), reconnect: vec![client()] }
        }))
    }

    fn disk_set_mode(&self, vm: VmName, number: u32, mode: DiskMode) -> Reply<'_, Disk> {
        ready(self.state().disk(&vm, number).map(|disk| {
            disk.mode = mode;
            disk.clone()
        }))
    }

    fn revert_preview(&self, vm: VmName, request: Revert) -> Reply<'_, Loss> {
        let target = request.snapshot.as_ref().map(|name| name.as_str());
        ready(self.state().loss(&vm, Operation::Revert, target, true))
    }

    fn snapshot_revert(&self, vm: VmName, request: Revert) -> Reply<'_, Loss> {
        let target = request.snapshot.as_ref().map(|name| name.as_str());
        ready(self.state().loss(&vm, Operation::Revert, target, request.disconnect))
    }

    fn discard_preview(&self, vm: VmName, request: Discard) -> Reply<'_, Loss> {
        ready(self.state().loss(&vm, Operation::Discard, Some(request.snapshot.as_str()), true))
    }

    fn snapshot_discard(&self, vm: VmName, request: Discard) -> Reply<'_, Loss> {
        let target = Some(request.snapshot.as_str());
        ready(self.state().loss(&vm, Operation::Discard, target, request.disconnect))
    }

    fn undo_preview(&self, vm: VmName, _: Reset) -> Reply<'_, Loss> {
        ready(self.state().loss(&vm, Operation::Restore, None, true))
    }

    fn snapshot_undo(&self, vm: VmName, request: Reset) -> Reply<'_, Loss> {
        ready(self.state().loss(&vm, Operation::Restore, None, request.disconnect))
    }

    fn vm_remove(&self, vm: VmName, request: VmRemove) -> Reply<'_, VmRemoved> {
        let mut state = self.state();
        let removed = state.vm(&vm).cloned();
        state.vms.remove(vm.as_str());
        let kept = request.delete_disks && !request.purge;
        ready(removed.map(|removed| {
            let bin = kept.then(|| state::bin_entry(&removed));
            state.bin.extend(bin.clone().map(|bin| (bin, removed.clone())));
            let disks_deleted = request.delete_disks && !kept;
            VmRemoved { name: vm, home: removed.home, disks_deleted, bin }
        }))
    }

    /// Nobody is connected to what is removed.
    fn vm_remove_preview(&self, vm: VmName, request: VmRemove) -> Reply<'_, VmRemovePreview> {
        let disk = |disk: &Disk| RemovedDisk { number: disk.number, size_bytes: disk.size_bytes };
        ready(self.state().vm(&vm).map(|removed| VmRemovePreview {
            vm: vm.clone(),
            condition: VmCondition::Open,
            datastore: removed.datastore.clone(),
            store: removed.store,
            home: removed.home.clone(),
            disks_deleted: request.delete_disks,
            disks: Some(removed.disks.iter().map(disk).collect()),
            snapshots: Some(Vec::new()),
            allocated_bytes: Some(DELTA_BYTES),
            clients: Vec::new(),
            kept_until: (!request.purge).then(|| TIME.parse().unwrap()),
            not_kept: request.purge.then(|| "--purge removes it for good".to_owned()),
        }))
    }

    fn bin_list(&self, _: Option<DatastoreName>) -> Reply<'_, Vec<BinEntry>> {
        ready(Ok(self.state().bin.iter().map(|(entry, _)| entry.clone()).collect()))
    }

    fn bin_restore(&self, request: BinRestore) -> Reply<'_, BinRestored> {
        let mut state = self.state();
        let is =
            |(entry, _): &(BinEntry, Vm)| entry.id == request.entry || entry.vm.as_str() == request.entry;
        let Some(at) = state.bin.iter().position(is) else {
            return ready(Err(Error::not_found(format!("{:?} is not in the bin", request.entry))));
        };
        let (entry, vm) = state.bin.remove(at);
        let name = request.name.unwrap_or_else(|| vm.name.clone());
        let home = vm.home.clone();
        state.vms.insert(name.to_string(), Vm { name: name.clone(), ..vm });
        ready(Ok(BinRestored { entry, vm: name, home, condition: VmCondition::Open }))
    }

    fn bin_empty_preview(&self, _: BinEmpty) -> Reply<'_, BinEmptied> {
        let entries: Vec<_> = self.state().bin.iter().map(|(entry, _)| entry.clone()).collect();
        let bytes = entries.iter().filter_map(|entry| entry.bytes).sum();
        ready(Ok(BinEmptied { entries, bytes, left: Vec::new() }))
    }

    fn bin_empty(&self, _: BinEmpty) -> Reply<'_, BinEmptied> {
        let mut state = self.state();
        let entries: Vec<_> = state.bin.drain(..).map(|(entry, _)| entry).collect();
        let bytes = entries.iter().filter_map(|entry| entry.bytes).sum();
        ready(Ok(BinEmptied { entries, bytes, left: Vec::new() }))
    }

    fn snapshot_take(&self, vm: VmName, request: SnapshotTake) -> Reply<'_, SnapshotTaken> {
        ready(self.state().take(&vm, &request))
    }

    fn snapshot_tree(&self, vm: VmName) -> Reply<'_, SnapshotTree> {
        let snapshots = self.state().tree(&vm).cloned();
        let delta =
            UnownedDelta { disk: 0, descriptor: "/datastore/web/web-000003.vmdk".into(), allocated_bytes: 1 };
        ready(snapshots.map(|snapshots| SnapshotTree {
            vm,
            store: Store::Redo,
            snapshots,
            unowned: vec![delta],
            machine_states: 0,
        }))
    }

    fn commit_preview(&self, vm: VmName, target: CommitTarget) -> Reply<'_, CommitPreview> {
        let names = self.state().names(&vm, &target);
        ready(names.map(|snapshots| CommitPreview {
            vm,
            warning: CommitPreview::warning_for(&snapshots),
            snapshots,
            bytes_to_move: DELTA_BYTES,
            bytes_freed: DELTA_BYTES,
            estimated_s: Some(1),
            stays: Vec::new(),
        }))
    }

    fn snapshot_commit(&self, vm: VmName, target: CommitTarget) -> Reply<'_, Job> {
        ready(self.state().commit(&vm, &target))
    }

    fn store_check(&self, _: Option<DatastoreName>) -> Reply<'_, Checked> {
        ready(Ok(Checked { path: "/datastore/store.unstun".into(), findings: Vec::new() }))
    }

    fn store_scrub(&self, _: Option<DatastoreName>) -> Reply<'_, Job> {
        let mut state = self.state();
        let vm = "web".parse().unwrap();
        let job = state.commit(&vm, &CommitTarget::Unowned);
        ready(job.map(|job| Job { operation: Operation::Scrub, vm: None, ..job }))
    }

    fn store_scrubbed(&self, datastore: Option<DatastoreName>) -> Reply<'_, Checked> {
        self.store_check(datastore)
    }

    fn datastore_list(&self) -> Reply<'_, Vec<Listed>> {
        ready(Ok(vec![datastore("main")]))
    }

    fn datastore_add(&self, request: DatastoreAdd) -> Reply<'_, Listed> {
        let name = request.name.map_or("added".to_owned(), |name| name.to_string());
        ready(Ok(Listed { is_main: false, path: request.path, ..datastore(&name) }))
    }

    fn datastore_remove(&self, name: DatastoreName) -> Reply<'_, DatastoreRemoved> {
        ready(Ok(DatastoreRemoved { name, path: "/added".into() }))
    }

    fn datastore_remove_preview(&self, name: DatastoreName) -> Reply<'_, DatastoreRemovePreview> {
        ready(Ok(DatastoreRemovePreview {
            name,
            path: "/added".into(),
            condition: DatastoreCondition::Open,
            vms: Vec::new(),
            idle_vms: Vec::new(),
            clients: Vec::new(),
            bin_entries: 0,
            bin_bytes: 0,
        }))
    }

    fn job_list(&self) -> Reply<'_, Vec<Job>> {
        ready(Ok(self.state().jobs.clone()))
    }

    fn job_show(&self, id: u64) -> Reply<'_, Job> {
        ready(self.state().step(id))
    }

    fn job_pause(&self, id: u64) -> Reply<'_, Job> {
        ready(self.state().set_state(id, JobState::Paused))
    }

    fn job_resume(&self, id: u64) -> Reply<'_, Job> {
        ready(self.state().set_state(id, JobState::Running))
    }

    fn job_cancel(&self, id: u64) -> Reply<'_, Job> {
        ready(self.state().set_state(id, JobState::Cancelled))
    }

    fn job_limit(&self, id: u64, limit_bytes_s: Option<u64>) -> Reply<'_, Job> {
        ready(self.state().job(id).map(|job| {
            job.limit_bytes_s = limit_bytes_s;
            job.clone()
        }))
    }

    fn events(&self, vm: VmName, after: u64) -> Reply<'_, Vec<Event>> {
        let state = self.state();
        let later = state.events.iter().filter(|e| e.vm == vm && e.id > after).cloned().collect();
        ready(state.vm(&vm).map(|_| later))
    }

    fn shutdown(&self) -> Reply<'_, ()> {
        ready(Ok(()))
    }
}

/// Serves a fake from a thread of its own, until dropped.
pub(crate) struct Daemon {
    pub folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::serving(Fake::new("nbd+unix:///web/disk0?socket=/datastore/.unstun/nbd.sock"))
    }

    pub(crate) fn serving(fake: Fake) -> Self {
        Self::serving_within(fake, Duration::from_secs(3600))
    }

    /// With `header_time` for the header of a request.
    pub(crate) fn serving_within(fake: Fake, header_time: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = Datastore::for_client(Some(folder.path())).unwrap().api_socket();
        std::fs::create_dir(socket.parent().unwrap()).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (listening, is_listening) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            api::client::runtime().unwrap().block_on(async move {
                let listener = rest::bind(&socket).unwrap();
                listening.send(()).unwrap();
                let until = async move { drop(stopped.await) };
                rest::serve_with(listener, Arc::new(fake), until, header_time).await.unwrap();
            });
        });
        is_listening.recv().unwrap();
        Self { folder, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&Datastore::for_client(Some(self.path())).unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}
