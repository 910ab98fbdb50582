//! Readers of layers, within the home and outside of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use blk::manifest::{Dependant, LayerLink, LayerName, VmState};
use blk::{Dir, ErrorKind, Result};

use super::links::{self, OwnLink};
use super::paths::{base_name, join, normal, resolve, split};
use super::publish::layers_of;
use super::state::Texts;
use super::survey::Survey;
use super::{Home, folders::Role};
use crate::descriptor::Descriptor;
use crate::vmsd::Vmsd;

/// Maximum number of a snapshot's clones that are looked up and named; longer messages are not useful.
const NOTES_LISTED_MAX: usize = 100;

/// Record of a clone of a snapshot in the .vmsd.
struct Note {
    uid: u32,
    /// Absolute path of the clone's .vmx.
    vmx: String,
}

impl Home {
    /// Implements `Manifest::links`. In a shared folder, a link belongs to this home if it carries its ID, or carries
    /// none and descends from a layer of the home.
    pub(super) async fn links(&self) -> Result<Vec<LayerLink>> {
        let _turn = self.turn.lock().await;
        let survey = Survey::new(&self.folders);
        let (_, _, state) = self.read_all(&survey).await?;
        let mut known: BTreeMap<LayerName, LayerLink> = BTreeMap::new();
        for layer in layers_of(&state) {
            self.follow(&survey, layer.clone(), &mut known).await?;
        }
        let mut nameless: BTreeMap<LayerName, Vec<LayerName>> = BTreeMap::new();
        for OwnLink { layer, link, at_home } in links::read_own(&survey).await? {
            if link.is_prepared() || self.folders.is_anothers(&link) {
                continue;
            }
            if at_home || link.owner().is_some() {
                self.follow(&survey, layer, &mut known).await?;
            } else if let Some(parent) = links::known_parent_of(&survey, &link).await? {
                nameless.entry(parent).or_default().push(layer);
            }
        }
        let mut parents: VecDeque<LayerName> = known.keys().cloned().collect();
        while let Some(parent) = parents.pop_front() {
            for layer in nameless.remove(&parent).unwrap_or_default() {
                self.follow(&survey, layer.clone(), &mut known).await?;
                parents.push_back(layer);
            }
        }
        Ok(known.into_values().collect())
    }

    /// Adds the layer and all layers below it. The walk ends at an unreadable link, which `chain` reports.
    async fn follow(
        &self,
        survey: &Survey<'_>,
        top: LayerName,
        known: &mut BTreeMap<LayerName, LayerLink>,
    ) -> Result<()> {
        let mut next = Some(top);
        while let Some(name) = next.take().filter(|name| !known.contains_key(name)) {
            let link = match links::read(&self.folders, &name).await {
                Ok(link) => link,
                Err(e) if is_broken(e.kind) => break,
                Err(e) => return Err(e),
            };
            let parent = links::known_parent_of(survey, &link).await?;
            let parent = parent.or_else(|| link.parent_hint().map(Into::into));
            let foreign = self.folders.role_of(&name) != Some(Role::Own);
            known.insert(name.clone(), LayerLink { name, parent: parent.clone(), foreign });
            next = parent;
        }
        Ok(())
    }

    /// Implements `Manifest::dependants`.
    pub(super) async fn dependants(&self, layers: &[LayerName]) -> Result<Vec<Dependant>> {
        let _turn = self.turn.lock().await;
        let survey = Survey::new(&self.folders);
        let (_, texts, state) = self.read_all(&survey).await?;
        let layers: BTreeSet<&LayerName> = layers.iter().collect();
        let mut found = self.noted_dependants(&survey, &texts, &state, &layers).await?;
        let noted: BTreeSet<(String, LayerName)> =
            found.iter().map(|d| (split(&d.who).0.to_owned(), d.layer.clone())).collect();
        let searched = self.search(&survey, &layers).await?;
        let is_new = |d: &Dependant| !noted.contains(&(split(&d.who).0.to_owned(), d.layer.clone()));
        found.extend(searched.into_iter().filter(is_new));
        Ok(found)
    }

    /// Returns the clones that the lines of a snapshot record, in the tree or in the bin. If many clones read one
    /// layer, only some are returned: one reader is enough to protect a layer.
    async fn noted_dependants(
        &self,
        survey: &Survey<'_>,
        texts: &Texts,
        state: &VmState,
        layers: &BTreeSet<&LayerName>,
    ) -> Result<Vec<Dependant>> {
        let mut read: BTreeMap<u32, Vec<&LayerName>> = BTreeMap::new();
        let binned = state.bin.iter().flat_map(|binned| &binned.snapshots);
        for snapshot in state.snapshots.iter().chain(binned) {
            let own = snapshot.disks.iter().map(|(_, layer)| layer);
            read.insert(snapshot.uid, own.filter(|layer| layers.contains(layer)).collect());
        }
        let (mut found, mut noted) = (Vec::new(), BTreeMap::<u32, usize>::new());
        for note in self.clone_notes(texts) {
            let count = noted.entry(note.uid).or_default();
            if *count >= NOTES_LISTED_MAX || !self.may_exist(survey, &note.vmx).await? {
                continue;
            }
            *count += 1;
            let read = read.get(&note.uid).into_iter().flatten();
            found.extend(read.map(|layer| Dependant { layer: (*layer).clone(), who: note.vmx.clone() }));
        }
        Ok(found)
    }

    /// Returns links of other VMs whose parent is one of `layers`, in the folders to be searched and in shared own
    /// folders.
    async fn search(&self, survey: &Survey<'_>, layers: &BTreeSet<&LayerName>) -> Result<Vec<Dependant>> {
        let mut found = Vec::new();
        let names: BTreeSet<&str> = layers.iter().map(|layer| base_name(layer)).collect();
        for path in self.searched_folders(survey).await? {
            let folder = match self.folders.look(&path).await {
                Ok(folder) => folder,
                Err(e) if e.kind == ErrorKind::NoDescriptors => return Err(e),
                // This process need not be permitted to read everything in a datastore.
                Err(_) => continue,
            };
            let own = path == self.folders.home().path;
            let shared = self.folders.own().any(|root| root.path == path);
            // One at a time, because these folders belong to other VMs and may have any size.
            for name in survey.names(&path).await?.iter() {
                let Some(link) = links::readable(&self.folders, &folder, name).await? else { continue };
                let theirs = if own || shared { self.folders.is_anothers(&link) } else { true };
                if !theirs || link.is_prepared() {
                    continue;
                }
                if !link.parent_hint().is_some_and(|hint| names.contains(base_name(hint))) {
                    continue;
                }
                if let Some(layer) = parent_among(survey, &link, layers).await? {
                    found.push(Dependant { layer, who: join(&path, name) });
                }
            }
        }
        Ok(found)
    }

    async fn searched_folders(&self, survey: &Survey<'_>) -> Result<BTreeSet<String>> {
        let mut paths: BTreeSet<String> = self.folders.own().map(|folder| folder.path.clone()).collect();
        for root in self.folders.search() {
            paths.insert(root.path.clone());
            let names = survey.names(&root.path).await?;
            let below =
                names.iter().filter_map(|name| name.strip_suffix('/')).filter(|name| !name.starts_with('.'));
            paths.extend(below.map(|name| join(&root.path, name)));
        }
        Ok(paths)
    }

    fn clone_notes(&self, texts: &Texts) -> Vec<Note> {
        let folder = &self.folders.home().path;
        let snapshots = texts.snapshots();
        let notes =
            snapshots.flat_map(|snapshot| snapshot.clones().map(move |(_, path)| (snapshot.uid, path)));
        notes
            .map(|(uid, path)| Note { uid, vmx: resolve(folder, path).unwrap_or_else(|| path.to_owned()) })
            .collect()
    }

    /// Returns whether the file may exist. A file outside of the known folders counts as existing.
    async fn may_exist(&self, survey: &Survey<'_>, path: &str) -> Result<bool> {
        match normal(path).filter(|path| path.starts_with('/') && self.folders.sees(path)) {
            Some(path) => survey.has(&path).await,
            None => Ok(true),
        }
    }

    /// Removes records of clones that were never completed, or no longer exist. Returns true if there were any.
    pub(super) async fn prune_clones(&self, survey: &Survey<'_>, vmsd: &mut Vmsd) -> Result<bool> {
        let mut list = vmsd.list().clone();
        let mut pruned = false;
        for snapshot in &mut list.snapshots {
            let all: Vec<String> = snapshot.clones().map(|(_, path)| path.to_owned()).collect();
            let mut live = Vec::new();
            for path in &all {
                let vmx = resolve(&self.folders.home().path, path).unwrap_or_else(|| path.clone());
                if self.may_exist(survey, &vmx).await? {
                    live.push(path.clone());
                }
            }
            if live.len() != all.len() {
                snapshot.set_clones(&live);
                pruned = true;
            }
        }
        vmsd.set_list(list);
        Ok(pruned)
    }
}

async fn parent_among(
    survey: &Survey<'_>,
    link: &Descriptor,
    layers: &BTreeSet<&LayerName>,
) -> Result<Option<LayerName>> {
    let Some(hint) = link.parent_hint() else { return Ok(None) };
    let parent = match survey.glimpse(link.file(), hint).await {
        Ok(parent) => parent,
        Err(e) if is_broken(e.kind) => None,
        Err(e) => return Err(e),
    };
    Ok(parent.filter(|parent| layers.contains(parent)))
}

fn is_broken(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::Damaged | ErrorKind::Unsupported | ErrorKind::Refused)
}

impl Home {
    /// Refuses a folder with VMware's lock files or folders: a VM of another program may be running from it.
    pub async fn refuse_foreign_use(dir: &Dir) -> Result<()> {
        Self::refuse_foreign_use_but(dir, &BTreeSet::new()).await
    }

    /// Refuses like `refuse_foreign_use`, except for the locks named in `stale`.
    pub(crate) async fn refuse_foreign_use_but(dir: &Dir, stale: &BTreeSet<String>) -> Result<()> {
        for name in dir.list().await? {
            if is_foreign_lock(&name) && !stale.contains(&name) {
                let plain = name.trim_end_matches('/');
                let cause = format!("{plain} is here: VMware has this VM open");
                let remedy = "power it off and close it there; if no VMware product runs it, remove that lock (`unstun \
                     repair PATH --stale-locks`)";
                return Err(blk::Error::new(ErrorKind::Locked, dir.path(), format!("{cause}; {remedy}")));
            }
        }
        Ok(())
    }
}

/// Returns whether a listed name is a lock of VMware: a file or a folder.
pub(crate) fn is_foreign_lock(name: &str) -> bool {
    let plain = name.trim_end_matches('/');
    plain.to_ascii_lowercase().ends_with(".lck") || plain.starts_with(".lck-")
}
