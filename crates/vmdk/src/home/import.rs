//! Import of a VMware VM without a change of its folder: later writes go to children in a new home, on a snapshot of
//! the VM as it was found.

use std::rc::Rc;

use blk::dir::OWN_FOLDER;
use blk::manifest::{
    Change, ContentGeneration, DiskMode, SNAPSHOT_UID_MAX, SnapshotState, VmState, next_number,
};
use blk::{Dir, Error, Result};

use super::folders::Folders;
use super::intent::private_name;
use super::paths::base_name;
use super::state::Texts;
use super::survey::{Located, Survey};
use super::{Growth, Home, snapshot_files};
use crate::text::check_name;
use crate::vmsd::Vmsd;
use crate::vmx::Vmx;

/// Name of the snapshot with the VM as it was imported.
const AS_IMPORTED: &str = "as-imported";

impl Home {
    /// Creates a home in `dir`, which must be empty except for the private folder, for the VM in `source`. `folders`
    /// must include that folder as foreign. Nothing is written in `source`. The home is durable when the call returns.
    pub async fn import(
        source: &Home,
        dir: Dir,
        folders: Folders,
        growth: Growth,
        name: &str,
    ) -> Result<Home> {
        check_name(dir.path(), "VM name", name)?;
        Home::refuse_foreign_use(source.dir()).await?;
        let mut home = Home::new(dir, folders, growth);
        home.ignore_content_ids = source.ignore_content_ids;
        home.refuse_inhabited().await?;
        home.folders.id.set(Some(home.random()));
        let (_, texts, state) = {
            let _turn = source.turn.lock().await;
            source.folders.cache.clear();
            source.read_all(&Survey::new(&source.folders)).await?
        };
        if !state.folds.is_empty() {
            let cause = "commits are under way in it; open it in place and let them end";
            return Err(Error::refused(source.dir().path(), cause));
        }
        match home.take_over(source, &texts, &state, name).await {
            Ok(()) => Ok(home),
            Err(e) => {
                // Files that cannot be removed now are no VM.
                let _ = home.abandon().await;
                Err(e)
            }
        }
    }

    async fn take_over(&self, source: &Home, texts: &Texts, state: &VmState, name: &str) -> Result<()> {
        let found = absolute(source, state);
        let mut next = found.clone();
        next.name = name.into();
        next.id = self.folders.id.get().unwrap_or_default();
        next.generation = ContentGeneration::begin(self.random() as u64);
        for disk in &mut next.disks {
            // VMware drops the writes of a nonpersistent disk at power-on, so the state to which it returns is
            // imported.
            let parent = disk.reset_to.clone().unwrap_or_else(|| disk.top.clone());
            disk.top = self.adopt(&parent, base_name(&parent)).await?;
            disk.reset_to = (disk.mode == DiskMode::IndependentNonpersistent).then_some(parent);
        }
        let snapshot = self.as_imported(&found)?;
        next.last_uid = snapshot.uid;
        next.current = Some(snapshot.id);
        let uid = snapshot.uid;
        next.snapshots.push(snapshot);

        let kept = self.found_configuration(&texts.vmx, &found, name)?;
        let vmx = self.own_configuration(&texts.vmx, &next)?;
        let vmsd = source.absolute_list(texts, &self.dir().path_of(&format!("{name}.vmsd"))).await?;
        let mut own = Texts { vmx, vmsd, bin: Rc::default() };
        let change = Change { next, ..Change::default() };
        own.write(&change, &|path: &str| Ok(Located { layer: path.into(), exists: true }))?;
        self.copy_nvram(source.dir(), &texts.vmx).await?;
        self.dir().open_dir(OWN_FOLDER, true).await?;
        self.dir().sync().await?;
        self.replace(&private_name(&snapshot_files::file_name(uid)), kept.to_bytes()).await?;
        self.settle(&own.vmx, &own.vmsd, name).await
    }

    /// Returns a snapshot of the VM as it was found: its persistent disks, because the others are not part of
    /// snapshots.
    fn as_imported(&self, found: &VmState) -> Result<SnapshotState> {
        let uid = next_number(&found.name, "numbers of snapshots", found.last_uid, SNAPSHOT_UID_MAX)?;
        let taken = |name: &str| found.snapshots.iter().any(|snapshot| snapshot.name == name);
        let name = if taken(AS_IMPORTED) { format!("{AS_IMPORTED}-{uid}") } else { AS_IMPORTED.into() };
        let persistent = found.disks.iter().filter(|disk| disk.mode == DiskMode::Persistent);
        Ok(SnapshotState {
            id: self.random(),
            uid,
            parent: found.current,
            name,
            description: String::new(),
            created_unix_us: self.env().unix_us(),
            disks: persistent.map(|disk| (disk.number, disk.top.clone())).collect(),
        })
    }

    /// Returns the configuration for that snapshot: the VM's as it was found, with paths valid from here.
    fn found_configuration(&self, vmx: &Vmx, found: &VmState, name: &str) -> Result<Vmx> {
        let mut state = VmState { name: name.into(), disks: found.disks.clone(), ..VmState::default() };
        for disk in &mut state.disks {
            disk.top = disk.reset_to.take().unwrap_or_else(|| disk.top.clone());
        }
        self.own_configuration(vmx, &state)
    }

    /// Returns a copy of the snapshot list for a file in another folder: all paths are absolute, and records of clones
    /// are omitted, because they are not clones of the copy.
    async fn absolute_list(&self, texts: &Texts, file: &str) -> Result<Vmsd> {
        let mut vmsd = texts.vmsd.named(file);
        let mut list = vmsd.list().clone();
        let survey = Survey::new(&self.folders);
        let place = texts.vmsd.values().file();
        for snapshot in &mut list.snapshots {
            for disk in &mut snapshot.disks {
                if let Ok(located) = survey.locate(place, &disk.file_name).await {
                    disk.file_name = self.folders.path_of(&located.layer);
                }
            }
            let machine_state = snapshot.other("filename").map(str::to_owned);
            if let Some(written) = machine_state
                && let Ok(located) = survey.locate(place, &written).await
            {
                snapshot.set_other("filename", Some(&self.folders.path_of(&located.layer)));
            }
            snapshot.set_clones(&[]);
        }
        vmsd.set_list(list);
        Ok(vmsd)
    }
}

/// Returns the state with the absolute path of every layer.
fn absolute(home: &Home, state: &VmState) -> VmState {
    let mut state = state.clone();
    let path = |layer: &mut String| *layer = home.folders.path_of(layer);
    for disk in &mut state.disks {
        path(&mut disk.top);
        disk.reset_to.as_mut().map(path);
    }
    for (_, layer) in state.snapshots.iter_mut().flat_map(|snapshot| &mut snapshot.disks) {
        path(layer);
    }
    state
}
