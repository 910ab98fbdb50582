//! One home for each VM: a copied folder has the ID of the VM that it was copied from, and is not served beside it.
//!
//! The store (for a native VM) or the datastore's records (for a VM with files) say which folder an ID belongs to.
//! While that folder exists, only it is the VM's home. A home that was renamed or moved by hand is accepted if the
//! folder on record is missing, unless two folders claim the ID.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use api::{Finding, Severity};
use blk::dir::OWN_FOLDER;
use blk::{Error, ErrorKind, Result};
use engine::native::VmHomeState;
use tracing::warn;
use vmdk::delta::Growth;
use vmdk::home::{Folders, Home as VmFiles};

use crate::daemon::datastore::{Datastore, Home};
use crate::daemon::defect::Defect;
use crate::daemon::running::home_files::HomeFiles;
use crate::daemon::state::Daemon;
use crate::daemon::vm::home_folder::HomeFolder;
use crate::daemon::vm::home_records::{HomeRecord, HomeState};
use crate::daemon::vm::mark;
use crate::daemon::vm::paths::open_path;

/// Relation of a VM's folder to the VM whose ID it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The folder is the VM's home, or nothing in it says otherwise.
    Home,
    /// The folder at this path is the home.
    CopyOf(PathBuf),
    /// The folder at this path has the same claim, and the home on record is missing.
    LikeAnother(PathBuf),
    /// The VM is being created or removed.
    Unfinished,
    /// The VM was removed, and the bin keeps it.
    InBin,
}

/// ID of a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VmId {
    /// ID of a VM in the datastore's store.
    Native(u128),
    /// ID of a VM with files.
    Files(u128),
}

impl Standing {
    /// Refuses to serve a folder that is not the VM's home.
    pub(crate) fn refuse(&self, name: &str, home: &Home) -> Result<()> {
        let Some((found, remedy)) = self.explain(name) else { return Ok(()) };
        Err(Error::refused(home.path.display().to_string(), format!("this folder is {found}; {remedy}")))
    }

    /// Returns what the folder is, and what to do.
    fn explain(&self, name: &str) -> Option<(String, String)> {
        match self {
            Standing::Home => None,
            Standing::CopyOf(of) => Some((
                format!(
                    "a copy of {}, the home of the VM with this id, and would write the VM's disks",
                    of.display()
                ),
                format!(
                    "for a second VM, take a snapshot of the first and use `unstun vm clone`; `unstun vm remove \
                     {name}` removes the copy from the list and changes nothing of the VM"
                ),
            )),
            Standing::LikeAnother(other) => Some((
                format!(
                    "one of two folders with the id of one VM, whose former home is missing; unstun cannot determine which \
                     of them is the VM; the other is {}",
                    other.display()
                ),
                format!(
                    "`unstun vm remove {name}` removes this folder from the list and changes nothing of the VM; then \
                     run `unstun vm open` for the other"
                ),
            )),
            Standing::Unfinished => Some((
                "the folder of a VM whose removal was interrupted".to_owned(),
                format!("`unstun vm remove {name} --delete-disks` completes it"),
            )),
            Standing::InBin => Some((
                "the folder of a removed VM, which the bin keeps".to_owned(),
                "`unstun bin restore` restores the VM, `unstun bin empty` removes it permanently".to_owned(),
            )),
        }
    }
}

impl Daemon {
    /// Determines whether `home` may be served, and then records it as the VM's home. Changes nothing in the home.
    pub(crate) async fn claim_identity(&self, name: &str, home: &Home, folder: &HomeFolder) -> Result<()> {
        if self.defects.has(Defect::ServeCopies) {
            return Ok(());
        }
        if let Some(standing) = self.recorded_standing(name, home) {
            return standing.refuse(name, home);
        }
        let id = self.id_as(home, folder.mark().await?).await?;
        self.standing_of(name, home, id).await?.refuse(name, home)?;
        if let Some(id) = id {
            // Without space the next opening records the home: no other folder claims the ID now.
            if let Err(e) = self.record_home(name, home, id).await {
                warn!("{}: cannot be recorded as the VM's home: {e}", home.path.display());
            }
        }
        Ok(())
    }

    /// Returns the relation of the folder to the VM whose ID it has.
    pub(crate) async fn standing(&self, name: &str, home: &Home) -> Result<Standing> {
        if let Some(standing) = self.recorded_standing(name, home) {
            return Ok(standing);
        }
        let id = self.id_as(home, mark::read(&self.env, &home.path).await?).await?;
        self.standing_of(name, home, id).await
    }

    /// Returns the relation of a folder that is no VM's home, as the records outside the folder say; None for any other
    /// folder.
    fn recorded_standing(&self, name: &str, home: &Home) -> Option<Standing> {
        let record = home.datastore.records.get(name);
        if record.is_some_and(|record| record.state != HomeState::Whole) {
            return Some(Standing::Unfinished);
        }
        if home.datastore.bin.is_coming(name) {
            return Some(Standing::Unfinished);
        }
        self.is_in_bin(&home.path).then_some(Standing::InBin)
    }

    async fn standing_of(&self, name: &str, home: &Home, id: Option<VmId>) -> Result<Standing> {
        match id {
            None => Ok(Standing::Home),
            Some(VmId::Native(id)) => self.standing_in_store(home, id).await,
            Some(VmId::Files(id)) => self.standing_with_files(name, home, id).await,
        }
    }

    /// Returns the ID of a home with this mark; None if it has no ID yet, or is no VM.
    async fn id_as(&self, home: &Home, mark: Option<u128>) -> Result<Option<VmId>> {
        if let Some(id) = mark {
            return Ok(Some(VmId::Native(id)));
        }
        let id = async { HomeFiles::open(self, &home.path).await?.id().await };
        match id.await {
            Ok(id) => Ok(id.map(VmId::Files)),
            // Opening the home reports what is wrong.
            Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn standing_in_store(&self, home: &Home, id: u128) -> Result<Standing> {
        let datastore = &home.datastore;
        let recorded = datastore.native.open().await?.home_of(id)?;
        if let Some(recorded) = recorded {
            let path = datastore.root.join(&recorded.path);
            if path == home.path {
                return Ok(match recorded.state {
                    VmHomeState::Whole => Standing::Home,
                    VmHomeState::Unfinished => Standing::Unfinished,
                    VmHomeState::Binned => Standing::InBin,
                });
            }
            if recorded.state == VmHomeState::Unfinished || self.has_id(&path, VmId::Native(id)).await? {
                return Ok(Standing::CopyOf(path));
            }
        }
        for (_, other) in datastore.inhabitants().await? {
            if other != home.path && self.has_id(&other, VmId::Native(id)).await? {
                return Ok(Standing::LikeAnother(other));
            }
        }
        Ok(Standing::Home)
    }

    async fn standing_with_files(&self, name: &str, home: &Home, id: u128) -> Result<Standing> {
        let own = home.datastore.records.get(name).is_some_and(|record| record.id == Some(id));
        for (datastore, other, path) in self.recorded_homes(id) {
            if path == home.path || !self.has_id(&path, VmId::Files(id)).await? {
                continue;
            }
            // Both are on record when a whole datastore was copied with its records. The home that is served first
            // stays.
            if own && !self.has_home(&path) {
                datastore.records.remove(&other).await?;
                continue;
            }
            if own {
                home.datastore.records.remove(name).await?;
            }
            return Ok(Standing::CopyOf(path));
        }
        if own {
            return Ok(Standing::Home);
        }
        if let Some(path) = self.bin_home_of(id).await? {
            return Ok(Standing::CopyOf(path));
        }
        for datastore in self.datastores() {
            for (other, path) in datastore.inhabitants().await? {
                let recorded = datastore
                    .records
                    .get(&other)
                    .is_some_and(|record| record.id.is_some_and(|own| own != id));
                if path != home.path && !recorded && self.has_id(&path, VmId::Files(id)).await? {
                    return Ok(Standing::LikeAnother(path));
                }
            }
        }
        Ok(Standing::Home)
    }

    /// Returns the homes on record with the ID: datastore, name, path.
    fn recorded_homes(&self, id: u128) -> Vec<(Rc<Datastore>, String, PathBuf)> {
        let mut found = Vec::new();
        for datastore in self.datastores() {
            for (name, record) in
                datastore.records.all().into_iter().filter(|(_, record)| record.id == Some(id))
            {
                let path = record.path.unwrap_or_else(|| datastore.root.join(&name));
                found.push((datastore.clone(), name, path));
            }
        }
        found
    }

    /// Returns whether a folder is a home with that ID. A folder that cannot be read may be one.
    pub(in crate::daemon) async fn has_id(&self, path: &Path, id: VmId) -> Result<bool> {
        let found = async {
            let dir = open_path(&self.env, path).await?;
            dir.open_dir(OWN_FOLDER, false).await?;
            match (mark::read(&self.env, path).await?, id) {
                (Some(marked), VmId::Native(id)) => Ok::<bool, Error>(marked == id),
                (None, VmId::Files(id)) => {
                    let files = VmFiles::new(dir, Folders::default(), Growth::default());
                    Ok(files.id().await? == Some(id))
                }
                _ => Ok(false),
            }
        };
        match found.await {
            Err(e) if e.kind == ErrorKind::NotFound => Ok(false),
            Err(_) => Ok(true),
            found => found,
        }
    }

    async fn record_home(&self, name: &str, home: &Home, id: VmId) -> Result<()> {
        match id {
            VmId::Native(id) => {
                let store = home.datastore.native.open().await?;
                let known = store.has_vm(id);
                let path = home.datastore.relative(&home.path);
                let recorded = store.home_of(id)?.is_some_and(|recorded| recorded.path == path);
                if !known || recorded || store.broken().is_some() {
                    return Ok(());
                }
                store.set_home(id, &path).await
            }
            VmId::Files(id) => {
                let record = home.datastore.record(&home.path, HomeState::Whole, Some(id));
                if home.datastore.records.get(name) != Some(record.clone()) {
                    home.datastore.records.put(name, record).await?;
                }
                for (datastore, other, path) in self.recorded_homes(id) {
                    if path != home.path {
                        datastore.records.remove(&other).await?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Returns the folders in a datastore that have the ID of a VM with another home. None of them is served.
    pub(crate) async fn copies(&self, datastore: &Rc<Datastore>) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (name, path) in datastore.inhabitants().await.unwrap_or_default() {
            if self.entries().iter().any(|entry| entry.home == path) {
                continue;
            }
            let home = datastore.at(&path);
            // The list of VMs reports a folder that cannot be read.
            let Ok(standing) = self.standing(&name, &home).await else { continue };
            if let Some((found, remedy)) = standing.explain(&name) {
                findings.push(Finding {
                    severity: Severity::Damage,
                    file: path.display().to_string(),
                    field: "the folder".to_owned(),
                    found,
                    expected: "the only folder with the id of its VM".to_owned(),
                    remedy,
                });
            }
        }
        findings
    }
}

impl Datastore {
    /// Returns a record of the home at `path`.
    pub(crate) fn record(&self, path: &Path, state: HomeState, id: Option<u128>) -> HomeRecord {
        HomeRecord { state, id, path: (!self.contains(path)).then(|| path.to_path_buf()) }
    }

    /// Returns the name of the VM whose home is or was at `path`.
    pub(crate) fn name_of(&self, path: &Path) -> String {
        let elsewhere = self.registry.all().into_iter().find(|(_, home)| home == path);
        let name = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        elsewhere.map_or_else(name, |(name, _)| name)
    }

    /// Returns the form in which the store records a home: its name in the datastore, which may be moved as a whole, or
    /// its path.
    pub(crate) fn relative(&self, home: &Path) -> String {
        match home.file_name() {
            Some(name) if self.contains(home) => name.to_string_lossy().into_owned(),
            _ => home.to_string_lossy().into_owned(),
        }
    }
}
