//! Effects of operations, applied when they complete.

use std::rc::Rc;

use blk::Errno;
use blk::reactor::{Handle, Limits, Op, OpenMode, Outcome};

use crate::content::{PAGE, SECTOR};
use crate::dir::NodeId;
use crate::file::byte_range;
use crate::fs::{EBADF, ENOTDIR};
use crate::kind::refusal;
use crate::machine::{Machine, Open};
use crate::trace::hash_name;

impl Machine {
    /// Applies an operation. `covers` is the event of its submission.
    pub(crate) fn perform(&mut self, op: Op, node: NodeId, covers: u64) -> Outcome {
        match op {
            Op::Read { offset, mut buf, .. } => {
                let filled = self.read(node, offset, &mut buf);
                Outcome::Read(buf, filled)
            }
            Op::Size { .. } => Outcome::Count(self.fs.file(node).map(|file| file.size())),
            Op::Modified { .. } => Outcome::Count(Ok(0)),
            Op::Allocated { .. } => {
                Outcome::Count(self.fs.file(node).map(|file| file.allocated_pages() * PAGE))
            }
            Op::Extents { offset, len, .. } => Outcome::Extents(
                self.fs.file(node).map(|file| file.extents(offset..offset.saturating_add(len))),
            ),
            Op::List { .. } => Outcome::Names(self.names(node)),
            Op::Space { .. } => Outcome::Space(Ok(self.fs.space())),
            Op::Write { .. } => Outcome::Count(self.write(op, node)),
            Op::OpenFile { .. } | Op::OpenDir { .. } | Op::Lock { .. } => {
                Outcome::Opened(self.open_named(op, node))
            }
            op => Outcome::Unit(self.change(op, node, covers)),
        }
    }

    /// Applies timers, operations on sockets, and operations on a handle that is not open.
    pub(crate) fn perform_without_handle(&mut self, op: Op) -> Outcome {
        match op {
            Op::Timer { .. } => Outcome::Unit(Ok(())),
            Op::Accept { .. }
            | Op::Recv { .. }
            | Op::HungUp { .. }
            | Op::Send { .. }
            | Op::RecvDescriptors { .. }
            | Op::SendDescriptor { .. }
            | Op::WaitEvent { .. }
            | Op::SignalEvent { .. } => refusal(op, Errno::EOPNOTSUPP),
            op => refusal(op, EBADF),
        }
    }

    fn zero(&mut self, node: NodeId, offset: u64, len: u64, punch: bool, stamp: u64) -> Result<(), Errno> {
        if !offset.is_multiple_of(SECTOR) || !len.is_multiple_of(SECTOR) {
            return Err(Errno::EINVAL);
        }
        let (file, space) = self.fs.file_mut(node)?;
        file.zero(byte_range(offset, len)?, punch, stamp, space)
    }

    fn read(&mut self, node: NodeId, offset: u64, out: &mut [u8]) -> Result<usize, Errno> {
        let (file, _) = self.fs.file_mut(node)?;
        file.evict_some(&mut self.rng);
        let end = offset.saturating_add(out.len() as u64).min(file.size());
        if offset < end && file.unreadable.strikes(&(offset..end)) {
            return Err(Errno::EIO);
        }
        Ok(file.read(offset, out))
    }

    /// Fails an operation. A write with an I/O error may have reached the medium in part. A flush reports an error
    /// once, and the data that it should have made durable may be forgotten. `covers` is the event of the operation's
    /// submission.
    pub(crate) fn fail(&mut self, op: Op, node: Option<NodeId>, errno: Errno, covers: u64) -> Outcome {
        if let (Op::Flush { .. }, Some(node)) = (&op, node)
            && let Ok((file, _)) = self.fs.file_mut(node)
        {
            file.flush_failed(covers, self.options.page_cache, &mut self.rng);
        }
        if let (Op::Write { offset, data, .. }, Some(node), Errno::EIO) = (&op, node, errno)
            && let Ok((file, _)) = self.fs.file_mut(node)
        {
            file.write_failed(*offset, data, self.events, &mut self.rng);
        }
        refusal(op, errno)
    }

    fn write(&mut self, op: Op, node: NodeId) -> Result<u64, Errno> {
        let Op::Write { offset, data, .. } = op else { unreachable!("only writes come here") };
        let (file, space) = self.fs.file_mut(node)?;
        file.write(offset, data, self.events, space)
    }

    fn change(&mut self, op: Op, node: NodeId, covers: u64) -> Result<(), Errno> {
        let stamp = self.events;
        match op {
            Op::Flush { .. } => {
                let (file, _) = self.fs.file_mut(node)?;
                file.evict_some(&mut self.rng);
                if !self.ignores_flushes {
                    file.persist(covers);
                }
                Ok(())
            }
            Op::SyncDir { .. } if self.ignores_dir_syncs => Ok(()),
            Op::SyncDir { .. } => self.fs.sync_dir(node, covers),
            Op::Allocate { offset, len, .. } => {
                let (file, space) = self.fs.file_mut(node)?;
                file.allocate(byte_range(offset, len)?, stamp, space)
            }
            Op::Zero { offset, len, punch, .. } => self.zero(node, offset, len, punch, stamp),
            Op::GiveBack { offset, len, .. } => self.zero(node, offset, len, true, stamp),
            Op::SetLen { len, .. } => {
                let (file, space) = self.fs.file_mut(node)?;
                file.set_len(len, stamp, space)
            }
            Op::Rename { from, to, .. } => self.fs.rename(node, &from, &to, stamp),
            Op::Unlink { name, .. } => self.fs.unlink(node, &name, stamp),
            Op::Link { from, to_dir, to, .. } => {
                let to_dir = self.open(to_dir).ok_or(EBADF)?.node;
                self.fs.link(node, &from, to_dir, &to, stamp)
            }
            // This world has no users.
            Op::KeepAttributes { .. } => Ok(()),
            Op::RemoveDir { name, .. } => self.fs.remove_dir(node, &name, stamp),
            _ => unreachable!("answered elsewhere"),
        }
    }

    fn names(&self, dir: NodeId) -> Result<Vec<String>, Errno> {
        let names = self.fs.dir(dir)?.names().iter();
        let mut names: Vec<String> = names
            .map(|(name, &node)| if self.fs.is_dir(node) { format!("{name}/") } else { name.clone() })
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    fn open_named(&mut self, op: Op, dir: NodeId) -> Result<(Handle, Limits), Errno> {
        let (node, name, writable, lock) = match op {
            Op::OpenFile { name, mode, .. } => {
                (self.open_file(dir, &name, mode)?, name, mode != OpenMode::Read, false)
            }
            Op::OpenDir { name, create, .. } => (self.open_dir(dir, &name, create)?, name, false, false),
            Op::Lock { name, .. } => (self.lock_file(dir, &name)?, name, false, true),
            _ => unreachable!("only operations that open come here"),
        };
        let limits = Limits { inode: node.into(), ..self.limits };
        Ok((self.add_open(node, &name, writable, lock), limits))
    }

    fn open_file(&mut self, dir: NodeId, name: &str, mode: OpenMode) -> Result<NodeId, Errno> {
        if mode == OpenMode::CreateNew {
            return self.fs.create(dir, name, false, self.events);
        }
        let node = self.fs.lookup(dir, name)?;
        let (file, _) = self.fs.file_mut(node)?;
        if self.options.page_cache && mode == OpenMode::Write {
            // The io_uring reactor does the same there.
            file.drop_cached(self.events, &mut self.rng);
        }
        Ok(node)
    }

    fn open_dir(&mut self, dir: NodeId, name: &str, create: bool) -> Result<NodeId, Errno> {
        match self.fs.lookup(dir, name) {
            Err(Errno::ENOENT) if create => self.fs.create(dir, name, true, self.events),
            Ok(node) if !self.fs.is_dir(node) => Err(ENOTDIR),
            found => found,
        }
    }

    fn lock_file(&mut self, dir: NodeId, name: &str) -> Result<NodeId, Errno> {
        let node = match self.fs.lookup(dir, name) {
            Err(Errno::ENOENT) => self.fs.create(dir, name, false, self.events)?,
            found => found?,
        };
        self.fs.lock(node)?;
        Ok(node)
    }

    /// Makes another handle of the file that the handle of this number has open.
    pub(crate) fn open_again(&mut self, number: u64) -> Result<Handle, Errno> {
        let shared = usize::try_from(number).ok().and_then(|at| self.opens.get(at)?.as_ref());
        let (node, name, writable) =
            shared.map(|open| (open.node, open.name.clone(), open.writable)).ok_or(EBADF)?;
        Ok(self.add_open(node, &name, writable, false))
    }

    pub(crate) fn add_open(&mut self, node: NodeId, name: &str, writable: bool, lock: bool) -> Handle {
        self.fs.open(node);
        let name: Rc<str> = name.into();
        let open = Some(Open { node, name_hash: hash_name(&name), name, writable, lock, deadline: None });
        // There are few, long-lived handles; a linear search keeps their numbers small.
        let at = self.opens.iter().position(Option::is_none).unwrap_or_else(|| {
            self.opens.push(None);
            self.opens.len() - 1
        });
        self.opens[at] = open;
        Handle(u32::try_from(at).expect("fewer than 2^32 handles"))
    }
}
