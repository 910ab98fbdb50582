//! Which VM of the datastore's store a home is: its ID in a file of the home's `.unstun` folder.

use std::path::Path;

use blk::dir::OWN_FOLDER;
use blk::{Dir, Env, Error, ErrorKind, Result};

use crate::daemon::vm::paths::{self, open_path};

/// File in a home's `.unstun` folder: the VM's ID in the store, as 32 hexadecimal digits.
pub(crate) const NAME: &str = "native";

const BYTES_MAX: u64 = 64;

/// Returns which VM of the store a home is; None for a VM with its own files.
pub(crate) async fn read(env: &Env, home: &Path) -> Result<Option<u128>> {
    read_in(&open_path(env, home).await?.open_dir(OWN_FOLDER, false).await?).await
}

/// Like `read`, from the home's `.unstun` folder.
pub(crate) async fn read_in(own: &Dir) -> Result<Option<u128>> {
    let text = match own.read_file(NAME, BYTES_MAX).await {
        Ok(bytes) => bytes,
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let text = String::from_utf8_lossy(&text);
    let id = u128::from_str_radix(text.trim_ascii(), 16).map_err(|_| {
        let cause = format!("found {:?}, expected the id of a VM", text.trim_ascii());
        Error::damaged(own.path_of(NAME), cause)
    })?;
    Ok(Some(id))
}

/// Returns whether a home has a mark, from what the file system shows now; for VMs that are not served.
pub(crate) async fn exists(env: &Env, home: &Path) -> bool {
    paths::exists(env, home.join(OWN_FOLDER).join(NAME)).await
}

pub(crate) fn line(id: u128) -> String {
    format!("{id:032x}\n")
}

/// Durably records which VM of the store the home is from now on, if any.
pub(crate) async fn write(own: &Dir, id: Option<u128>) -> Result<()> {
    match id {
        Some(id) => own.replace_file(NAME, line(id).as_bytes()).await,
        None => {
            own.unlink_if_present(NAME).await?;
            own.sync().await
        }
    }
}
