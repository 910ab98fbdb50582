//! Gate through which clients reach a VM's disks. It counts the clients. An operation closes it while it replaces the
//! disks.

use std::cell::Cell;
use std::rc::Rc;

use blk::sync::Signal;

use crate::daemon::running::client::switchable_volume::Guests;

/// Selection of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// Clients of running disks.
    Writers,
    /// Clients of running disks and of sealed states.
    All,
}

#[derive(Default)]
pub(crate) struct ClientGate {
    /// Number of operations that keep the gate closed.
    held: Cell<usize>,
    /// Number of clients that are being admitted.
    entering: Cell<usize>,
    /// Signal that a client has left or was admitted.
    changed: Signal,
    pub guests: Guests,
}

/// Keeps the gate closed until it is dropped.
pub(crate) struct Shut(Rc<ClientGate>);

impl Drop for Shut {
    fn drop(&mut self) {
        self.0.held.set(self.0.held.get() - 1);
    }
}

/// A client that is being admitted. An operation that closes the gate waits for it.
pub(crate) struct Entering(Rc<ClientGate>);

impl Drop for Entering {
    fn drop(&mut self) {
        self.0.entering.set(self.0.entering.get() - 1);
        self.0.changed.notify();
    }
}

/// Token of a connected client. Its drop signals that the client has left.
pub(crate) struct Leaving(Rc<ClientGate>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.changed.notify();
    }
}

impl ClientGate {
    /// Admits a client that reads or writes.
    pub(crate) fn enter(self: &Rc<Self>, vm: &str) -> blk::Result<Entering> {
        if self.held.get() > 0 {
            let cause = "its clients are being disconnected for a change of its disks; try again";
            return Err(blk::Error::refused(format!("VM {vm}"), cause));
        }
        self.entering.set(self.entering.get() + 1);
        Ok(Entering(self.clone()))
    }

    /// Returns whether a client is being admitted and does not count as a client yet.
    pub(crate) fn is_entered(&self) -> bool {
        self.entering.get() > 0
    }

    /// Closes the gate, and returns once no client is being admitted.
    pub(crate) async fn shut_behind(self: &Rc<Self>) -> Shut {
        let shut = self.shut();
        loop {
            let changed = self.changed.wait();
            if !self.is_entered() {
                return shut;
            }
            changed.await;
        }
    }

    /// Resolves when a client has left, or was admitted after all.
    pub(crate) fn someone_left(&self) -> impl Future<Output = ()> + '_ {
        self.changed.wait()
    }

    pub(crate) fn leaving(self: &Rc<Self>) -> Leaving {
        Leaving(self.clone())
    }

    pub(crate) fn shut(self: &Rc<Self>) -> Shut {
        self.held.set(self.held.get() + 1);
        Shut(self.clone())
    }
}
