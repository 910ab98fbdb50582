//! The simulated reactor: one boot of a world, as the executor uses it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use blk::Errno;
use blk::fence::Deadline;
use blk::memory::Memory;
use blk::reactor::{Handle, Op, Outcome, Reactor, SharedDescriptor, Token, Waker};

use crate::machine::{Machine, Step};
use crate::reservations::HostNumber;

/// Calendar time at which a world begins: 2026-01-01 00:00 UTC.
const EPOCH_UNIX_US: i64 = 1_767_225_600_000_000;

/// Reactor of one boot. It is dead as soon as its world boots again: it then accepts all operations and completes none.
#[derive(Clone)]
pub struct SimReactor {
    machine: Rc<RefCell<Machine>>,
    boot: u32,
}

impl SimReactor {
    pub(crate) fn new(machine: Rc<RefCell<Machine>>) -> SimReactor {
        let boot = machine.borrow().boot;
        SimReactor { machine, boot }
    }

    /// Runs `act` unless this boot is over.
    fn alive<T>(&self, act: impl FnOnce(&mut Machine) -> T) -> Option<T> {
        let mut machine = self.machine.borrow_mut();
        (machine.boot == self.boot).then(|| act(&mut machine))
    }

    /// Submits an operation of one of several machines.
    pub(crate) fn submit_from(&self, host: HostNumber, op: Op) -> Token {
        self.alive(|machine| machine.submit(host, op)).unwrap_or(Token(u32::MAX))
    }

    /// Returns whether an operation on the file would pass its fence now.
    pub(crate) fn is_admitted(&self, file: Handle) -> bool {
        self.alive(|machine| machine.is_admitted(file)).unwrap_or(false)
    }
}

impl Reactor for SimReactor {
    fn submit(&self, op: Op) -> Token {
        self.submit_from(0, op)
    }

    fn poll(&self, token: Token, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.alive(|machine| machine.poll(token, cx.waker())).unwrap_or(Poll::Pending)
    }

    fn forget(&self, token: Token) {
        self.alive(|machine| machine.forget(token));
    }

    fn close(&self, handle: Handle) {
        self.alive(|machine| machine.close(handle));
    }

    fn share(&self, file: Handle) -> Result<SharedDescriptor, Errno> {
        Ok(SharedDescriptor::Number(file.0.into()))
    }

    /// Opens the file again, which the sharing handle keeps open until then.
    fn adopt_shared(&self, descriptor: SharedDescriptor) -> Result<Handle, Errno> {
        let SharedDescriptor::Number(number) = descriptor else { return Err(Errno::EINVAL) };
        self.alive(|machine| machine.open_again(number)).unwrap_or(Err(Errno::EIO))
    }

    fn open_root(&self, path: &str) -> Result<Handle, Errno> {
        self.alive(|machine| machine.open_root(path)).unwrap_or(Err(Errno::EIO))
    }

    fn fence(&self, file: Handle, deadline: Arc<Deadline>) {
        self.alive(|machine| machine.fence(file, deadline));
    }

    fn now_ns(&self) -> u64 {
        self.machine.borrow().now_ns
    }

    /// A world of one machine is never suspended; the machines of `hosts` are.
    fn boot_ns(&self) -> u64 {
        self.now_ns()
    }

    fn unix_us(&self) -> i64 {
        let machine = self.machine.borrow();
        EPOCH_UNIX_US + (machine.now_ns / 1000) as i64 + machine.clock_ahead_us
    }

    fn random(&self) -> u64 {
        self.machine.borrow_mut().entropy.u64()
    }

    fn memory(&self) -> Option<Rc<dyn Memory>> {
        Some(Rc::new(self.clone()))
    }

    fn turn(&self) {
        if let Some(Step::Wake(waker)) = self.alive(Machine::turn) {
            waker.wake();
        }
    }

    fn wait(&self) -> bool {
        loop {
            match self.alive(Machine::step) {
                None | Some(Step::Nothing) => return false,
                Some(Step::Quiet) => {}
                Some(Step::Wake(waker)) => {
                    waker.wake();
                    return true;
                }
            }
        }
    }

    fn waker(&self) -> Arc<dyn Waker> {
        Arc::new(NoThreads)
    }
}

/// Memory of the host, which outlives the process. What a process does to it after its end is dropped.
impl Memory for SimReactor {
    fn boot(&self) -> u64 {
        (self.machine.borrow().cuts + 1) << 1
    }

    fn machine(&self) -> u64 {
        1
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        self.machine.borrow().memory.get(name).cloned()
    }

    fn append(&self, name: &str, bytes: &[u8]) -> Result<(), Errno> {
        self.alive(|machine| {
            let kept = if machine.ignores_memory_writes { &[] } else { bytes };
            machine.memory.entry(name.to_owned()).or_default().extend_from_slice(kept);
        });
        Ok(())
    }

    fn clear(&self, name: &str) -> Result<(), Errno> {
        self.alive(|machine| machine.memory.insert(name.to_owned(), Vec::new()));
        Ok(())
    }

    fn remove(&self, name: &str) {
        self.alive(|machine| machine.memory.remove(name));
    }

    fn list(&self) -> Vec<String> {
        self.machine.borrow().memory.keys().cloned().collect()
    }
}

/// Waker of a world without other threads.
pub(crate) struct NoThreads;

impl Waker for NoThreads {
    fn wake(&self) {}
}
