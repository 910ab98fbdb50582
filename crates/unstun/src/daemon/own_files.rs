//! Files of the daemon itself, in the own folder of its main datastore.

use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::daemon::state::Daemon;

/// Maximum size of one: ten thousand tokens at 400 bytes each.
pub(crate) const OWN_FILE_BYTES_MAX: u64 = 4 << 20;

/// Returns the values of a file that has one as JSON in each line.
pub(crate) fn parse_lines<T: DeserializeOwned>(file: &str, bytes: &[u8]) -> Result<Vec<T>> {
    let damaged = |line: usize, e: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Damaged, format!(".unstun/{file}: line {line}: {e}"))
    };
    let text = std::str::from_utf8(bytes).map_err(|e| damaged(1, &e))?;
    let lines = text.lines().enumerate();
    lines.map(|(n, line)| serde_json::from_str(line).map_err(|e| damaged(n + 1, &e))).collect()
}

/// Returns the content of a file that has a value as JSON in each line.
pub(crate) fn lines<T: Serialize>(values: impl IntoIterator<Item = T>) -> String {
    let line = |value| serde_json::to_string(&value).expect("a record is JSON") + "\n";
    values.into_iter().map(line).collect()
}

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

    /// Durably removes a file, if it is there.
    pub(crate) async fn remove_own_file(self: &Rc<Self>, name: &str) -> Result<()> {
        self.main.own.unlink_if_present(name).await?;
        Ok(self.main.own.sync().await?)
    }

    /// Returns random bytes that nobody can guess.
    pub(crate) fn random_bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&self.env.random().to_le_bytes()));
        bytes
    }
}
