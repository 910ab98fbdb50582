//! The home of a VM with VMware's files, as a `Manifest`.
//!
//! The files are the only source of the state. Memory has only the children that no configuration names yet, and
//! `Cache`: the descriptors as they were last read.
//!
//! Order of a take: the child's descriptor is durable, with the mark "prepared", before its extent exists, so that
//! leftovers of a crash can be distinguished from a user's file. `publish` removes the mark when it names the child.
//!
//! A home's layers may be in several folders, and homes may share those folders. `Gate` controls the access to them,
//! and files that this home made in a shared folder carry its ID. In the home itself all files belong to it.

mod bin;
mod cache;
mod clone;
mod create;
mod debris;
mod dependants;
mod disks;
mod folders;
mod import;
mod intent;
mod links;
mod paths;
mod publish;
mod settings;
mod snapshot_files;
mod state;
mod survey;
mod touch;
mod write;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::dir::OWN_FOLDER;
use blk::layer::Layer;
use blk::manifest::{
    Change, DeltaFormat, Dependant, DiskState, LayerInfo, LayerLink, LayerName, Manifest, NewDisk, Opening,
    VmState,
};
use blk::reactor::OpenMode;
use blk::sync::TaskMutex;
use blk::{Dir, Env, Error, ErrorKind, File, Local, Result, SECTOR};

use crate::delta::{self, DeltaParams, Growth, VmfsSparse};
use crate::descriptor::{ContentId, Descriptor, ExtentKind};
use crate::flat::Flat;
use crate::hosted::Hosted;
use crate::probe;
use crate::read::parse;
use crate::sesparse::{self, SeSparse, WritableHeader};
use crate::text::{TEXT_BYTES_MAX, shown};
use crate::vmsd::Vmsd;
use crate::vmx::{Slot, Vmx};

use bin::Binned;
pub(crate) use bin::binned_layers;
pub use create::NewVm;
pub(crate) use dependants::is_foreign_lock;
use folders::FolderSet;
pub use folders::{FolderKind, Folders, format_roots, parse_roots};
use intent::Intent;
pub(crate) use intent::RECORD;
pub(crate) use state::VM_ID;
use state::{AssignedIds, ReadContext, Texts};
use survey::Survey;

/// File with reserved space, in the private folder.
const RESERVE: &str = "reserve";

/// Admits a number of further layers for a purpose; see [`Manifest::admit`].
pub type Admit = Box<dyn Fn(Opening, usize) -> Result<()>>;

/// A VM's home. Calls may overlap; changes of its files run one at a time.
pub struct Home {
    folders: FolderSet,
    growth: Growth,
    /// Grain size of deltas created from now on.
    grain_sectors: Cell<u32>,
    /// Accepts a `parentCID` that is not the parent's CID, because the user states that the parent's data is unchanged.
    pub ignore_content_ids: bool,
    /// None admits everything.
    pub admit: Option<Admit>,
    turn: TaskMutex,
    /// Links made in this session that no `publish` has named yet.
    prepared: RefCell<BTreeSet<LayerName>>,
    /// Links that got their content ID in this session and have had no child since: nothing depends on that ID.
    fresh: RefCell<BTreeSet<LayerName>>,
    notices: RefCell<Vec<String>>,
    /// The bin as it is on disk; None if it must be read.
    bin: RefCell<Option<Rc<Vec<Binned>>>>,
}

/// The two configuration files of a home.
struct TextNames {
    stem: String,
    vmx: String,
    vmsd: String,
}

impl Home {
    /// Creates a home without opening any file. `growth` applies to the deltas written here.
    pub fn new(dir: Dir, folders: Folders, growth: Growth) -> Self {
        Self {
            folders: FolderSet::new(dir, folders),
            growth,
            grain_sectors: Cell::new(1),
            ignore_content_ids: false,
            admit: None,
            turn: TaskMutex::default(),
            prepared: RefCell::default(),
            fresh: RefCell::default(),
            notices: RefCell::default(),
            bin: RefCell::default(),
        }
    }

    /// Sets the grain size of deltas created from now on. The default is 1 sector, as in VMware; other sizes are for
    /// tests with deltas of other products.
    pub fn set_grain(&self, sectors: u32) {
        self.grain_sectors.set(sectors);
    }

    /// Admits writes to SEsparse deltas of other programs.
    pub fn set_write_sesparse(&self, admitted: bool) {
        self.folders.write_sesparse.set(admitted);
    }

    /// Returns the home's own folder.
    pub fn dir(&self) -> &Dir {
        &self.folders.home().dir
    }

    fn env(&self) -> &Env {
        self.dir().env()
    }

    /// Returns notices for the user since the last call, about additional actions of the home.
    pub fn take_notices(&self) -> Vec<String> {
        self.notices.take()
    }

    fn notice(&self, sentence: String) {
        self.notices.borrow_mut().push(sentence);
    }

    /// Forgets everything that was read from files.
    fn forget_read(&self) {
        self.folders.cache.clear();
        self.bin.take();
    }

    fn random(&self) -> u128 {
        (u128::from(self.env().random()) << 64) | u128::from(self.env().random())
    }

    fn new_content_id(&self) -> ContentId {
        ContentId::from_random(self.random())
    }

    /// Returns an empty change with the mark of this home's temporary files.
    fn intent(&self) -> Intent {
        let tag = self.folders.id.get().map_or_else(|| "new".into(), |id| format!("{:08x}", id as u32));
        Intent { tag, ..Intent::default() }
    }

    fn text_names(&self, names: &BTreeSet<String>) -> Result<TextNames> {
        let place = self.dir().path();
        let vmx: Vec<&String> =
            names.iter().filter(|name| name.to_ascii_lowercase().ends_with(".vmx")).collect();
        match vmx[..] {
            [vmx] => {
                let stem = vmx[..vmx.len() - ".vmx".len()].to_owned();
                Ok(TextNames { vmx: vmx.clone(), vmsd: format!("{stem}.vmsd"), stem })
            }
            [] => Err(Error::not_found(place, "no .vmx file: this folder is not the home of a VM")),
            [first, second, ..] => {
                let cause = format!("{} and {} are both here", shown(first), shown(second));
                Err(Error::damaged(place, format!("{cause}, expected one .vmx file; move the other away")))
            }
        }
    }

    async fn texts(&self, survey: &Survey<'_>) -> Result<(TextNames, Texts)> {
        let names = survey.home().await?;
        let files = self.text_names(&names)?;
        let limit = TEXT_BYTES_MAX as u64;
        let vmx = self.dir().read_file(&files.vmx, limit).await?;
        let vmx = parse(self.dir().env(), self.dir().path_of(&files.vmx), vmx, Vmx::parse).await?;
        self.folders.id.set(state::id(vmx.values(), state::VM_ID)?.or(self.folders.id.get()));
        let path = self.dir().path_of(&files.vmsd);
        let vmsd = match names.contains(&files.vmsd) {
            true => {
                let bytes = self.dir().read_file(&files.vmsd, limit).await?;
                parse(self.dir().env(), path, bytes, Vmsd::parse).await?
            }
            false => Vmsd::create(&path),
        };
        let bin = self.binned().await?;
        Ok((files, Texts { vmx, vmsd, bin }))
    }

    async fn load(&self) -> Result<VmState> {
        let _turn = self.turn.lock().await;
        self.forget_read();
        intent::recover(&self.folders).await?;
        let survey = Survey::new(&self.folders);
        let (files, mut texts) = self.texts(&survey).await?;
        let pruned = self.prune_clones(&survey, &mut texts.vmsd).await?;
        let (state, assigned) = self.read_texts(&survey, &files, &mut texts).await?;
        self.folders.id.set(Some(state.id));
        let mut intent = self.intent();
        if assigned.in_vmx {
            intent.replace.insert(files.vmx, texts.vmx.to_bytes());
        }
        if assigned.in_vmsd || pruned {
            intent.replace.insert(files.vmsd, texts.vmsd.to_bytes());
        }
        self.clear_marks_in_use(&state, &mut intent).await?;
        intent.commit(&self.folders).await?;
        self.remove_debris(&state).await?;
        Ok(state)
    }

    /// Reads the state like `load`, without a write: missing IDs are drawn for this answer alone. The home need not be
    /// locked.
    pub async fn read(&self) -> Result<VmState> {
        let _turn = self.turn.lock().await;
        self.forget_read();
        Ok(self.read_all(&Survey::new(&self.folders)).await?.2)
    }

    /// Returns the VM's ID from its configuration, or otherwise from its running links. It writes nothing and completes
    /// no interrupted change: the caller may not know yet whether this is the VM or a copy of its folder.
    pub async fn id(&self) -> Result<Option<u128>> {
        let _turn = self.turn.lock().await;
        self.forget_read();
        let survey = Survey::new(&self.folders);
        let (files, texts) = self.texts(&survey).await?;
        if let Some(id) = state::id(texts.vmx.values(), VM_ID)? {
            return Ok(Some(id));
        }
        let place = self.dir().path_of(&files.vmx);
        let resolved = survey.resolve(&place, texts.paths()?.iter().map(String::as_str)).await?;
        self.maker_of_tops(&texts.vmx, &resolved).await
    }

    async fn read_all(&self, survey: &Survey<'_>) -> Result<(TextNames, Texts, VmState)> {
        if intent::is_pending(&self.folders).await? {
            let cause = "a change of this home was interrupted and is not carried out yet; open the VM in place first";
            return Err(Error::refused(self.dir().path(), cause));
        }
        let (files, mut texts) = self.texts(survey).await?;
        let (state, _) = self.read_texts(survey, &files, &mut texts).await?;
        Ok((files, texts, state))
    }

    async fn read_texts(
        &self,
        survey: &Survey<'_>,
        files: &TextNames,
        texts: &mut Texts,
    ) -> Result<(VmState, AssignedIds)> {
        let paths = texts.paths()?;
        let place = self.dir().path_of(&files.vmx);
        let resolved = survey.resolve(&place, paths.iter().map(String::as_str)).await?;
        let size_bytes = self.disk_sizes(&texts.vmx, &resolved).await?;
        let local = |written: &str| resolved.get(written);
        let id = match state::id(texts.vmx.values(), state::VM_ID)? {
            None => self.maker_of_tops(&texts.vmx, &resolved).await?,
            known => known,
        };
        let at = ReadContext { fallback_name: &files.stem, id, local: &local, size_bytes: &size_bytes };
        let (mut state, assigned) = texts.read(&at, || self.random())?;
        state.bin = self.read_bin(survey, texts).await?;
        Ok((state, assigned))
    }

    /// Returns the VM for which the running links were made. A .vmx that has lost its ID gets this ID again; otherwise
    /// its own links would appear to belong to another VM.
    async fn maker_of_tops(&self, vmx: &Vmx, resolved: &survey::Resolved) -> Result<Option<u128>> {
        for disk in vmx.disks()? {
            let top = disk.redo.as_ref().unwrap_or(&disk.file_name);
            let owner = links::read(&self.folders, &resolved.get(top)?.layer).await?.owner();
            if owner.is_some() {
                return Ok(owner);
            }
        }
        Ok(None)
    }

    async fn disk_sizes(&self, vmx: &Vmx, resolved: &survey::Resolved) -> Result<BTreeMap<Slot, u64>> {
        let mut sizes = BTreeMap::new();
        for disk in vmx.disks()? {
            let link = links::read(&self.folders, &resolved.get(&disk.file_name)?.layer).await?;
            sizes.insert(disk.slot, link.capacity_sectors() * SECTOR);
        }
        Ok(sizes)
    }

    async fn chain(&self, top: &str) -> Result<Vec<LayerInfo>> {
        let survey = Survey::new(&self.folders);
        let chain = links::chain(&survey, top, self.ignore_content_ids).await?;
        let mut infos: Vec<LayerInfo> = Vec::new();
        for (name, link) in &chain {
            let parent = infos.last().map(|info| info.name.clone());
            infos.push(links::info(&survey, name, link, parent).await?);
        }
        Ok(infos)
    }

    async fn chain_names(&self, top: &str) -> Result<Vec<LayerName>> {
        let chain = links::chain(&Survey::new(&self.folders), top, self.ignore_content_ids).await?;
        Ok(chain.into_iter().map(|(name, _)| name).collect())
    }

    async fn open(&self, name: &str, writable: bool) -> Result<Rc<dyn Layer>> {
        let _turn = self.turn.lock().await;
        let place = self.folders.place(name).await?;
        let link = links::read_in(&self.folders, &place).await?;
        self.open_link(name, &link, writable && !place.is_foreign()).await
    }

    async fn open_link(&self, name: &str, link: &Descriptor, writable: bool) -> Result<Rc<dyn Layer>> {
        if let Some(error) = probe::unreadable(link) {
            return Err(error);
        }
        let places = links::extent_places(&Survey::new(&self.folders), link).await?;
        let readable_only = link.is_read_only(self.folders.write_sesparse.get());
        let writable = writable && !readable_only && !places.values().any(folders::LayerFile::is_foreign);
        let mode = if writable { OpenMode::Write } else { OpenMode::Read };
        let mut files: BTreeMap<String, File> = BTreeMap::new();
        for (extent, place) in places {
            let file = place.folder.dir.open(&place.name, mode).await.map_err(|e| named_by(e, link))?;
            files.insert(extent, file);
        }
        match link.extents() {
            [only] if only.kind == ExtentKind::VmfsSparse => {
                let file = files.remove(&only.file).expect("opened above");
                let facts =
                    DeltaParams { name, capacity_sectors: only.sectors, writable, growth: self.growth };
                Ok(Rc::new(VmfsSparse::open(self.env().clone(), file, facts).await?))
            }
            [only] if only.kind == ExtentKind::SeSparse => {
                let file = files.remove(&only.file).expect("opened above");
                self.open_sesparse(name, file, only.sectors, writable).await
            }
            extents if extents.iter().any(|extent| extent.kind == ExtentKind::Sparse) => {
                Ok(Rc::new(Hosted::open(name, link, files).await?))
            }
            _ => Ok(Rc::new(Flat::open(name, link, files, writable).await?)),
        }
    }

    /// Opens an SEsparse delta, for writing only if unstun wrote it last or the user admits it.
    async fn open_sesparse(
        &self,
        name: &str,
        file: File,
        capacity_sectors: u64,
        writable: bool,
    ) -> Result<Rc<dyn Layer>> {
        let admitted = self.folders.write_sesparse.get();
        // Damage is found below.
        if writable && (admitted || WritableHeader::is_ours(&file).await.unwrap_or(false)) {
            let facts = DeltaParams { name, capacity_sectors, writable, growth: self.growth };
            match delta::SeSparse::open(self.env().clone(), file.clone(), facts).await {
                Err(e) if e.kind == ErrorKind::Unsupported => {
                    self.notice(format!("{name} is read and not written: {e}"));
                }
                opened => return Ok(Rc::new(opened?)),
            }
        }
        Ok(Rc::new(SeSparse::open(file, sesparse::DeltaParams { name, capacity_sectors }).await?))
    }

    /// Reserves space with a file of that many allocated bytes. The next call reuses a file that a crash has left.
    async fn reserve(&self, bytes: u64) -> Result<()> {
        let _turn = self.turn.lock().await;
        let private = self.dir().open_dir(OWN_FOLDER, true).await?;
        if bytes == 0 {
            return private.unlink_if_present(RESERVE).await;
        }
        let file = match private.create_new(RESERVE).await {
            Err(e) if e.kind == ErrorKind::Exists => private.open(RESERVE, OpenMode::Write).await?,
            created => created?,
        };
        let reserved = file.allocate(0, bytes).await;
        if reserved.is_err() {
            private.unlink_if_present(RESERVE).await?;
        }
        reserved
    }
}

fn named_by(error: Error, link: &Descriptor) -> Error {
    match error.kind {
        ErrorKind::NotFound => {
            Error::not_found(link.file(), format!("its extent cannot be opened ({error})"))
        }
        _ => error,
    }
}

impl Manifest for Home {
    fn reserve(&self, bytes: u64) -> Local<'_, Result<()>> {
        Box::pin(self.reserve(bytes))
    }

    fn load(&self) -> Local<'_, Result<VmState>> {
        Box::pin(self.load())
    }

    fn publish<'a>(&'a self, change: &'a Change) -> Local<'a, Result<()>> {
        Box::pin(self.publish(change))
    }

    fn chain<'a>(&'a self, top: &'a str) -> Local<'a, Result<Vec<LayerInfo>>> {
        Box::pin(async move {
            // A change of content IDs is several renames, between which no chain is correct.
            let _turn = self.turn.lock().await;
            self.chain(top).await
        })
    }

    fn chain_names<'a>(&'a self, top: &'a str) -> Local<'a, Result<Vec<LayerName>>> {
        Box::pin(async move {
            let _turn = self.turn.lock().await;
            self.chain_names(top).await
        })
    }

    fn open<'a>(&'a self, name: &'a str, writable: bool) -> Local<'a, Result<Rc<dyn Layer>>> {
        Box::pin(self.open(name, writable))
    }

    fn admit(&self, opening: Opening, layers: usize) -> Result<()> {
        self.admit.as_ref().map_or(Ok(()), |admit| admit(opening, layers))
    }

    fn links(&self) -> Local<'_, Result<Vec<LayerLink>>> {
        Box::pin(self.links())
    }

    fn dependants<'a>(&'a self, layers: &'a [LayerName]) -> Local<'a, Result<Vec<Dependant>>> {
        Box::pin(self.dependants(layers))
    }

    fn disks_at(&self, snapshot: u128) -> Local<'_, Result<Option<Vec<DiskState>>>> {
        Box::pin(self.disks_at(snapshot))
    }

    fn create_disk<'a>(&'a self, state: &'a VmState, disk: &'a NewDisk) -> Local<'a, Result<DiskState>> {
        Box::pin(self.create_disk(state, disk))
    }

    fn grow<'a>(&'a self, name: &'a str, size_bytes: u64) -> Local<'a, Result<()>> {
        Box::pin(self.grow(name, size_bytes))
    }

    fn touch<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>> {
        Box::pin(self.touch(name))
    }

    fn create_child_in<'a>(
        &'a self,
        parent: &'a str,
        format: DeltaFormat,
    ) -> Local<'a, Result<Rc<dyn Layer>>> {
        Box::pin(self.create_delta(parent, format))
    }

    fn discard_child<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>> {
        Box::pin(self.discard_child(name))
    }
}

#[cfg(test)]
mod tests;
