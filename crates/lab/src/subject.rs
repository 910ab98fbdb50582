//! The subject of a measurement: the disks of one VM, and the operations on its snapshots.

use std::any::Any;
use std::rc::Rc;

use blk::volume::Volume;
use blk::{Error, Local, Result};

use crate::run::{Counters, Stun};

/// A layer of one of the disks, as observed at its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSeen {
    /// Unique within the VM, and constant as long as the layer exists.
    pub name: String,
    /// Number of layers below it.
    pub height: u32,
    /// Counts since the layer was made or opened. A commit's bytes are 0.
    pub host: Counters,
}

/// How a commit ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitEnd {
    Done,
    /// The stack gave up by its own rules; the text describes its state.
    GaveUp(String),
}

/// Progress of a commit. Figures that are available only at the end are 0 until then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitProgress {
    pub done_bytes: u64,
    /// None: the stack cannot predict it, as with rounds of helpers that may grow.
    pub total_bytes: Option<u64>,
    /// Bytes that each helper delta held when its round ended; empty for stacks without helpers.
    pub helper_bytes: Vec<u64>,
}

/// The disks of a snapshot, and what keeps them in use.
pub type FrozenDisks = (Vec<Rc<dyn Volume>>, Box<dyn Any>);

/// One stack under test, on real or modelled storage. Everything runs on one core, in the time of one `Env`.
///
/// An error of an operation is a result of the run, not its end: the runner records it and stops the load.
pub trait Subject {
    /// Returns the name of the software that serves the volumes: "native", "redo", "esx", "qemu".
    fn name(&self) -> &str;

    /// Returns the volumes that receive the load: the same ones for the whole run.
    fn disks(&self) -> Vec<Rc<dyn Volume>>;

    /// Returns counts since the subject began; None where the I/O below the subject cannot be observed.
    fn counters(&self) -> Option<Counters>;

    /// Returns `counters` by layer, of all disks; empty where layers cannot be told apart.
    fn layers(&self) -> Vec<LayerSeen> {
        Vec::new()
    }

    /// Returns the stuns since the last call, as the stack counts them. Their begin is by the clock of the `Env`,
    /// microseconds.
    fn take_stuns(&self) -> Vec<Stun>;

    /// Takes a snapshot. Resolves when the snapshot exists.
    fn take<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>>;

    /// Commits the snapshot: merges what was written since `name` into the layer below. Resolves when the commit has
    /// ended, however long that takes. Dropping the future does not end the commit; `close` does.
    fn commit<'a>(&'a self, name: &'a str) -> Local<'a, Result<CommitEnd>>;

    fn progress(&self) -> CommitProgress;

    /// Opens the disks of a snapshot, for a backup. They are read-only, and in use until both parts are dropped.
    fn frozen<'a>(&'a self, name: &'a str) -> Local<'a, Result<FrozenDisks>> {
        Box::pin(async move {
            Err(Error::unsupported(name, format!("{}: its snapshots cannot be read", self.name())))
        })
    }

    /// Ends operations under way and removes everything the subject made.
    fn close(&self) -> Local<'_, Result<()>>;
}
