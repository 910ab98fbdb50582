//! Images of formats that QEMU reads: `qemu-nbd` serves one, for one connection, and ends with it.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use api::ImageFormat;
use api::error::{Error, Result};
use export::nbd_client::{self, Negotiated};

use crate::qemu_img::{self, Info, not_started};

/// Longest message of `qemu-nbd` that an error repeats.
const SAID_BYTES_MAX: usize = 500;

/// Numbers the folders of the sockets.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// Folder for the socket of one server, until it is connected.
pub(super) struct Meeting(PathBuf);

impl Meeting {
    pub(super) fn new() -> Result<Meeting> {
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("unstun-nbd-{}-{number}", std::process::id()));
        // A folder that others could have made is refused.
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| Error::failed(format!("{}: {e}", path.display())))?;
        Ok(Meeting(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // If this fails, an empty socket and a log stay in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts a server for an image and connects to it; this may block. The server ends when the connection ends, also if this
/// process is killed.
///
/// # Errors
/// `Refused`: the image refers to another file, which would become part of the disk, or is encrypted.
pub(super) fn serve(path: &Path, format: ImageFormat) -> Result<Negotiated> {
    refuse_other_files(path, format)?;
    let meeting = Meeting::new()?;
    let (socket, said) = (meeting.0.join("socket"), meeting.0.join("said"));
    // It returns once the server listens. The server keeps this standard error, so that is no pipe.
    let mut command = Command::new("qemu-nbd");
    command.args(["--fork", "--read-only", "--shared", "1", "--format", format.as_str(), "--socket"]);
    command.arg(&socket).arg(path).stdin(Stdio::null()).stdout(Stdio::null());
    let log = File::create(&said).map_err(|e| Error::failed(format!("{}: {e}", said.display())))?;
    let status = command.stderr(log).status().map_err(|e| not_started("qemu-nbd", &e))?;
    if !status.success() {
        let said = fs::read(&said).unwrap_or_default();
        return Err(Error::failed(format!("{}: qemu-nbd: {status}: {}", path.display(), shorten(&said))));
    }
    Ok(nbd_client::connect(&format!("nbd+unix:///?socket={}", socket.display()))?)
}

pub(super) fn shorten(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(&said[..said.len().min(SAID_BYTES_MAX)]).into_owned();
    text.trim().replace('\n', " ")
}

fn refuse_other_files(path: &Path, format: ImageFormat) -> Result<()> {
    let info = Info::read(path, Some(format.as_str()))?;
    if info.encrypted {
        let remedy = "convert it with `qemu-img convert` first";
        return Err(Error::refused(format!("{}: the image is encrypted; {remedy}", path.display())));
    }
    match info.other_file(path) {
        None => Ok(()),
        Some(other) => Err(Error::refused(qemu_img::names_another(path, &other))),
    }
}
