//! Any stack, by its own commands: somebody's virsh, govc, zfs, lvcreate or rbd.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use blk::{Error, Result};

use super::verbs::{Frozen, Verbs, Watch};
use super::{nbd, program};
use crate::subject::CommitEnd;

/// The snapshot's name: a variable of each command's, and replaced where it stands in a place.
const NAME: &str = "UNSTUN_SNAPSHOT";

/// Shell commands, and places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hooks {
    pub take: String,
    /// Returns when the commit has ended.
    pub commit: String,
    /// Where each disk is read as the snapshot has it: NBD URIs, files or block devices. Empty: nobody has said.
    pub frozen: Vec<String>,
    /// Longest time for one of them.
    pub limit: Duration,
}

impl Hooks {
    fn run(&self, script: &str, name: &str, watch: &Watch) -> Result<String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env(NAME, name);
        program::run_while(&mut command, self.limit, || watch.go_on("sh"))
    }
}

impl Verbs for Hooks {
    fn take(&mut self, name: &str, watch: &Watch) -> Result<()> {
        self.run(&self.take, name, watch).map(drop)
    }

    fn commit(&mut self, name: &str, watch: &Watch) -> Result<CommitEnd> {
        self.run(&self.commit, name, watch)?;
        Ok(CommitEnd::Done)
    }

    fn frozen(&mut self, name: &str) -> Result<Vec<Frozen>> {
        if self.frozen.is_empty() {
            let cause = "nobody has said where its frozen disk is; a backup needs --frozen URI|PATH";
            return Err(Error::unsupported(name, cause));
        }
        let place = |place: &String| {
            let place = place.replace(&format!("${NAME}"), name);
            Ok(match nbd::is_uri(&place) {
                true => Frozen::Export(nbd::dial(&place)?),
                false => Frozen::File(PathBuf::from(place)),
            })
        };
        self.frozen.iter().map(place).collect()
    }

    /// Nobody can see below somebody's stack.
    fn look(&mut self, _: &Watch) {}

    /// The stack is not ours: nothing was made.
    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
