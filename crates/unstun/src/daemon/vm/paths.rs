//! Calls on paths of homes, from what the file system shows now.

use std::path::{Path, PathBuf};

use blk::{Dir, Env, Result};

pub(in crate::daemon) async fn open_path(env: &Env, path: &Path) -> Result<Dir> {
    env.open_path(&path.to_string_lossy()).await
}

/// Returns whether anything exists at the path, from what the file system shows now.
pub(in crate::daemon) async fn exists(env: &Env, path: PathBuf) -> bool {
    env.blocking(move || path.exists()).await
}

pub(in crate::daemon) async fn is_dir(env: &Env, path: &Path) -> bool {
    let path = path.to_path_buf();
    env.blocking(move || path.is_dir()).await
}
