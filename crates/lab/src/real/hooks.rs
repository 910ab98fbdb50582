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
    fn run(&self, script: &str, name: &str) -> Result<String> {
        program::run(Command::new("sh").args(["-c", script]).env("UNSTUN_SNAPSHOT", name), self.limit)
    }
}

impl Verbs for Hooks {
    fn take(&mut self, name: &str) -> Result<()> {
        self.run(&self.take, name).map(drop)
    }

    fn commit(&mut self, name: &str, _: &Watch) -> Result<CommitEnd> {
        self.run(&self.commit, name)?;
        Ok(CommitEnd::Done)
    }

    /// Nobody can see below somebody's stack.
    fn look(&mut self, _: &Watch) {}

    /// The stack is not ours: nothing was made.
    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
