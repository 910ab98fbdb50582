//! Locks on VM folders. A VM's folder can be in one datastore and be registered in another; two daemons that serve it
//! would both write it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use blk::file::Lock;
use blk::{Dir, Error, ErrorKind, Result};

/// Name of the lock file in a VM folder's `.unstun` folder. A datastore's `.unstun` folder has its lock under the same
/// name. A datastore is therefore not taken for a VM's folder while a daemon serves it.
const LOCK_NAME: &str = "lock";

/// Locks of the open VM folders, by path.
#[derive(Default)]
pub(crate) struct Holds(RefCell<BTreeMap<PathBuf, Lock>>);

impl Holds {
    /// Locks the VM folder `home`, whose `.unstun` folder is `own`; `Locked` while another daemon holds it. A VM folder
    /// that is opened again stays locked.
    pub(crate) async fn take(&self, home: &Path, own: &Dir) -> Result<()> {
        if self.0.borrow().contains_key(home) {
            return Ok(());
        }
        let lock = lock(own).await?;
        self.0.borrow_mut().insert(home.to_path_buf(), lock);
        Ok(())
    }

    pub(crate) fn is_held(&self, home: &Path) -> bool {
        self.0.borrow().contains_key(home)
    }

    pub(crate) fn release(&self, home: &Path) {
        self.0.borrow_mut().remove(home);
    }
}

/// Locks a folder that is only read, and whose `.unstun` folder is `own`. Returns None if no daemon can be serving the
/// folder: its lock file does not exist, or cannot be opened on a read-only file system. No lock file is created.
pub(crate) async fn lock_source(own: &Dir) -> Result<Option<Lock>> {
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
            let cause = "another unstun daemon serves the VM in this folder; close the VM there (`unstun vm close`), \
                         or stop that daemon";
            Error::new(ErrorKind::Locked, own.path_of(LOCK_NAME), cause)
        }
        _ => e,
    })
}
