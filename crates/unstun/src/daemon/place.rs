//! Main datastore and settings with which the core starts.

use std::path::PathBuf;
use std::sync::Arc;

use api::listen::NbdListen;
use api::name::DatastoreName;
use export::Activity;

use crate::daemon::bin::policy::BinPolicy;
use crate::memory::Memory;

/// Main datastore and settings with which the core starts.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub name: DatastoreName,
    pub root: PathBuf,
    /// Cap in bytes of the cache of native stores' map pages.
    pub map_cache_bytes: usize,
    pub memory: Memory,
    /// What is kept of removed VMs.
    pub bin: BinPolicy,
    pub nbd: Vec<NbdListen>,
    /// For the addresses of NBD with TLS.
    pub nbd_tls: Option<export::nbd::TlsSource>,
    /// Folder of the commands that freeze and thaw guests.
    pub guests_dir: PathBuf,
    /// Number of cores, the control side's own included.
    pub cores: usize,
    /// When each core last began a request of a guest.
    pub activity: Arc<Activity>,
}
