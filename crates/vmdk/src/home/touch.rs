//! A new content ID for a link before its first write, so that readers in other folders notice.

use blk::{Error, Result};

use super::Home;
use super::folders::LayerFile;
use super::links::{self, OwnLink};
use super::paths::{base_name, join};
use super::survey::Survey;
use crate::descriptor::Descriptor;
use crate::text::shown;

/// Refuses to write a descriptor that is inside of the data's file.
pub(super) fn refuse_embedded(link: &Descriptor) -> Result<()> {
    match link.is_embedded() {
        false => Ok(()),
        true => {
            let cause = "its descriptor is inside of the data's file, which unstun reads but does not write";
            Err(Error::unsupported(link.file(), cause))
        }
    }
}

/// Suffix of a change-tracking file that is no longer valid.
const SET_ASIDE: &str = ".unstun-set-aside";

impl Home {
    /// Gives a link a new content ID. Not necessary if no child has used its present one.
    pub(super) async fn touch(&self, name: &str) -> Result<()> {
        if self.fresh.borrow().contains(name) {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        let place = self.folders.place(name).await?;
        if place.is_foreign() {
            let cause =
                format!("{} is in a folder that this VM only reads from, and is not written", shown(name));
            return Err(Error::refused(self.dir().path(), cause));
        }
        let mut link = (*links::read_in(&self.folders, &place).await?).clone();
        refuse_embedded(&link)?;
        let tracked = link.change_track_path().map(str::to_owned);
        self.renew_content_id(name, &mut link).await?;
        if let Some(tracked) = tracked {
            self.set_tracking_aside(&place, &tracked).await?;
        }
        self.fresh.borrow_mut().insert(name.into());
        Ok(())
    }

    /// Writes the new ID. Foreign children no longer match from here on; children of this home do.
    async fn renew_content_id(&self, name: &str, link: &mut Descriptor) -> Result<()> {
        let old_cid = link.cid();
        link.set_content_id(self.new_content_id());
        link.drop_change_tracking();
        let mut intent = self.intent();
        intent.replace.insert(name.into(), link.to_bytes());
        let survey = Survey::new(&self.folders);
        for OwnLink { layer, link: child, .. } in links::read_own(&survey).await? {
            let hint = child.parent_hint().unwrap_or_default().to_owned();
            let may_be = base_name(&hint) == base_name(name) && child.parent_cid() == Some(old_cid);
            if !may_be || layer == name || self.folders.is_anothers(&child) {
                continue;
            }
            if links::known_parent_of(&survey, &child).await?.as_deref() == Some(name) {
                refuse_embedded(&child)?;
                let mut child = (*child).clone();
                child.set_parent(&hint, link.cid());
                intent.replace.insert(layer, child.to_bytes());
            }
        }
        intent.commit(&self.folders).await
    }

    /// Renames VMware's tracking file. It does not cover unstun's writes, and a backup that used it would miss them.
    /// The descriptor's reference to it is removed before.
    async fn set_tracking_aside(&self, place: &LayerFile, tracked: &str) -> Result<()> {
        let link = self.folders.path_of(&place.layer);
        let mut sentence =
            format!("{link}: changed-block tracking has ended, the next backup must be a full one");
        let name = base_name(tracked);
        let names = Survey::new(&self.folders).names(&place.folder.path).await?;
        // The name is untrusted: only a tracking file is renamed.
        if name.to_ascii_lowercase().ends_with("-ctk.vmdk") && names.contains(name) {
            let aside = format!("{name}{SET_ASIDE}");
            let dir = &place.folder.dir;
            let renamed = async {
                dir.rename(name, &aside).await?;
                dir.sync().await
            };
            self.folders.cache.changing([&name.to_owned(), &aside], renamed).await?;
            sentence.push_str(&format!("; its file is kept as {}", join(&place.folder.path, &aside)));
        }
        self.notice(sentence);
        Ok(())
    }
}
