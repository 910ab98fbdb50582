//! Any stack, operated by the user's own commands: virsh, govc, zfs, lvcreate or rbd.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use blk::{Error, Result};
use export::nbd_client;

use super::operations::{OperationState, Operations, SnapshotDisk};
use super::program;
use crate::subject::CommitEnd;

/// The snapshot's name: an environment variable of each command, and a placeholder that is replaced in a place.
const NAME: &str = "UNSTUN_SNAPSHOT";

/// Shell commands, and the addresses of snapshot disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hooks {
    pub take: String,
    /// This command returns when the commit has ended.
    pub commit: String,
    /// Where each disk of a snapshot is read: NBD URIs, files or block devices. Empty: the user gave none.
    pub frozen: Vec<String>,
    /// Longest time for one command.
    pub limit: Duration,
}

impl Hooks {
    fn run(&self, script: &str, name: &str, state: &OperationState) -> Result<String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env(NAME, name);
        program::run_while(&mut command, self.limit, || state.check_cancelled("sh"))
    }
}

/// The I/O below a user's own stack cannot be observed, and the lab made nothing for it.
impl Operations for Hooks {
    fn take(&mut self, name: &str, state: &OperationState) -> Result<()> {
        self.run(&self.take, name, state).map(drop)
    }

    fn commit(&mut self, name: &str, state: &OperationState) -> Result<CommitEnd> {
        self.run(&self.commit, name, state)?;
        Ok(CommitEnd::Done)
    }

    fn frozen(&mut self, name: &str) -> Result<Vec<SnapshotDisk>> {
        if self.frozen.is_empty() {
            let cause = "the place of its frozen disk is unknown; a backup needs --frozen URI|PATH";
            return Err(Error::unsupported(name, cause));
        }
        let place = |place: &String| {
            let place = place.replace(&format!("${NAME}"), name);
            Ok(match nbd_client::is_uri(&place) {
                true => SnapshotDisk::Export(nbd_client::connect(&place)?),
                false => SnapshotDisk::File(PathBuf::from(place)),
            })
        };
        self.frozen.iter().map(place).collect()
    }
}
