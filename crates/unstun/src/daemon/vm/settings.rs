//! Settings of a VM in its home's `.unstun` folder. Each is a file with one word, or one whose existence is the setting.

use std::path::Path;

use api::WhenFull;
use blk::dir::OWN_FOLDER;
use blk::{Dir, Env, Result};

use crate::daemon::datastore::Home;
use crate::daemon::vm::home_folder::HomeFolder;
use crate::daemon::vm::paths::{exists, open_path};

/// File with one word: what a guest's write does when the datastore is full.
const WHEN_FULL_NAME: &str = "when-full";
/// File that exists if the user allows several clients to write one disk.
const SHARED_WRITERS_NAME: &str = "shared-writers";
const WORD_BYTES_MAX: u64 = 64;
/// File in a home's `.unstun` folder that exists while the VM is closed.
pub(crate) const CLOSED_NAME: &str = "closed";
/// File in a home's `.unstun` folder that exists if the folder became a home in place. Its files belonged to the user
/// before.
pub(crate) const ADOPTED_NAME: &str = "adopted";

pub(crate) async fn write_when_full(own: &Dir, when_full: WhenFull) -> Result<()> {
    let word = match when_full {
        WhenFull::Wait => "wait\n",
        WhenFull::Error => "error\n",
    };
    own.replace_file(WHEN_FULL_NAME, word.as_bytes()).await
}

pub(crate) async fn read_when_full(home: &HomeFolder) -> Result<WhenFull> {
    match home.read(WHEN_FULL_NAME, WORD_BYTES_MAX).await? {
        Some(word) if word.trim_ascii() == b"error" => Ok(WhenFull::Error),
        _ => Ok(WhenFull::Wait),
    }
}

/// Durably records whether several clients may write one disk.
pub(crate) async fn write_shared_writers(own: &Dir, shared: bool) -> Result<()> {
    if shared {
        return own.replace_file(SHARED_WRITERS_NAME, b"by the user's word\n").await;
    }
    own.unlink_if_present(SHARED_WRITERS_NAME).await?;
    own.sync().await
}

pub(crate) fn has_shared_writers(home: &HomeFolder) -> bool {
    home.has(SHARED_WRITERS_NAME)
}

/// Durably records whether a start of the daemon opens the home.
pub(crate) async fn mark_closed(env: &Env, home: &Path, closed: bool) -> Result<()> {
    let own = open_path(env, home).await?.open_dir(OWN_FOLDER, true).await?;
    if closed {
        return own.replace_file(CLOSED_NAME, b"by the user's word\n").await;
    }
    own.unlink_if_present(CLOSED_NAME).await?;
    own.sync().await
}

pub(crate) async fn is_closed(env: &Env, home: &Path) -> bool {
    exists(env, home.join(OWN_FOLDER).join(CLOSED_NAME)).await
}

/// Returns whether the home is an imported folder. A home outside the datastore always is.
pub(crate) async fn is_adopted(home: &Home) -> blk::Result<bool> {
    if !home.datastore.contains(&home.path) {
        return Ok(true);
    }
    let own = async {
        open_path(home.datastore.dir.env(), &home.path).await?.open_dir(OWN_FOLDER, false).await?.list().await
    };
    match own.await {
        Ok(names) => Ok(names.iter().any(|name| name == ADOPTED_NAME)),
        Err(e) if e.kind == blk::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}
