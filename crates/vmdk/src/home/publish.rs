//! The commit point of a change: all files concerned, in one intent.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::manifest::{Change, LayerName, VmState};
use blk::{Error, ErrorKind, Result};

use super::folders::{LayerFile, Role};
use super::intent::Intent;
use super::links::{self, OwnLink};
use super::state::{Texts, disk_paths};
use super::survey::Survey;
use super::touch::refuse_embedded;
use super::{Home, snapshot_files};
use crate::descriptor::Descriptor;
use crate::text::shown;
use crate::vmx::Vmx;

impl Home {
    pub(super) async fn publish(&self, change: &Change) -> Result<()> {
        let _turn = self.turn.lock().await;
        let survey = Survey::new(&self.folders);
        let (files, mut texts) = self.texts(&survey).await?;
        self.check_change(change, &survey).await?;
        let restored = self.restored(change, &texts).await?;
        let mut paths = texts.paths()?;
        paths.extend(restored.as_ref().map(disk_paths).transpose()?.unwrap_or_default());
        let place = self.dir().path_of(&files.vmx);
        let resolved = survey.resolve(&place, paths.iter().map(String::as_str)).await?;

        let before = texts.clone();
        let replaced = restored.is_some();
        if let Some(vmx) = restored {
            texts.restore(vmx)?;
        }
        texts.write(change, &|written: &str| resolved.get(written))?;
        let mut intent = self.intent();
        self.keep_configurations(&before, &change.next, &mut intent);
        if texts.vmx.to_bytes() != before.vmx.to_bytes() {
            intent.replace.insert(files.vmx, texts.vmx.to_bytes());
        }
        if texts.vmsd.to_bytes() != before.vmsd.to_bytes() || !survey.home().await?.contains(&files.vmsd) {
            intent.replace.insert(files.vmsd, texts.vmsd.to_bytes());
        }
        let named = self.rewrite_links(change, &mut intent).await?;
        self.collect_removals(change, &survey, &mut intent).await?;
        self.collect_leftovers(&before, &change.next, &survey, &mut intent).await?;
        let bin = self.write_bin(&before, change, replaced, &mut intent)?;
        // After a failure the files are read again.
        self.bin.take();
        intent.commit(&self.folders).await?;
        *self.bin.borrow_mut() = Some(Rc::new(bin));
        self.prepared.borrow_mut().retain(|name| !named.contains(name) && !change.remove.contains(name));
        Ok(())
    }

    /// Returns the configuration that becomes the VM's own, if one was kept.
    async fn restored(&self, change: &Change, texts: &Texts) -> Result<Option<Vmx>> {
        let Some(id) = change.configuration else { return Ok(None) };
        if let Some(uid) = snapshot_files::uid_of(texts, id)? {
            return self.kept_configuration(uid).await;
        }
        match texts.bin.iter().find(|binned| u128::from(binned.state.id) == id) {
            Some(binned) => self.binned_configuration(binned.state.id).await,
            None => Err(Error::not_found(self.dir().path(), format!("a snapshot with the id {id:032x}"))),
        }
    }

    /// Checks that everything to which the next state refers exists and is not removed.
    async fn check_change(&self, change: &Change, survey: &Survey<'_>) -> Result<()> {
        let place = self.dir().path();
        let folds: BTreeSet<&LayerName> = change.next.folds.iter().map(|fold| &fold.layer).collect();
        for layer in layers_of(&change.next) {
            if change.remove.contains(layer) {
                return Err(Error::refused(
                    place,
                    format!("{} is to be removed and is in use", shown(layer)),
                ));
            }
            // Entries of the bin prevent nothing.
            let only_binned = || change.next.bin.iter().any(|binned| binned.layers().any(|own| own == layer));
            if !folds.contains(layer) && !survey.has_layer(layer).await? && !only_binned() {
                return Err(Error::not_found(place, format!("the layer {}", shown(layer))));
            }
        }
        for layer in change.remove.iter().chain(change.reparent.iter().map(|(child, _)| child)) {
            if self.folders.role_of(layer) != Some(Role::Own) {
                let cause = format!(
                    "{} is in a folder that this VM only reads from, and is not changed",
                    shown(layer)
                );
                return Err(Error::refused(place, cause));
            }
        }
        Ok(())
    }

    /// Writes new parents into links, and removes the marks of links that are named from now on. Returns the names of
    /// the links in use.
    async fn rewrite_links(&self, change: &Change, intent: &mut Intent) -> Result<BTreeSet<LayerName>> {
        let used = layers_of(&change.next);
        let named: BTreeSet<LayerName> =
            used.into_iter().filter(|layer| self.prepared.borrow().contains(*layer)).cloned().collect();
        let parents: BTreeMap<&LayerName, &LayerName> =
            change.reparent.iter().map(|(child, parent)| (child, parent)).collect();
        for name in named.iter().chain(parents.keys().copied()).collect::<BTreeSet<_>>() {
            let place = self.folders.place(name).await?;
            let mut link = (*links::read_in(&self.folders, &place).await?).clone();
            refuse_embedded(&link)?;
            if let Some(parent) = parents.get(name) {
                let cid = links::read(&self.folders, parent).await?.cid();
                link.set_parent(&self.hint(&place, parent).await?, cid);
            }
            if named.contains(name) {
                link.clear_prepared();
            }
            intent.replace.insert(name.clone(), link.to_bytes());
        }
        Ok(named)
    }

    /// Returns the hint to `parent` for a link in the folder of `child`: a plain name if both are in one folder.
    pub(super) async fn hint(&self, child: &LayerFile, parent: &str) -> Result<String> {
        let parent = self.folders.place(parent).await?;
        if parent.folder.path == child.folder.path {
            return Ok(parent.name);
        }
        let path = self.folders.path_of(&parent.layer);
        if !path.starts_with('/') || path.contains(char::is_control) {
            let cause =
                format!("{} cannot be named from another folder: its path is not absolute", shown(&path));
            return Err(Error::invalid(self.dir().path(), cause));
        }
        Ok(path)
    }

    /// Collects the files to remove. Refuses to remove a link or a file of data that a remaining link reads.
    async fn collect_removals(
        &self,
        change: &Change,
        survey: &Survey<'_>,
        intent: &mut Intent,
    ) -> Result<()> {
        let mut extents = BTreeSet::new();
        for name in &change.remove {
            let link = links::read(&self.folders, name).await?;
            extents.extend(self.own_extents(survey, &link).await?.into_iter().map(|place| place.layer));
        }
        let own = if change.remove.is_empty() { Vec::new() } else { links::read_own(survey).await? };
        for OwnLink { layer, link, .. } in own.iter().filter(|own| !change.remove.contains(&own.layer)) {
            let needs = self.needed_by(survey, layer, link, change).await?;
            if let Some(gone) =
                needs.iter().find(|file| change.remove.contains(file) || extents.contains(*file))
            {
                let what = if extents.contains(gone) { "holds data" } else { "is the parent" };
                let cause = format!("{} is to be removed, but it {what} of {}", shown(gone), shown(layer));
                return Err(Error::refused(self.dir().path(), cause));
            }
        }
        intent.remove.extend(extents);
        intent.remove.extend(change.remove.iter().cloned());
        Ok(())
    }

    /// Returns the files that a remaining link reads: its extents, and its parent unless it gets another one.
    async fn needed_by(
        &self,
        survey: &Survey<'_>,
        layer: &LayerName,
        link: &Descriptor,
        change: &Change,
    ) -> Result<Vec<LayerName>> {
        let mut needed = match links::extent_places(survey, link).await {
            Ok(places) => places.into_values().map(|place| place.layer).collect(),
            Err(e) if matches!(e.kind, ErrorKind::Refused | ErrorKind::Damaged) => Vec::new(),
            Err(e) => return Err(e),
        };
        if !change.reparent.iter().any(|(child, _)| child == layer) {
            needed.extend(links::known_parent_of(survey, link).await?);
        }
        Ok(needed)
    }

    /// Returns the extents of a removed link. An extent in a folder that is only read stays.
    pub(super) async fn own_extents(&self, survey: &Survey<'_>, link: &Descriptor) -> Result<Vec<LayerFile>> {
        let places = links::extent_places(survey, link).await?;
        Ok(places.into_values().filter(|place| !place.is_foreign()).collect())
    }
}

/// Returns all layers to which a state refers directly.
pub(super) fn layers_of(state: &VmState) -> BTreeSet<&LayerName> {
    let running = state.disks.iter().flat_map(|disk| [Some(&disk.top), disk.reset_to.as_ref()]).flatten();
    let frozen = state.snapshots.iter().flat_map(|snapshot| &snapshot.disks).map(|(_, layer)| layer);
    let binned = state.bin.iter().flat_map(|binned| binned.layers());
    running.chain(frozen).chain(binned).chain(state.folds.iter().map(|fold| &fold.layer)).collect()
}
