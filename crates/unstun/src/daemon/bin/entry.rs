//! Decision about which removed VMs the bin keeps, and the preview of a removal.

use std::rc::Rc;

use api::error::{Error, Result};
use api::name::VmName;
use api::{Store, VmCondition};

use super::steps::Removed;
use crate::daemon::bin::records::BinState;
use crate::daemon::datastore::{Datastore, Home};
use crate::daemon::requests::api_types;
use crate::daemon::running::client::client_gate::Who;
use crate::daemon::running::home_files::HomeFiles;
use crate::daemon::state::Daemon;
use crate::daemon::vm::home_removal::{has_vmx, open_home};
use crate::daemon::vm::identity::Standing;
use crate::daemon::vm::remove::expect_kept;
use crate::daemon::vm::vm_record::{Kept, VmRecord};
use crate::daemon::vm::{mark, native_homes};

impl Daemon {
    /// Returns why the bin would not keep an open VM; None if it keeps the VM.
    pub(crate) async fn not_kept_open(
        &self,
        entry: &VmRecord,
        request: api::VmRemove,
    ) -> Result<Option<String>> {
        if let Some(why) = self.not_kept(&entry.datastore, request.purge).await? {
            return Ok(Some(why));
        }
        match &entry.kept {
            Kept::Native(_) => Ok(None),
            Kept::Redo => {
                entry.running.with_files(async |files| leads_back(files).await).await.map_err(unread)
            }
        }
    }

    /// Puts an open VM without connected clients into the bin.
    pub(crate) async fn bin_open(&self, entry: &Rc<VmRecord>) -> Result<api::BinEntry> {
        let bytes = allocated(entry).await;
        entry.running.close().await?;
        let (id, store) = (Some(entry.running.state().await.id), entry.kept.store());
        let removed = Removed { name: api_types::vm_name(&entry.name), id, store, bytes };
        let (id, record) = self.put_in_bin(&entry.place(), removed).await?;
        Ok(self.bin_entry(&entry.datastore, &id, &record))
    }

    /// Finishes a VM's move into the bin that an error has interrupted.
    pub(crate) async fn go_on_into_bin(
        &self,
        vm: &VmName,
        datastore: &Rc<Datastore>,
    ) -> Result<Option<api::BinEntry>> {
        let coming =
            datastore.bin.all().into_iter().find(|(_, one)| one.state == BinState::Coming && one.vm == *vm);
        let Some((entry, record)) = coming else { return Ok(None) };
        let record = self.finish_coming(datastore, &entry, &record).await?;
        Ok(Some(self.bin_entry(datastore, &entry, &record)))
    }

    /// Puts a VM that is not served, and whose home is held, into the bin. Returns None if the bin does not keep it.
    pub(crate) async fn bin_idle(
        &self,
        vm: &VmName,
        home: &Home,
        request: api::VmRemove,
    ) -> Result<Option<api::BinEntry>> {
        if !request.delete_disks {
            return Ok(None);
        }
        let why = self.not_kept_idle(vm, home, request).await?;
        if !expect_kept(vm.as_str(), request.keep, why.as_deref())? {
            return Ok(None);
        }
        let (id, store) = match mark::read(&self.env, &home.path).await? {
            Some(id) => (Some(id), Store::Native),
            None => {
                self.refuse_removal(vm.as_str(), home).await?;
                (HomeFiles::open(self, &home.path).await?.id().await?, Store::Redo)
            }
        };
        let removed = Removed { name: vm.clone(), id, store, bytes: None };
        let (id, record) = self.put_in_bin(home, removed).await?;
        Ok(Some(self.bin_entry(&home.datastore, &id, &record)))
    }

    /// Returns why the bin would not keep a VM that is not served; None if it keeps the VM.
    async fn not_kept_idle(
        &self,
        vm: &VmName,
        home: &Home,
        request: api::VmRemove,
    ) -> Result<Option<String>> {
        if let Some(why) = self.not_kept(&home.datastore, request.purge).await? {
            return Ok(Some(why));
        }
        match self.not_kept_at(vm, home).await {
            Err(e) if e.kind == blk::ErrorKind::NotFound => {
                Ok(Some(format!("part of the VM is missing: {e}")))
            }
            found => found.map_err(unread),
        }
    }

    async fn not_kept_at(&self, vm: &VmName, home: &Home) -> blk::Result<Option<String>> {
        let dir = open_home(home).await?;
        if self.standing(vm.as_str(), home).await? != Standing::Home {
            return Ok(Some("its folder is not the VM's home, or the VM is partly removed".to_owned()));
        }
        if mark::read(&self.env, &home.path).await?.is_some() {
            return match native_homes::is_whole(home).await? {
                true => Ok(None),
                false => {
                    Ok(Some("the store does not contain the VM, or the VM is one side of a move".to_owned()))
                }
            };
        }
        match has_vmx(&dir).await? {
            true => Ok(leads_back(&HomeFiles::open(self, &home.path).await?).await?),
            false => Ok(Some("its .vmx is missing".to_owned())),
        }
    }

    pub(crate) async fn remove_preview(
        &self,
        vm: &VmName,
        request: api::VmRemove,
    ) -> Result<api::VmRemovePreview> {
        match self.idle_home(vm.as_str()) {
            Some(home) => self.preview_idle(vm, &home, request).await,
            None => self.preview_open(&self.entry(vm.as_str())?, request).await,
        }
    }

    async fn preview_open(
        &self,
        entry: &Rc<VmRecord>,
        request: api::VmRemove,
    ) -> Result<api::VmRemovePreview> {
        let state = entry.running.state().await;
        let not_kept = match request.delete_disks {
            true => self.not_kept_open(entry, request).await.unwrap_or_else(|e| Some(e.message)),
            false => None,
        };
        let disk = |disk: &blk::manifest::DiskState| api::RemovedDisk {
            number: disk.number,
            size_bytes: disk.size_bytes,
        };
        Ok(api::VmRemovePreview {
            vm: api_types::vm_name(&entry.name),
            condition: VmCondition::Open,
            datastore: entry.datastore.name.clone(),
            store: entry.kept.store(),
            home: entry.home.clone(),
            disks_deleted: request.delete_disks,
            disks: Some(state.disks.iter().map(disk).collect()),
            snapshots: Some(state.snapshots.iter().map(|snapshot| snapshot.name.clone()).collect()),
            allocated_bytes: allocated(entry).await,
            clients: entry.running.present(Who::All).await,
            kept_until: self.kept_until(request, not_kept.as_ref()),
            not_kept,
        })
    }

    async fn preview_idle(
        &self,
        vm: &VmName,
        home: &Home,
        request: api::VmRemove,
    ) -> Result<api::VmRemovePreview> {
        let idle = self.idle().into_iter().find(|idle| idle.name == vm.as_str());
        let idle = idle.ok_or_else(|| Error::not_found(format!("{}: no VM {vm}", self.place())))?;
        let native = mark::exists(&self.env, &idle.home.path).await;
        let idle = api_types::idle(idle, Ok(native));
        let not_kept = match request.delete_disks {
            true => self.not_kept_idle(vm, home, request).await.unwrap_or_else(|e| Some(e.message)),
            false => None,
        };
        Ok(api::VmRemovePreview {
            vm: vm.clone(),
            condition: idle.condition,
            datastore: home.datastore.name.clone(),
            store: idle.store,
            home: home.path.clone(),
            disks_deleted: request.delete_disks,
            disks: None,
            snapshots: None,
            allocated_bytes: None,
            clients: Vec::new(),
            kept_until: self.kept_until(request, not_kept.as_ref()),
            not_kept,
        })
    }

    fn kept_until(&self, request: api::VmRemove, not_kept: Option<&String>) -> Option<jiff::Timestamp> {
        let until = api_types::time(self.bin.kept_until_unix_us(self.env.unix_us()));
        (request.delete_disks && not_kept.is_none()).then_some(until)
    }
}

/// Returns the bytes of the VM's own layers, with its snapshots; None if they cannot be determined.
async fn allocated(entry: &VmRecord) -> Option<u64> {
    entry.running.used().await.ok().map(|used| used.allocated_bytes)
}

/// Returns the error for an unreadable VM. Nothing is removed permanently because of an error that may be temporary.
fn unread(cause: blk::Error) -> Error {
    let cause = Error::from(cause);
    let remedy = "--purge removes the VM permanently without this check";
    Error::new(cause.kind, format!("cannot determine whether the bin can keep the VM: {cause}; {remedy}"))
}

/// Returns why the bin cannot keep the VM: a layer in another folder has its parent in the home, and would lose it when
/// the home is renamed.
async fn leads_back(files: &HomeFiles) -> blk::Result<Option<String>> {
    let links = files.manifest().links().await?;
    let is_elsewhere = |name: &str| name.starts_with('/');
    let leads = |link: &&blk::manifest::LayerLink| {
        is_elsewhere(&link.name) && link.parent.as_ref().is_some_and(|parent| !is_elsewhere(parent))
    };
    let found = links.iter().filter(|link| !link.foreign).find(leads);
    Ok(found.map(|link| {
        format!("its delta {} in another folder has its parent layer in the VM's home", link.name)
    }))
}
