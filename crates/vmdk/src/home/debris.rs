//! Removal of a crash's leftovers: links with unstun's mark and without references, and temporary files.

use std::collections::BTreeSet;

use blk::manifest::{LayerName, VmState};
use blk::{ErrorKind, Result};

use super::intent::{self, Intent};
use super::links::{self, OwnLink};
use super::publish::layers_of;
use super::survey::Survey;
use super::{Home, folders::Role};
use crate::descriptor::Descriptor;

impl Home {
    /// Removes prepared links without references. In a shared folder, only those with this VM's ID.
    pub(super) async fn remove_debris(&self, state: &VmState) -> Result<()> {
        intent::remove_tagged(&self.folders, &self.intent().tag).await?;
        let survey = Survey::new(&self.folders);
        let all = links::read_own(&survey).await?;
        let mut referred: BTreeSet<LayerName> = layers_of(state).into_iter().cloned().collect();
        for own in &all {
            referred.extend(links::known_parent_of(&survey, &own.link).await?);
        }
        for OwnLink { layer, link, at_home } in &all {
            let ours =
                link.is_prepared() && !self.folders.is_anothers(link) && (*at_home || link.owner().is_some());
            if ours && !referred.contains(layer) && !self.prepared.borrow().contains(layer) {
                self.remove_link(layer, link).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn remove_link(&self, layer: &str, link: &Descriptor) -> Result<()> {
        let mut files: Vec<String> = link.extents().iter().map(|extent| extent.file.clone()).collect();
        files.push(layer.to_owned());
        self.folders.cache.changing(&files, self.unlink_link(layer, link)).await
    }

    /// Removes a link. Its extents are removed first, because the descriptor's mark shows their owner.
    async fn unlink_link(&self, layer: &str, link: &Descriptor) -> Result<()> {
        for extent in self.own_extents(&Survey::new(&self.folders), link).await? {
            extent.folder.dir.unlink_if_present(&extent.name).await?;
            extent.folder.dir.sync().await?;
        }
        let place = self.folders.place(layer).await?;
        place.folder.dir.unlink_if_present(&place.name).await?;
        place.folder.dir.sync().await
    }

    /// Removes the marks of links that a configuration names. They are in use: a clone's configuration is written while
    /// its links still carry the mark.
    pub(super) async fn clear_marks_in_use(&self, state: &VmState, intent: &mut Intent) -> Result<()> {
        for layer in layers_of(state) {
            if self.folders.role_of(layer) != Some(Role::Own) {
                continue;
            }
            let link = match links::read(&self.folders, layer).await {
                Ok(link) => link,
                Err(e) if e.kind == ErrorKind::NoDescriptors => return Err(e),
                // The opening of the link reports the error.
                Err(_) => continue,
            };
            if link.is_prepared() {
                let mut link = (*link).clone();
                link.clear_prepared();
                intent.replace.insert(layer.clone(), link.to_bytes());
            }
        }
        Ok(())
    }
}
