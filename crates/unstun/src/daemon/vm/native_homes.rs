//! Native VMs of a datastore: creation, removal, and their homes. Each home records its VM's ID in the store.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use api::WhenFull;
use blk::dir::{OWN_FOLDER, TEMPORARY_SUFFIX};
use blk::{Dir, ErrorKind, Result};
use engine::Options;
use engine::native::{NativeVm, NewNativeVm, Store, VmHomeState};
use tracing::{error, warn};

use crate::daemon::datastore::{Datastore, Home};
use crate::daemon::defect::Defect;
use crate::daemon::state::Daemon;
use crate::daemon::vm::home_removal::{has_vmx, open_home, remove_configuration, remove_folder};
use crate::daemon::vm::mark;
use crate::daemon::vm::settings::{self, write_when_full};

/// Creates a home in the datastore. The home has its mark as soon as it has its `.unstun` folder.
pub(crate) async fn new_home(datastore: &Datastore, name: &str, when_full: WhenFull, id: u128) -> Result<()> {
    let dir = datastore.dir.open_dir(name, true).await?;
    datastore.dir.sync().await?;
    let making = format!("{OWN_FOLDER}{TEMPORARY_SUFFIX}");
    let own = dir.open_dir(&making, true).await?;
    write_when_full(&own, when_full).await?;
    mark::write(&own, Some(id)).await?;
    dir.rename(&making, OWN_FOLDER).await?;
    dir.sync().await
}

/// Creates a VM with these disks. The store has it as unfinished until its home exists.
pub(crate) async fn create_vm(
    daemon: &Daemon,
    datastore: &Rc<Datastore>,
    new: NewNativeVm<'_>,
    when_full: WhenFull,
) -> Result<()> {
    let store = datastore.native_store().await?;
    let name = new.name;
    let id = store.create_vm(new).await?;
    make_whole(daemon, &datastore.home(name), when_full, id).await
}

/// Creates a VM that continues from a snapshot of another one.
pub(crate) async fn clone(
    daemon: &Daemon,
    datastore: &Rc<Datastore>,
    parent: &NativeVm,
    snapshot: &str,
    name: &str,
    when_full: WhenFull,
) -> Result<()> {
    datastore.native.refuse_when_unlinked().await?;
    let id = parent.clone_to(snapshot, name).await?;
    make_whole(daemon, &datastore.home(name), when_full, id).await
}

/// Creates the home of an unfinished VM. Nothing of the home or the VM is left after an error. Anything that cannot be
/// removed then is removed at the next start.
async fn make_whole(daemon: &Daemon, home: &Home, when_full: WhenFull, id: u128) -> Result<()> {
    let datastore = &home.datastore;
    let name = datastore.relative(&home.path);
    let store = datastore.native.open().await?;
    let made = async {
        if daemon.defects.has(Defect::WholeEarly) {
            store.set_home(id, &name).await?;
        }
        new_home(datastore, &name, when_full, id).await?;
        store.set_home(id, &name).await
    };
    let made = made.await;
    if let Err(error) = &made
        && let Err(left) = remove_with_home(home, id).await
    {
        daemon.list_left_over(&name, home, &error.clone().into(), &left);
    }
    made
}

/// Returns the VM of the store whose home is or was at this path.
pub(crate) async fn recorded_at(home: &Home) -> Result<Option<u128>> {
    let datastore = &home.datastore;
    if !datastore.native.exists().await? {
        return Ok(None);
    }
    let path = datastore.relative(&home.path);
    let homes = datastore.native.open().await?.homes()?;
    Ok(homes.into_iter().find(|(_, home)| home.path == path).map(|(id, _)| id))
}

/// Removes a VM that is not open, and its home, from the store and the datastore.
pub(crate) async fn remove_with_home(home: &Home, id: u128) -> Result<()> {
    match home.datastore.native.open().await {
        Ok(store) => {
            if store.has_vm(id) {
                store.begin_removal(id, &home.datastore.relative(&home.path)).await?;
            }
        }
        // The store is missing, and its VMs with it: their folders can be removed.
        Err(e) if e.kind == ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    take_away(home, id).await
}

/// Carries out the rest of `remove_with_home`; can be repeated. A folder marked as another VM's stays.
pub(crate) async fn take_away(home: &Home, id: u128) -> Result<()> {
    match open_home(home).await {
        Ok(dir) => remove_home(home, &dir, id).await?,
        Err(e) if e.kind == ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    remove_vm(&home.datastore, id).await
}

async fn remove_home(home: &Home, dir: &Dir, id: u128) -> Result<()> {
    let has_own = dir.list().await?.iter().any(|name| name.trim_end_matches('/') == OWN_FOLDER);
    if has_own && mark::read(dir.env(), &home.path).await? != Some(id) {
        return Ok(());
    }
    // Files from an import in place are no longer disks of the VM, and belonged to the user before. They stay.
    if has_own && has_vmx(dir).await? && !settings::is_adopted(home).await? {
        remove_configuration(dir).await?;
    }
    remove_folder(home, dir).await
}

pub(crate) async fn open_vm(
    datastore: &Datastore,
    name: &str,
    id: u128,
    options: Options,
) -> Result<Rc<NativeVm>> {
    let store = datastore.native.open().await?;
    // The folder has another name than the store where the VM was renamed. Without it the VM is served all the same.
    if store.broken().is_none()
        && let Err(e) = store.set_vm_name(id, name).await
    {
        warn!("VM {name}: the store keeps its former name: {e}");
    }
    NativeVm::open(&store, id, options).await
}

/// Removes the VM that the home is marked with from the store. The VM is not open. For the sides of a move, which are
/// identified by their marks.
pub(crate) async fn remove_marked(home: &Home) -> Result<()> {
    match mark::read(home.datastore.dir.env(), &home.path).await? {
        Some(id) => remove_vm(&home.datastore, id).await,
        None => Ok(()),
    }
}

/// Removes a VM that is not open from the store, if the VM and the store exist.
pub(crate) async fn remove_vm(datastore: &Datastore, id: u128) -> Result<()> {
    if datastore.native.opened().is_none() && !datastore.native.exists().await? {
        return Ok(());
    }
    match datastore.native.open().await?.remove_vm(id).await {
        Err(e) if e.kind == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Returns whether a home's VM in the store is one side of a move.
pub(crate) async fn is_moving(home: &Home) -> Result<bool> {
    is_moving_as(home, mark::read(home.datastore.dir.env(), &home.path).await?).await
}

/// Like `is_moving`, of a home with this mark.
pub(crate) async fn is_moving_as(home: &Home, mark: Option<u128>) -> Result<bool> {
    match mark {
        Some(id) => Ok(home.datastore.native.open().await?.is_moving(id)),
        None => Ok(false),
    }
}

/// Returns whether the store has the home's VM, and the VM is not one side of a move.
pub(crate) async fn is_whole(home: &Home) -> Result<bool> {
    let Some(id) = mark::read(home.datastore.dir.env(), &home.path).await? else { return Ok(false) };
    let store = home.datastore.native.open().await?;
    Ok(!store.is_moving(id) && store.has_vm(id))
}

/// Durably records in the store whether the home's VM is one side of a move.
pub(crate) async fn set_moving(home: &Home, moving: bool) -> Result<()> {
    match mark::read(home.datastore.dir.env(), &home.path).await? {
        Some(id) => home.datastore.native.open().await?.set_moving(id, moving).await,
        None => Ok(()),
    }
}

/// Returns the VMs of the store that no home is marked with, in the order of the names of their former homes. VMs that are
/// being created or removed are left out.
async fn homeless(
    daemon: &Daemon,
    datastore: &Datastore,
    store: &Store,
) -> api::error::Result<Vec<(u128, String)>> {
    // The VMs are read before the homes, so a VM that is created meanwhile is not among them.
    let mut vms: BTreeMap<u128, String> = store.vms().await?.into_iter().collect();
    for (id, home) in store.homes()? {
        if home.state != VmHomeState::Whole {
            vms.remove(&id);
        }
        if let Some(name) = vms.get_mut(&id).filter(|_| !home.path.starts_with('/')) {
            *name = home.path;
        }
    }
    let open = daemon.native_ids();
    for (_, home) in datastore.candidates().await? {
        let marked = match open.get(&home) {
            Some(id) => Some(*id),
            None => match mark::read(datastore.dir.env(), &home).await {
                Err(e) if e.kind == ErrorKind::NoDescriptors => return Err(e.into()),
                // Opening a missing or damaged home reports it.
                marked => marked.ok().flatten(),
            },
        };
        marked.map(|id| vms.remove(&id));
    }
    let mut vms: Vec<(u128, String)> = vms.into_iter().collect();
    vms.sort_by(|(_, a), (_, b)| a.cmp(b));
    Ok(vms)
}

/// Creates homes for VMs of the store without one: a crash came before the mark, or the folder was removed. Reports
/// those whose name is taken, and those whose home cannot be made.
pub(crate) async fn find_homeless(
    daemon: &Rc<Daemon>,
    datastore: &Rc<Datastore>,
) -> api::error::Result<Vec<(String, PathBuf)>> {
    if !datastore.native.exists().await? {
        return Ok(Vec::new());
    }
    let store = datastore.native.open().await?;
    let mut found = Vec::new();
    for (id, name) in homeless(daemon, datastore, &store).await? {
        // An operation that creates, moves or removes the VM is under way or has just ended.
        let Ok(_claim) = daemon.claim(&name) else { continue };
        if !homeless(daemon, datastore, &store).await?.iter().any(|(other, _)| *other == id) {
            continue;
        }
        if datastore.inhabitants().await?.iter().any(|(taken, _)| *taken == name) {
            let cause = "has no folder, and its name is taken";
            let notice = format!("VM {name} ({id:032x}) in {} is not served: it {cause}", store.path());
            error!("{notice}");
            datastore.notices.borrow_mut().push(notice);
            continue;
        }
        let made = async {
            new_home(datastore, &name, WhenFull::default(), id).await?;
            store.set_home(id, &name).await
        };
        match made.await {
            Ok(()) => found.push((name.clone(), datastore.home(&name).path)),
            // The other VMs are served nevertheless, those with new homes too.
            Err(e) => {
                let cause = format!("has no folder, and none can be made: {e}");
                let notice = format!("VM {name} ({id:032x}) in {} is not served: it {cause}", store.path());
                error!("{notice}");
                datastore.notices.borrow_mut().push(notice);
            }
        }
    }
    Ok(found)
}
