//! Files of the daemon itself, in the own folder of its main datastore.

use std::rc::Rc;

use api::error::Result;

use crate::daemon::state::Daemon;

/// Maximum size of one: ten thousand tokens at 400 bytes each.
pub(crate) const OWN_FILE_BYTES_MAX: u64 = 4 << 20;

impl Daemon {
    /// Returns a file's content; empty if there is no such file.
    pub(crate) async fn own_file(&self, name: &str) -> Result<Vec<u8>> {
        match self.main.own.read_file(name, OWN_FILE_BYTES_MAX).await {
            Err(e) if e.kind == blk::ErrorKind::NotFound => Ok(Vec::new()),
            read => Ok(read?),
        }
    }

    /// Durably replaces a file, on a full datastore too.
    pub(crate) async fn replace_own_file(self: &Rc<Self>, name: &str, content: &[u8]) -> Result<()> {
        let replace = async || self.main.own.replace_file(name, content).await;
        Ok(self.with_reserve(&self.main, replace).await?)
    }

    /// Returns random bytes that nobody can guess.
    pub(crate) fn random_bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&self.env.random().to_le_bytes()));
        bytes
    }
}
