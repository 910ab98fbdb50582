//! Removal of VMs, with or without their files. Every refusal comes before the first change. Of a folder's files only
//! the VM's are removed.

use std::rc::Rc;

use api::error::{Error, Result};
use api::name::VmName;
use blk::Dir;
use blk::manifest::{Change, Manifest, VmState};
use engine::GenerationChange;
use engine::redo::LayerGraph;

use crate::daemon::bin::records::parse_folder;
use crate::daemon::datastore::Home;
use crate::daemon::defect::Defect;
use crate::daemon::running::home_files::HomeFiles;
use crate::daemon::state::Daemon;
use crate::daemon::vm::home_records::HomeState;
use crate::daemon::vm::home_removal::{has_kind, has_vmx, open_home};
use crate::daemon::vm::identity::Standing;
use crate::daemon::vm::vm_record::{Kept, VmRecord};
use crate::daemon::vm::{formats, mark, native_homes};

impl Daemon {
    /// Removes a VM. Keeps the files unless `delete_disks` is set. Fails with `Refused` while a client is attached, a
    /// job is open, or a clone reads the files.
    pub(crate) async fn vm_remove(
        self: &Rc<Self>,
        vm: &VmName,
        request: api::VmRemove,
    ) -> Result<api::VmRemoved> {
        let name = vm.as_str();
        let _claim = self.claim(name)?;
        let (home, bin) = match self.idle_home(name) {
            Some(home) => {
                let bin = self.remove_idle(vm, &home, request).await?;
                (home, bin)
            }
            None => {
                let entry = self.entry(name)?;
                let bin = self.remove_open(&entry, request).await?;
                (entry.place(), bin)
            }
        };
        self.forget(name);
        self.forget_guest(vm).await;
        self.holds.release(&home.path);
        let disks_deleted = request.delete_disks && bin.is_none();
        Ok(api::VmRemoved { name: vm.clone(), home: home.path, disks_deleted, bin })
    }

    /// Removes an open VM. Every refusal comes while the VM is served. Once it is closed, a failure leaves it listed as
    /// broken.
    async fn remove_open(
        &self,
        entry: &Rc<VmRecord>,
        request: api::VmRemove,
    ) -> Result<Option<api::BinEntry>> {
        let delete_disks = request.delete_disks;
        let _shut = self.shut_idle(entry, "remove the VM").await?;
        match &entry.kept {
            Kept::Redo => {
                let name = entry.name.clone();
                let refuse = async move |files: &HomeFiles, state: VmState| {
                    refuse_readers(&name, &*files.manifest()).await?;
                    if delete_disks {
                        files.removal(&state).await?;
                    }
                    Ok::<_, blk::Error>(())
                };
                let state = entry.running.state().await;
                entry.running.with_files(async move |files| refuse(files, state).await).await?;
            }
            Kept::Native(_) => refuse_to_lose(&entry.name, delete_disks)?,
        }
        let home = entry.place();
        let kept = delete_disks && {
            let why = self.not_kept_open(entry, request).await?;
            expect_kept(&entry.name, request.keep, why.as_deref())?
        };
        if kept {
            // If the VM is restored later, its earlier clients are refused, whichever VM they used meanwhile. The VM is
            // served until here.
            entry.running.change_generation(GenerationChange::Raise).await?;
        }
        let removed = async {
            if kept {
                return self.bin_open(entry).await.map(Some);
            }
            entry.running.close().await?;
            match &entry.kept {
                Kept::Native(vm) => self.remove_native(&entry.name, &home, vm.id()).await?,
                Kept::Redo => {
                    // The removal of layers needs no reserved space, but its record may.
                    entry.running.with_files(async |files| files.manifest().reserve(0).await).await?;
                    let id = entry.running.state().await.id;
                    self.remove_recorded(&entry.name, &home, delete_disks, Some(id)).await?;
                }
            }
            Ok::<_, Error>(None)
        };
        removed.await.inspect_err(|error| self.fail_read_only(&entry.name, home.clone(), error))
    }

    /// Removes a VM that is not served, without opening it: its disks need not be intact.
    async fn remove_idle(
        &self,
        vm: &VmName,
        home: &Home,
        request: api::VmRemove,
    ) -> Result<Option<api::BinEntry>> {
        if let Some(bin) = self.go_on_into_bin(vm, &home.datastore).await? {
            return Ok(Some(bin));
        }
        match formats::hold(self, &home.path).await {
            Err(e) if e.kind == blk::ErrorKind::NotFound => {}
            held => held?,
        }
        let removed = async {
            if let Some(bin) = self.bin_idle(vm, home, request).await? {
                return Ok(Some(bin));
            }
            self.remove_held(vm.as_str(), home, request.delete_disks).await.map(|()| None)
        };
        removed.await.inspect_err(|_| self.holds.release(&home.path))
    }

    async fn remove_held(&self, name: &str, home: &Home, delete_disks: bool) -> Result<()> {
        let marked = match mark::read(&self.env, &home.path).await {
            // The VM's folder may be missing while the store still has the VM.
            Err(e) if e.kind == blk::ErrorKind::NotFound => native_homes::recorded_at(home).await?,
            marked => marked?,
        };
        match self.standing(name, home).await {
            Ok(Standing::Unfinished) => return self.go_on(name, home, marked).await,
            Ok(Standing::CopyOf(_) | Standing::LikeAnother(_)) if !self.defects.has(Defect::RemoveByMark) => {
                if delete_disks && marked.is_none() {
                    return Err(refuse_copied_files(name, home));
                }
                return self.remove_recorded(name, home, false, None).await;
            }
            // An error is not final here: what the VM consists of is read below, where it matters.
            _ => {}
        }
        match marked {
            Some(id) => {
                refuse_to_lose(name, delete_disks)?;
                self.remove_native(name, home, id).await
            }
            None => {
                if delete_disks {
                    self.refuse_removal(name, home).await?;
                }
                let id = home.datastore.records.get(name).and_then(|record| record.id);
                self.remove_recorded(name, home, delete_disks, id).await
            }
        }
    }

    async fn go_on(&self, name: &str, home: &Home, marked: Option<u128>) -> Result<()> {
        match (marked, home.datastore.records.get(name)) {
            (None, Some(record)) => Ok(self.finish(name, home, &record).await?),
            (Some(id), _) => self.remove_native(name, home, id).await,
            (None, None) => Ok(()),
        }
    }

    async fn remove_native(&self, name: &str, home: &Home, id: u128) -> Result<()> {
        match self.defects.has(Defect::ForgetRemoval) {
            true => {
                native_homes::remove_vm(&home.datastore, id).await?;
                native_homes::take_away(home, id).await?;
            }
            false => {
                let remove = async || native_homes::remove_with_home(home, id).await;
                self.with_reserve(&home.datastore, remove).await?;
            }
        }
        let forget = async || {
            home.datastore.registry.remove(name).await?;
            home.datastore.records.remove(name).await
        };
        Ok(self.with_reserve(&home.datastore, forget).await?)
    }

    /// Removes a home with files that no client and no daemon has open. Once the removal is on record, a start finishes
    /// it.
    async fn remove_recorded(
        &self,
        name: &str,
        home: &Home,
        delete_disks: bool,
        id: Option<u128>,
    ) -> Result<()> {
        let state = if delete_disks { HomeState::Removing } else { HomeState::Forgetting };
        let (records, record) = (&home.datastore.records, home.datastore.record(&home.path, state, id));
        if self.defects.has(Defect::ForgetRemoval) {
            records.remove(name).await?;
            return Ok(self.finish(name, home, &record).await?);
        }
        let put = async || records.put(name, record.clone()).await;
        self.with_reserve(&home.datastore, put).await?;
        let remove_layers = async || self.remove_layers(home).await;
        if delete_disks
            && let Err(e) = self.with_reserve(&home.datastore, remove_layers).await
            && !matches!(e.kind, blk::ErrorKind::NotFound | blk::ErrorKind::Io | blk::ErrorKind::Latched)
        {
            // Nothing has changed: the home is a VM as before. If even that cannot be recorded, a start finishes the
            // removal.
            let _ = records.put(name, home.datastore.record(&home.path, HomeState::Whole, id)).await;
            return Err(e.into());
        }
        Ok(self.finish(name, home, &record).await?)
    }

    /// Refuses to remove a VM that is not served, if its layers are read by others or cannot be determined.
    pub(in crate::daemon) async fn refuse_removal(&self, name: &str, home: &Home) -> Result<()> {
        let dir = match open_home(home).await {
            Err(e) if e.kind == blk::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        if !has_vmx(&dir).await? {
            return refuse_lost(home, &dir).await;
        }
        let files = HomeFiles::open(self, &home.path).await?;
        let manifest = files.manifest();
        let state = manifest.load().await?;
        refuse_readers(name, &*manifest).await?;
        files.removal(&state).await?;
        Ok(())
    }
}

/// Returns whether the bin keeps the VM. Refuses if the bin does not keep it and the request relies on that.
pub(crate) fn expect_kept(name: &str, keep: bool, not_kept: Option<&str>) -> Result<bool> {
    match not_kept {
        None => Ok(true),
        Some(why) if keep => {
            let remedy = "nothing was changed; add --purge to remove it permanently";
            Err(Error::refused(format!(
                "VM {name}: the bin cannot keep what would be removed: {why}; {remedy}"
            )))
        }
        Some(_) => Ok(false),
    }
}

fn refuse_copied_files(name: &str, home: &Home) -> Error {
    let cause = "this folder is a copy of another VM's folder, and its files may refer to that VM's disks";
    let remedy = format!(
        "`unstun vm remove {name}` removes the copy from the list; then you can remove its folder by hand"
    );
    Error::refused(format!("{}: {cause}; {remedy}", home.path.display()))
}

impl HomeFiles {
    /// Returns the change that removes all layers of the VM, in any folder. Layers of other VMs stay, and so do those
    /// of disks that were removed from the VM. Refused if an unknown layer has one of the removed layers as its parent.
    async fn removal(&self, before: &VmState) -> blk::Result<Change> {
        let graph = LayerGraph::new(self.manifest().links().await?);
        let mut next = before.clone();
        next.disks.clear();
        next.snapshots.clear();
        next.bin.clear();
        next.folds.clear();
        next.current = None;
        let remove = graph.left_over(before, &next);
        let stays = |layer: &&String| !remove.contains(layer);
        if let Some(orphan) = remove.iter().flat_map(|layer| graph.children(layer)).find(stays) {
            let cause = "this layer is based on a layer of the VM, but no disk and no snapshot refers to it";
            let remedy = "move it away or remove it first (see `unstun check`)";
            return Err(blk::Error::refused(self.dir().path_of(orphan), format!("{cause}; {remedy}")));
        }
        Ok(Change { next, remove, ..Change::default() })
    }

    pub(crate) async fn remove_layers(&self, before: &VmState) -> blk::Result<()> {
        let change = self.removal(before).await?;
        self.manifest().publish(&change).await
    }
}

/// Refuses to remove only the home of a native VM: the VM would stay in the store, and no folder would lead to it.
fn refuse_to_lose(vm: &str, delete_disks: bool) -> Result<()> {
    match delete_disks {
        true => Ok(()),
        false => Err(Error::refused(format!(
            "VM {vm}: its disks are native and have no files to keep; --delete-disks removes the disks too; `unstun \
             vm close {vm}` only stops serving the VM"
        ))),
    }
}

/// Refuses if other VMs read layers of this VM.
pub(crate) async fn refuse_readers(vm: &str, manifest: &dyn Manifest) -> blk::Result<()> {
    let own = manifest.links().await?.into_iter().filter(|link| !link.foreign);
    let layers: Vec<String> = own.map(|link| link.name).collect();
    let mut who: Vec<String> =
        manifest.dependants(&layers).await?.into_iter().map(|reader| reader.who).collect();
    if who.is_empty() {
        return Ok(());
    }
    who.sort_unstable();
    who.dedup();
    let cause = format!("its layers are read by {}; {}", who.join(", "), way_out(&who));
    Err(blk::Error::refused(format!("VM {vm}"), cause))
}

/// Returns the remedy for readers, which are given by their paths.
fn way_out(who: &[String]) -> String {
    let mut parts = who.iter().flat_map(|path| path.split('/'));
    match parts.find_map(parse_folder) {
        Some((reader, entry)) => format!(
            "VM {reader} is in the bin: `unstun bin restore {entry}` restores it, `unstun bin empty {entry}` removes \
             it permanently"
        ),
        None => "remove those VMs first".to_owned(),
    }
}

/// Refuses a folder with layers and without a `.vmx`: which layers are the VM's and which VMs read them is unknown.
async fn refuse_lost(home: &Home, dir: &Dir) -> Result<()> {
    let Some(layer) = dir.list().await?.into_iter().find(|name| has_kind(name, &[".vmdk"])) else {
        return Ok(());
    };
    let cause = format!("its .vmx is missing, so unstun cannot determine which VMs read {layer}");
    let remedy = "restore the .vmx, or remove the VM without --delete-disks and its folder by hand";
    Err(Error::refused(format!("{}: {cause}; {remedy}", home.path.display())))
}
