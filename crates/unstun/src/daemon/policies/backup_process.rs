//! A process of this program makes the backups of policies and removes them, so that a slow or failing store of objects, and
//! the work of compression and encryption, stay outside of the daemon.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use api::Retention;
use api::error::{Error, ErrorBody, Result};
use api::name::{RepositoryName, VmName};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::repository::{KEY_FILE_VARIABLE, PASSPHRASE_FILE_VARIABLE};

/// Longest output that an error repeats.
const SAID_CHARS_MAX: usize = 500;

/// What a process does.
#[derive(Debug, Clone)]
pub(super) struct Work {
    /// Folder of the datastore whose daemon has the VM.
    pub datastore: PathBuf,
    pub repository: RepositoryName,
    /// Note of the backups of the policy.
    pub note: String,
    pub what: What,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    /// Back up a snapshot, by its id.
    Make { vm: VmName, snapshot: String },
    /// Remove the backups, of the VMs with these ids, that no rule keeps.
    Prune { vms: Vec<String>, keep: Retention },
}

/// What is read of the output of a prune.
#[derive(Deserialize)]
struct Removed {
    removed: Vec<u32>,
}

/// Does the work; this blocks. Returns the number of the backup, or how many were removed.
pub(super) fn run(work: &Work) -> Result<u32> {
    let output = command(work).output().map_err(|e| Error::failed(format!("starting a backup: {e}")))?;
    if output.status.success() {
        return match &work.what {
            What::Make { .. } => Ok(parse::<api::Backup>(&output.stdout)?.backup),
            What::Prune { .. } => Ok(parse::<Removed>(&output.stdout)?.removed.len() as u32),
        };
    }
    match serde_json::from_slice::<ErrorBody>(&output.stdout) {
        Ok(body) => Err(body.into()),
        // It was killed, or could not begin.
        Err(_) => Err(Error::failed(format!("{}: {}", output.status, shorten(&output.stderr)))),
    }
}

fn command(work: &Work) -> Command {
    // The daemon's own program, also if its file was replaced.
    let mut command = Command::new("/proc/self/exe");
    command.arg("--datastore").arg(&work.datastore).args(["--json", "backup"]);
    // What begins with a dash is no option.
    match &work.what {
        What::Make { vm, snapshot } => {
            command.args([format!("--snapshot={snapshot}"), format!("--note={}", work.note)]);
            command.arg(vm.as_str());
        }
        What::Prune { vms, keep } => {
            command.args(["prune".to_owned(), format!("--noted={}", work.note)]);
            command.args(vms.iter().map(|vm| format!("--vm={vm}")));
            let rules = keep.rules().into_iter().filter(|(_, count)| *count > 0);
            command.args(rules.map(|(rule, count)| format!("--keep-{rule}={count}")));
            command.args((keep.min_age_s > 0).then(|| format!("--min-age={}s", keep.min_age_s)));
        }
    }
    command.arg(format!("--repo={}", work.repository));
    // The daemon's own environment may name another key.
    [KEY_FILE_VARIABLE, PASSPHRASE_FILE_VARIABLE].iter().for_each(|name| _ = command.env_remove(name));
    command.stdin(Stdio::null());
    command
}

fn parse<T: DeserializeOwned>(output: &[u8]) -> Result<T> {
    serde_json::from_slice(output)
        .map_err(|e| Error::failed(format!("output of a backup: {e}: {}", shorten(output))))
}

fn shorten(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    text.trim().replace('\n', " ").chars().take(SAID_CHARS_MAX).collect()
}
