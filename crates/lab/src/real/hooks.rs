//! Any stack, by its own commands: somebody's virsh, govc, zfs, lvcreate or rbd.

use std::process::Command;
use std::time::Duration;

use blk::Result;

use super::program;
use super::verbs::{Verbs, Watch};
use crate::subject::CommitEnd;

/// Shell commands. `UNSTUN_SNAPSHOT` is the snapshot's name in each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hooks {
    pub take: String,
    /// Returns when the commit has ended.
    pub commit: String,
    /// Longest time for one of them.
    pub limit: Duration,
}

impl Hooks {
    fn run(&self, script: &str, name: &str, watch: &Watch) -> Result<String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("UNSTUN_SNAPSHOT", name);
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

    /// Nobody can see below somebody's stack.
    fn look(&mut self, _: &Watch) {}

    /// The stack is not ours: nothing was made.
    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
