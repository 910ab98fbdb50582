//! Folder of a home, opened once for everything that the opening of the VM reads from it.

use std::cell::Cell;
use std::path::Path;

use blk::dir::OWN_FOLDER;
use blk::{Dir, Env, Result};

use crate::daemon::vm::mark;
use crate::daemon::vm::paths::open_path;

/// A home's folder, its `.unstun` folder, and the names in the latter as of the last look. Most homes have few of the
/// files that they may have, and the names show which: a file that is absent costs no call.
pub(crate) struct HomeFolder {
    pub dir: Dir,
    pub own: Dir,
    names: Vec<String>,
    /// The mark, once it was read.
    mark: Cell<Option<u128>>,
}

impl HomeFolder {
    pub(crate) async fn open(env: &Env, home: &Path) -> Result<HomeFolder> {
        HomeFolder::of(open_path(env, home).await?).await
    }

    /// Opens the `.unstun` folder of a home.
    pub(crate) async fn of(dir: Dir) -> Result<HomeFolder> {
        let own = dir.open_dir(OWN_FOLDER, false).await?;
        let names = own.list().await?;
        Ok(HomeFolder { dir, own, names, mark: Cell::new(None) })
    }

    /// Reads the names again: after the folder was locked, and after its content was changed.
    pub(crate) async fn look_again(&mut self) -> Result<()> {
        self.names = self.own.list().await?;
        self.mark.set(None);
        Ok(())
    }

    /// Returns whether the home has nothing but the `.unstun` folder.
    pub(crate) async fn has_own_alone(&self) -> Result<bool> {
        Ok(self.dir.list().await?.iter().all(|name| name.trim_end_matches('/') == OWN_FOLDER))
    }

    /// Returns the names of what is in the `.unstun` folder.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns whether the `.unstun` folder has a file of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// Returns the content of a file in the `.unstun` folder, which has at most `limit` bytes; None if there is none.
    pub(crate) async fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        match self.has(name) {
            true => self.own.read_file(name, limit).await.map(Some),
            false => Ok(None),
        }
    }

    /// Returns which VM of the store the home is; None for a VM with its own files.
    pub(crate) async fn mark(&self) -> Result<Option<u128>> {
        if self.mark.get().is_none() && self.has(mark::NAME) {
            self.mark.set(mark::read_in(&self.own).await?);
        }
        Ok(self.mark.get())
    }
}
