//! VMs that go: forgotten, or with their files. Whatever refuses does so before anything has changed, and of a
//! folder's files only those go that are the VM's.

use std::path::Path;
use std::rc::Rc;

use blk::dir::TEMPORARY_SUFFIX;
use blk::manifest::{Change, Manifest, VmState};
use blk::{Dir, Env};
use engine::graph::Graph;
use vmdk::vmx::Vmx;

use super::entry::{Entry, Kept};
use super::formats::{self, HomeFiles, open_path};
use super::node::Node;
use super::prepare::only_vmx;
use super::site::Home;
use super::{homes, native};
use crate::api;
use crate::datastore::OWN_FOLDER;
use crate::error::{Error, Result};
use crate::name::VmName;

/// Files of ours that a home has as soon as it was opened once.
const LIVED_IN: [&str; 3] = ["events", "reserve", super::homes::CLOSED_NAME];
/// What a home consists of before it is a VM.
const MADE_KINDS: [&str; 7] = [".vmdk", ".vmx", ".vmsd", ".nvram", ".vmsn", ".vmem", TEMPORARY_SUFFIX];
/// Left by whoever chose a name for a delta.
const NAMES_LOCK: &str = ".unstun-names";
/// VMware's own are a few KiB.
const VMX_BYTES_MAX: u64 = 1 << 20;

impl Node {
    pub async fn vm_remove(self: &Rc<Self>, vm: &VmName, delete_disks: bool) -> Result<api::VmRemoved> {
        let name = vm.as_str();
        let _claim = self.claim(name)?;
        let home = match self.idle_home(name) {
            Some(home) => {
                self.empty_idle(name, &home, delete_disks).await?;
                home
            }
            None => {
                let entry = self.entry(name)?;
                self.empty_open(&entry, delete_disks).await?;
                entry.place()
            }
        };
        self.forget(name);
        let native_in_adopted = native::is_marked(&home.path) && homes::is_adopted(&home);
        let removed = async {
            home.site.registry.remove(name).await?;
            match delete_disks {
                // What it was taken over with is no disk of it any more.
                true if native_in_adopted => unregister(&self.env, &home.path).await,
                true => remove_files(&home).await,
                false => unregister(&self.env, &home.path).await,
            }
        };
        let removed = removed.await;
        self.holds.release(&home.path);
        removed?;
        Ok(api::VmRemoved { name: vm.clone(), home: home.path, disks_deleted: delete_disks })
    }

    /// Closes the VM, and removes its layers if they are to go. From the moment it is closed a failure leaves it
    /// listed as broken.
    async fn empty_open(&self, entry: &Rc<Entry>, delete_disks: bool) -> Result<()> {
        let _shut = entry.shut_idle("remove it")?;
        match &entry.kept {
            Kept::Redo(files) => {
                refuse_readers(&entry.name, &*files.manifest()).await?;
                if delete_disks {
                    files.removal(&entry.vm.state()).await?;
                }
            }
            Kept::Native(_) => refuse_to_lose(&entry.name, delete_disks)?,
        }
        let emptied = async {
            entry.vm.close().await?;
            match &entry.kept {
                Kept::Redo(files) if delete_disks => files.remove_layers(&entry.vm.state()).await?,
                Kept::Redo(_) => {}
                Kept::Native(vm) => native::remove_vm(&entry.site, vm.id()).await?,
            }
            Ok::<(), Error>(())
        };
        emptied.await.inspect_err(|error| self.break_down(&entry.name, entry.place(), error))
    }

    /// Of a VM at rest the layers go without its being opened: no disk of it need be whole for that.
    async fn empty_idle(self: &Rc<Self>, name: &str, home: &Home, delete_disks: bool) -> Result<()> {
        match formats::hold(self, &home.path).await {
            Err(e) if e.kind == blk::ErrorKind::NotFound => {}
            held => held?,
        }
        let emptied = match delete_disks {
            _ if native::is_marked(&home.path) => empty_native(name, home, delete_disks).await,
            true if only_vmx(&home.path).is_err() => refuse_lost(home).await,
            true => self.empty_home(name, &home.path).await,
            false => Ok(()),
        };
        emptied.inspect_err(|_| self.holds.release(&home.path))
    }

    async fn empty_home(&self, name: &str, home: &Path) -> Result<()> {
        let files = HomeFiles::open(self, home).await?;
        let manifest = files.manifest();
        let state = manifest.load().await?;
        refuse_readers(name, &*manifest).await?;
        Ok(files.remove_layers(&state).await?)
    }
}

impl HomeFiles {
    /// What takes all layers of the VM away, wherever they lie; not those that are another VM's, and not those of
    /// disks that were taken out of it. Refused where a layer that nobody knows rests on one of them.
    async fn removal(&self, before: &VmState) -> blk::Result<Change> {
        let graph = Graph::new(self.manifest().links().await?);
        let mut next = before.clone();
        next.disks.clear();
        next.snapshots.clear();
        next.folds.clear();
        next.current = None;
        let remove = graph.left_over(before, &next);
        let stays = |layer: &&String| !remove.contains(layer);
        if let Some(orphan) = remove.iter().flat_map(|layer| graph.children(layer)).find(stays) {
            let cause = "it lies on a layer of this VM, and neither a disk nor a snapshot leads to it";
            let remedy = "move it away or remove it first (unstun check says more)";
            return Err(blk::Error::refused(self.dir().path_of(orphan), format!("{cause}; {remedy}")));
        }
        Ok(Change { next, remove, ..Change::default() })
    }

    pub async fn remove_layers(&self, before: &VmState) -> blk::Result<()> {
        let change = self.removal(before).await?;
        self.manifest().publish(&change).await
    }
}

async fn empty_native(name: &str, home: &Home, delete_disks: bool) -> Result<()> {
    refuse_to_lose(name, delete_disks)?;
    Ok(native::remove_marked(home).await?)
}

/// Without its home a native VM would lie in the store where nobody finds it.
fn refuse_to_lose(vm: &str, delete_disks: bool) -> Result<()> {
    match delete_disks {
        true => Ok(()),
        false => Err(Error::refused(format!(
            "VM {vm}: its disks are native and have no files to leave behind; --delete-disks removes them too, `unstun \
             vm close {vm}` only stops serving it"
        ))),
    }
}

/// Of layers of a VM's own, other VMs.
pub async fn refuse_readers(vm: &str, manifest: &dyn Manifest) -> blk::Result<()> {
    let own = manifest.links().await?.into_iter().filter(|link| !link.foreign);
    let layers: Vec<String> = own.map(|link| link.name).collect();
    let mut who: Vec<String> =
        manifest.dependants(&layers).await?.into_iter().map(|reader| reader.who).collect();
    if who.is_empty() {
        return Ok(());
    }
    who.sort_unstable();
    who.dedup();
    let cause = format!("its layers are read by {}; remove those first", who.join(", "));
    Err(blk::Error::refused(format!("VM {vm}"), cause))
}

/// Without a .vmx nobody can say which layers are the VM's and who reads them. That matters once it has been one;
/// what a crash left of a VM in the making was nobody's yet.
async fn refuse_lost(home: &Home) -> Result<()> {
    let dir = match open_home(home) {
        Err(e) if e.kind == blk::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    if is_made(home, &dir).await? {
        return Ok(());
    }
    let Some(layer) = dir.list().await?.into_iter().find(|name| has_kind(name, &[".vmdk"])) else {
        return Ok(());
    };
    let cause = format!("its .vmx is gone, so nobody knows who reads {layer} and what is beside it");
    let remedy = "put the .vmx back, or remove the VM without --delete-disks and its folder by hand";
    Err(Error::refused(format!("{}: {cause}; {remedy}", home.path.display())))
}

fn open_home(home: &Home) -> blk::Result<Dir> {
    open_path(home.site.dir.env(), &home.path)
}

/// Whether the daemon was making a VM here, and it never was one.
async fn is_made(home: &Home, dir: &Dir) -> blk::Result<bool> {
    if !home.site.contains(&home.path) {
        return Ok(false);
    }
    match dir.open_dir(OWN_FOLDER, false).await {
        Ok(own) => Ok(!own.list().await?.iter().any(|name| LIVED_IN.contains(&name.as_str()))),
        Err(e) if e.kind == blk::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

fn has_kind(name: &str, kinds: &[&str]) -> bool {
    let name = name.to_ascii_lowercase();
    kinds.iter().any(|kind| name.ends_with(kind))
}

/// The VM is no longer served. Its files stay, except ours; a folder that is gone has none.
pub async fn unregister(env: &Env, home: &Path) -> Result<()> {
    match open_path(env, home) {
        Ok(dir) => Ok(remove_own(&dir).await?),
        Err(e) if e.kind == blk::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e.into()),
    }
}

async fn remove_own(home: &Dir) -> blk::Result<()> {
    let going = format!("{OWN_FOLDER}{TEMPORARY_SUFFIX}");
    // With half of it the folder would be a broken VM: it loses its name first.
    remove_with_files(home, &going).await?;
    match home.rename(OWN_FOLDER, &going).await {
        Err(e) if e.kind != blk::ErrorKind::NotFound => return Err(e),
        _ => home.sync().await?,
    }
    remove_with_files(home, &going).await?;
    home.sync().await
}

/// A folder without folders in it, if it is there.
pub async fn remove_with_files(dir: &Dir, name: &str) -> blk::Result<()> {
    let folder = match dir.open_dir(name, false).await {
        Err(e) if e.kind == blk::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    for file in folder.list().await? {
        folder.unlink_if_present(&file).await?;
    }
    dir.remove_dir(name).await
}

/// What is left of a VM whose layers are gone, and the folder if it lies in the datastore and nothing else is in
/// it.
async fn remove_files(home: &Home) -> Result<()> {
    let dir = match open_home(home) {
        Err(e) if e.kind == blk::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    if only_vmx(&home.path).is_err() {
        return match is_made(home, &dir).await? {
            true => Ok(remove_made(home).await?),
            false => Ok(remove_folder(home, &dir).await?),
        };
    }
    remove_configuration(&dir, &home.path).await?;
    Ok(remove_folder(home, &dir).await?)
}

/// What VMware keeps beside the layers.
pub async fn remove_configuration(dir: &Dir, home: &Path) -> blk::Result<()> {
    let Ok(vmx) = only_vmx(home) else { return Ok(()) };
    let stem = vmx.file_stem().unwrap_or_default().to_string_lossy();
    let vmx = vmx.file_name().unwrap_or_default().to_string_lossy();
    let variables = nvram(dir, &vmx).await;
    let known = |name: &String| is_of(name, &stem) || *name == NAMES_LOCK || variables.as_ref() == Some(name);
    for name in dir.list().await?.iter().filter(|name| **name != vmx).filter(|name| known(name)) {
        dir.unlink_if_present(name).await?;
    }
    // The last: with it the folder is a VM.
    dir.unlink_if_present(&vmx).await?;
    dir.sync().await
}

/// Whether the file is one of those that VMware keeps beside the disks of a VM called `stem`: its configuration,
/// or the state of its machine at a snapshot (`STEM-Snapshot1.vmsn`).
fn is_of(name: &str, stem: &str) -> bool {
    let own = name.rsplit_once('.').map_or("", |(own, _)| own);
    let numbered = own.strip_prefix(stem).is_some_and(|rest| rest.starts_with("-Snapshot"));
    (own == stem && has_kind(name, &[".vmx", ".vmsd", ".nvram"]))
        || ((own == stem || numbered) && has_kind(name, &[".vmsn", ".vmem"]))
}

/// The firmware's variables, where the configuration calls them otherwise: a plain name of that kind.
async fn nvram(dir: &Dir, vmx: &str) -> Option<String> {
    let bytes = dir.read_file(vmx, VMX_BYTES_MAX).await.ok()?;
    let configuration = Vmx::parse(&dir.path_of(vmx), &bytes).ok()?;
    let name = configuration.values().get("nvram").ok()??.to_owned();
    has_kind(&name, &[".nvram"]).then_some(name)
}

/// A home that the daemon was just making, in a folder that was empty.
pub async fn remove_made(home: &Home) -> blk::Result<()> {
    let dir = open_home(home)?;
    remove_made_files(&dir).await?;
    remove_folder(home, &dir).await
}

pub async fn remove_made_files(dir: &Dir) -> blk::Result<()> {
    for name in dir.list().await?.iter().filter(|name| has_kind(name, &MADE_KINDS) || *name == NAMES_LOCK) {
        dir.unlink_if_present(name).await?;
    }
    dir.sync().await
}

pub async fn remove_folder(home: &Home, dir: &Dir) -> blk::Result<()> {
    remove_own(dir).await?;
    if !home.site.contains(&home.path) || !dir.list().await?.is_empty() {
        return Ok(());
    }
    let name = home.path.file_name().unwrap_or_default().to_string_lossy();
    home.site.dir.remove_dir(&name).await?;
    home.site.dir.sync().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_files_of_the_vm_are_its_own() {
        for name in
            ["web.vmx", "web.vmsd", "web.nvram", "web-Snapshot12.vmsn", "web-Snapshot12.vmem", "web.VMEM"]
        {
            assert!(is_of(name, "web"), "{name}");
        }
        for name in
            ["web2.vmx", "web-2.nvram", "web.log", "web.vmdk", "notes.txt", "web-2.vmsn", "vmx", ".vmx"]
        {
            assert!(!is_of(name, "web"), "{name}");
        }
    }
}
