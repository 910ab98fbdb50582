//! Clean-up after a move within a datastore that has completed, failed, or been interrupted by a crash. It keeps the
//! side that is the VM, and removes the other one.
//!
//! While a VM moves, the record in its home names the target and the ID of the native side. The mark of native VMs is the
//! step: with it the store's side is the VM, without it the files are.

use std::path::Path;

use api::Store;
use blk::dir::OWN_FOLDER;
use blk::{Dir, Error, Result};
use tracing::warn;

use crate::daemon::datastore::Home;
use crate::daemon::relocation::record::{self, MoveRecord};
use crate::daemon::running::home_files::HomeFiles;
use crate::daemon::state::Daemon;
use crate::daemon::vm::home_removal::{remove_configuration, remove_made_files};
use crate::daemon::vm::paths::open_path;
use crate::daemon::vm::remove::refuse_readers;
use crate::daemon::vm::{mark, native_homes, settings};

/// File beside the record, from the intent to the step into the store: the future mark. The step then needs no space.
const STEP_NAME: &str = "native.step";
/// Kind of the file with the firmware's variables. A VM that ran under VMware has it beside its configuration.
const VARIABLES: &str = ".nvram";

async fn own(daemon: &Daemon, home: &Path) -> Result<Dir> {
    record::own(&daemon.env, home).await
}

/// Refuses to create files in a home that contains other files than the daemon's.
pub(crate) async fn refuse_inhabited(daemon: &Daemon, home: &Path) -> Result<()> {
    let dir = open_path(&daemon.env, home).await?;
    let names = dir.list().await?;
    match names.iter().find(|name| name.trim_end_matches('/') != OWN_FOLDER) {
        Some(name) => {
            let cause = "this file is in the folder in which the VM's files are to be created; move it elsewhere \
                         first";
            Err(Error::refused(dir.path_of(name), cause))
        }
        None => Ok(()),
    }
}

/// Durably records the move before anything else of it. `id` is the VM in the store, on whichever side that is.
pub(crate) async fn begin(daemon: &Daemon, home: &Home, to: Store, id: u128) -> Result<()> {
    let own = own(daemon, &home.path).await?;
    MoveRecord::Within { to, id }.write(&own).await?;
    if to == Store::Native {
        own.replace_file(STEP_NAME, mark::line(id).as_bytes()).await?;
    }
    native_homes::set_moving(home, true).await
}

/// Durably carries out the step: from here on the VM is the other side.
pub(crate) async fn step(daemon: &Daemon, home: &Path, to: Store) -> Result<()> {
    let own = own(daemon, home).await?;
    match to {
        Store::Native => {
            own.rename(STEP_NAME, mark::NAME).await?;
            own.sync().await
        }
        Store::Redo => mark::write(&own, None).await,
    }
}

/// Returns whether the home records the step now, durably or not.
pub(crate) async fn has_stepped(daemon: &Daemon, home: &Path, to: Store) -> Result<bool> {
    Ok(mark::read(&daemon.env, home).await?.is_some() == (to == Store::Native))
}

/// Undoes the step if `step` has carried it out.
pub(crate) async fn step_back(daemon: &Daemon, home: &Path, to: Store, id: u128) -> Result<()> {
    mark::write(&own(daemon, home).await?, (to == Store::Redo).then_some(id)).await
}

/// Removes the side that is not the VM, if there was a move.
pub(crate) async fn settle(daemon: &Daemon, home: &Home) -> Result<()> {
    let (place, datastore, home) = (home, &home.datastore, home.path.as_path());
    let Some(MoveRecord::Within { to, id }) = MoveRecord::read(&daemon.env, home).await? else {
        return Ok(());
    };
    let own = own(daemon, home).await?;
    // A killed daemon may have left the step in the cache. One side is removed now, so the mark that decides is durable.
    own.sync().await?;
    // This is needed if the store has the VM. Otherwise the store's side is removed, together with this mark.
    native_homes::set_moving(place, false).await?;
    match (mark::read(&daemon.env, home).await?, to) {
        (Some(_), Store::Native) => {
            if let Err(e) = remove_files(daemon, place).await {
                // The VM itself is intact, as below.
                warn!("{}: the remains of a move cannot be removed now: {e}", home.display());
                return Ok(());
            }
        }
        (Some(_), Store::Redo) => remove_made_files(&open_path(&daemon.env, home).await?).await?,
        (None, _) => {
            if let Err(e) = native_homes::remove_vm(datastore, id).await {
                // The VM itself is intact. Another start removes what is left of the other side.
                warn!("{}: the remains of a move cannot be removed now: {e}", home.display());
                return Ok(());
            }
        }
    }
    own.unlink_if_present(STEP_NAME).await?;
    record::remove(&own).await
}

/// Removes a VM's layers and the files beside them. The settings of a VM that ran under VMware stay. A folder that was
/// imported in place stays as a whole, because it belonged to the user before.
pub(crate) async fn remove_files(daemon: &Daemon, home: &Home) -> Result<()> {
    if settings::is_adopted(home).await? {
        return Ok(());
    }
    let home = home.path.as_path();
    let files = HomeFiles::open(daemon, home).await?;
    let names = files.dir().list().await?;
    if !names.iter().any(|name| name.to_ascii_lowercase().ends_with(".vmx")) {
        return Ok(());
    }
    // A clone that was created while the move began reads these layers.
    refuse_readers(&home.file_name().unwrap_or_default().to_string_lossy(), &*files.manifest()).await?;
    let state = files.manifest().load().await?;
    files.manifest().reserve(0).await?;
    files.remove_layers(&state).await?;
    match names.iter().any(|name| name.to_ascii_lowercase().ends_with(VARIABLES)) {
        true => Ok(()),
        false => remove_configuration(files.dir()).await,
    }
}
