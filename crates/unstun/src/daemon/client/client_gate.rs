//! Gate through which clients reach a VM's disks. It counts the clients. An operation closes it while it replaces the
//! disks.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

use api::VmClient;
use api::error::{Error, Result};
use blk::Env;
use blk::sync::Signal;
use export::nbd::FrontEnd;
use futures_util::future::{Either, select};

use crate::daemon::client::switchable_volume::Guests;
use crate::daemon::vm::vm_record::VmRecord;

/// Maximum time in microseconds until disconnected clients are gone: their requests run to their end first. A request
/// that waits for space on a full datastore may never end; the operation is refused then.
const GONE_WITHIN_US: u64 = 20_000_000;

/// Interval in microseconds between two checks. A client that has chosen its disk is not listed under it before its
/// first request.
const LOOK_AGAIN_US: u64 = 50_000;

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

impl VmRecord {
    /// Disconnects the clients `who`, and waits until none of their requests is under way. Returns these clients. The
    /// gate stays closed as long as the returned `Shut` lives.
    pub(crate) async fn disconnect(
        &self,
        env: &Env,
        front_end: &FrontEnd,
        who: Who,
    ) -> Result<(Vec<VmClient>, Shut)> {
        let shut = self.gate.shut();
        let clients = self.present(who);
        let gone = pin!(self.gone(env, front_end, who));
        let late = pin!(env.sleep_us(GONE_WITHIN_US));
        match select(gone, late).await {
            Either::Left(((), _)) => Ok((clients, shut)),
            Either::Right(_) => Err(Error::refused(format!(
                "VM {}: {} clients were cut {} s ago, and requests of theirs are still under way (a full datastore \
                 holds writes back); nothing was changed",
                self.name,
                self.present(who).len(),
                GONE_WITHIN_US / 1_000_000
            ))),
        }
    }

    pub(crate) fn present(&self, who: Who) -> Vec<VmClient> {
        let mut clients = self.writers();
        if who == Who::All {
            clients.extend(self.readers());
        }
        clients
    }

    async fn gone(&self, env: &Env, front_end: &FrontEnd, who: Who) {
        loop {
            // The wait is registered before the check, so that no change between the two is missed.
            let changed = self.gate.changed.wait();
            self.cut(front_end, who);
            if self.present(who).is_empty() && self.gate.entering.get() == 0 {
                return;
            }
            select(pin!(changed), pin!(env.sleep_us(LOOK_AGAIN_US))).await;
        }
    }

    fn cut(&self, front_end: &FrontEnd, who: Who) {
        let prefix = format!("{}/disk", self.name);
        for session in front_end.sessions() {
            let writes = !session.export.contains('@');
            if session.export.starts_with(&prefix) && (writes || who == Who::All) {
                front_end.disconnect(session.id);
            }
        }
    }
}
