//! The two programs of the package, `unstun` and `unstun-lab`, which run each other.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Variable that `unstun` sets for `unstun-lab`, so that programs of two versions do not work together unnoticed.
pub const CALLER_VERSION: &str = "UNSTUN_CALLER_VERSION";

/// Returns the path of `name`: beside this executable, else on the PATH. Relative folders of the PATH are passed over: the
/// folder in which a command happens to run chooses no program.
///
/// # Errors
/// `Failed` if it is in neither place; the message names what installs it.
pub fn find(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(|e| Error::failed(format!("finding this program: {e}")))?;
    let beside = own.parent().unwrap_or(Path::new("/")).to_path_buf();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    let folders = std::iter::once(beside.clone()).chain(on_path);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file()).ok_or_else(|| {
        Error::failed(format!(
            "the program {name} is neither in {} nor on the PATH; `make install` installs unstun and unstun-lab",
            beside.display()
        ))
    })
}

/// Returns an error if `unstun` of another version ran this program.
pub fn refuse_other_version(own: &str) -> Result<()> {
    match std::env::var(CALLER_VERSION) {
        Ok(caller) if caller != own => Err(Error::refused(format!(
            "unstun {caller} ran unstun-lab {own}; install both from one package"
        ))),
        _ => Ok(()),
    }
}
