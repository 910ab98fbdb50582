//! Removal of a home's files, so that a crash at any point leaves a home that a start recognizes.

use std::path::Path;

use blk::Dir;
use blk::dir::{OWN_FOLDER, TEMPORARY_SUFFIX};
use vmdk::vmx::Vmx;

use crate::daemon::datastore::Home;
use crate::daemon::vm::paths::open_path;

/// Kinds of files that a home consists of before it is a VM.
const MADE_KINDS: [&str; 7] = [".vmdk", ".vmx", ".vmsd", ".nvram", ".vmsn", ".vmem", TEMPORARY_SUFFIX];
/// Name of the lock file that the choice of a delta's name leaves behind.
const NAMES_LOCK: &str = ".unstun-names";
/// Maximum size of a `.vmx` file in bytes. VMware's own are a few KiB.
const VMX_BYTES_MAX: u64 = 1 << 20;

pub(crate) async fn open_home(home: &Home) -> blk::Result<Dir> {
    open_path(home.datastore.dir.env(), &home.path).await
}

pub(crate) async fn has_vmx(dir: &Dir) -> blk::Result<bool> {
    Ok(vmx_in(dir).await?.is_some())
}

/// Returns the configuration in a folder, or any one of several. A VM with several is refused when it is opened.
async fn vmx_in(dir: &Dir) -> blk::Result<Option<String>> {
    Ok(dir.list().await?.into_iter().find(|name| has_kind(name, &[".vmx"])))
}

pub(crate) fn has_kind(name: &str, kinds: &[&str]) -> bool {
    let name = name.to_ascii_lowercase();
    kinds.iter().any(|kind| name.ends_with(kind))
}

/// Removes the `.unstun` folder from a home.
pub(crate) async fn remove_own(home: &Dir) -> blk::Result<()> {
    let going = format!("{OWN_FOLDER}{TEMPORARY_SUFFIX}");
    // With half of its `.unstun` folder the home would be a broken VM, so that folder loses its name first.
    remove_with_files(home, &going).await?;
    match home.rename(OWN_FOLDER, &going).await {
        Err(e) if e.kind != blk::ErrorKind::NotFound => return Err(e),
        _ => home.sync().await?,
    }
    remove_with_files(home, &going).await?;
    home.sync().await
}

/// Removes a folder without subfolders, if it exists.
pub(crate) async fn remove_with_files(dir: &Dir, name: &str) -> blk::Result<()> {
    let folder = match dir.open_dir(name, false).await {
        Err(e) if e.kind == blk::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    for file in folder.list().await? {
        folder.unlink_if_present(&file).await?;
    }
    dir.remove_dir(name).await
}

/// Removes what is left of a VM after its layers. Also removes the folder if it is in the datastore and contains
/// nothing else.
pub(crate) async fn remove_files(home: &Home) -> blk::Result<()> {
    let dir = match open_home(home).await {
        Err(e) if e.kind == blk::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    remove_configuration(&dir).await?;
    remove_folder(home, &dir).await
}

/// Removes the files that VMware keeps beside the layers.
pub(crate) async fn remove_configuration(dir: &Dir) -> blk::Result<()> {
    let Some(vmx) = vmx_in(dir).await? else { return Ok(()) };
    let stem = Path::new(&vmx).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let variables = nvram(dir, &vmx).await;
    let known = |name: &String| is_of(name, &stem) || *name == NAMES_LOCK || variables.as_ref() == Some(name);
    for name in dir.list().await?.iter().filter(|name| **name != vmx).filter(|name| known(name)) {
        dir.unlink_if_present(name).await?;
    }
    // The `.vmx` is removed last: with it the folder is a VM.
    dir.unlink_if_present(&vmx).await?;
    dir.sync().await
}

/// Returns whether VMware keeps the file beside the disks of a VM called `stem`: its configuration, or its machine
/// state at a snapshot (`STEM-Snapshot1.vmsn`).
fn is_of(name: &str, stem: &str) -> bool {
    let own = name.rsplit_once('.').map_or("", |(own, _)| own);
    let numbered = own.strip_prefix(stem).is_some_and(|rest| rest.starts_with("-Snapshot"));
    (own == stem && has_kind(name, &[".vmx", ".vmsd", ".nvram"]))
        || ((own == stem || numbered) && has_kind(name, &[".vmsn", ".vmem"]))
}

/// Returns the file of the firmware's variables if the configuration gives a plain name of that kind for it.
async fn nvram(dir: &Dir, vmx: &str) -> Option<String> {
    let bytes = dir.read_file(vmx, VMX_BYTES_MAX).await.ok()?;
    let path = dir.path_of(vmx);
    let configuration = dir.env().offload(move || Vmx::parse(&path, &bytes)).await.ok()?;
    let name = configuration.values().get("nvram").ok()??.to_owned();
    has_kind(&name, &[".nvram"]).then_some(name)
}

/// Removes a home that the daemon was creating in an empty folder.
pub(crate) async fn remove_made(home: &Home) -> blk::Result<()> {
    let dir = open_home(home).await?;
    remove_made_files(&dir).await?;
    remove_folder(home, &dir).await
}

pub(crate) async fn remove_made_files(dir: &Dir) -> blk::Result<()> {
    for name in dir.list().await?.iter().filter(|name| has_kind(name, &MADE_KINDS) || *name == NAMES_LOCK) {
        dir.unlink_if_present(name).await?;
    }
    dir.sync().await
}

/// Removes the `.unstun` folder from a home. Also removes the home if it is in the datastore and contains nothing else.
/// Such a home loses its name first: an empty folder left by a crash would be listed nowhere, and its name would be
/// taken.
pub(crate) async fn remove_folder(home: &Home, dir: &Dir) -> blk::Result<()> {
    let ours = |name: &String| name.starts_with(OWN_FOLDER) && name.ends_with('/');
    if !home.datastore.contains(&home.path) || !dir.list().await?.iter().all(ours) {
        return remove_own(dir).await;
    }
    let name = home.path.file_name().unwrap_or_default().to_string_lossy();
    let going = format!("{name}{TEMPORARY_SUFFIX}");
    let above = &home.datastore.dir;
    remove_nameless(above, &going).await?;
    above.rename(&name, &going).await?;
    above.sync().await?;
    remove_nameless(above, &going).await
}

/// Removes a folder that has lost its name, if it exists.
pub(crate) async fn remove_nameless(above: &Dir, name: &str) -> blk::Result<()> {
    match above.open_dir(name, false).await {
        Err(e) if e.kind == blk::ErrorKind::NotFound => return Ok(()),
        dir => remove_own(&dir?).await?,
    }
    above.remove_dir(name).await?;
    above.sync().await
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
