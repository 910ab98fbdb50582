//! Steps of a VM into the bin, out of it, and to its final removal. Each step is on record before its first change, can
//! be repeated, and is finished by the next start.

use std::path::Path;
use std::rc::Rc;

use api::name::VmName;
use api::{Store, WhenFull};
use blk::dir::OWN_FOLDER;
use blk::{Error, ErrorKind, Result};
use engine::native::{VmHome, VmHomeState};
use tracing::info;

use crate::daemon::bin::records::{BinRecord, BinState, parse_folder};
use crate::daemon::datastore::{Datastore, Home};
use crate::daemon::defect::Defect;
use crate::daemon::running::home_files::HomeFiles;
use crate::daemon::state::Daemon;
use crate::daemon::vm::home_records::{HomeRecord, HomeState};
use crate::daemon::vm::home_removal::{open_home, remove_folder};
use crate::daemon::vm::identity::VmId;
use crate::daemon::vm::remove::refuse_readers;
use crate::daemon::vm::{mark, native_homes};

/// VM that is not open and is put into the bin.
pub(crate) struct Removed {
    pub name: VmName,
    pub id: Option<u128>,
    pub store: Store,
    pub bytes: Option<u64>,
}

impl Daemon {
    /// Puts a VM that is not open into the bin. Its name is free afterwards. After an error it is a VM as before, or
    /// the next start puts it into the bin.
    pub(crate) async fn put_in_bin(&self, home: &Home, removed: Removed) -> Result<(String, BinRecord)> {
        let (datastore, Removed { name, id, store, bytes }) = (&home.datastore, removed);
        let entry = format!("{:016x}", self.env.random());
        let path = (!datastore.contains(&home.path)).then(|| home.path.clone());
        let removed_unix_us = self.env.unix_us();
        let record = BinRecord { state: BinState::Coming, vm: name, id, store, removed_unix_us, bytes, path };
        let _busy = datastore.bin.begin(&entry);
        if !self.defects.has(Defect::BinLate) {
            let put = async || datastore.bin.put(&entry, record.clone()).await;
            self.with_reserve(datastore, put).await?;
        }
        match self.finish_coming(datastore, &entry, &record).await {
            Ok(record) => Ok((entry, record)),
            Err(e) => {
                if !datastore.has(&record.folder(&entry)).await.unwrap_or(true) && record.path.is_none() {
                    // Nothing has changed. If the removal of the record fails, a start puts the VM into the bin.
                    let _ = datastore.bin.remove(&entry).await;
                }
                Err(e)
            }
        }
    }

    pub(super) async fn finish_coming(
        &self,
        datastore: &Rc<Datastore>,
        entry: &str,
        record: &BinRecord,
    ) -> Result<BinRecord> {
        let name = record.vm.as_str();
        let folder = record.folder(entry);
        if record.path.is_none() && !datastore.has(&folder).await? && datastore.has(name).await? {
            datastore.dir.rename(name, &folder).await?;
        }
        datastore.dir.sync().await?;
        if let (Store::Native, Some(id)) = (record.store, record.id) {
            let path = datastore.relative(&datastore.bin_home(entry, record).path);
            datastore.native.open().await?.set_binned(id, &path).await?;
        }
        let kept = BinRecord { state: BinState::Kept, ..record.clone() };
        let forget = async || {
            datastore.registry.remove(name).await?;
            datastore.records.remove(name).await?;
            datastore.bin.put(entry, kept.clone()).await
        };
        self.with_last_reserve(datastore, forget).await?;
        Ok(kept)
    }

    /// Restores an entry's VM under its own or another name, and returns its home. The VM is not opened yet.
    pub(super) async fn bring_back(
        &self,
        datastore: &Rc<Datastore>,
        entry: &str,
        to: &VmName,
    ) -> Result<Home> {
        let kept = self.kept(datastore, entry)?;
        let record = BinRecord { state: BinState::Restoring(to.clone()), ..kept.clone() };
        let put = async || datastore.bin.put(entry, record.clone()).await;
        let home = async {
            self.with_reserve(datastore, put).await?;
            self.finish_restoring(datastore, entry, &record, to).await
        };
        let home = home.await;
        if home.is_err() && datastore.has(&record.folder(entry)).await.unwrap_or(false) {
            // The VM is in the bin as before. If that cannot be recorded, a start finishes the restore.
            let _ = datastore.bin.put(entry, kept).await;
        }
        home
    }

    async fn finish_restoring(
        &self,
        datastore: &Rc<Datastore>,
        entry: &str,
        record: &BinRecord,
        to: &VmName,
    ) -> Result<Home> {
        let folder = record.folder(entry);
        let home =
            record.path.as_ref().map_or_else(|| datastore.home(to.as_str()), |path| datastore.at(path));
        if let Some(recorded) = recorded_home(datastore, record).await?
            && recorded.state == VmHomeState::Whole
            && recorded.path != datastore.relative(&home.path)
        {
            let cause = format!("the VM was moved out of the bin by hand and is now in {}", recorded.path);
            return Err(Error::refused(entry, cause));
        }
        if record.path.is_none() {
            match (datastore.has(&folder).await?, datastore.has(to.as_str()).await?) {
                (true, false) => datastore.dir.rename(&folder, to.as_str()).await?,
                (true, true) => return Err(taken(&home.path)),
                (false, true) => self.expect_restored(&home, record).await?,
                (false, false) => self.make_missing_home(&home, to, record).await?,
            }
            datastore.dir.sync().await?;
        }
        let path = datastore.relative(&home.path);
        match (record.store, record.id) {
            (Store::Native, Some(id)) => datastore.native.open().await?.set_home(id, &path).await?,
            (Store::Native, None) => {}
            (Store::Redo, id) => {
                datastore
                    .records
                    .put(to.as_str(), datastore.record(&home.path, HomeState::Whole, id))
                    .await?;
            }
        }
        if !datastore.contains(&home.path) {
            datastore.registry.add(to.as_str(), &home.path).await?;
        }
        datastore.bin.remove(entry).await?;
        Ok(home)
    }

    /// Verifies that a folder under the VM's new name, with none in the bin, is the VM's. Otherwise a user has changed
    /// the folders by hand.
    async fn expect_restored(&self, home: &Home, record: &BinRecord) -> Result<()> {
        let id = match (record.store, record.id) {
            (_, None) => return Ok(()),
            (Store::Native, Some(id)) => VmId::Native(id),
            (Store::Redo, Some(id)) => VmId::Files(id),
        };
        match self.has_id(&home.path, id).await? {
            true => Ok(()),
            false => Err(taken(&home.path)),
        }
    }

    /// Recreates the missing home of a native VM: the store is the only source of its metadata.
    async fn make_missing_home(&self, home: &Home, to: &VmName, record: &BinRecord) -> Result<()> {
        match (record.store, record.id) {
            (Store::Native, Some(id)) => {
                native_homes::new_home(&home.datastore, to.as_str(), WhenFull::default(), id).await
            }
            _ => Err(Error::not_found(
                home.path.display().to_string(),
                "the VM's folder is missing from the bin",
            )),
        }
    }

    /// Removes an entry permanently.
    pub(super) async fn evict(&self, datastore: &Rc<Datastore>, entry: &str) -> Result<()> {
        let Some(_busy) = datastore.bin.begin(entry) else {
            return Err(Error::refused(entry, "the entry is being restored or removed; try again"));
        };
        let kept = datastore.bin.get(entry).filter(BinRecord::may_go).ok_or_else(|| gone(entry))?;
        let home = datastore.bin_home(entry, &kept);
        if kept.store == Store::Redo && home_is_there(self, &home).await? {
            let files = HomeFiles::open(self, &home.path).await?;
            refuse_readers(kept.vm.as_str(), &*files.manifest()).await?;
            files.manifest().reserve(0).await?;
        }
        let record = BinRecord { state: BinState::Removing, ..kept };
        if !self.defects.has(Defect::ForgetRemoval) {
            let put = async || datastore.bin.put(entry, record.clone()).await;
            self.with_last_reserve(datastore, put).await?;
        }
        let remove = async || self.finish_removing(datastore, entry, &record).await;
        self.with_last_reserve(datastore, remove).await?;
        datastore.bin.evicted.update(|n| n + 1);
        Ok(())
    }

    async fn finish_removing(
        &self,
        datastore: &Rc<Datastore>,
        entry: &str,
        record: &BinRecord,
    ) -> Result<()> {
        let home = datastore.bin_home(entry, record);
        match (record.store, record.id) {
            (Store::Native, Some(id)) => {
                let recorded = recorded_home(datastore, record).await?;
                // The VM may have been moved out of the bin by hand; then it is a VM again.
                if recorded.is_none_or(|recorded| recorded.state != VmHomeState::Whole) {
                    native_homes::remove_with_home(&home, id).await?;
                }
            }
            _ => {
                let going =
                    HomeRecord { state: HomeState::Removing, id: record.id, path: record.path.clone() };
                self.finish(&record.folder(entry), &home, &going).await?;
            }
        }
        self.leave_rest(datastore, entry, record).await?;
        datastore.bin.remove(entry).await
    }

    /// Moves a folder with files that are not the VM's out of the bin: they belong to the user.
    async fn leave_rest(&self, datastore: &Rc<Datastore>, entry: &str, record: &BinRecord) -> Result<()> {
        let folder = record.folder(entry);
        if record.path.is_some() || !datastore.has(&folder).await? {
            return Ok(());
        }
        let plain = record.vm.to_string();
        let is_claimed = self.claimed.borrow().contains(&plain);
        let to = match is_claimed || datastore.has(&plain).await? || self.is_taken(&plain) {
            false => plain,
            true => format!("{plain}-{entry}"),
        };
        datastore.dir.rename(&folder, &to).await?;
        datastore.dir.sync().await?;
        info!("VM {}: files that do not belong to the VM were left in {to}", record.vm);
        Ok(())
    }

    fn kept(&self, datastore: &Datastore, entry: &str) -> Result<BinRecord> {
        let kept = datastore.bin.get(entry).filter(|record| record.state == BinState::Kept);
        kept.ok_or_else(|| gone(entry))
    }

    /// Finishes what a crash has interrupted, before the homes of the datastore are opened. Returns what could not be
    /// finished.
    pub(crate) async fn finish_bin(self: &Rc<Self>, datastore: &Rc<Datastore>) -> Vec<String> {
        let mut problems: Vec<String> = datastore.bin.damaged.iter().map(ToString::to_string).collect();
        for (entry, _) in datastore.bin.all() {
            let Some(_busy) = datastore.bin.begin(&entry) else { continue };
            let Some(record) = datastore.bin.get(&entry) else { continue };
            // The operation that has the claim to the name deals with the entry.
            let name = match &record.state {
                BinState::Restoring(to) => to,
                _ => &record.vm,
            };
            let Ok(_claim) = self.claim(name.as_str()) else { continue };
            if let Err(e) = self.finish_entry(datastore, &entry, &record).await {
                problems.push(format!(
                    "VM {}: an interrupted operation on its entry {entry} in the bin cannot be completed: {e}",
                    record.vm
                ));
            }
        }
        if let Err(e) = self.adopt_strays(datastore).await {
            problems.push(e.to_string());
        }
        problems
    }

    async fn finish_entry(&self, datastore: &Rc<Datastore>, entry: &str, record: &BinRecord) -> Result<()> {
        match &record.state {
            BinState::Kept => self.drop_stale(datastore, entry, record).await,
            BinState::Coming => self.finish_coming(datastore, entry, record).await.map(drop),
            BinState::Removing => self.finish_removing(datastore, entry, record).await,
            BinState::Restoring(to) => match self.finish_restoring(datastore, entry, record, to).await {
                Err(e) if e.kind == ErrorKind::Exists && datastore.has(&record.folder(entry)).await? => {
                    let kept = BinRecord { state: BinState::Kept, ..record.clone() };
                    datastore.bin.put(entry, kept).await
                }
                finished => finished.map(drop),
            },
        }
    }

    /// Removes the record and the folder with the mark, if the VM is not in the store's bin any more. Another daemon
    /// may have served the store meanwhile, and restored or removed the VM.
    async fn drop_stale(&self, datastore: &Rc<Datastore>, entry: &str, record: &BinRecord) -> Result<()> {
        let (Store::Native, Some(id)) = (record.store, record.id) else { return Ok(()) };
        if !datastore.native.exists().await? {
            return Ok(());
        }
        let store = datastore.native.open().await?;
        let is_there = store.has_vm(id);
        let recorded = store.home_of(id)?;
        if is_there && recorded.is_none_or(|recorded| recorded.state != VmHomeState::Whole) {
            return Ok(());
        }
        let home = datastore.bin_home(entry, record);
        if record.path.is_none() && home_is_there(self, &home).await? {
            remove_folder(&home, &open_home(&home).await?).await?;
            self.leave_rest(datastore, entry, record).await?;
        }
        datastore.bin.remove(entry).await
    }

    /// Records folders of the bin, and VMs in the store's bin, that have no record: a device may come from another
    /// daemon, and a record may be damaged. They are kept from now on.
    async fn adopt_strays(&self, datastore: &Rc<Datastore>) -> Result<()> {
        let now = self.env.unix_us();
        let stray = |vm, id, store| BinRecord {
            state: BinState::Kept,
            vm,
            id,
            store,
            removed_unix_us: now,
            bytes: None,
            path: None,
        };
        let homes = match datastore.native.exists().await? {
            true => datastore.native.open().await?.homes()?,
            false => Vec::new(),
        };
        let is_binned =
            |id: u128| homes.iter().any(|(vm, home)| *vm == id && home.state == VmHomeState::Binned);
        for name in datastore.dir.list().await? {
            let Some((vm, entry)) = name.strip_suffix('/').and_then(parse_folder) else { continue };
            let home = datastore.home(name.trim_end_matches('/'));
            if datastore.bin.get(&entry).is_some()
                || datastore.bin.is_busy(&entry)
                || !home_is_there(self, &home).await?
            {
                continue;
            }
            let record = match mark::read(&self.env, &home.path).await? {
                Some(id) if is_binned(id) => stray(vm, Some(id), Store::Native),
                Some(_) => continue,
                None => stray(vm, HomeFiles::open(self, &home.path).await?.id().await?, Store::Redo),
            };
            datastore.bin.put(&entry, record).await?;
        }
        let known: Vec<_> = datastore.bin.all().into_iter().filter_map(|(_, record)| record.id).collect();
        for (id, home) in &homes {
            let Some((vm, entry)) = parse_folder(&home.path) else { continue };
            if home.state == VmHomeState::Binned && !known.contains(id) && !datastore.bin.is_busy(&entry) {
                datastore.bin.put(&entry, stray(vm, Some(*id), Store::Native)).await?;
            }
        }
        Ok(())
    }
}

/// Returns the store's record of an entry's VM.
async fn recorded_home(datastore: &Datastore, record: &BinRecord) -> Result<Option<VmHome>> {
    match (record.store, record.id) {
        (Store::Native, Some(id)) if datastore.native.exists().await? => {
            datastore.native.open().await?.home_of(id)
        }
        _ => Ok(None),
    }
}

fn gone(entry: &str) -> Error {
    Error::not_found(entry, "no such entry in the bin; see `unstun bin list`")
}

fn taken(path: &Path) -> Error {
    Error::new(ErrorKind::Exists, path.display().to_string(), "a folder of this name exists already")
}

async fn home_is_there(daemon: &Daemon, home: &Home) -> Result<bool> {
    let own =
        async { daemon.env.open_path(&home.path.to_string_lossy()).await?.open_dir(OWN_FOLDER, false).await };
    match own.await {
        Ok(_) => Ok(true),
        Err(e) if e.kind == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}
