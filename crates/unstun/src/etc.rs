//! Files of the administrator in `/etc/unstun`, which may name commands that the daemon runs: only root, or the daemon's
//! own user, may be able to write them.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const FILE_BYTES_MAX: u64 = 64 << 10;
/// Permission bits of group and others to write.
const MODE_WRITE: u32 = 0o022;

/// Returns the content of a file and its mode. An error names no path.
pub(crate) fn read(path: &Path) -> Result<(String, u32), String> {
    // Opening a pipe would block.
    let about = fs::metadata(path).map_err(|e| e.to_string())?;
    let own = rustix::process::geteuid().as_raw();
    if !about.is_file() {
        return Err("expected a regular file".to_owned());
    }
    if about.uid() != 0 && about.uid() != own {
        return Err(format!("its owner is user {}, expected root: `chown root` mends it", about.uid()));
    }
    if about.mode() & MODE_WRITE != 0 {
        return Err(format!("mode {:o}: others may write it; `chmod go-w` mends it", about.mode() & 0o777));
    }
    let file = fs::File::open(path).map_err(|e| e.to_string())?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|e| e.to_string())?;
    Ok((text, about.mode()))
}
