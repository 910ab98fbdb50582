//! A linked clone: a VM of its own whose disks are children of a snapshot's layers.
//!
//! Order: the parent notes the clone, durably, and is protected from then on - the clone's links, each marked as prepared - its
//! .vmsd - its .vmx, which makes it a VM - the marks go. A note whose .vmx never came is forgotten at the parent's next load.

use blk::manifest::{DiskMode, DiskState, LayerName, VmState};
use blk::{Dir, Error, ErrorKind, Result};

use super::folders::Folders;
use super::paths::join;
use super::survey::{Located, Survey};
use super::{Home, snapshot_files, write};
use crate::names::base_names;
use crate::text::{check_name, shown};
use crate::vmsd::Vmsd;
use crate::vmx::Vmx;

/// Largest file of firmware variables that is copied; VMware's are below 300 KiB.
const NVRAM_BYTES_MAX: u64 = 4 << 20;

/// What belongs to one VM alone: VMware gives a clone its own.
const IDENTITY: [&str; 3] = ["uuid.bios", "uuid.location", "vc.uuid"];
/// Where deltas go; the folder is the origin's, and not this home's to write in.
const PLACES: [&str; 2] = ["workingDir", "snapshot.redoNotWithParent"];

/// The state to be cloned.
struct Origin {
    uid: u32,
    /// Path of the parent's .vmx.
    vmx_path: String,
    vmx: Vmx,
    /// Those that are cloned; `top` is the absolute path of the frozen layer.
    disks: Vec<DiskState>,
}

impl Home {
    /// Makes a linked clone of `snapshot` in `dir`, which is empty but for our private folder; `folders` are the clone's, and
    /// must let it see the layers of this home. Durable when it returns. Independent disks are not cloned; a notice of the clone says
    /// so.
    pub async fn clone_to(&self, snapshot: u128, dir: Dir, folders: Folders, name: &str) -> Result<Home> {
        check_name(dir.path(), "VM name", name)?;
        let mut clone = Home::new(dir, folders, self.growth);
        clone.grain_sectors = self.grain_sectors.clone();
        clone.ignore_content_ids = self.ignore_content_ids;
        clone.refuse_inhabited().await?;
        clone.folders.id.set(Some(clone.random()));
        let vmx = join(&clone.folders.home().path, &format!("{name}.vmx"));
        if !vmx.starts_with('/') {
            return Err(Error::invalid(vmx, "expected an absolute path: the parent notes its clones by it"));
        }
        let _turn = self.turn.lock().await;
        let origin = self.origin(snapshot, &clone).await?;
        self.note_clone(origin.uid, &vmx, true).await?;
        // The clone depends on their content IDs from now on.
        for disk in &origin.disks {
            let layer = self.folders.layer_name(&disk.top);
            self.fresh.borrow_mut().remove(&layer);
        }
        match clone.become_clone(&origin, name).await {
            Ok(()) => Ok(clone),
            Err(e) => {
                // What cannot be removed now is no VM, and the note of it is stale.
                let _ = clone.abandon().await;
                let _ = self.note_clone(origin.uid, &vmx, false).await;
                Err(e)
            }
        }
    }

    async fn origin(&self, snapshot: u128, clone: &Home) -> Result<Origin> {
        let survey = Survey::new(&self.folders);
        let (files, texts, state) = self.read_all(&survey).await?;
        let uid = snapshot_files::uid_of(&texts, snapshot)?;
        let found = state.snapshots.iter().find(|own| own.id == snapshot).zip(uid);
        let Some((found, uid)) = found else {
            let cause = format!("a snapshot with the id {snapshot:032x}");
            return Err(Error::not_found(self.dir().path(), cause));
        };
        // Of VMware's snapshots no configuration was kept: the present one serves for what is no disk.
        let vmx = self.kept_configuration(uid).await?.unwrap_or(texts.vmx);
        let mut disks = Vec::new();
        for mut disk in self.disks_of(&vmx, &survey).await? {
            match found.disks.iter().find(|(number, _)| *number == disk.number) {
                Some((_, layer)) => {
                    disk.top = self.folders.path_of(layer);
                    disk.mode = DiskMode::Persistent;
                    disk.reset_to = None;
                    disks.push(disk);
                }
                None => {
                    clone.notice(format!(
                        "disk{} ({}) is no part of {} and is not cloned",
                        disk.number, disk.slot, found.name
                    ));
                }
            }
        }
        if disks.is_empty() {
            return Err(Error::refused(
                self.dir().path(),
                format!("{} holds no disk to clone", shown(&found.name)),
            ));
        }
        Ok(Origin { uid, vmx_path: join(&self.folders.home().path, &files.vmx), vmx, disks })
    }

    /// Writes the clone at the path `vmx` into this home's .vmsd, or takes it out again.
    async fn note_clone(&self, uid: u32, vmx: &str, noted: bool) -> Result<()> {
        let (files, mut texts) = self.texts(&Survey::new(&self.folders)).await?;
        let mut list = texts.vmsd.list().clone();
        for snapshot in list.snapshots.iter_mut().filter(|snapshot| snapshot.uid == uid) {
            let mut clones: Vec<String> = snapshot.clones().map(|(_, path)| path.to_owned()).collect();
            clones.retain(|path| path != vmx);
            clones.extend(noted.then(|| vmx.to_owned()));
            snapshot.set_clones(&clones);
        }
        texts.vmsd.set_list(list);
        self.replace(&files.vmsd, texts.vmsd.to_bytes()).await
    }

    async fn become_clone(&self, origin: &Origin, name: &str) -> Result<()> {
        let mut state = VmState { name: name.into(), ..VmState::default() };
        let mut vmsd = Vmsd::create(&self.dir().path_of(&format!("{name}.vmsd")));
        vmsd.values_mut().set("cloneOf0", &origin.vmx_path);
        vmsd.values_mut().set("numCloneOf", "1");
        for (index, disk) in origin.disks.iter().enumerate() {
            let leaf = base_names(name, index)?.descriptor;
            let top = self.adopt(&disk.top, &leaf).await?;
            vmsd.values_mut().set(&format!("sentinel{index}"), &top);
            state.disks.push(DiskState { top, ..disk.clone() });
        }
        vmsd.values_mut().set("numSentinels", &origin.disks.len().to_string());
        let mut vmx = self.own_configuration(&origin.vmx, &state)?;
        IDENTITY.iter().for_each(|key| vmx.values_mut().remove(key));
        self.settle(&vmx, &vmsd, name).await
    }

    /// An empty child, in this home, of the layer at `parent`; its name follows that of `leaf`. The chain under it was walked.
    pub(super) async fn adopt(&self, parent: &str, leaf: &str) -> Result<LayerName> {
        let parent = self.folders.place(parent).await?;
        let (layer, link) = self.create_child_descriptor(self.folders.home(), &parent, leaf).await?;
        self.create_child_extent(&layer, &link).await?;
        self.chain(&layer).await?;
        Ok(layer)
    }

    /// `origin` as the configuration of this home: with the disks of `state` and an id of its own.
    pub(super) fn own_configuration(&self, origin: &Vmx, state: &VmState) -> Result<Vmx> {
        let path = self.dir().path_of(&format!("{}.vmx", state.name));
        let mut vmx = origin.named(&path);
        let ours = |key: &str| key.to_ascii_lowercase().starts_with("unstun.");
        vmx.values_mut()
            .replace(|key| ours(key) || PLACES.iter().any(|own| own.eq_ignore_ascii_case(key)), []);
        vmx.values_mut().set("displayName", &state.name);
        if let Some(id) = self.folders.id.get() {
            vmx.values_mut().set(super::state::VM_ID, &format!("{id:032x}"));
        }
        // No path of the origin means anything here, least of all by its last part.
        for disk in vmx.disks()? {
            vmx.set_redo(disk.slot, None);
        }
        write::write_disks(&mut vmx, state, &|path: &str| Ok(Located { layer: path.into(), exists: true }))?;
        Ok(vmx)
    }

    /// The texts of a new home, the one that makes it a VM last; then its links lose their marks.
    pub(super) async fn settle(&self, vmx: &Vmx, vmsd: &Vmsd, name: &str) -> Result<()> {
        self.replace(&format!("{name}.vmsd"), vmsd.to_bytes()).await?;
        self.replace(&format!("{name}.vmx"), vmx.to_bytes()).await?;
        self.load().await?;
        self.prepared.borrow_mut().clear();
        Ok(())
    }

    /// The firmware's variables, if they are a plain file of their own kind in the folder of the origin.
    pub(super) async fn copy_nvram(&self, from: &Dir, vmx: &Vmx) -> Result<()> {
        let Some(name) = vmx.values().get("nvram")? else { return Ok(()) };
        if check_name(from.path(), "nvram", name).is_err() || !name.to_ascii_lowercase().ends_with(".nvram") {
            return Ok(());
        }
        match from.read_file(name, NVRAM_BYTES_MAX).await {
            Ok(content) => self.replace(name, content).await,
            Err(e) if e.kind == ErrorKind::NotFound => Ok(()),
            Err(e) if e.kind == ErrorKind::Damaged => {
                self.notice(format!("the firmware's variables were not copied: {e}"));
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// Removes the files of a home that was not to be: its .vmx first.
    pub(super) async fn abandon(&self) -> Result<()> {
        self.folders.cache.clear();
        let names = self.dir().list().await?;
        let (vmx, others): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.ends_with(".vmx"));
        for name in vmx.into_iter().chain(others).filter(|name| !name.ends_with('/')) {
            self.dir().unlink_if_present(name).await?;
        }
        self.dir().sync().await
    }
}
