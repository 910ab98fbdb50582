//! Decides where each operation is executed: in the ring, on the files thread of its file system, by a timer, or at
//! once.

use std::sync::Arc;

use super::descriptor::{Device, Fd};
use super::handles::{Entry, Handles};
use super::open::Kind;
use super::task::Task;
use super::work::Work;
use crate::buf::{Buf, Slice};
use crate::error::Errno;
use crate::rbd::{Image, Request, Transfer};
use crate::reactor::{FileExtent, Handle, Op, Outcome};

/// File offsets are signed in the kernel, and -1 would mean "the current position".
const OFFSET_MAX: u64 = i64::MAX as u64;

pub(super) enum Plan {
    Ring(Work),
    Files(Device, Task),
    /// A request to an image of RBD.
    Image(Arc<Image>, Request),
    /// A call that may block, on a thread of its own.
    Blocking(Box<dyn FnOnce() -> Outcome + Send>),
    Timer(u64),
    /// Completed without the kernel.
    Done(Outcome),
}

fn unit(e: Errno) -> Outcome {
    Outcome::Unit(Err(e))
}

fn count(e: Errno) -> Outcome {
    Outcome::Count(Err(e))
}

fn accepted(e: Errno) -> Outcome {
    Outcome::Accepted(Err(e))
}

fn opened(e: Errno) -> Outcome {
    Outcome::Opened(Err(e))
}

/// Returns the task for a handle, or a refusal as the operation's own kind of outcome.
fn files(
    handles: &Handles,
    handle: Handle,
    fail: fn(Errno) -> Outcome,
    make: impl FnOnce(Fd) -> Task,
) -> Plan {
    match handles.get(handle) {
        Ok(entry) => on_thread(entry, make(entry.fd.clone())),
        Err(e) => Plan::Done(fail(e)),
    }
}

/// Returns the plan of a task on a files thread. Sockets have no file system, and no file operation applies to them.
fn on_thread(entry: &Entry, task: Task) -> Plan {
    match entry.device {
        Some(device) => Plan::Files(device, task),
        None => Plan::Done(task.failed(Errno::EINVAL)),
    }
}

/// Returns the task for two handles, on the thread of the first one's file system.
fn both(handles: &Handles, (a, b): (Handle, Handle), make: impl FnOnce(Fd, Fd) -> Task) -> Plan {
    match handles.get(a).and_then(|a| Ok((a, handles.get(b)?))) {
        Ok((a, b)) => on_thread(a, make(a.fd.clone(), b.fd.clone())),
        Err(e) => Plan::Done(unit(e)),
    }
}

fn ring(
    handles: &Handles,
    handle: Handle,
    fail: fn(Errno) -> Outcome,
    make: impl FnOnce(&Entry) -> Work,
) -> Plan {
    match handles.get(handle) {
        Ok(entry) => Plan::Ring(make(entry)),
        Err(e) => Plan::Done(fail(e)),
    }
}

pub(super) fn plan(op: Op, handles: &Handles) -> Plan {
    if let Some(image) = op.file().and_then(|file| handles.image(file)) {
        return plan_image(op, image);
    }
    match op {
        Op::Read { file, offset, buf } => read(handles, file, offset, buf),
        Op::Write { file, offset, data } => write(handles, file, offset, data),
        Op::Flush { file } => ring(handles, file, unit, |f| Work::Flush { fd: f.fd.clone() }),
        Op::Allocate { file, offset, len } => {
            space(handles, file, offset, len, |fd| Work::Reserve { fd, offset, len })
        }
        Op::Zero { file, offset, len, punch: true } => {
            space(handles, file, offset, len, |fd| Work::Zero { fd, offset, len, punch: true })
        }
        Op::Zero { file, offset, len, punch: false } => zero(handles, file, offset, len),
        Op::GiveBack { file, offset, len } => {
            space(handles, file, offset, len, |fd| Work::GiveBack { fd, offset, len })
        }
        Op::SetLen { file, len } => files(handles, file, unit, |fd| Task::SetLen { fd, len }),
        Op::Extents { file, offset, len } => {
            files(handles, file, |e| Outcome::Extents(Err(e)), |fd| Task::Extents { fd, offset, len })
        }
        Op::Size { file } => files(handles, file, count, |fd| Task::Size { fd }),
        Op::Modified { file } => files(handles, file, count, |fd| Task::Modified { fd }),
        Op::Allocated { file } => files(handles, file, count, |fd| Task::Allocated { fd }),
        Op::Reserve { file, step } => files(handles, file, unit, |fd| Task::Reserve { fd, step }),
        Op::OpenFile { dir, name, mode } => {
            files(handles, dir, opened, |dir| Task::OpenFile { dir, name, mode })
        }
        Op::OpenDir { dir, name, create } => files(handles, dir, opened, |dir| Task::OpenDir {
            dir,
            name,
            create,
            owners: handles.owners.clone(),
        }),
        Op::Rename { dir, from, to } => files(handles, dir, unit, |dir| Task::Rename { dir, from, to }),
        Op::Unlink { dir, name } => files(handles, dir, unit, |dir| Task::Unlink { dir, name }),
        Op::Link { dir, from, to_dir, to } => {
            both(handles, (dir, to_dir), |dir, to_dir| Task::Link { dir, from, to_dir, to })
        }
        Op::KeepAttributes { file, like } => {
            both(handles, (file, like), |fd, like| Task::KeepAttributes { fd, like })
        }
        Op::RemoveDir { dir, name } => files(handles, dir, unit, |dir| Task::RemoveDir { dir, name }),
        Op::SyncDir { dir } => files(handles, dir, unit, |dir| Task::SyncDir { dir }),
        Op::List { dir } => files(handles, dir, |e| Outcome::Names(Err(e)), |dir| Task::List { dir }),
        Op::Lock { dir, name } => files(handles, dir, opened, |dir| Task::Lock { dir, name }),
        Op::Space { dir } => files(handles, dir, |e| Outcome::Space(Err(e)), |dir| Task::Space { dir }),
        Op::Timer { at_ns } => Plan::Timer(at_ns),
        Op::Accept { socket } => ring(handles, socket, accepted, |s| Work::Accept {
            fd: s.fd.clone(),
            tcp: matches!(s.kind, Kind::Listener { tcp: true, .. }),
        }),
        Op::Recv { socket, buf, at } => recv(handles, socket, buf, at),
        Op::HungUp { socket } => ring(handles, socket, unit, |s| Work::HungUp { fd: s.fd.clone() }),
        Op::Send { socket, parts } => {
            ring(handles, socket, count, |s| Work::Send { fd: s.fd.clone(), parts, message: None })
        }
        Op::RecvDescriptors { socket, buf, at } => recv_descriptors(handles, socket, buf, at),
        Op::SendDescriptor { socket, data, descriptor } => ring(handles, socket, count, |s| {
            let (fd, parts) = (s.fd.clone(), vec![data]);
            Work::SendDescriptor { fd, parts, descriptor, message: None }
        }),
        Op::WaitEvent { event } => Plan::Ring(Work::WaitEvent { event }),
        Op::SignalEvent { event } => Plan::Ring(Work::SignalEvent { event, count: Box::new(1) }),
    }
}

fn request(image: Arc<Image>, offset: u64, len: u64, transfer: Transfer) -> Plan {
    Plan::Image(image, Request { offset, len, transfer })
}

/// Decides how an operation on an image is executed.
fn plan_image(op: Op, image: Arc<Image>) -> Plan {
    match op {
        Op::Read { offset, buf, .. } => request(image, offset, 0, Transfer::Read(buf)),
        Op::Write { offset, data, .. } => request(image, offset, 0, Transfer::Write(data)),
        Op::Flush { .. } => request(image, 0, 0, Transfer::Flush),
        Op::Zero { len: 0, .. } | Op::GiveBack { len: 0, .. } => Plan::Done(Outcome::Unit(Ok(()))),
        Op::Zero { offset, len, .. } => request(image, offset, len, Transfer::Zero),
        Op::GiveBack { offset, len, .. } => request(image, offset, len, Transfer::Discard),
        Op::SetLen { len, .. } => Plan::Blocking(Box::new(move || Outcome::Unit(image.resize(len)))),
        // The cluster notifies the library of a new size, so this needs no request.
        Op::Size { .. } | Op::Allocated { .. } => Plan::Done(Outcome::Count(image.size_bytes())),
        Op::Modified { .. } => Plan::Done(Outcome::Count(Ok(0))),
        // Nothing can be reserved in a pool, so what is inside of the image counts as reserved.
        Op::Allocate { offset, len, .. } => Plan::Done(Outcome::Unit(reserve(&image, offset, len))),
        Op::Extents { offset, len, .. } => Plan::Done(Outcome::Extents(Ok(vec![FileExtent { offset, len }]))),
        _ => Plan::Done(Outcome::Unit(Err(Errno::EOPNOTSUPP))),
    }
}

fn reserve(image: &Image, offset: u64, len: u64) -> Result<(), Errno> {
    match offset.checked_add(len) {
        Some(end) if end <= image.size_bytes()? => Ok(()),
        _ => Err(Errno::EFBIG),
    }
}

fn read(handles: &Handles, file: Handle, offset: u64, buf: Buf) -> Plan {
    match transfer(handles, file, offset, buf.len() as u64) {
        Ok(entry) => {
            let block = entry.kind.limits().logical_block;
            Plan::Ring(Work::Read { fd: entry.fd.clone(), offset, buf, done: 0, block })
        }
        Err(e) => Plan::Done(Outcome::Read(buf, Err(e))),
    }
}

fn write(handles: &Handles, file: Handle, offset: u64, data: Slice) -> Plan {
    match transfer(handles, file, offset, data.len() as u64) {
        Ok(entry) => {
            let block = entry.kind.limits().logical_block;
            Plan::Ring(Work::Write { fd: entry.fd.clone(), offset, data, done: 0, block })
        }
        Err(e) => Plan::Done(count(e)),
    }
}

fn recv(handles: &Handles, socket: Handle, buf: Buf, at: usize) -> Plan {
    match handles.get(socket) {
        // A receive of no bytes would look like the end of the stream.
        Ok(_) if at >= buf.len() => Plan::Done(Outcome::Read(buf, Err(Errno::EINVAL))),
        Ok(s) => Plan::Ring(Work::Recv { fd: s.fd.clone(), buf, at }),
        Err(e) => Plan::Done(Outcome::Read(buf, Err(e))),
    }
}

fn recv_descriptors(handles: &Handles, socket: Handle, buf: Buf, at: usize) -> Plan {
    match handles.get(socket) {
        Ok(_) if at >= buf.len() => Plan::Done(Outcome::Received(buf, Err(Errno::EINVAL))),
        Ok(s) => Plan::Ring(Work::RecvDescriptors { fd: s.fd.clone(), buf, at, message: None }),
        Err(e) => Plan::Done(Outcome::Received(buf, Err(e))),
    }
}

/// Plans zeros that keep their space. The file system's thread does it, because it needs the size of the file.
fn zero(handles: &Handles, file: Handle, offset: u64, len: u64) -> Plan {
    match check_range(offset, len) {
        Ok(()) if len == 0 => Plan::Done(Outcome::Unit(handles.get(file).map(drop))),
        Ok(()) => files(handles, file, unit, |fd| Task::Zero { fd, offset, len, by_writing: false }),
        Err(e) => Plan::Done(unit(e)),
    }
}

fn transfer(handles: &Handles, file: Handle, offset: u64, len: u64) -> Result<&Entry, Errno> {
    check_range(offset, len)?;
    handles.get(file)
}

fn check_range(offset: u64, len: u64) -> Result<(), Errno> {
    match offset.checked_add(len) {
        Some(end) if end <= OFFSET_MAX => Ok(()),
        _ => Err(Errno::EFBIG),
    }
}

/// Plans an operation on space. It completes at once if its range is empty, which the kernel would report as invalid.
fn space(handles: &Handles, file: Handle, offset: u64, len: u64, make: impl FnOnce(Fd) -> Work) -> Plan {
    match check_range(offset, len).and_then(|()| handles.get(file)) {
        Ok(_) if len == 0 => Plan::Done(Outcome::Unit(Ok(()))),
        Ok(entry) => Plan::Ring(make(entry.fd.clone())),
        Err(e) => Plan::Done(unit(e)),
    }
}
