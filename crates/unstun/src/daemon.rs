//! The daemon: one core thread that runs every VM, and the bridge from the API's thread to it.
//!
//! The API's thread sends closures. The core runs each as a task and sends the answer back. No data of a guest crosses
//! the bridge.

mod bin;
mod core_messages;
#[cfg(test)]
mod crash_tests;
mod datastore;
mod defect;
mod heartbeat;
#[cfg(test)]
mod identity_tests;
mod jobs;
mod place;
mod ready;
mod register;
mod relocation;
mod requests;
mod running;
#[cfg(test)]
mod simulated_tests;
mod start;
mod state;
#[cfg(test)]
mod state_crash_tests;
mod tracked;
mod vm;
mod vmware_files;

use std::path::Path;
use std::sync::Arc;

use api::error::Result;
use api::{Checked, Converted, DatastoreCreated, Repair, RepairUndone};

use crate::control::Control;

pub(crate) use bin::policy::BinPolicy;
pub(crate) use heartbeat::Heartbeat;
pub(crate) use place::Place;
pub(crate) use vmdk::repair::RepairOptions;

/// Locks and recovers the datastores, starts the engine on its own thread, and serves NBD. The engine's thread stamps
/// `heartbeat`.
pub(crate) fn start(place: Place, heartbeat: Arc<Heartbeat>) -> Result<Arc<dyn Control>> {
    Ok(Arc::new(requests::bridge::Bridge::start(place, heartbeat)?))
}

/// Creates an empty store on a block device, or in a file of fixed size, for `datastore add`. Refuses a target that is
/// not empty, unless `force`.
pub(crate) fn create_datastore(path: &Path, force: bool) -> Result<DatastoreCreated> {
    datastore::device::create(path, force)
}

/// Reads a chain without changing it and writes the disk it shows to a sparse raw file. `progress` is called
/// with (bytes done, bytes total) after each piece.
pub(crate) fn convert(chain: &Path, output: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    vmware_files::convert::convert(chain, output, progress)
}

/// Verifies the folder of a VM, or the chain that ends in the descriptor at `path`, and changes nothing. The answer
/// lists what is wrong with the files. An error concerns the path itself.
pub(crate) fn check(path: &Path) -> Result<Checked> {
    vmware_files::check::check(path)
}

/// Plans the possible repairs of a VM's folder, and carries them out if `write` is set. `ignore_content_ids` is the
/// caller's assurance that parents with other content IDs than expected hold unchanged data.
pub(crate) fn repair(folder: &Path, terms: RepairOptions, write: bool) -> Result<Repair> {
    vmware_files::repair::repair(folder, terms, write)
}

/// Restores the files that the last repair of the folder changed.
pub(crate) fn repair_undo(folder: &Path) -> Result<RepairUndone> {
    vmware_files::repair::undo(folder)
}
