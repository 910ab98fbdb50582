//! One writer for each running disk: which client may write it, and the check that every connection passes.
//!
//! A client claims a disk with its first write, trim or write of zeros, and holds it until its last connection closes.
//! Other clients that connect meanwhile may read. All connections of one process (of one address, over TCP) are one
//! client.

use std::pin::pin;
use std::rc::Rc;

use blk::socket::ClientId;
use blk::uring::look_up_process;
use blk::{Env, Error, Result};
use futures_util::future::{Either, select};
use tracing::warn;

use crate::daemon::running::client::client_gate::ClientGate;
use crate::daemon::running::client::switchable_volume::{Access, Guest};
use crate::daemon::running::messages::ControlSide;

/// Maximum time in microseconds that a client waits for the last requests of a writer whose process has ended. The
/// kernel's own client outlives the process that made its connection. In that case the wait times out, and the client
/// may only read.
const LAST_REQUESTS_US: u64 = 3_000_000;

/// Clients of one running disk, from the view of one of them.
pub(crate) struct DiskClient {
    pub vm: String,
    /// Name of the disk, such as `web/disk0`.
    pub disk: String,
    pub gate: Rc<ClientGate>,
    pub guest: Rc<Guest>,
    pub control: ControlSide,
}

impl DiskClient {
    /// Decides the access of a new connection. Waits while the only other writers are processes that have ended.
    pub(crate) async fn admit(&self, env: &Env) {
        let mut late = pin!(env.sleep_us(LAST_REQUESTS_US));
        let mut waits = true;
        loop {
            let left = self.gate.someone_left();
            let others = self.other_writers();
            if let Some(other) = others.iter().find(|other| !waits || !has_ended(other.peer.client)) {
                return self.keep_from_writing(other, "can read but not write");
            }
            if others.is_empty() {
                break;
            }
            waits = matches!(select(pin!(left), &mut late).await, Either::Left(_));
        }
        if self.clients().iter().any(|guest| self.is_same(guest) && guest.access.get() == Access::Writes) {
            self.guest.access.set(Access::Writes);
        }
    }

    /// Claims the disk for the first change that the connection requests.
    pub(crate) fn claim(&self) -> Result<()> {
        if self.guest.access.get() == Access::Undecided {
            match self.other_writers().first() {
                Some(other) => self.keep_from_writing(other, "was refused a write"),
                None => self.hold(),
            }
        }
        match self.guest.access.get() {
            Access::ReadOnly => Err(self.refusal()),
            _ => Ok(()),
        }
    }

    /// Gives the claim to all of the client's connections, so that it lasts until the last of them closes.
    fn hold(&self) {
        let clients = self.clients();
        let own =
            clients.iter().filter(|guest| self.is_same(guest) && guest.access.get() == Access::Undecided);
        own.for_each(|guest| guest.access.set(Access::Writes));
    }

    fn keep_from_writing(&self, writer: &Guest, what: &str) {
        self.guest.access.set(Access::ReadOnly);
        let (disk, peer) = (&self.disk, &self.guest.peer);
        if self.gate.guests.is_news(peer.client, Some(writer.peer.client)) {
            let sentence = format!("{peer} {what}: {disk} is written by {}", writer.peer);
            warn!("VM {}: {sentence}", self.vm);
            self.control.note(&self.vm, &sentence);
        }
    }

    fn refusal(&self) -> Error {
        let others = self.other_writers();
        let writer = others.first().map_or("another client", |other| other.peer.name.as_str());
        let remedy = "only one client may write a disk at a time; stop that client and connect again, or allow \
                      several with `unstun vm set VM --shared-writers on`";
        Error::refused(&self.disk, format!("{writer} writes this disk; {remedy}"))
    }

    fn clients(&self) -> Vec<Rc<Guest>> {
        self.gate.guests.of_disk(self.guest.number)
    }

    fn is_same(&self, guest: &Guest) -> bool {
        guest.peer.client == self.guest.peer.client
    }

    /// Returns the other clients that write the disk. The list is empty if several clients may write.
    fn other_writers(&self) -> Vec<Rc<Guest>> {
        if self.gate.guests.shared_writers.get() {
            return Vec::new();
        }
        let mut clients = self.clients();
        clients.retain(|guest| guest.access.get() == Access::Writes && !self.is_same(guest));
        clients
    }
}

/// Returns whether the client's process has ended. The answer is true only for a process that `/proc` has shown.
fn has_ended(client: ClientId) -> bool {
    match client {
        ClientId::Process { pid, started: Some(started) } => {
            look_up_process(pid).is_none_or(|(_, now)| now != started)
        }
        _ => false,
    }
}
