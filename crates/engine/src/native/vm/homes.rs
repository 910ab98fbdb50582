//! The home of each VM of a store: the one folder through which it is served.

use blk::Result;

use super::super::store::Store;
use super::items::{self, VmHome, VmHomeState, home_key, put_home};

impl Store {
    /// Returns the recorded homes by the VMs' ids.
    pub fn homes(&self) -> Result<Vec<(u128, VmHome)>> {
        let found = self.items(items::HOME);
        found.iter().map(|(key, value)| Ok((key.major, items::read_home(value, self.path())?))).collect()
    }

    /// Returns the home of a VM; None if the store has recorded none.
    pub fn home_of(&self, id: u128) -> Result<Option<VmHome>> {
        self.item(home_key(id)).map(|value| items::read_home(&value, self.path())).transpose()
    }

    /// Records the home of a complete VM. Durable when this resolves.
    pub async fn set_home(&self, id: u128, path: &str) -> Result<()> {
        self.put_home(id, path, VmHomeState::Whole).await
    }

    /// Records that the VM was removed, and is kept with the home at `path`. Durable when this resolves.
    pub async fn set_binned(&self, id: u128, path: &str) -> Result<()> {
        self.put_home(id, path, VmHomeState::Binned).await
    }

    /// Records that the VM is to be removed with the home at `path`. Durable when this resolves; only `remove_vm` may
    /// follow.
    pub async fn begin_removal(&self, id: u128, path: &str) -> Result<()> {
        self.put_home(id, path, VmHomeState::Unfinished).await
    }

    async fn put_home(&self, id: u128, path: &str, state: VmHomeState) -> Result<()> {
        let home = VmHome { path: path.to_string(), state };
        if self.home_of(id)?.as_ref() != Some(&home) {
            self.change(&[put_home(id, &home)])?;
        }
        self.flush().await
    }
}
