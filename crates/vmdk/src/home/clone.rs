//! Linked clones: VMs whose disks are children of a snapshot's layers.
//!
//! Order: the parent records the clone durably, and its layers are protected from then on; the clone's links, each
//! marked as prepared; its .vmsd; its .vmx, which makes it a VM; the marks are removed. A record whose .vmx was never
//! written is removed at the parent's next load.

use blk::manifest::{DeltaFormat, DiskMode, DiskState, LayerName, VmState};
use blk::{Dir, Error, ErrorKind, Result};

use super::folders::Folders;
use super::paths::join;
use super::survey::{Located, Survey};
use super::{Home, snapshot_files, write};
use crate::names::base_names;
use crate::text::{check_name, shown};
use crate::vmsd::Vmsd;
use crate::vmx::Vmx;

/// Maximum size of a file of firmware variables that is copied; VMware's are below 300 KiB.
const NVRAM_BYTES_MAX: u64 = 4 << 20;

/// Keys that belong to one VM alone; VMware gives a clone its own values.
const IDENTITY: [&str; 3] = ["uuid.bios", "uuid.location", "vc.uuid"];
/// Keys for the folder of deltas. The folder is the origin's, and the clone must not write to it.
const PLACES: [&str; 2] = ["workingDir", "snapshot.redoNotWithParent"];

/// The state that is cloned.
struct Origin {
    uid: u32,
    /// Path of the parent's .vmx.
    vmx_path: String,
    vmx: Vmx,
    /// The cloned disks; `top` is the absolute path of the frozen layer.
    disks: Vec<DiskState>,
}

impl Home {
    /// Creates a linked clone of `snapshot` in `dir`, which must be empty except for the private folder. `folders` are
    /// the clone's, and must include the layers of this home. The clone is durable when the call returns. Independent
    /// disks are not cloned, which a notice of the clone reports.
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
                // Files that cannot be removed now are no VM, and the record of the clone is stale.
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
        // VMware's snapshots have no kept configuration; the present one provides everything except the disks.
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

    /// Records the clone at the path `vmx` in this home's .vmsd, or removes its record.
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

    /// Creates an empty child, in this home, of the layer at `parent`, with a name derived from `leaf`. The caller has
    /// checked the chain below it.
    pub(super) async fn adopt(&self, parent: &str, leaf: &str) -> Result<LayerName> {
        let parent = self.folders.place(parent).await?;
        let (layer, link) =
            self.create_child_descriptor(self.folders.home(), &parent, leaf, DeltaFormat::Fitting).await?;
        self.create_child_extent(&layer, &link).await?;
        self.chain(&layer).await?;
        Ok(layer)
    }

    /// Returns `origin` as the configuration of this home: with the disks of `state` and an ID of its own.
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
        // Paths of the origin have no meaning here, not even their last component.
        for disk in vmx.disks()? {
            vmx.set_redo(disk.slot, None);
        }
        write::write_disks(&mut vmx, state, &|path: &str| Ok(Located { layer: path.into(), exists: true }))?;
        Ok(vmx)
    }

    /// Writes the texts of a new home, last the one that makes it a VM; then removes the marks of its links.
    pub(super) async fn settle(&self, vmx: &Vmx, vmsd: &Vmsd, name: &str) -> Result<()> {
        self.replace(&format!("{name}.vmsd"), vmsd.to_bytes()).await?;
        self.replace(&format!("{name}.vmx"), vmx.to_bytes()).await?;
        self.load().await?;
        self.prepared.borrow_mut().clear();
        Ok(())
    }

    /// Copies the firmware's variables, if they are a plain file of the right kind in the folder of the origin.
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

    /// Removes the files of a failed creation, its .vmx first.
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
