//! Kinds of operations, for counters, for the event hash, and for faults.

use blk::Errno;
use blk::reactor::{Handle, Op, OpenMode, Outcome};

/// Kinds of operations that a test can count, fail or cut at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    Read,
    Write,
    Flush,
    Allocate,
    Zero,
    Punch,
    SetLen,
    Extents,
    Size,
    Create,
    Open,
    OpenDir,
    Rename,
    Unlink,
    RemoveDir,
    SyncDir,
    List,
    Lock,
    Space,
    Timer,
    Socket,
    Link,
    Attributes,
    /// Frees space without writing.
    GiveBack,
    /// A step of persistent reservations.
    Reserve,
}

impl OpKind {
    /// Number of kinds.
    pub(crate) const COUNT: usize = OpKind::Reserve as usize + 1;
}

/// The facts of one operation that the trace records.
pub(crate) struct Described<'a> {
    pub kind: OpKind,
    pub handle: Option<Handle>,
    /// Name inside the directory, for operations on names.
    pub name: &'a str,
    pub offset: u64,
    pub len: u64,
}

pub(crate) fn describe(op: &Op) -> Described<'_> {
    let on =
        |kind, handle: &Handle, offset, len| Described { kind, handle: Some(*handle), name: "", offset, len };
    let named = |kind, dir: &Handle, name| Described { kind, handle: Some(*dir), name, offset: 0, len: 0 };
    match op {
        Op::Read { file, offset, buf } => on(OpKind::Read, file, *offset, buf.len() as u64),
        Op::Write { file, offset, data } => on(OpKind::Write, file, *offset, data.len() as u64),
        Op::Flush { file } => on(OpKind::Flush, file, 0, 0),
        Op::Allocate { file, offset, len } => on(OpKind::Allocate, file, *offset, *len),
        Op::Zero { file, offset, len, punch: true } => on(OpKind::Punch, file, *offset, *len),
        Op::Zero { file, offset, len, punch: false } => on(OpKind::Zero, file, *offset, *len),
        Op::GiveBack { file, offset, len } => on(OpKind::GiveBack, file, *offset, *len),
        Op::SetLen { file, len } => on(OpKind::SetLen, file, 0, *len),
        Op::Extents { file, offset, len } => on(OpKind::Extents, file, *offset, *len),
        Op::Size { file } | Op::Allocated { file } | Op::Modified { file } => on(OpKind::Size, file, 0, 0),
        Op::Reserve { file, .. } => on(OpKind::Reserve, file, 0, 0),
        Op::OpenFile { dir, name, mode: OpenMode::CreateNew } => named(OpKind::Create, dir, name),
        Op::OpenFile { dir, name, .. } => named(OpKind::Open, dir, name),
        Op::OpenDir { dir, name, .. } => named(OpKind::OpenDir, dir, name),
        Op::Rename { dir, from, .. } => named(OpKind::Rename, dir, from),
        Op::Unlink { dir, name } => named(OpKind::Unlink, dir, name),
        Op::Link { dir, from, .. } => named(OpKind::Link, dir, from),
        Op::KeepAttributes { file, .. } => on(OpKind::Attributes, file, 0, 0),
        Op::RemoveDir { dir, name } => named(OpKind::RemoveDir, dir, name),
        Op::SyncDir { dir } => named(OpKind::SyncDir, dir, ""),
        Op::List { dir } => named(OpKind::List, dir, ""),
        Op::Lock { dir, name } => named(OpKind::Lock, dir, name),
        Op::Space { dir } => named(OpKind::Space, dir, ""),
        Op::Timer { at_ns } => {
            Described { kind: OpKind::Timer, handle: None, name: "", offset: *at_ns, len: 0 }
        }
        Op::Accept { .. }
        | Op::Recv { .. }
        | Op::HungUp { .. }
        | Op::Send { .. }
        | Op::RecvDescriptors { .. }
        | Op::SendDescriptor { .. }
        | Op::WaitEvent { .. }
        | Op::SignalEvent { .. } => {
            Described { kind: OpKind::Socket, handle: None, name: "", offset: 0, len: 0 }
        }
    }
}

/// The answer of the operation's own shape that carries `errno`.
pub(crate) fn refusal(op: Op, errno: Errno) -> Outcome {
    match op {
        Op::Read { buf, .. } | Op::Recv { buf, .. } => Outcome::Read(buf, Err(errno)),
        Op::RecvDescriptors { buf, .. } => Outcome::Received(buf, Err(errno)),
        Op::Write { .. }
        | Op::Size { .. }
        | Op::Allocated { .. }
        | Op::Modified { .. }
        | Op::Send { .. }
        | Op::SendDescriptor { .. } => Outcome::Count(Err(errno)),
        Op::Extents { .. } => Outcome::Extents(Err(errno)),
        Op::OpenFile { .. } | Op::OpenDir { .. } | Op::Lock { .. } | Op::Accept { .. } => {
            Outcome::Opened(Err(errno))
        }
        Op::List { .. } => Outcome::Names(Err(errno)),
        Op::Space { .. } => Outcome::Space(Err(errno)),
        _ => Outcome::Unit(Err(errno)),
    }
}
