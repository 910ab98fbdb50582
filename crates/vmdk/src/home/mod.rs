//! A VM's folder of VMware files as a `Manifest`.
//!
//! Everything is read from the files each time it is needed: they are small, and they are the truth. What is kept in memory is
//! only which children of this session no configuration names yet.
//!
//! Order of a take's steps here: the child's descriptor is durable, with a mark that says "prepared", before its extent exists, so that
//! whatever a crash leaves can be told from a user's file. `publish` takes the mark out together with naming the child.

mod create;
mod intent;
mod links;
mod state;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::layer::Layer;
use blk::manifest::{
    Change, Dependant, DiskState, LayerInfo, LayerLink, LayerName, Manifest, NewDisk, VmState,
};
use blk::reactor::OpenMode;
use blk::sync::TaskMutex;
use blk::{Dir, Error, ErrorKind, File, Local, Result, SECTOR};

use crate::descriptor::{ContentId, Descriptor, ExtentKind};
use crate::flat::Flat;
use crate::probe;
use crate::sesparse::{self, SeSparse};
use crate::text::{TEXT_BYTES_MAX, shown};
use crate::vmfssparse::{Facts, Growth, VmfsSparse};
use crate::vmsd::Vmsd;
use crate::vmx::{Slot, Vmx};

pub use create::NewVm;
use intent::Intent;
use state::Texts;

/// Space set aside, in the private folder.
const RESERVE: &str = "reserve";

/// A VM's home. Calls may overlap; changes of its files take turns.
pub struct Home {
    dir: Dir,
    growth: Growth,
    turn: TaskMutex,
    /// Children made in this session that no `publish` has named yet.
    prepared: RefCell<BTreeSet<String>>,
    /// Links that got their content id in this session and have had no child since: nobody depends on it.
    fresh: RefCell<BTreeSet<String>>,
}

/// The two configuration files of a home.
struct TextNames {
    stem: String,
    vmx: String,
    vmsd: String,
}

impl Home {
    /// Opens nothing yet. `growth` is for the deltas written here.
    pub fn new(dir: Dir, growth: Growth) -> Self {
        Self {
            dir,
            growth,
            turn: TaskMutex::default(),
            prepared: RefCell::default(),
            fresh: RefCell::default(),
        }
    }

    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    fn random(&self) -> u128 {
        let env = self.dir.env();
        (u128::from(env.random()) << 64) | u128::from(env.random())
    }

    fn new_content_id(&self) -> ContentId {
        ContentId::from_random(self.random())
    }

    async fn names(&self) -> Result<BTreeSet<String>> {
        Ok(self.dir.list().await?.into_iter().collect())
    }

    fn text_names(&self, names: &BTreeSet<String>) -> Result<TextNames> {
        let vmx: Vec<&String> =
            names.iter().filter(|name| name.to_ascii_lowercase().ends_with(".vmx")).collect();
        match vmx[..] {
            [vmx] => {
                let stem = vmx[..vmx.len() - ".vmx".len()].to_owned();
                Ok(TextNames { vmx: vmx.clone(), vmsd: format!("{stem}.vmsd"), stem })
            }
            [] => Err(Error::not_found(self.dir.path(), "no .vmx file: this folder is not the home of a VM")),
            [first, second, ..] => {
                let cause = format!("{} and {} are both here", shown(first), shown(second));
                Err(Error::damaged(
                    self.dir.path(),
                    format!("{cause}, expected one .vmx file; move the other away"),
                ))
            }
        }
    }

    async fn texts(&self, names: &BTreeSet<String>) -> Result<(TextNames, Texts)> {
        let files = self.text_names(names)?;
        let limit = TEXT_BYTES_MAX as u64;
        let vmx = self.dir.read_file(&files.vmx, limit).await?;
        let vmx = Vmx::parse(&self.dir.path_of(&files.vmx), &vmx)?;
        let path = self.dir.path_of(&files.vmsd);
        let vmsd = match names.contains(&files.vmsd) {
            true => Vmsd::parse(&path, &self.dir.read_file(&files.vmsd, limit).await?)?,
            false => Vmsd::create(&path),
        };
        Ok((files, Texts { vmx, vmsd }))
    }

    async fn load(&self) -> Result<VmState> {
        let _turn = self.turn.lock().await;
        intent::recover(&self.dir).await?;
        let names = self.names().await?;
        let (files, mut texts) = self.texts(&names).await?;
        let sizes = self.disk_sizes(&texts.vmx, &names).await?;
        let local =
            |path: &str| links::local_name(&self.dir.path_of(&files.vmx), path, |name| names.contains(name));
        let (state, assigned) = texts.read(&files.stem, local, &sizes, || self.random())?;
        let mut intent = Intent::default();
        if assigned.in_vmx {
            intent.replace.insert(files.vmx, texts.vmx.to_bytes());
        }
        if assigned.in_vmsd {
            intent.replace.insert(files.vmsd, texts.vmsd.to_bytes());
        }
        intent.commit(&self.dir).await?;
        self.remove_debris(&state, &names).await?;
        Ok(state)
    }

    async fn disk_sizes(&self, vmx: &Vmx, names: &BTreeSet<String>) -> Result<BTreeMap<Slot, u64>> {
        let mut sizes = BTreeMap::new();
        for disk in vmx.disks()? {
            let name = links::local_name(vmx.values().file(), &disk.file_name, |name| names.contains(name))?;
            let link = links::read(&self.dir, &name).await?;
            sizes.insert(disk.slot, link.capacity_sectors() * SECTOR);
        }
        Ok(sizes)
    }

    /// Removes prepared children that nothing refers to.
    async fn remove_debris(&self, state: &VmState, names: &BTreeSet<String>) -> Result<()> {
        let names: Vec<String> = names.iter().cloned().collect();
        let all = links::read_all(&self.dir, &names).await?;
        let mut referred: BTreeSet<&str> = state.disks.iter().map(|disk| disk.top.as_str()).collect();
        referred.extend(state.snapshots.iter().flat_map(|s| &s.disks).map(|(_, layer)| layer.as_str()));
        referred.extend(state.folds.iter().map(|fold| fold.layer.as_str()));
        referred.extend(all.iter().filter_map(|(_, link)| link.parent_hint()));
        for (name, link) in &all {
            let ours = link.is_prepared() && !referred.contains(name.as_str());
            if ours && !self.prepared.borrow().contains(name) {
                self.remove_link(name, link).await?;
            }
        }
        Ok(())
    }

    /// The extents go first: the descriptor's mark says whose they are.
    async fn remove_link(&self, name: &str, link: &Descriptor) -> Result<()> {
        for extent in links::extent_names(&self.dir, link)? {
            self.dir.unlink_if_present(&extent).await?;
        }
        self.dir.sync().await?;
        self.dir.unlink_if_present(name).await?;
        self.dir.sync().await
    }

    async fn publish(&self, change: &Change) -> Result<()> {
        let _turn = self.turn.lock().await;
        let names = self.names().await?;
        let (files, mut texts) = self.texts(&names).await?;
        check_change(self.dir.path(), change, &names)?;
        let before = (texts.vmx.to_bytes(), texts.vmsd.to_bytes());
        let place = self.dir.path_of(&files.vmx);
        texts.write(change, |path: &str| links::local_name(&place, path, |name| names.contains(name)))?;
        let mut intent = Intent::default();
        if texts.vmx.to_bytes() != before.0 {
            intent.replace.insert(files.vmx, texts.vmx.to_bytes());
        }
        if texts.vmsd.to_bytes() != before.1 || !names.contains(&files.vmsd) {
            intent.replace.insert(files.vmsd, texts.vmsd.to_bytes());
        }
        let named = self.rewrite_links(change, &mut intent).await?;
        self.collect_removals(change, &names, &mut intent).await?;
        intent.commit(&self.dir).await?;
        self.prepared.borrow_mut().retain(|name| !named.contains(name) && !change.remove.contains(name));
        Ok(())
    }

    /// New parents, and no mark in what is named from now on. Answers the names of the children now in use.
    async fn rewrite_links(&self, change: &Change, intent: &mut Intent) -> Result<BTreeSet<String>> {
        let tops = change.next.disks.iter().map(|disk| &disk.top);
        let named: BTreeSet<String> =
            tops.filter(|top| self.prepared.borrow().contains(*top)).cloned().collect();
        let parents: BTreeMap<&String, &String> =
            change.reparent.iter().map(|(child, parent)| (child, parent)).collect();
        for name in named.iter().chain(parents.keys().copied()).collect::<BTreeSet<_>>() {
            let mut link = links::read(&self.dir, name).await?;
            if let Some(parent) = parents.get(name) {
                let cid = links::read(&self.dir, parent).await?.cid();
                link.set_parent(parent, cid);
            }
            if named.contains(name) {
                link.clear_prepared();
            }
            intent.replace.insert(name.clone(), link.to_bytes());
        }
        Ok(named)
    }

    /// Refuses to remove what another link still reads.
    async fn collect_removals(
        &self,
        change: &Change,
        names: &BTreeSet<String>,
        intent: &mut Intent,
    ) -> Result<()> {
        if change.remove.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = names.iter().cloned().collect();
        for (name, link) in links::read_all(&self.dir, &names).await? {
            let moves =
                change.remove.contains(&name) || change.reparent.iter().any(|(child, _)| *child == name);
            if let Some(hint) =
                link.parent_hint().filter(|hint| !moves && change.remove.iter().any(|gone| gone == hint))
            {
                let cause =
                    format!("{} is to be removed, but it is the parent of {}", shown(hint), shown(&name));
                return Err(Error::refused(self.dir.path(), cause));
            }
        }
        for name in &change.remove {
            let link = links::read(&self.dir, name).await?;
            intent.remove.extend(links::extent_names(&self.dir, &link)?);
            intent.remove.push(name.clone());
        }
        Ok(())
    }

    async fn chain(&self, top: &str) -> Result<Vec<LayerInfo>> {
        let _turn = self.turn.lock().await;
        let names = self.names().await?;
        let chain = links::chain(&self.dir, top, &names).await?;
        let mut infos: Vec<LayerInfo> = Vec::new();
        for (index, link) in chain.iter().enumerate() {
            // A link's file is its name under this folder's path.
            let name = match chain.get(index + 1) {
                Some(child) => {
                    links::local_name(child.file(), child.parent_hint().unwrap_or_default(), |n| {
                        names.contains(n)
                    })?
                }
                None => top.to_owned(),
            };
            let parent = infos.last().map(|info| info.name.clone());
            infos.push(links::info(&self.dir, &name, link, parent).await?);
        }
        Ok(infos)
    }

    async fn open(&self, name: &str, writable: bool) -> Result<Rc<dyn Layer>> {
        let _turn = self.turn.lock().await;
        let link = links::read(&self.dir, name).await?;
        self.open_link(name, &link, writable).await
    }

    /// A link whose content id nobody has seen yet needs no new one.
    async fn touch(&self, name: &str) -> Result<()> {
        if self.fresh.borrow().contains(name) {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        let mut link = links::read(&self.dir, name).await?;
        self.renew_content_id(name, &mut link).await?;
        self.fresh.borrow_mut().insert(name.into());
        Ok(())
    }

    /// The link is about to be written: whoever reads it from elsewhere must notice, the children here must not.
    async fn renew_content_id(&self, name: &str, link: &mut Descriptor) -> Result<()> {
        let old_cid = link.cid();
        link.set_content_id(self.new_content_id());
        link.drop_change_tracking();
        let mut intent = Intent::default();
        intent.replace.insert(name.into(), link.to_bytes());
        let names: Vec<String> = self.names().await?.into_iter().collect();
        for (child_name, mut child) in links::read_all(&self.dir, &names).await? {
            let hint = child.parent_hint().unwrap_or_default().to_owned();
            let is_child =
                hint.rsplit(['/', '\\']).next() == Some(name) && child.parent_cid() == Some(old_cid);
            if is_child && child_name != name {
                child.set_parent(&hint, link.cid());
                intent.replace.insert(child_name, child.to_bytes());
            }
        }
        intent.commit(&self.dir).await
    }

    async fn open_link(&self, name: &str, link: &Descriptor, writable: bool) -> Result<Rc<dyn Layer>> {
        if let Some(error) = probe::unreadable(link) {
            return Err(error);
        }
        let writable = writable && !link.extents().iter().any(|e| e.kind == ExtentKind::SeSparse);
        let mode = if writable { OpenMode::Write } else { OpenMode::Read };
        let mut files: BTreeMap<String, File> = BTreeMap::new();
        for extent in links::extent_names(&self.dir, link)? {
            let file = self.dir.open(&extent, mode).await.map_err(|e| named_by(e, link))?;
            files.insert(extent, file);
        }
        match link.extents() {
            [only] if only.kind == ExtentKind::VmfsSparse => {
                let file = files.remove(&only.file).expect("opened above");
                let facts = Facts { name, capacity_sectors: only.sectors, writable, growth: self.growth };
                Ok(Rc::new(VmfsSparse::open(self.dir.env().clone(), file, facts).await?))
            }
            [only] if only.kind == ExtentKind::SeSparse => {
                let file = files.remove(&only.file).expect("opened above");
                let facts = sesparse::Facts { name, capacity_sectors: only.sectors };
                Ok(Rc::new(SeSparse::open(file, facts).await?))
            }
            _ => Ok(Rc::new(Flat::open(name, link, files, writable).await?)),
        }
    }
}

/// What the next state refers to is here, and stays.
fn check_change(place: &str, change: &Change, names: &BTreeSet<String>) -> Result<()> {
    let tops = change.next.disks.iter().map(|disk| &disk.top);
    let frozen = change.next.snapshots.iter().flat_map(|snapshot| &snapshot.disks).map(|(_, layer)| layer);
    for layer in tops.chain(frozen) {
        if change.remove.contains(layer) {
            return Err(Error::refused(place, format!("{} is to be removed and is in use", shown(layer))));
        }
        if !names.contains(layer) {
            return Err(Error::not_found(place, format!("the layer {}", shown(layer))));
        }
    }
    Ok(())
}

fn named_by(error: Error, link: &Descriptor) -> Error {
    match error.kind {
        ErrorKind::NotFound => {
            Error::not_found(link.file(), format!("its extent cannot be opened ({error})"))
        }
        _ => error,
    }
}

impl Home {
    /// A file of that many allocated bytes. What a crash leaves of it is taken over by the next call.
    async fn reserve(&self, bytes: u64) -> Result<()> {
        let _turn = self.turn.lock().await;
        let private = self.dir.open_dir(intent::PRIVATE_FOLDER, true).await?;
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

impl Home {
    async fn layer_links(&self) -> Result<Vec<LayerLink>> {
        let _turn = self.turn.lock().await;
        let names: Vec<String> = self.names().await?.into_iter().collect();
        let is_here = |name: &str| names.iter().any(|n| n == name);
        let mut out = Vec::new();
        for (name, link) in links::read_all(&self.dir, &names).await? {
            if link.is_prepared() {
                continue;
            }
            let parent = link.parent_hint().map(|hint| links::local_name(link.file(), hint, is_here));
            out.push(LayerLink { name, parent: parent.transpose()?, foreign: false });
        }
        Ok(out)
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
        Box::pin(self.chain(top))
    }

    fn open<'a>(&'a self, name: &'a str, writable: bool) -> Local<'a, Result<Rc<dyn Layer>>> {
        Box::pin(self.open(name, writable))
    }

    fn links(&self) -> Local<'_, Result<Vec<LayerLink>>> {
        Box::pin(self.layer_links())
    }

    fn dependants<'a>(&'a self, _layers: &'a [LayerName]) -> Local<'a, Result<Vec<Dependant>>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn disks_at(&self, _snapshot: u128) -> Local<'_, Result<Option<Vec<DiskState>>>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn create_disk<'a>(&'a self, _state: &'a VmState, _disk: &'a NewDisk) -> Local<'a, Result<DiskState>> {
        Box::pin(std::future::ready(Err(Error::unsupported(self.dir.path(), "adding a disk"))))
    }

    fn grow<'a>(&'a self, name: &'a str, _size_bytes: u64) -> Local<'a, Result<()>> {
        Box::pin(std::future::ready(Err(Error::unsupported(name, "growing a disk"))))
    }

    fn touch<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>> {
        Box::pin(self.touch(name))
    }

    fn create_child<'a>(&'a self, parent: &'a str) -> Local<'a, Result<Rc<dyn Layer>>> {
        Box::pin(self.create_child(parent))
    }

    fn discard_child<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>> {
        Box::pin(self.discard_child(name))
    }
}

#[cfg(test)]
mod tests;
