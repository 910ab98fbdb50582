//! Creation of files in a home: a new VM, and the children of a take.

use std::collections::BTreeSet;
use std::rc::Rc;

use blk::dir::OWN_FOLDER;
use blk::file::Lock;
use blk::layer::Layer;
use blk::manifest::{DeltaFormat, DiskMode, DiskState, NewDisk, VmState};
use blk::{Dir, Error, ErrorKind, Result};

use super::folders::{Folder, Folders, LayerFile, Role};
use super::links::{self, OwnLink};
use super::paths::join;
use super::state::VM_ID;
use super::survey::{Located, Survey};
use super::{Growth, Home, intent, write};
use crate::cowd::NEW_CAPACITY_SECTORS_MAX;
use crate::delta::{DeltaParams, SeSparse, VmfsSparse};
use crate::descriptor::{Descriptor, ExtentKind, NewChild, note_for_child_of};
use crate::names::{DeltaNames, next_delta_names};
use crate::text::check_name;
use crate::vmsd::Vmsd;
use crate::vmx::{Slot, VM_DISKS_MAX, Vmx};

/// Lock that is held while a name is chosen in a shared folder.
const NAMES_LOCK: &str = ".unstun-names";
/// Tries of that lock. A choice takes a few file operations; after ten seconds the holder hangs.
const LOCK_TRIES: usize = 1000;
const LOCK_WAIT_US: u64 = 10_000;

/// The only grain of the format.
const SESPARSE_GRAIN_SECTORS: u32 = 8;

/// Returns the format of a new child. A chain with an SEsparse delta that unstun made goes on with them.
fn kind_of_child(parent: &Descriptor, format: DeltaFormat) -> ExtentKind {
    let follows_own =
        parent.owner().is_some() && parent.extents().iter().any(|extent| extent.kind == ExtentKind::SeSparse);
    let is_large = parent.capacity_sectors() > NEW_CAPACITY_SECTORS_MAX;
    match format {
        DeltaFormat::SeSparse => ExtentKind::SeSparse,
        DeltaFormat::Fitting if follows_own || is_large => ExtentKind::SeSparse,
        DeltaFormat::Fitting => ExtentKind::VmfsSparse,
    }
}

/// A VM to create.
#[derive(Debug, Clone)]
pub struct NewVm<'a> {
    /// Name of the VM, and stem of its files' names.
    pub name: &'a str,
    /// Disks in the order of their numbers, from 0.
    pub disks: Vec<NewDisk>,
    /// ID of the VM; None: its first load draws one. Files in other folders carry the ID, so that
    /// `Home::remove_made_elsewhere` finds all of them.
    pub id: Option<u128>,
}

impl<'a> NewVm<'a> {
    /// Returns a VM with persistent disks in the home. Sizes are multiples of 512.
    pub fn new(name: &'a str, disk_bytes: &[u64]) -> Self {
        let disk =
            |size_bytes| NewDisk { size_bytes, mode: DiskMode::Persistent, folder: None, source: None };
        Self { name, disks: disk_bytes.iter().copied().map(disk).collect(), id: None }
    }

    fn check(&self, place: &str) -> Result<()> {
        check_name(place, "VM name", self.name)?;
        if self.disks.len() > VM_DISKS_MAX {
            let cause = format!("{} disks asked for, expected at most {VM_DISKS_MAX}", self.disks.len());
            return Err(Error::invalid(place, cause));
        }
        self.disks.iter().try_for_each(|disk| super::disks::check_new_disk(place, disk))
    }
}

impl Home {
    /// Creates a VM with thin flat disks in a folder that is empty, except for the private folder. It is durable when
    /// the call returns. The .vmx is written last; before that, the folder is no VM. A failure removes the created
    /// files.
    pub async fn create(dir: Dir, folders: Folders, growth: Growth, vm: NewVm<'_>) -> Result<Home> {
        vm.check(dir.path())?;
        let home = Home::new(dir, folders, growth);
        home.refuse_inhabited().await?;
        home.folders.id.set(vm.id);
        let mut state = VmState { name: vm.name.into(), ..VmState::default() };
        match home.create_files(&vm, &mut state).await {
            Ok(()) => Ok(home),
            Err(e) => {
                home.remove_created(&state).await;
                Err(e)
            }
        }
    }

    /// Creates the files. `state` gets each disk that is complete.
    async fn create_files(&self, vm: &NewVm<'_>, state: &mut VmState) -> Result<()> {
        for (index, disk) in vm.disks.iter().enumerate() {
            let number = u32::try_from(index).unwrap_or(u32::MAX);
            // Bounded by VM_DISKS_MAX above.
            let Some(slot) = Slot::for_new_disk(index) else { break };
            let folder = self.disk_folder(disk).await?;
            let elsewhere = folder.path != self.folders.home().path;
            let prepared_for = vm.id.filter(|_| elsewhere);
            let top = self.create_base(&folder, vm.name, disk.size_bytes, prepared_for).await?;
            state.disks.push(DiskState {
                number,
                slot: slot.to_string(),
                mode: disk.mode,
                size_bytes: disk.size_bytes,
                top,
                reset_to: None,
            });
        }
        let vmsd = format!("{}.vmsd", vm.name);
        self.dir().replace_file(&vmsd, &Vmsd::create(&vmsd).to_bytes()).await?;
        let name = format!("{}.vmx", vm.name);
        let mut vmx = Vmx::create(&name, vm.name, &[])?;
        if let Some(id) = vm.id {
            vmx.values_mut().set(VM_ID, &format!("{id:032x}"));
        }
        write::write_disks(&mut vmx, state, &|path: &str| Ok(Located { layer: path.into(), exists: true }))?;
        self.dir().replace_file(&name, &vmx.to_bytes()).await?;
        if !self.prepared.borrow().is_empty() {
            // The marks are removed: a configuration names the disks.
            self.load().await?;
            self.prepared.borrow_mut().clear();
        }
        Ok(())
    }

    /// Removes the files that a failed creation has made outside of its home: everything there with the ID `vm`, which
    /// no other VM has.
    pub async fn remove_made_elsewhere(&self, vm: u128) -> Result<()> {
        let _turn = self.turn.lock().await;
        self.folders.cache.clear();
        self.folders.id.set(Some(vm));
        intent::remove_tagged(&self.folders, &self.intent().tag).await?;
        for OwnLink { layer, link, at_home } in links::read_own(&Survey::new(&self.folders)).await? {
            if !at_home && link.owner() == Some(vm) {
                self.remove_link(&layer, &link).await?;
            }
        }
        Ok(())
    }

    /// Removes the files of a failed creation. Disks in other folders are removed too, because nothing there shows
    /// their owner.
    async fn remove_created(&self, state: &VmState) {
        // Files that cannot be removed now are no VM; the original error is the one to report.
        let _ = self.abandon().await;
        for disk in &state.disks {
            if let Ok(link) = links::read(&self.folders, &disk.top).await {
                let _ = self.remove_link(&disk.top, &link).await;
            }
        }
    }

    /// Refuses a folder with other content than the private folder.
    pub(super) async fn refuse_inhabited(&self) -> Result<()> {
        let taken = self.dir().list().await?;
        match taken.iter().find(|name| name.trim_end_matches('/') != OWN_FOLDER) {
            None => Ok(()),
            Some(name) => {
                let cause = format!("the folder is not empty: it holds {name}");
                Err(Error::new(ErrorKind::Exists, self.dir().path(), cause))
            }
        }
    }

    pub(super) async fn create_delta(&self, parent: &str, format: DeltaFormat) -> Result<Rc<dyn Layer>> {
        let (name, link) = {
            let _turn = self.turn.lock().await;
            let parent = self.folders.place(parent).await?;
            let folder = self.child_folder(&parent).await?;
            self.create_child_descriptor(&folder, &parent, &parent.name, format).await?
        };
        match self.create_child_extent(&name, &link).await {
            Ok(layer) => Ok(layer),
            Err(e) => {
                // A concurrent change may be about to write the descriptor again, with its parent's new content ID.
                let _turn = self.turn.lock().await;
                // If it cannot be removed now, it is debris with a mark, which the next load removes.
                let _ = self.remove_link(&name, &link).await;
                self.prepared.borrow_mut().remove(&name);
                Err(e)
            }
        }
    }

    /// Returns the folder for new deltas: the VM's snapshot folder if it has one, otherwise that of the parent,
    /// otherwise the home.
    async fn child_folder(&self, parent: &LayerFile) -> Result<Folder> {
        let vmx = match self.texts(&Survey::new(&self.folders)).await {
            Ok((_, texts)) => Some(texts.vmx),
            // A folder of disks without a VM.
            Err(e) if e.kind == ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        if let Some(vmx) = vmx
            && let Some(folder) = vmx.snapshot_folder()?
        {
            let place = format!("{}: workingDir", vmx.values().file());
            return self.folders.own_folder(&place, folder).await;
        }
        Ok(if parent.folder.role == Role::Own { parent.folder.clone() } else { self.folders.home().clone() })
    }

    /// Creates the descriptor, durable and marked as prepared. `leaf` is the name of a descriptor of the same disk.
    pub(super) async fn create_child_descriptor(
        &self,
        folder: &Folder,
        parent: &LayerFile,
        leaf: &str,
        format: DeltaFormat,
    ) -> Result<(String, Descriptor)> {
        let parent_link = links::read_in(&self.folders, parent).await?;
        let kind = kind_of_child(&parent_link, format);
        let _names = self.lock_names(folder).await?;
        let names = self.child_names(folder, parent, leaf, kind).await?;
        let path = join(&folder.path, &names.descriptor);
        let layer = self.folders.layer_name(&path);
        let place =
            LayerFile { folder: folder.clone(), name: names.descriptor.clone(), layer: layer.clone() };
        let child = NewChild {
            extent_file: &names.extent,
            capacity_sectors: parent_link.capacity_sectors(),
            content_id: self.new_content_id(),
            parent: &self.hint(&place, &parent.layer).await?,
            parent_cid: parent_link.cid(),
            owner: self.folders.id.get(),
            note: note_for_child_of(&parent_link, kind),
        };
        let link = child.descriptor(&folder.dir.path_of(&names.descriptor), kind)?;
        self.prepared.borrow_mut().insert(layer.clone());
        self.fresh.borrow_mut().insert(layer.clone());
        self.fresh.borrow_mut().remove(&parent.layer);
        match self.replace(&layer, link.to_bytes()).await {
            Ok(()) => Ok((layer, link)),
            Err(e) => {
                self.prepared.borrow_mut().remove(&layer);
                Err(e)
            }
        }
    }

    /// Prevents other VMs from choosing a name in a shared folder at the same time. None in the home, where `turn` is
    /// sufficient.
    pub(super) async fn lock_names(&self, folder: &Folder) -> Result<Option<Lock>> {
        if folder.path == self.folders.home().path {
            return Ok(None);
        }
        for _ in 1..LOCK_TRIES {
            match folder.dir.lock(NAMES_LOCK).await {
                Err(e) if e.kind == ErrorKind::Locked => self.env().sleep_us(LOCK_WAIT_US).await,
                locked => return locked.map(Some),
            }
        }
        folder.dir.lock(NAMES_LOCK).await.map(Some)
    }

    /// Returns names that are free in every folder in which a link of this disk may be.
    async fn child_names(
        &self,
        folder: &Folder,
        parent: &LayerFile,
        leaf: &str,
        kind: ExtentKind,
    ) -> Result<DeltaNames> {
        let taken = self.taken_names([folder, &parent.folder]).await?;
        next_delta_names(leaf, kind, |name| taken.contains(name))
    }

    pub(super) async fn taken_names<'a>(
        &self,
        folders: impl IntoIterator<Item = &'a Folder>,
    ) -> Result<BTreeSet<String>> {
        let survey = Survey::new(&self.folders);
        let mut taken = BTreeSet::new();
        let paths = folders.into_iter().map(|folder| &folder.path);
        for path in paths.chain(self.folders.own().map(|folder| &folder.path)) {
            taken.extend(survey.names(path).await?.iter().cloned());
        }
        Ok(taken)
    }

    /// Replaces one file, durably and atomically.
    pub(super) async fn replace(&self, name: &str, content: Vec<u8>) -> Result<()> {
        let mut intent = self.intent();
        intent.replace.insert(name.into(), content);
        intent.commit(&self.folders).await
    }

    pub(super) async fn create_child_extent(&self, name: &str, link: &Descriptor) -> Result<Rc<dyn Layer>> {
        let extent = &link.extents()[0];
        let folder = links::folder_of(&self.folders, link).await?;
        let file = folder.dir.create_new(&extent.file).await?;
        let facts =
            DeltaParams { name, capacity_sectors: extent.sectors, writable: true, growth: self.growth };
        let env = self.env().clone();
        let layer: Rc<dyn Layer> = match extent.kind {
            ExtentKind::SeSparse => {
                Rc::new(SeSparse::create(env, file, facts, SESPARSE_GRAIN_SECTORS).await?)
            }
            _ => Rc::new(VmfsSparse::create(env, file, facts, self.grain_sectors.get()).await?),
        };
        folder.dir.sync().await?;
        Ok(layer)
    }

    pub(super) async fn discard_child(&self, name: &str) -> Result<()> {
        let _turn = self.turn.lock().await;
        if !self.prepared.borrow().contains(name) {
            let cause = format!("{name:?} is no link that was made in this session and never published");
            return Err(Error::refused(self.dir().path(), cause));
        }
        let link = links::read(&self.folders, name).await?;
        self.remove_link(name, &link).await?;
        self.prepared.borrow_mut().remove(name);
        Ok(())
    }
}
