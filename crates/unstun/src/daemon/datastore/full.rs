//! Full datastores: whose writes wait, and which commits would free space.

use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::name::DatastoreName;
use api::units::format_bytes;
use blk::reactor::Space;

use crate::daemon::datastore::{Datastore, asked};
use crate::daemon::requests::api_types;
use crate::daemon::state::Daemon;

/// Minimum free space in bytes for a new VM: the tables and the growth of its first writes, and what a commit needs
/// later.
const NEW_VM_BYTES_MIN: u64 = 8 << 20;
/// Minimum free space in bytes for a home's own files and folders: a few dozen blocks of 4 KiB.
const HOME_BYTES_MIN: u64 = 256 << 10;
/// Maximum number of snapshots named as those whose commit frees the most space.
const FREEABLE_MAX: usize = 3;

/// What can still fill a datastore, and what frees space.
pub(crate) struct DatastoreGrowth {
    pub datastore: DatastoreName,
    /// Bytes that its deltas and native disks can still allocate.
    pub worst_growth_bytes: u64,
    /// Snapshots whose commit frees the most space, the largest first.
    pub freeable: Vec<api::Freeable>,
}

impl Daemon {
    /// Returns the growth of the datastores that answer.
    pub(crate) async fn growth(&self) -> Vec<DatastoreGrowth> {
        let mut all = Vec::new();
        for datastore in self.datastores() {
            let growth = async { (self.space(&datastore).await, self.freeable(&datastore).await) };
            if let Ok((Ok(space), freeable)) = asked(&datastore, growth).await {
                let (datastore, worst_growth_bytes) = (datastore.name.clone(), space.worst_growth_bytes);
                all.push(DatastoreGrowth { datastore, worst_growth_bytes, freeable });
            }
        }
        all
    }

    /// Returns the datastores on which guest writes wait.
    pub(crate) async fn full_datastores(&self) -> Vec<api::FullDatastore> {
        let mut full = Vec::new();
        for datastore in self.datastores() {
            let entries = self.entries().into_iter().filter(|entry| Rc::ptr_eq(&entry.datastore, &datastore));
            let mut waiting = Vec::new();
            for entry in entries {
                let writes = entry.running.waiting_writes().await;
                waiting.push(api::WaitingVm { vm: api_types::vm_name(&entry.name), writes });
            }
            waiting.retain(|vm| vm.writes > 0);
            if waiting.is_empty() {
                continue;
            }
            // A datastore that does not answer counts as having no free space.
            let space = asked(&datastore, datastore.space()).await;
            let space = space.ok().and_then(|space| space.ok()).unwrap_or_default();
            full.push(api::FullDatastore {
                datastore: datastore.name.clone(),
                free_bytes: space.free_bytes,
                total_bytes: space.total_bytes,
                waiting,
                freeable: asked(&datastore, self.freeable(&datastore)).await.unwrap_or_default(),
            });
        }
        full
    }

    async fn freeable(&self, datastore: &Rc<Datastore>) -> Vec<api::Freeable> {
        let mut found = Vec::new();
        for entry in self.entries().into_iter().filter(|entry| Rc::ptr_eq(&entry.datastore, datastore)) {
            // A VM that cannot be read now does not hide the others.
            let Ok(bytes) = entry.running.delta_bytes().await else { continue };
            for snapshot in entry.running.state().await.snapshots {
                let bytes_max = bytes.get(&snapshot.id).copied().unwrap_or_default();
                let vm = api_types::vm_name(&entry.name);
                found.push(api::Freeable { vm, snapshot: snapshot.name, bytes_max });
            }
        }
        found.retain(|one| one.bytes_max > 0);
        found.sort_by_key(|one| std::cmp::Reverse(one.bytes_max));
        found.truncate(FREEABLE_MAX);
        found
    }

    /// Refuses a new VM if the datastore has no space for its first writes.
    pub(crate) async fn refuse_full(&self, datastore: &Rc<Datastore>, vm: &str) -> Result<()> {
        let mut space = free_for_vm(datastore).await?;
        while space.free_bytes < NEW_VM_BYTES_MIN && self.make_room(datastore).await {
            space = free_for_vm(datastore).await?;
        }
        if space.free_bytes >= NEW_VM_BYTES_MIN {
            return Ok(());
        }
        let (free, total) = (format_bytes(space.free_bytes), format_bytes(space.total_bytes));
        let cause = format!(
            "{free} of {total} are free in datastore {}, but a new VM needs {}",
            datastore.name,
            format_bytes(NEW_VM_BYTES_MIN)
        );
        let commits: String =
            self.freeable(datastore).await.iter().map(|one| format!("{}, ", one.remedy())).collect();
        let remedy = format!("{commits}remove VMs, or choose another datastore with --datastore");
        Err(Error::new(ErrorKind::NoSpace, format!("VM {vm}: {cause}; {remedy}")))
    }
}

async fn free_for_vm(datastore: &Datastore) -> blk::Result<Space> {
    let space = datastore.space().await?;
    if datastore.native.device().is_some() {
        return Ok(space);
    }
    // Free space inside the store is not free for the home's files.
    match datastore.dir.space().await?.free_bytes {
        outside if outside < HOME_BYTES_MIN => Ok(Space { free_bytes: outside, ..space }),
        _ => Ok(space),
    }
}
