//! The engine behind `Control`: one core thread that runs every VM, and the bridge to it.
//!
//! The API's thread sends closures; the core runs each as a task and sends the answer back. Nothing of a
//! guest's data crosses this bridge.

mod branches;
mod bridge;
mod check;
mod convert;
mod difference;
mod disks;
mod door;
mod exports;
mod formats;
mod hold;
mod homes;
mod inuse;
mod journal;
mod life;
mod moves;
mod native;
mod node;
mod operations;
mod prepare;
mod present;
mod ready;
mod remove;
mod scrub;
mod settle;
mod switch;
mod told;
mod tracked;
mod tree;

use std::path::Path;
use std::sync::Arc;

use crate::api::{Checked, Converted};
use crate::control::Control;
use crate::datastore::Datastore;
use crate::error::Result;
use crate::listen::NbdListen;

/// Locks and recovers the datastore, starts the engine on a thread of its own and serves NBD on `nbd`.
pub fn start(datastore: &Datastore, nbd: &[NbdListen]) -> Result<Arc<dyn Control>> {
    Ok(Arc::new(bridge::Bridge::start(datastore, nbd)?))
}

/// Reads a chain without changing it and writes the disk it shows to a sparse raw file. `progress` is called
/// with (bytes done, bytes total) after each piece.
pub fn convert(chain: &Path, output: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    convert::convert(chain, output, progress)
}

/// Verifies the folder of a VM, or the chain that ends in the descriptor at `path`, and changes nothing. What
/// is wrong with the files is in the answer; an error is about the place.
pub fn check(path: &Path) -> Result<Checked> {
    check::check(path)
}
