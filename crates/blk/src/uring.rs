//! The reactor of the real world: files, sockets and time on one io_uring per core.
//!
//! Submission follows measurements of servers of virtual disks. Transfers are submitted to the kernel as soon as they
//! are queued (at most one batch later), everything else in the next turn. While several transfers are under way, the
//! core watches the ring briefly before it sleeps. Absent on purpose: SQPOLL (halves throughput on small hosts),
//! zero-copy sends (more expensive below 16 KiB), min_wait (unstable gains).
//!
//! Calls without a ring operation on the supported kernels (5.11 and later) run on a files thread for each file system,
//! calls on paths on threads of their own, and long calculation on another. All `unsafe` of the data plane is in
//! `uring::ring`, `uring::work`, `uring::message` and `uring::shared_memory`.

// This is the source of real time.
#![allow(clippy::disallowed_methods)]

mod age;
mod blocking;
mod client;
mod clock;
pub(crate) mod closing;
mod compute;
mod core;
mod descriptor;
mod events;
mod files;
mod freeing;
mod handles;
mod images;
mod memory;
mod message;
mod net;
mod open;
mod owners;
mod peer;
mod plan;
mod reservations;
mod ring;
mod shared;
mod shared_memory;
mod spin;
mod task;
mod wake;
mod work;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};

pub use self::client::ClientStream;
use self::clock::{boot_ns, clock_ns, now_ns};
use self::compute::ComputeThread;
use self::core::Core;
pub use self::events::new_event;
use self::files::FilesThreads;
pub use self::memory::MemoryFolder;
use self::open::{Kind, Opened};
pub use self::peer::look_up_process;
use self::ring::Ring;
pub use self::ring::{Counters, SUBMIT_BATCH};
pub use self::shared_memory::SharedMemory;
pub use self::spin::SPIN_US;
use self::wake::EventWaker;
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::fence::Deadline;
use crate::memory::Memory;
use crate::passed::Descriptor;
use crate::reactor::OffloadedWork;
use crate::reactor::{Handle, Op, Outcome, Pending, Reactor, SharedDescriptor, Token, Waker};

/// One core's reactor. Belongs to the thread that made it.
pub struct UringReactor {
    core: RefCell<Core>,
    waker: Arc<EventWaker>,
    /// Buffer for wakers, reused by every wake-up.
    spare: RefCell<Vec<std::task::Waker>>,
    memory: RefCell<Option<Rc<dyn Memory>>>,
    compute: ComputeThread,
}

impl UringReactor {
    /// Creates the reactor. Fails with `Refused` where io_uring is forbidden or absent, and names the cause.
    pub fn new() -> Result<UringReactor> {
        let ring = Ring::new().map_err(|e| {
            let sysctl = std::fs::read_to_string(SYSCTL_PATH).ok();
            explain(&e, sysctl.as_deref())
        })?;
        let waker =
            EventWaker::new().map_err(|e| Errno::from(e).at("eventfd", "making the core's wake-up"))?;
        let waker = Arc::new(waker);
        let files = FilesThreads::new(waker.clone());
        let compute = ComputeThread::start()
            .map_err(|e| Errno::from(e).at("calculation thread", "starting the thread"))?;
        let core = RefCell::new(Core::new(ring, files, waker.clone()));
        Ok(UringReactor { core, waker, spare: RefCell::default(), memory: RefCell::default(), compute })
    }

    /// Listens on a Unix socket with mode 0660. A socket file on which no process answers is replaced; `Locked` if a
    /// process answers. Closing the handle removes the file.
    pub fn listen_unix(&self, path: &str) -> Result<Handle> {
        net::listen_unix(path).map(|opened| self.adopt_opened(opened))
    }

    /// Listens on "HOST:PORT". Accepted connections send without delay, and detect a vanished peer after two minutes.
    pub fn listen_tcp(&self, address: &str) -> Result<Handle> {
        net::listen_tcp(address).map(|opened| self.adopt_opened(opened))
    }

    /// Returns the address of a TCP handle, for the port that "HOST:0" was given.
    pub fn local_address(&self, handle: Handle) -> Result<SocketAddr, Errno> {
        let core = self.core.borrow();
        let address = rustix::net::getsockname(&*core.entry(handle)?.fd)?;
        SocketAddr::try_from(address).map_err(Errno::from)
    }

    /// Keeps this process's files in memory there from now on. Called before the first disk is opened.
    pub fn keep_in(&self, memory: MemoryFolder) {
        self.memory.replace(Some(Rc::new(memory)));
    }

    /// Counts the open descriptors of files, folders and locks in `open_files` from now on, together with other reactors
    /// of the process. Called before anything is opened.
    pub fn count_files_in(&self, open_files: Arc<AtomicU64>) {
        self.core.borrow_mut().count_files_in(open_files);
    }

    /// Returns the counts of the ring since it was created.
    pub fn counters(&self) -> Counters {
        self.core.borrow().ring.counters
    }

    /// Returns notices for the operator since the last call. Each notice occurs once.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.core.borrow_mut().notices)
    }

    fn adopt_opened(&self, opened: Opened) -> Handle {
        self.core.borrow_mut().adopt(opened, None)
    }

    /// Runs `what`, and then the wakers: they may call back, so the core must be free again.
    fn with_core(&self, what: impl FnOnce(&mut Core)) {
        let mut woken = self.spare.take();
        {
            let mut core = self.core.borrow_mut();
            what(&mut core);
            std::mem::swap(&mut core.woken, &mut woken);
        }
        woken.drain(..).for_each(std::task::Waker::wake);
        self.spare.replace(woken);
    }
}

impl Reactor for UringReactor {
    fn submit(&self, op: Op) -> Token {
        self.core.borrow_mut().submit(op)
    }

    fn poll(&self, token: Token, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.core.borrow_mut().poll(token, cx)
    }

    fn forget(&self, token: Token) {
        self.core.borrow_mut().forget(token);
    }

    fn adopt(&self, descriptor: Descriptor) -> Result<Handle, Errno> {
        let fd = events::stream(descriptor)?;
        Ok(self.adopt_opened(Opened { fd, kind: Kind::Stream, notice: None, shared: None, device: None }))
    }

    fn close(&self, handle: Handle) {
        self.core.borrow_mut().close(handle);
    }

    fn open_files(&self) -> u64 {
        self.core.borrow().open_files()
    }

    fn release_stream(&self, socket: Handle) -> Option<OwnedFd> {
        self.core.borrow_mut().release_stream(socket)
    }

    fn adopt_stream(&self, fd: OwnedFd) -> Option<Handle> {
        Some(self.adopt_opened(Opened { fd, kind: Kind::Stream, notice: None, shared: None, device: None }))
    }

    fn share(&self, file: Handle) -> Result<SharedDescriptor, Errno> {
        let core = self.core.borrow();
        let entry = core.entry(file)?;
        if let Kind::Image(image) = &entry.kind {
            return Ok(SharedDescriptor::Image(image.clone()));
        }
        let (fd, limits, device) = (entry.fd.try_clone()?, entry.kind.limits(), entry.device);
        Ok(SharedDescriptor::Descriptor { fd, limits, device })
    }

    fn adopt_shared(&self, descriptor: SharedDescriptor) -> Result<Handle, Errno> {
        let (fd, limits, device) = match descriptor {
            SharedDescriptor::Descriptor { fd, limits, device } => (fd, limits, device),
            SharedDescriptor::Image(image) => return Ok(self.adopt_opened(images::opened(image)?)),
            SharedDescriptor::Number(_) => return Err(Errno::EINVAL),
        };
        let kind = Kind::File(limits);
        Ok(self.adopt_opened(Opened { fd, kind, notice: None, shared: None, device }))
    }

    fn open_root(&self, path: &str) -> Result<Handle, Errno> {
        open::open_root(path).map(|opened| self.adopt_opened(opened))
    }

    fn submit_open_root(&self, path: &str) -> Option<Token> {
        Some(self.core.borrow_mut().open_root(path))
    }

    fn trust_owner(&self, dir: Handle) -> Result<(), Errno> {
        self.core.borrow_mut().trust_owner(dir)
    }

    fn can_hang(&self) -> bool {
        true
    }

    fn pending(&self, handle: Handle) -> Option<Pending> {
        self.core.borrow_mut().pending(handle)
    }

    fn fence(&self, file: Handle, deadline: Arc<Deadline>) {
        self.core.borrow_mut().fence(file, deadline);
    }

    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn poll_clock_ns(&self) -> Option<u64> {
        Some(now_ns())
    }

    fn thread_ns(&self) -> u64 {
        clock_ns(rustix::time::ClockId::ThreadCPUTime)
    }

    fn boot_ns(&self) -> u64 {
        boot_ns()
    }

    fn unix_us(&self) -> i64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        now.tv_sec * 1_000_000 + now.tv_nsec / 1000
    }

    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        // Eight bytes are never cut short, and never interrupted once the system has booted.
        while rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(bytes.len()) {}
        u64::from_ne_bytes(bytes)
    }

    fn memory(&self) -> Option<Rc<dyn Memory>> {
        self.memory.borrow().clone()
    }

    fn turn(&self) {
        self.with_core(Core::turn);
    }

    /// Always true, because another thread may wake a task even if nothing is under way here.
    fn wait(&self) -> bool {
        self.with_core(Core::wait);
        true
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.waker.clone()
    }

    fn run_offloaded(&self, work: OffloadedWork) {
        self.compute.run(work);
    }

    fn run_blocking(&self, call: OffloadedWork) {
        self.core.borrow().blocking.run(call);
    }
}

const SYSCTL_PATH: &str = "/proc/sys/kernel/io_uring_disabled";

/// Explains to an administrator why there is no ring. `sysctl` is the content of kernel.io_uring_disabled: 0 allows, 1
/// needs CAP_SYS_ADMIN or a group (kernel.io_uring_group), 2 forbids (Linux 6.6,
/// Documentation/admin-guide/sysctl/kernel.rst).
fn explain(error: &std::io::Error, sysctl: Option<&str>) -> Error {
    const PLACE: &str = "io_uring";
    let sysctl = sysctl.map(str::trim);
    let refused = |cause: String| Error::new(ErrorKind::Refused, PLACE, cause);
    match (error.kind(), error.raw_os_error().map(Errno)) {
        (_, Some(Errno::EPERM | Errno::EACCES)) => match sysctl {
            Some(value @ ("1" | "2")) => refused(format!(
                "forbidden by the sysctl kernel.io_uring_disabled = {value}; allow it with: sysctl -w kernel.io_uring_disabled=0"
            )),
            _ => refused(
                "forbidden, and not by the sysctl kernel.io_uring_disabled: a seccomp profile does it, as the \
                 default ones of container runtimes do; run with a profile that allows io_uring_setup, \
                 io_uring_enter and io_uring_register"
                    .to_string(),
            ),
        },
        (_, Some(e)) if e == rustix::io::Errno::NOSYS.into() => refused(
            "the system call is missing: the kernel is older than 5.11 or built without io_uring, or a seccomp \
             profile hides it (container runtimes)"
                .to_string(),
        ),
        (std::io::ErrorKind::Unsupported, None) => {
            refused("the kernel's io_uring is too old; 5.11 or later is needed".to_string())
        }
        _ => Error::new(ErrorKind::Io, PLACE, format!("making the ring: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(errno: i32, sysctl: Option<&str>) -> String {
        let error = explain(&std::io::Error::from_raw_os_error(errno), sysctl);
        assert_eq!(error.kind, ErrorKind::Refused);
        error.to_string()
    }

    #[test]
    fn an_error_names_the_setting_that_forbids_io_uring() {
        assert!(said(1, Some("2\n")).contains("kernel.io_uring_disabled = 2"));
        assert!(said(1, Some("1\n")).contains("kernel.io_uring_disabled = 1"));
        assert!(said(1, Some("0\n")).contains("seccomp"));
        assert!(said(1, None).contains("seccomp"));
        assert!(said(38, None).contains("seccomp"));
        let old = explain(&std::io::Error::from(std::io::ErrorKind::Unsupported), None);
        assert!(old.cause.contains("5.11"));
    }
}
