//! A VM of our own daemon, measured through the interfaces that every user has: REST for the operations, NBD for the
//! load.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use api::client::{Client, runtime};
use api::location::Datastore;
use api::name::VmName;
use api::{
    CommitTarget, DeltaFormat, DiskCreate, DiskIo, Job, JobState, LayerIo, SnapshotTake, Store, Vm, VmCreate,
    WhenFull,
};
use blk::{Errno, Error, ErrorKind, Result};
use export::nbd_client;
use tokio::runtime::Runtime;

use super::operations::{LoggedStun, OperationState, Operations, SnapshotDisk};
use super::server::Server;
use crate::run::Counters;
use crate::subject::{CommitEnd, LayerSeen};

/// Name of the VM in a daemon that the lab started.
const VM: &str = "lab";
/// Interval of the checks of a commit, and of the list of connected clients.
const LOOK: Duration = Duration::from_millis(20);
/// Checks of a commit for each read of the files' counters: once a second.
const HOST_LOOKS: u64 = 50;
/// Limit for readers that have disconnected: ten seconds of checks.
const READERS_LOOKS: u32 = 500;

pub(super) struct Served {
    client: Client,
    runtime: Runtime,
    vm: VmName,
    /// Format of the deltas of a take.
    pub delta: DeltaFormat,
    /// Number of the last event that was read.
    last_event: u64,
    /// The daemon, if this run started it.
    server: Option<Server>,
}

impl Served {
    /// Connects to a VM of a daemon that runs already, and returns its disks' URIs too.
    pub(super) fn connect(client: Client, vm: VmName) -> Result<(Served, Vec<String>)> {
        let runtime = runtime().map_err(of_api)?;
        let served = Served { client, runtime, vm, delta: DeltaFormat::Fitting, last_event: 0, server: None };
        let uris = served.show()?.disks.into_iter().map(|disk| disk.nbd_uri).collect();
        Ok((served, uris))
    }

    /// Starts `program`, the binary under test, and creates a VM with new disks.
    pub(super) fn start(
        program: &Path,
        folder: &Path,
        store: Store,
        disk_bytes: &[u64],
    ) -> Result<(Served, Vec<String>)> {
        let root = folder.join("datastore");
        let made = std::fs::create_dir_all(&root);
        made.map_err(|e| Errno::from(e).at(root.display().to_string(), "making the datastore"))?;
        let client = Client::new(&Datastore::for_client(Some(&root)).map_err(of_api)?);
        let mut command = Command::new(program);
        command.arg("--datastore").arg(&root).args(["up", "--web", "none", "--nbd"]);
        command.arg(format!("unix:{}", socket(folder).display()));
        let runtime = runtime().map_err(of_api)?;
        let is_ready = || runtime.block_on(client.status()).is_ok();
        let server = Server::start(&mut command, folder, is_ready)?;
        let vm: VmName = VM.parse().map_err(|e| Error::invalid(VM, e))?;
        let disks = disk_bytes.iter().map(|bytes| DiskCreate::new(*bytes)).collect();
        let when_full = WhenFull::default();
        let request = VmCreate { name: vm.clone(), disks, store, when_full, datastore: None };
        let created = runtime.block_on(client.vm_create(&request)).map_err(of_api)?;
        let uris = created.disks.into_iter().map(|disk| disk.nbd_uri).collect();
        let delta = DeltaFormat::Fitting;
        Ok((Served { client, runtime, vm, delta, last_event: 0, server: Some(server) }, uris))
    }

    fn show(&self) -> Result<Vm> {
        self.runtime.block_on(self.client.vm_show(&self.vm)).map_err(of_api)
    }

    /// Waits until the snapshot has no readers: the daemon notices a dropped connection a moment later. If a reader
    /// stays longer, the daemon's refusal names it.
    fn wait_for_readers(&self, name: &str, state: &OperationState) -> Result<()> {
        for _ in 0..READERS_LOOKS {
            state.check_cancelled("commit")?;
            if !self.show()?.clients.iter().any(|client| client.snapshot.as_deref() == Some(name)) {
                break;
            }
            std::thread::park_timeout(LOOK);
        }
        Ok(())
    }

    fn wait_for(&self, mut job: Job, state: &OperationState) -> Result<CommitEnd> {
        for looks in 0u64.. {
            state.check_cancelled("commit")?;
            if looks.is_multiple_of(HOST_LOOKS) {
                self.read_file_counters(state);
            }
            let mut progress = state.progress.lock().expect("no panic inside");
            (progress.done_bytes, progress.total_bytes) = (job.bytes_done, Some(job.bytes_total));
            drop(progress);
            if !job.state.is_open() {
                break;
            }
            std::thread::park_timeout(LOOK);
            job = self.runtime.block_on(self.client.job_show(job.id)).map_err(of_api)?;
        }
        match job.state {
            JobState::Done => Ok(CommitEnd::Done),
            _ => {
                let cause = job.error.map_or_else(|| "the job was cancelled".into(), |error| error.message);
                Err(Error::new(ErrorKind::Io, "commit", cause))
            }
        }
    }

    /// Reads the files' counters. A failed read leaves the previous values.
    fn read_file_counters(&self, state: &OperationState) {
        if let Ok(vm) = self.show() {
            *state.host.lock().expect("no panic inside") = (Some(counters(&vm)), layers(&vm));
        }
    }

    /// Reads the events since the last look. After a failure the next look reads them again.
    fn read_stuns(&mut self, state: &OperationState) {
        let events = self.runtime.block_on(self.client.events(&self.vm, self.last_event));
        for event in events.unwrap_or_default() {
            self.last_event = event.id;
            let end_unix_us = event.time.as_microsecond();
            let (stun_us, cause) = (event.stun_us, event.operation.as_str().to_owned());
            if stun_us > 0 {
                let stun = LoggedStun { end_unix_us, stun_us, cause };
                state.stuns.lock().expect("no panic inside").push(stun);
            }
        }
    }
}

fn of_api(error: api::error::Error) -> Error {
    Error::new(ErrorKind::Io, "the daemon", error.message)
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("nbd.sock")
}

/// Returns the URI of the sealed state of a disk, from that of the running disk: `VM/diskN@SNAPSHOT` on the same socket.
fn sealed_uri(nbd_uri: &str, disk: u32, snapshot: &str) -> String {
    let (path, socket) = nbd_uri.split_at(nbd_uri.find('?').unwrap_or(nbd_uri.len()));
    let vm = path.rsplit_once('/').map_or(path, |(vm, _)| vm);
    format!("{vm}/disk{disk}@{snapshot}{socket}")
}

/// Sums the counters of the disks. Native disks share a file, and each of them shows all of its I/O.
fn counters(vm: &Vm) -> Counters {
    let apart = if vm.store == Store::Native { 1 } else { vm.disks.len() };
    let mut sum = Counters::default();
    vm.disks.iter().take(apart).for_each(|disk| sum += of_disk(&disk.io));
    sum
}

fn layers(vm: &Vm) -> Vec<LayerSeen> {
    let of_disk = |disk: &api::Disk| {
        let number = disk.number;
        let seen = |(height, layer): (u32, &api::Layer)| {
            let name = format!("disk{number}/{}", layer.descriptor.display());
            Some(LayerSeen { name, height, host: of_layer(&layer.io?) })
        };
        (0..).zip(&disk.layers).filter_map(seen).collect::<Vec<_>>()
    };
    vm.disks.iter().flat_map(of_disk).collect()
}

fn of_disk(io: &DiskIo) -> Counters {
    Counters {
        reads: io.device_reads,
        writes: io.device_writes,
        flushes: io.device_flushes,
        read_bytes: io.device_read_bytes,
        written_bytes: io.device_written_bytes,
        table_reads: io.device_table_reads,
        table_writes: io.device_table_writes,
        ..Counters::default()
    }
}

fn of_layer(io: &LayerIo) -> Counters {
    Counters {
        reads: io.reads,
        writes: io.writes,
        flushes: io.flushes,
        read_bytes: io.read_bytes,
        written_bytes: io.written_bytes,
        table_reads: io.table_reads,
        table_writes: io.table_writes,
        ..Counters::default()
    }
}

impl Operations for Served {
    fn take(&mut self, name: &str, _: &OperationState) -> Result<()> {
        let name = name.parse().map_err(|e: String| Error::invalid(name, e))?;
        let request = SnapshotTake { delta: self.delta, ..SnapshotTake::named(name) };
        self.runtime.block_on(self.client.snapshot_take(&self.vm, &request)).map(drop).map_err(of_api)
    }

    fn commit(&mut self, name: &str, state: &OperationState) -> Result<CommitEnd> {
        self.wait_for_readers(name, state)?;
        let target = CommitTarget::Snapshot(name.parse().map_err(|e: String| Error::invalid(name, e))?);
        let job = self.runtime.block_on(self.client.snapshot_commit(&self.vm, &target)).map_err(of_api)?;
        let ended = self.wait_for(job, state);
        self.update_counters(state);
        ended
    }

    fn frozen(&mut self, name: &str) -> Result<Vec<SnapshotDisk>> {
        let disks = self.show()?.disks;
        let uri = |disk: &api::Disk| sealed_uri(&disk.nbd_uri, disk.number, name);
        disks.iter().map(|disk| Ok(SnapshotDisk::Export(nbd_client::connect(&uri(disk))?))).collect()
    }

    fn update_counters(&mut self, state: &OperationState) {
        self.read_file_counters(state);
        self.read_stuns(state);
    }

    fn close(&mut self) -> Result<()> {
        self.server.as_mut().map_or(Ok(()), Server::stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_state_is_on_the_socket_of_its_disk() {
        let unix = sealed_uri("nbd+unix:///web/disk1.g5?socket=/tmp/s", 1, "before");
        assert_eq!(unix, "nbd+unix:///web/disk1@before?socket=/tmp/s");
        assert_eq!(sealed_uri("nbd://[::1]:9/web/disk0", 0, "b"), "nbd://[::1]:9/web/disk0@b");
    }
}
