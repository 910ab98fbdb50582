//! Disks of backups: a process of this program serves one as an NBD export, so that a slow or failing store of objects, and
//! the work of decryption, stay outside of the daemon.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread;

use api::error::{Error, Result};
use export::nbd_client::{self, Negotiated};

use crate::command::READY;
use crate::daemon::source::origin::Origin;
use crate::daemon::source::qemu_nbd::{Meeting, shorten};
use crate::repository::{KEY_FILE_VARIABLE, PASSPHRASE_FILE_VARIABLE};

/// Longest message of the server that an error repeats.
const SAID_BYTES_MAX: u64 = 2000;

/// Starts a server for the disk of a backup and connects to it; this may block. The server ends when the connection ends.
/// Returns the identity of the content too.
pub(super) fn serve(origin: &Origin) -> Result<(Negotiated, String)> {
    let meeting = Meeting::new()?;
    let socket = meeting.path().join("socket");
    // The daemon's own program, also if its file was replaced.
    let mut command = Command::new("/proc/self/exe");
    // What begins with a dash is no option.
    command.args(["backup", "serve", "--once"]).arg(format!("--repo={}", origin.uri));
    command.args(["--disk", &origin.part.unwrap_or(0).to_string()]).arg("--socket").arg(&socket);
    for (option, path) in [("--key-file", &origin.key_file), ("--passphrase-file", &origin.passphrase_file)] {
        if let Some(path) = path {
            command.arg(option).arg(path);
        }
    }
    command.arg(origin.backup.unwrap_or_default().to_string());
    // The daemon's own environment may name another key.
    [KEY_FILE_VARIABLE, PASSPHRASE_FILE_VARIABLE].iter().for_each(|name| _ = command.env_remove(name));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |e: std::io::Error| Error::failed(format!("starting the server of a backup: {e}"));
    let mut child = command.spawn().map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let mut line = String::new();
    if let Some(stdout) = stdout {
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
    }
    let Some(identity) = line.trim_end().strip_prefix(READY).map(str::to_owned) else {
        let mut said = Vec::new();
        if let Some(stderr) = stderr {
            stderr.take(SAID_BYTES_MAX).read_to_end(&mut said).map_err(failed)?;
        }
        wait_for(child);
        return Err(Error::refused(format!("{}: {}", origin.uri, shorten(&said))));
    };
    let connected = nbd_client::connect(&format!("nbd+unix:///?socket={}", socket.display()));
    wait_for(child);
    Ok((connected?, identity))
}

/// Waits for the end of the server on a thread of its own, so that no ended process stays.
fn wait_for(mut child: Child) {
    // Without a thread the process stays in the list until the daemon ends.
    let _ = thread::Builder::new().name("backup-server".into()).spawn(move || child.wait());
}
