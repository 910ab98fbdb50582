//! Files that are kept with each snapshot: the VM's configuration at that time, and VMware's state of the machine.

use std::collections::{BTreeMap, BTreeSet};

use blk::dir::OWN_FOLDER;
use blk::manifest::{DiskState, VmState};
use blk::{Error, ErrorKind, Result, SECTOR};

use super::folders::Role;
use super::intent::{Intent, private_name};
use super::state::{ReadContext, SNAPSHOT_ID, Texts, disk_numbers, disk_paths, read_disks};
use super::survey::Survey;
use super::{Home, bin, links};
use crate::read::parse;
use crate::text::{TEXT_BYTES_MAX, shown};
use crate::vmx::Vmx;

/// Returns the name of the .vmx of the snapshot with this uid.
pub(super) fn file_name(uid: u32) -> String {
    format!("snapshot-{uid}.vmx")
}

/// Returns the .vmsd's number of a snapshot.
pub(super) fn uid_of(texts: &Texts, id: u128) -> Result<Option<u32>> {
    let id = format!("{id:032x}");
    let found = texts.vmsd.list().snapshots.iter().find(|snapshot| snapshot.other(SNAPSHOT_ID) == Some(&id));
    Ok(found.map(|snapshot| snapshot.uid))
}

impl Home {
    pub(super) async fn kept_configuration(&self, uid: u32) -> Result<Option<Vmx>> {
        self.private_configuration(&file_name(uid)).await
    }

    /// Returns a .vmx from the private folder, if it exists.
    pub(super) async fn private_configuration(&self, name: &str) -> Result<Option<Vmx>> {
        let read = async {
            let private = self.dir().open_dir(OWN_FOLDER, false).await?;
            let bytes = private.read_file(name, TEXT_BYTES_MAX as u64).await?;
            parse(private.env(), private.path_of(name), bytes, Vmx::parse).await
        };
        match read.await {
            Ok(vmx) => Ok(Some(vmx)),
            Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Keeps the present configuration for each snapshot that is new in `next`.
    pub(super) fn keep_configurations(&self, before: &Texts, next: &VmState, intent: &mut Intent) {
        let known: BTreeSet<u32> = before.snapshots().map(|snapshot| snapshot.uid).collect();
        for snapshot in next.snapshots.iter().filter(|snapshot| !known.contains(&snapshot.uid)) {
            intent.replace.insert(private_name(&file_name(snapshot.uid)), before.vmx.to_bytes());
        }
    }

    /// Adds the removal of files that belong to removed snapshots: their kept configuration, and VMware's files of the
    /// machine's state.
    pub(super) async fn collect_leftovers(
        &self,
        before: &Texts,
        next: &VmState,
        survey: &Survey<'_>,
        intent: &mut Intent,
    ) -> Result<()> {
        let ours: BTreeSet<String> = super::intent::private_names(&self.folders).await?.into_iter().collect();
        let in_tree = next.snapshots.iter().map(|snapshot| snapshot.uid);
        let stay: BTreeSet<u32> = in_tree.chain(bin::snapshot_uids(&next.bin)).collect();
        let (kept, gone): (Vec<_>, Vec<_>) =
            before.snapshots().partition(|snapshot| stay.contains(&snapshot.uid));
        let kept: BTreeSet<&str> = kept.into_iter().filter_map(|other| other.other("filename")).collect();
        for snapshot in gone {
            if ours.contains(&file_name(snapshot.uid)) {
                intent.remove.push(private_name(&file_name(snapshot.uid)));
            }
            let Some(written) = snapshot.other("filename") else { continue };
            if kept.contains(written) {
                continue;
            }
            intent.remove.extend(self.machine_state(before, survey, written).await?);
        }
        Ok(())
    }

    /// Returns the .vmsn of a snapshot and the .vmem beside it, if they may be removed. The name is untrusted, so only
    /// these two kinds of file are accepted.
    async fn machine_state(&self, texts: &Texts, survey: &Survey<'_>, written: &str) -> Result<Vec<String>> {
        let located = match survey.locate(texts.vmsd.values().file(), written).await {
            Ok(located) => located.layer,
            Err(e) if matches!(e.kind, ErrorKind::Refused | ErrorKind::Damaged) => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let cut = located.len().saturating_sub(".vmsn".len());
        let suffix = located.get(cut..).unwrap_or_default();
        if !suffix.eq_ignore_ascii_case(".vmsn") || self.folders.role_of(&located) != Some(Role::Own) {
            return Ok(Vec::new());
        }
        let memory = format!("{}.vmem", &located[..cut]);
        let mut found = Vec::new();
        for file in [located, memory] {
            if survey.has_layer(&file).await? {
                found.push(file);
            }
        }
        Ok(found)
    }

    /// Implements `Manifest::disks_at`. Layers have the names that the snapshot has for them now. A disk that takes do
    /// not freeze is returned as it is now, if the VM still has it.
    pub(super) async fn disks_at(&self, snapshot: u128) -> Result<Option<Vec<DiskState>>> {
        let _turn = self.turn.lock().await;
        let survey = Survey::new(&self.folders);
        let (_, texts, state) = self.read_all(&survey).await?;
        let uid = uid_of(&texts, snapshot)?;
        let found = state.snapshots.iter().find(|own| own.id == snapshot).zip(uid);
        let Some((found, uid)) = found else {
            let cause = format!("a snapshot with the id {snapshot:032x}");
            return Err(Error::not_found(self.dir().path(), cause));
        };
        let Some(kept) = self.kept_configuration(uid).await? else { return Ok(None) };
        let mut disks = Vec::new();
        for mut disk in self.disks_of(&kept, &survey).await? {
            if let Some((_, layer)) = found.disks.iter().find(|(number, _)| *number == disk.number) {
                disk.top = layer.clone();
                disk.reset_to = None;
            } else if let Some(now) = state.disks.iter().find(|now| now.number == disk.number) {
                disk.top = now.top.clone();
                disk.reset_to = now.reset_to.clone();
            } else if !survey.has_layer(&disk.top).await? {
                let file = shown(&disk.top);
                self.notice(format!(
                    "disk{} of snapshot {} is gone: there is no {file}",
                    disk.number, found.name
                ));
                continue;
            }
            disk.size_bytes = links::read(&self.folders, &disk.top).await?.capacity_sectors() * SECTOR;
            disks.push(disk);
        }
        Ok(Some(disks))
    }

    /// Returns the disks of a configuration in the home. Their sizes are not set.
    pub(super) async fn disks_of(&self, vmx: &Vmx, survey: &Survey<'_>) -> Result<Vec<DiskState>> {
        let listed = vmx.disks()?;
        let numbers = disk_numbers(vmx, &listed)?;
        let paths = disk_paths(vmx)?;
        let place = self.dir().path_of("its .vmx");
        let resolved = survey.resolve(&place, paths.iter().map(String::as_str)).await?;
        let local = |written: &str| resolved.get(written);
        let at = ReadContext { fallback_name: "", id: None, local: &local, size_bytes: &BTreeMap::new() };
        read_disks(&listed, &numbers, &at)
    }
}
