//! Locks on VM folders. A home can lie in one datastore and be registered in another, and two daemons that serve it would
//! both write it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use blk::file::Lock;
use blk::{Dir, Error, ErrorKind, Result};

/// In a home's own folder. A datastore's own folder has its lock under the same name, so that a datastore is not
/// taken for a home while a daemon serves it.
const LOCK_NAME: &str = "lock";

/// The locks of the homes that are open, by their paths.
#[derive(Default)]
pub struct Holds(RefCell<BTreeMap<PathBuf, Lock>>);

impl Holds {
    /// Of `home`, whose own folder is `own`; `Locked` while another daemon has it. A home that is opened again
    /// stays held.
    pub async fn take(&self, home: &Path, own: &Dir) -> Result<()> {
        if self.0.borrow().contains_key(home) {
            return Ok(());
        }
        let lock = lock(own).await?;
        self.0.borrow_mut().insert(home.to_path_buf(), lock);
        Ok(())
    }

    pub fn is_held(&self, home: &Path) -> bool {
        self.0.borrow().contains_key(home)
    }

    pub fn release(&self, home: &Path) {
        self.0.borrow_mut().remove(home);
    }
}

/// Of a folder that is only read, and whose own folder is `own`. None where no daemon can be serving it: a lock
/// that was never made, or that cannot be opened on a file system that nobody writes; none is made there.
pub async fn lock_source(own: &Dir) -> Result<Option<Lock>> {
    if !own.list().await?.iter().any(|name| name == LOCK_NAME) {
        return Ok(None);
    }
    match lock(own).await {
        Err(e) if !matches!(e.kind, ErrorKind::Locked | ErrorKind::NoDescriptors) => Ok(None),
        other => other.map(Some),
    }
}

async fn lock(own: &Dir) -> Result<Lock> {
    own.lock(LOCK_NAME).await.map_err(|e| match e.kind {
        ErrorKind::Locked => {
            let cause = "a running unstun holds it and serves what is in this folder; close the VM there (`unstun \
                         vm close`), or end that daemon";
            Error::new(ErrorKind::Locked, own.path_of(LOCK_NAME), cause)
        }
        _ => e,
    })
}
