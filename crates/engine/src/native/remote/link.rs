//! Messages between the store's core and a VM's core.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use blk::mailbox::{Receiver, Sender, mailbox};
use blk::manifest::VmState;
use blk::volume::{BlockStatus, ZeroMode};
use blk::{Buf, Error, ErrorKind, Result, SharedFile};

use super::grant::{Grant, Redirected};
use super::mark::SharedDisk;
use super::stock::{HandedOut, WrittenBlocks};

/// A request that needs the store.
pub(super) enum Work {
    Read {
        offset: u64,
        buf: Buf,
    },
    Write {
        offset: u64,
        data: Buf,
    },
    /// Makes data part of the disk that is complete in blocks handed out in advance.
    Publish(Vec<WrittenBlocks>),
    Flush,
    Discard(Range<u64>),
    Zero(Range<u64>, ZeroMode),
    Status(Range<u64>),
    /// The VM's core does not serve the disk any more. There is no answer.
    Close,
    /// No disk of a store is served any more; `Request::disk` is the store's number. There is no answer.
    Recall,
    /// A request about a VM.
    Vm(VmWork),
    /// The client of a relayed volume has left: what waits for space ends. There is no answer.
    Abandon,
    /// What waits for space in a relayed volume ends now. There is no answer.
    EndWaits,
}

/// A request about a VM; `Request::disk` is the VM's number then.
pub(super) enum VmWork {
    State,
    Attach {
        number: u32,
        client: String,
    },
    OpenView {
        snapshot: String,
        number: u32,
        client: String,
    },
    /// A client or a reader has left. There is no answer.
    Leave(u64),
    /// The VM's core does not serve the VM any more. There is no answer.
    Close,
}

/// State of a VM, as its clients' core keeps it.
pub(super) struct VmNow {
    pub state: VmState,
    /// Snapshots whose content may still change.
    pub unsealed: BTreeSet<u128>,
}

/// A client of a VM, attached on the store's core.
pub(super) struct AttachedThere {
    /// Number of the disk.
    pub disk: u64,
    /// The disk, unless the VM's core has it.
    pub ticket: Option<DiskTicket>,
    /// The snapshot, of a sealed state.
    pub snapshot: u128,
    /// Number by which the client leaves.
    pub guard: u64,
}

pub(super) struct Request {
    /// Number of the disk.
    pub disk: u64,
    /// Number of the request on its core.
    pub id: u32,
    pub work: Work,
}

pub(super) enum Answer {
    /// The buffer of a read, or that of a write, which the core that made it uses again.
    Buf(Option<Buf>, Result<()>),
    Done(Result<()>),
    Status(Result<Vec<BlockStatus>>),
    Vm(VmNow),
    Attached(Box<(VmNow, Result<AttachedThere>)>),
}

/// A grant that comes with an answer.
pub(super) enum NewGrant {
    /// It replaces an earlier grant of the same window.
    Whole(Grant),
    /// It changes the present grant of its window.
    Redirected(Redirected),
}

pub(super) struct Reply {
    pub disk: u64,
    pub id: u32,
    pub answer: Answer,
    pub grants: Vec<NewGrant>,
    /// Further blocks for redirects.
    pub stock: Option<HandedOut>,
}

/// The store's end of a connection between two cores.
pub struct StoreEnd {
    pub(super) requests: Receiver<Request>,
    pub(super) replies: Sender<Reply>,
}

/// The VM's end of a connection between two cores.
pub struct VmEnd {
    pub(super) requests: Sender<Request>,
    pub(super) replies: Receiver<Reply>,
}

/// Connects the core of stores with one that serves their disks.
pub fn connect() -> (StoreEnd, VmEnd) {
    let (to_store, requests) = mailbox();
    let (to_vm, replies) = mailbox();
    (StoreEnd { requests, replies: to_vm }, VmEnd { requests: to_store, replies })
}

/// A disk of a store on its way to the core that is to serve it.
pub struct DiskTicket {
    pub(super) number: u64,
    /// Number of its store.
    pub(super) store: u64,
    pub(super) name: String,
    pub(super) read_only: bool,
    pub(super) shared: Arc<SharedDisk>,
    pub(super) file: SharedFile,
    pub(super) flushed_lsn: Arc<AtomicU64>,
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Cancelled, "", "the disk is not served by this core any more")
}
