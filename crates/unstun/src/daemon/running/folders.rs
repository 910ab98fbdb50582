//! Folders of the datastores as one core has them open. The control side reads from another core's folders whether their
//! file system answers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use blk::reactor::Pending;
use blk::{Dir, Env, Result};

/// Interval in microseconds between two looks at what file systems have not answered: a part of the time after which a
/// datastore hangs.
const LOOK_US: u64 = 250_000;

/// The oldest unanswered call of a folder's file system on one core. No guest's request uses it.
#[derive(Default)]
pub(crate) struct SharedPending(Mutex<Option<Pending>>);

impl SharedPending {
    pub(crate) fn get(&self) -> Option<Pending> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, pending: Option<Pending>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = pending;
    }
}

struct WatchedFolder {
    dir: Dir,
    pending: Option<Arc<SharedPending>>,
}

#[derive(Default)]
pub(crate) struct WatchedFolders(RefCell<BTreeMap<PathBuf, WatchedFolder>>);

impl WatchedFolders {
    /// Adds a folder that the control side has opened on this core.
    pub(crate) fn add(&self, dir: Dir) {
        let path = PathBuf::from(dir.path());
        self.0.borrow_mut().insert(path, WatchedFolder { dir, pending: None });
    }

    pub(crate) fn remove(&self, path: &Path) {
        self.0.borrow_mut().remove(path);
    }

    pub(crate) fn all(&self) -> Vec<Dir> {
        self.0.borrow().values().map(|folder| folder.dir.clone()).collect()
    }

    /// Opens the folder of a datastore, and reports its unanswered calls in `pending` from then on.
    pub(crate) async fn open(&self, env: &Env, path: &Path, pending: Arc<SharedPending>) -> Result<()> {
        let dir = env.open_path(&path.to_string_lossy()).await?;
        dir.trust_owner()?;
        let folder = WatchedFolder { dir, pending: Some(pending) };
        self.0.borrow_mut().insert(path.to_path_buf(), folder);
        Ok(())
    }

    /// Shares what the file systems of the datastores have not answered.
    pub(crate) async fn watch(&self, env: &Env) {
        loop {
            env.sleep_us(LOOK_US).await;
            for folder in self.0.borrow().values() {
                if let Some(pending) = &folder.pending {
                    pending.set(folder.dir.pending());
                }
            }
        }
    }
}
