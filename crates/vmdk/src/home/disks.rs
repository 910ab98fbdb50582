//! Creation and growth of base disks.

use blk::manifest::{DiskState, LayerName, NewDisk, VmState, new_disk_number};
use blk::reactor::OpenMode;
use blk::{Error, Result, SECTOR};

use super::Home;
use super::folders::Folder;
use super::links::{self, OwnLink};
use super::paths::join;
use super::state::{DISK_COUNT, DISK_COUNT_MAX, number};
use super::survey::Survey;
use crate::descriptor::{DISK_SECTORS_MAX, NewBase};
use crate::names::base_names;
use crate::text::shown;
use crate::vmx::{Slot, VM_DISKS_MAX};

/// Maximum number of names that are tried for a new disk: far more than a VM has places.
const NAMES_MAX: usize = 100 * VM_DISKS_MAX;

pub(super) fn check_size(place: &str, bytes: u64) -> Result<()> {
    if bytes == 0 || !bytes.is_multiple_of(SECTOR) || bytes / SECTOR > DISK_SECTORS_MAX {
        let cause = format!("a disk of {bytes} bytes was asked for");
        return Err(Error::invalid(place, format!("{cause}, expected a multiple of 512 up to 64 TiB")));
    }
    Ok(())
}

/// Refuses a disk that the redo store cannot make.
pub(super) fn check_new_disk(place: &str, disk: &NewDisk) -> Result<()> {
    match disk.source {
        None => check_size(place, disk.size_bytes),
        Some(_) => Err(Error::refused(place, "a disk over a source is native, and this VM has files")),
    }
}

impl Home {
    pub(super) async fn disk_folder(&self, disk: &NewDisk) -> Result<Folder> {
        match &disk.folder {
            None => Ok(self.folders.home().clone()),
            Some(path) => self.folders.own_folder("the folder of a new disk", path).await,
        }
    }

    pub(super) async fn create_disk(&self, state: &VmState, disk: &NewDisk) -> Result<DiskState> {
        let _turn = self.turn.lock().await;
        check_new_disk(self.dir().path(), disk)?;
        let (files, texts) = self.texts(&Survey::new(&self.folders)).await?;
        let taken: Vec<Slot> = state.disks.iter().filter_map(|own| Slot::parse(&own.slot)).collect();
        let Some(slot) = texts.vmx.free_slot(&taken) else {
            let cause = format!("all {VM_DISKS_MAX} places of its SCSI controllers are taken");
            return Err(Error::refused(self.dir().path(), cause));
        };
        let in_snapshots =
            state.snapshots.iter().flat_map(|snapshot| &snapshot.disks).map(|(number, _)| *number);
        let used = state.disks.iter().map(|own| own.number).chain(in_snapshots);
        let highest = used.map(|number| number + 1).max().unwrap_or(0);
        let count = number(texts.vmx.values(), DISK_COUNT, DISK_COUNT_MAX)?.unwrap_or(0);
        let number = new_disk_number(self.dir().path(), count.max(highest))?;
        let folder = self.disk_folder(disk).await?;
        let top = self.create_base(&folder, &files.stem, disk.size_bytes, Some(state.id)).await?;
        Ok(DiskState {
            number,
            slot: slot.to_string(),
            mode: disk.mode,
            size_bytes: disk.size_bytes,
            top,
            reset_to: None,
        })
    }

    /// Creates a thin disk, durably. With `prepared_for`, the ID of a running VM, it is marked until a configuration
    /// names it.
    pub(super) async fn create_base(
        &self,
        folder: &Folder,
        stem: &str,
        bytes: u64,
        prepared_for: Option<u128>,
    ) -> Result<LayerName> {
        let _names = self.lock_names(folder).await?;
        let taken = self.taken_names([folder]).await?;
        let mut free = None;
        for index in 0..NAMES_MAX {
            let names = base_names(stem, index)?;
            if !taken.contains(&names.descriptor) && !taken.contains(&names.extent) {
                free = Some(names);
                break;
            }
        }
        let Some(names) = free else {
            let cause = format!("{NAMES_MAX} names for a disk of {} are taken", shown(stem));
            return Err(Error::refused(&folder.path, cause));
        };
        let base = NewBase {
            extent_file: &names.extent,
            capacity_sectors: bytes / SECTOR,
            content_id: self.new_content_id(),
            uuid: self.random(),
            prepared_for,
        };
        let link = base.descriptor(&folder.dir.path_of(&names.descriptor))?;
        let layer = self.folders.layer_name(&join(&folder.path, &names.descriptor));
        if prepared_for.is_some() {
            self.prepared.borrow_mut().insert(layer.clone());
        }
        let made = async {
            // The descriptor is written first: its mark shows the owner of the extent.
            self.replace(&layer, link.to_bytes()).await?;
            let extent = folder.dir.create_new(&names.extent).await?;
            extent.set_len(bytes).await?;
            extent.flush().await?;
            folder.dir.sync().await
        };
        if let Err(e) = made.await {
            // If it cannot be removed now, it is debris with a mark, which the next load removes.
            let _ = self.remove_link(&layer, &link).await;
            self.prepared.borrow_mut().remove(&layer);
            return Err(e);
        }
        self.fresh.borrow_mut().insert(layer.clone());
        Ok(layer)
    }

    /// Grows a base disk, the extent first: a file that is longer than its descriptor says is sound.
    pub(super) async fn grow(&self, name: &str, size_bytes: u64) -> Result<()> {
        let _turn = self.turn.lock().await;
        let place = self.folders.place(name).await?;
        let mut link = (*links::read_in(&self.folders, &place).await?).clone();
        let file = link.file().to_owned();
        check_size(&file, size_bytes)?;
        let refused = |cause: String| Err(Error::refused(&file, format!("it cannot grow: {cause}")));
        if place.is_foreign() {
            return refused("its folder is one this VM only reads from".into());
        }
        let [extent] = link.extents() else {
            return refused(format!("it has {} extents, expected one", link.extents().len()));
        };
        if !extent.kind.is_flat() || link.parent_hint().is_some() {
            let kind = extent.kind.keyword();
            return refused(format!(
                "it is a delta or no plain disk ({kind}), expected a base with a FLAT or VMFS extent"
            ));
        }
        let old_bytes = link.capacity_sectors() * SECTOR;
        if size_bytes < old_bytes {
            return refused(format!("it has {old_bytes} bytes and would shrink to {size_bytes}"));
        }
        let survey = Survey::new(&self.folders);
        if let Some(child) = self.child_of(&survey, name).await? {
            let cause = format!("{} is a delta of it, and sizes must be equal along a chain", shown(&child));
            return refused(format!("{cause} (VMware's error 67); commit its snapshots first"));
        }
        let offset_bytes = extent.offset_sectors * SECTOR;
        let places = links::extent_places(&survey, &link).await?;
        let place = &places[&extent.file];
        if place.is_foreign() {
            return refused("its extent is in a folder this VM only reads from".into());
        }
        let data = place.folder.dir.open(&place.name, OpenMode::Write).await?;
        let length = offset_bytes.saturating_add(size_bytes);
        if data.size().await? < length {
            data.set_len(length).await?;
            data.flush().await?;
        }
        link.set_extent_sectors(0, size_bytes / SECTOR);
        link.update_geometry();
        self.replace(name, link.to_bytes()).await
    }

    async fn child_of(&self, survey: &Survey<'_>, name: &str) -> Result<Option<LayerName>> {
        for OwnLink { layer, link, .. } in links::read_own(survey).await? {
            let waits = link.is_prepared() && !self.prepared.borrow().contains(&layer);
            if !waits && links::known_parent_of(survey, &link).await?.as_deref() == Some(name) {
                return Ok(Some(layer));
            }
        }
        Ok(None)
    }
}
