//! One writer for each running disk: which client may write it, and the check that every connection passes.
//!
//! A client claims a disk with its first write, trim or write of zeros, and holds it until its last connection closes.
//! Other clients that connect meanwhile may read. All connections of one process (of one address, over TCP) are one
//! client.

use std::cell::Cell;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;

use blk::socket::ClientId;
use blk::sync::Signal;
use blk::uring::look_up_process;
use blk::volume::{BlockStatus, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Env, Error, Local, Result, Slice};
use futures_util::future::{Either, select};
use tracing::warn;

use crate::daemon::running::client::client_gate::ClientGate;
use crate::daemon::running::client::switchable_volume::{Access, Guest, Switch};
use crate::daemon::running::messages::ControlSide;

/// Maximum time in microseconds that a client waits for the last requests of a writer whose process has ended. The
/// kernel's own client outlives the process that made its connection. In that case the wait times out, and the client
/// may only read.
const LAST_REQUESTS_US: u64 = 3_000_000;

/// Time in microseconds between two attempts of a change that waits for space.
const SPACE_RETRY_US: u64 = 250_000;

/// Clients of one running disk, from the view of one of them.
pub(crate) struct DiskClient {
    pub vm: String,
    /// Name of the disk, such as `web/disk0`.
    pub disk: String,
    pub gate: Rc<ClientGate>,
    pub guest: Rc<Guest>,
    pub control: ControlSide,
}

/// Change of a disk that waits for space.
struct Waiting {
    switch: Rc<Switch>,
    client: Rc<DiskClient>,
}

impl Waiting {
    fn begin(switch: &Rc<Switch>, client: &Rc<DiskClient>) -> Waiting {
        if switch.begin_wait() {
            client.control.space(&client.vm, &client.disk, true);
        }
        Waiting { switch: switch.clone(), client: client.clone() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.switch.end_wait() {
            self.client.control.space(&self.client.vm, &self.client.disk, false);
        }
    }
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
    fn claim(&self) -> Result<()> {
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

/// One connection's view of a running disk.
///
/// A change that finds no space waits here and holds no resource of the disk. Operations that free space can therefore
/// pass, a move can take the VM to another datastore, and the wait ends with its client.
pub(crate) struct ClientVolume {
    env: Env,
    switch: Rc<Switch>,
    client: Rc<DiskClient>,
    /// Whether the connection holds the claim; no further check is needed then.
    may_write: Cell<bool>,
    /// Whether the connection has closed.
    gone: Cell<bool>,
    /// Number of times that the waits for space were ended; a request that began before does not wait again.
    ended_waits: Cell<u64>,
    left: Signal,
}

impl ClientVolume {
    pub(crate) fn new(env: Env, switch: Rc<Switch>, client: Rc<DiskClient>) -> Rc<ClientVolume> {
        let (may_write, gone, ended_waits) = (Cell::new(false), Cell::new(false), Cell::new(0));
        Rc::new(ClientVolume { env, switch, client, may_write, gone, ended_waits, left: Signal::default() })
    }

    fn change(
        self: Rc<Self>,
        on: impl Fn(Rc<dyn Volume>) -> Local<'static, Result<()>> + 'static,
    ) -> Local<'static, Result<()>> {
        if !self.may_write.get() {
            if let Err(e) = self.client.claim() {
                return Box::pin(std::future::ready(Err(e)));
            }
            self.may_write.set(true);
        }
        self.when_space(on)
    }

    /// Runs `on`, for which a guest waits. If the disk has no space, repeats `on` as the VM's policy says.
    fn when_space(
        self: Rc<Self>,
        on: impl Fn(Rc<dyn Volume>) -> Local<'static, Result<()>> + 'static,
    ) -> Local<'static, Result<()>> {
        let (mut admitted, mut volume) = self.switch.enter();
        Box::pin(async move {
            let (mut waiting, mut may_be_made) = (None, true);
            let began = self.ended_waits.get();
            loop {
                let result = on(volume).await;
                drop(admitted);
                if may_be_made && result.as_ref().is_err_and(Error::is_no_space) && self.may_wait(began) {
                    let left = pin!(self.left.wait());
                    let room = pin!(self.client.control.make_room(&self.client.vm));
                    may_be_made = matches!(select(left, room).await, Either::Right((true, _)));
                    if may_be_made {
                        (admitted, volume) = self.switch.enter();
                        continue;
                    }
                }
                if !result.as_ref().is_err_and(|e| self.waits_after(e, began)) {
                    return result;
                }
                waiting.get_or_insert_with(|| Waiting::begin(&self.switch, &self.client));
                select(pin!(self.left.wait()), pin!(self.env.sleep_us(SPACE_RETRY_US))).await;
                (admitted, volume) = self.switch.enter();
            }
        })
    }

    fn waits_after(&self, error: &Error, began: u64) -> bool {
        error.is_no_space() && self.client.gate.guests.waits_for_space.get() && self.may_wait(began)
    }

    fn may_wait(&self, began: u64) -> bool {
        !self.gone.get() && self.ended_waits.get() == began
    }
}

impl Volume for ClientVolume {
    fn info(&self) -> VolumeInfo {
        let info = self.switch.current().info();
        let refused = self.client.guest.access.get() == Access::ReadOnly;
        VolumeInfo { read_only: info.read_only || refused, ..info }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        self.switch.current().read(offset, buf)
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        self.change(move |disk| disk.write(offset, data.clone()))
    }

    /// Flushes the disk. A flush writes tables, which may find no space where nothing is overwritten in place.
    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        self.when_space(|disk| disk.flush())
    }

    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>> {
        self.change(move |disk| disk.discard(range.clone()))
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        self.change(move |disk| disk.write_zeroes(range.clone(), mode))
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        self.switch.current().status(range)
    }

    fn abandon(&self) {
        self.gone.set(true);
        self.left.notify();
    }

    fn end_waits(&self) {
        self.ended_waits.update(|n| n + 1);
        self.left.notify();
    }
}
