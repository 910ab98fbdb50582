//! Memory of guests at snapshots: a file for each in the `.unstun` folder of the VM's home, with the snapshot's id in its name.
//! It is there once it is complete, and is removed after its snapshot.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use api::error::{Error, Result};
use api::name::{SnapshotRef, VmName};
use api::{ClientAccess, MemorySaved, Operation, VmClient};
use blk::dir::OWN_FOLDER;
use blk::reactor::OpenMode;
use blk::{Buf, Dir};
use engine::tree;
use tracing::warn;

use crate::daemon::datastore::Datastore;
use crate::daemon::requests::api_types;
use crate::daemon::running::client::client_gate::Who;
use crate::daemon::state::Daemon;
use crate::daemon::vm::home_folder::HomeFolder;
use crate::daemon::vm::paths;
use crate::daemon::vm::vm_record::VmRecord;
use crate::guest::{
    DiskClient, Held, MemoryFile, MemoryFiles, NotHeld, Record, SaveMemory, SavedDisk, StoppedGuest,
    header_of,
};

/// What a guest's memory must leave free in its datastore: a tenth of what is free, and 1 GiB at most.
const KEPT_FREE_PART: u64 = 10;
const KEPT_FREE_BYTES_MAX: u64 = 1 << 30;
const COPIED_BYTES: u64 = 1 << 20;

impl Daemon {
    /// Saves the guest's memory for the snapshot `id`, until the guest stands still for the rest.
    pub(super) async fn stop_for_memory(
        self: &Rc<Self>,
        entry: &Rc<VmRecord>,
        id: u128,
    ) -> Result<StoppedGuest> {
        let clients = entry.running.present(Who::Writers).await;
        let refused =
            |cause: String| Error::refused(format!("VM {}: no snapshot was taken: {cause}", entry.name));
        if clients.is_empty() {
            let cause = "no client is connected, so there is no guest whose memory could be saved";
            return Err(refused(cause.to_owned()));
        }
        let guest = entry.labels.get().guest();
        let Some(monitor) = guest.qmp else {
            return Err(refused(format!(
                "unstun cannot reach QEMU's monitor; name it: `unstun vm set {} --qmp unix:/PATH`",
                entry.name
            )));
        };
        // The home may be on another file system than its datastore, whose store has free space that is not for files.
        let free_bytes = paths::open_path(&self.env, &entry.home).await?.space().await?.free_bytes;
        let held = Held::Stopped { monitor: monitor.path().to_owned(), paused: false };
        let disks = self.vm_show(&api_types::vm_name(&entry.name)).await?.disks;
        let save = SaveMemory {
            guest: self.held_guest(Record { vm: api_types::vm_name(&entry.name), held }),
            file: file_of(entry, id),
            bytes_max: free_bytes - (free_bytes / KEPT_FREE_PART).min(KEPT_FREE_BYTES_MAX),
            disks: disks.iter().map(SavedDisk::from).collect(),
            clients: clients.iter().map(disk_client).collect(),
            stopped_max: Duration::from_millis(guest.frozen_ms_max),
            busy: entry.guest_busy.clone(),
        };
        save.begin().await.map_err(|NotHeld { cause, later }| {
            self.note_later(entry, later);
            refused(cause)
        })
    }

    /// Saves the rest after the snapshot was taken. Fails with the cause, and then there is no file.
    pub(super) async fn finish_memory(
        self: &Rc<Self>,
        entry: &Rc<VmRecord>,
        (id, name): (u128, &str),
        stopped: StoppedGuest,
    ) -> std::result::Result<MemorySaved, String> {
        let saved = stopped.finish().await.map_err(|NotHeld { cause, later }| {
            self.note_later(entry, later);
            cause
        })?;
        entry.memory.borrow_mut().insert(id, saved.stored_bytes);
        let (snapshot, frozen_us) = (Some(name.to_owned()), saved.stopped_us);
        let event = api_types::home_event(entry, &saved.sentence());
        self.record_event(entry, api::Event { operation: Operation::Memory, snapshot, frozen_us, ..event });
        Ok(saved)
    }

    /// Returns where the guest's memory at a snapshot is, and what is known of it.
    pub(crate) async fn snapshot_memory(
        &self,
        vm: &VmName,
        snapshot: &SnapshotRef,
    ) -> Result<api::SnapshotMemory> {
        let entry = self.entry(vm.as_str())?;
        let state = entry.running.state().await;
        let found = tree::find(&state, snapshot.as_str())?;
        let stored = entry.memory.borrow().get(&found.id).copied();
        let stored_bytes = stored.ok_or_else(|| {
            let remedy = format!("`unstun snapshot take {vm} NAME --memory` saves it");
            Error::not_found(format!(
                "snapshot {} of VM {vm} has no memory of its guest; {remedy}",
                found.name
            ))
        })?;
        let file = file_of(&entry, found.id);
        let path = file.path();
        let header = self.env.blocking(move || header_of(&path)).await.map_err(Error::failed)?;
        Ok(api::SnapshotMemory {
            vm: vm.clone(),
            snapshot: found.name.clone(),
            id: api_types::id(found.id),
            file: file.path(),
            stored_bytes,
            ram_bytes: header.ram_bytes,
            qemu: header.qemu,
        })
    }

    /// Removes the memory of snapshots that are gone.
    pub(crate) async fn sweep_memory(&self, datastore: &Rc<Datastore>) {
        let entries = self.entries().into_iter();
        for entry in entries.filter(|entry| Rc::ptr_eq(&entry.datastore, datastore)) {
            // A take that saves memory may last; the next tick looks again.
            let is_due = !entry.memory.borrow().is_empty() && entry.freezing.is_idle();
            if is_due && let Err(e) = self.sweep_memory_of(&entry).await {
                warn!("VM {}: the memory of a snapshot that is gone stays for now: {e}", entry.name);
            }
        }
    }

    async fn sweep_memory_of(&self, entry: &VmRecord) -> blk::Result<()> {
        let _turn = entry.freezing.lock().await;
        if entry.moving.get() != 0 {
            return Ok(());
        }
        let state = entry.running.state().await;
        let binned = state.bin.iter().flat_map(|binned| &binned.snapshots);
        let known: BTreeSet<u128> = state.snapshots.iter().chain(binned).map(|s| s.id).collect();
        let gone: Vec<u128> =
            entry.memory.borrow().keys().filter(|id| !known.contains(id)).copied().collect();
        if gone.is_empty() {
            return Ok(());
        }
        let own = paths::open_path(&self.env, &entry.home).await?.open_dir(OWN_FOLDER, false).await?;
        for id in gone {
            own.unlink_if_present(&file_of(entry, id).name()).await?;
            entry.memory.borrow_mut().remove(&id);
        }
        Ok(())
    }
}

fn file_of(entry: &VmRecord, snapshot: u128) -> MemoryFile {
    MemoryFile { folder: entry.home.join(OWN_FOLDER), snapshot }
}

fn disk_client(client: &VmClient) -> DiskClient {
    let process = client.client.strip_prefix("pid ").and_then(|text| text.split(' ').next()?.parse().ok());
    DiskClient { process, writes: client.access == ClientAccess::Writes }
}

/// Returns the files of a home. One that was being written when a daemon ended is removed.
pub(crate) async fn found(home: &HomeFolder) -> blk::Result<MemoryFiles> {
    let mut files = MemoryFiles::new();
    for name in home.names() {
        if MemoryFile::is_unfinished(name) {
            home.own.unlink_if_present(name).await?;
        } else if let Some(id) = MemoryFile::snapshot_of(name) {
            files.insert(id, home.own.open(name, OpenMode::Read).await?.size().await?);
        }
    }
    Ok(files)
}

/// Copies the files of a home to another one. Durable when the call returns.
pub(crate) async fn copy(from: &Dir, to: &Dir) -> blk::Result<()> {
    for name in from.list().await?.iter().filter(|name| MemoryFile::snapshot_of(name).is_some()) {
        let (source, target) = (from.open(name, OpenMode::Read).await?, to.create_new(name).await?);
        let (size, mut at) = (source.size().await?, 0);
        while at < size {
            let length = COPIED_BYTES.min(size - at);
            let (bytes, read) = source.read(at, Buf::alloc(length as usize)).await;
            read?;
            target.write(at, bytes).await?;
            at += length;
        }
        // A device whose blocks are larger has extended it.
        target.set_len(size).await?;
        target.flush().await?;
    }
    to.sync().await
}
