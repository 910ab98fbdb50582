//! Location of acknowledged writes that no flush has covered yet: a folder of this user in a tmpfs of this host. A
//! crash of the daemon therefore loses none of them.

use std::path::PathBuf;

use api::listen::NbdListen;
use blk::Error;
use blk::uring::MemoryFolder;
use tracing::{error, warn};

use crate::daemon::place::Place;

/// Returns the first of the folders that can be used. Without one, a crash may lose acknowledged writes, and clients
/// from before the crash are refused.
pub(crate) fn folder(place: &Place) -> MemoryFolder {
    let remote = place.nbd.iter().any(NbdListen::is_remote);
    let mut refusals = Vec::new();
    for path in candidates() {
        if let Some(parent) = path.parent() {
            // If this fails, opening the folder fails too and gives the reason.
            let _ = std::fs::create_dir_all(parent);
        }
        match MemoryFolder::open(&path, remote) {
            Ok(folder) => return folder.on_failure(Box::new(warn)),
            Err(e) => refusals.push(e.to_string()),
        }
    }
    warn!(
        "no folder in memory (tmpfs) for unflushed writes; after a crash of this daemon its guests must be \
         power-cycled: {}",
        refusals.join("; ")
    );
    MemoryFolder::absent(remote)
}

fn warn(error: &Error) {
    error!(
        "{error}; a crash of this daemon may now lose acknowledged writes, after which the guests must be \
         power-cycled; free space in that tmpfs"
    );
}

/// Returns the possible folders: systemd's folder of the service, root's, the session's, and one that every host with
/// glibc has.
fn candidates() -> Vec<PathBuf> {
    let user = rustix::process::geteuid();
    let set = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let service = set("RUNTIME_DIRECTORY").map(|path| path.join("unflushed"));
    let roots = user.is_root().then(|| PathBuf::from("/run/unstun/unflushed"));
    let session = set("XDG_RUNTIME_DIR").map(|path| path.join("unstun/unflushed"));
    let shared = PathBuf::from(format!("/dev/shm/unstun-{}", user.as_raw()));
    service.into_iter().chain(roots).chain(session).chain([shared]).collect()
}
