//! The engine behind `Control`.

use std::path::Path;
use std::sync::Arc;

use crate::api::Converted;
use crate::control::Control;
use crate::datastore::Datastore;
use crate::error::{Error, ErrorKind, Result};
use crate::listen::NbdListen;

/// Locks and recovers the datastore, starts the engine on a thread of its own and serves NBD on `nbd`.
pub fn start(datastore: &Datastore, _nbd: &[NbdListen]) -> Result<Arc<dyn Control>> {
    let root = datastore.root().display();
    Err(Error::new(ErrorKind::Unsupported, format!("datastore {root}: this build has no engine")))
}

/// `progress` is called with (bytes done, bytes total) after each piece.
pub fn convert(chain: &Path, _output: &Path, _progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    Err(Error::new(ErrorKind::Unsupported, format!("{}: this build has no engine", chain.display())))
}
