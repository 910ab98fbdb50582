//! `unstun lab` and `unstun demo`: run `unstun-lab` with the arguments of this command.

use std::os::unix::process::CommandExt;
use std::process::Command;

use api::error::{Error, Result};
use api::program::{self, CALLER_VERSION};

const PROGRAM: &str = "unstun-lab";

/// Replaces this process. The arguments have been parsed, so this program has already answered help and mistakes.
pub(super) fn run() -> Result<u8> {
    let path = program::find(PROGRAM)?;
    let mut command = Command::new(&path);
    command.args(std::env::args_os().skip(1)).env(CALLER_VERSION, env!("CARGO_PKG_VERSION"));
    Err(Error::failed(format!("running {}: {}", path.display(), command.exec())))
}
