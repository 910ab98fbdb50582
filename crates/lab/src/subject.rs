//! What is measured: the disks of one VM, and the verbs of its snapshots.

use std::rc::Rc;

use blk::volume::Volume;
use blk::{Error, Local, Result};

use crate::run::{Counters, Stun};

/// A layer of one of the disks, as far as it can be seen from below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSeen {
    /// Nobody else's in this VM; the same as long as the layer exists.
    pub name: String,
    /// How many layers are below it.
    pub height: u32,
    /// Since it was made or opened. A commit's bytes are 0.
    pub host: Counters,
}

/// How a commit ended, or that it did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitEnd {
    Done,
    /// The stack gave up by its own rules, and is in the state it describes.
    GaveUp(String),
}

/// How far a commit is. Bytes that can be told only at the end are 0 before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitProgress {
    pub done_bytes: u64,
    /// None: the stack does not know, as with rounds of helpers that may grow.
    pub total_bytes: Option<u64>,
    /// Bytes each helper delta held when its round ended; empty for stacks without helpers.
    pub helper_bytes: Vec<u64>,
}

/// One stack under test, on real or modelled storage. Everything runs on one core, in the time of one `Env`.
///
/// An error of a verb is a result of the run, not its end: the runner writes it down and stops the load.
pub trait Subject {
    /// What the volumes are served by: "native", "redo", "esx", "qemu".
    fn name(&self) -> &str;

    /// What the load goes to. The same volumes for the whole run.
    fn disks(&self) -> Vec<Rc<dyn Volume>>;

    /// Since the subject began; None where nobody can see below it.
    fn counters(&self) -> Option<Counters>;

    /// `counters` by layer, of all disks; empty where nobody can tell them apart.
    fn layers(&self) -> Vec<LayerSeen> {
        Vec::new()
    }

    /// Stuns since the last call, as the stack counts them. Their begin is by the clock of the `Env`, in microseconds.
    fn take_stuns(&self) -> Vec<Stun>;

    /// Resolves when the snapshot is there.
    fn take<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>>;

    /// Folds what was written since `name` back. Resolves when the commit has ended, however long that is; dropped,
    /// it stops being waited for, and `close` ends it.
    fn commit<'a>(&'a self, name: &'a str) -> Local<'a, Result<CommitEnd>>;

    fn progress(&self) -> CommitProgress;

    /// The disks as the snapshot has them, for a backup; read-only, and in use until they are dropped.
    fn frozen<'a>(&'a self, name: &'a str) -> Local<'a, Result<Vec<Rc<dyn Volume>>>> {
        Box::pin(async move {
            Err(Error::unsupported(name, format!("{}: its snapshots cannot be read", self.name())))
        })
    }

    /// Ends what is under way and removes what the subject made.
    fn close(&self) -> Local<'_, Result<()>>;
}
