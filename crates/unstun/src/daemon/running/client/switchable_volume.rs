//! Volume of a running disk that a move replaces between two polls, while clients are attached.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use api::ClientAccess;
use blk::Result;
use blk::socket::{ClientId, Peer};
use blk::sync::{Admission, Admitted};
use blk::volume::Volume;
use engine::{Client, Machine};

use crate::log::Reported;

pub(crate) struct Switch {
    current: RefCell<Rc<dyn Volume>>,
    /// Requests under way, in the current and the earlier volumes.
    requests: Rc<Admission>,
    /// Number of changes that wait for space. They do not count as under way.
    waiting: Cell<u64>,
}

impl Switch {
    fn new(volume: Rc<dyn Volume>) -> Rc<Switch> {
        Rc::new(Switch { current: RefCell::new(volume), requests: Rc::default(), waiting: Cell::new(0) })
    }

    pub(crate) fn current(&self) -> Rc<dyn Volume> {
        self.current.borrow().clone()
    }

    /// Makes `volume` the disk from the next request on. Resolves when all requests that were under way have ended.
    pub(crate) fn replace(&self, volume: Rc<dyn Volume>) -> impl Future<Output = ()> + use<> {
        *self.current.borrow_mut() = volume;
        self.drain()
    }

    /// Resolves when all requests that are under way have ended.
    pub(crate) fn drain(&self) -> impl Future<Output = ()> + use<> {
        self.requests.drain()
    }

    /// Returns the current volume for one request. A replacement of the volume can wait for the end of that request.
    pub(crate) fn enter(&self) -> (Admitted, Rc<dyn Volume>) {
        (self.requests.enter(), self.current())
    }

    /// Counts a change as waiting for space. Returns whether it is the only one.
    pub(crate) fn begin_wait(&self) -> bool {
        self.waiting.update(|n| n + 1);
        self.waiting.get() == 1
    }

    /// Ends the wait of a change. Returns whether it was the last one.
    pub(crate) fn end_wait(&self) -> bool {
        self.waiting.update(|n| n - 1);
        self.waiting.get() == 0
    }
}

/// Access of a connection to its disk. It is decided at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The connection has not requested a change yet.
    Undecided,
    /// The connection's client writes the disk.
    Writes,
    /// Another client writes the disk.
    ReadOnly,
}

impl Access {
    pub(crate) fn shown(self) -> ClientAccess {
        match self {
            Access::Undecided => ClientAccess::Connected,
            Access::Writes => ClientAccess::Writes,
            Access::ReadOnly => ClientAccess::ReadOnly,
        }
    }
}

/// Client of a running disk, counted by the VM that the disk belongs to now.
pub(crate) struct Guest {
    pub number: u32,
    pub peer: Peer,
    pub access: Cell<Access>,
    /// None after the VM has gone to another core, which counts the client.
    counted: RefCell<Option<Rc<Client>>>,
}

/// Clients that use a VM's running disks through its exports.
#[derive(Default)]
pub(crate) struct Guests {
    switches: RefCell<BTreeMap<u32, Weak<Switch>>>,
    clients: RefCell<Vec<Weak<Guest>>>,
    /// Whether the user wants changes that find no space to wait.
    pub waits_for_space: Cell<bool>,
    /// Whether the user allows several clients to write one disk.
    pub shared_writers: Cell<bool>,
    refusals: Reported<(ClientId, Option<ClientId>)>,
}

impl Guests {
    /// Returns the switchable volume of a disk, created with `volume`. All clients of the disk share it.
    pub(crate) fn switch(&self, number: u32, volume: Rc<dyn Volume>) -> Rc<Switch> {
        let mut switches = self.switches.borrow_mut();
        if let Some(known) = switches.get(&number).and_then(Weak::upgrade) {
            return known;
        }
        let switch = Switch::new(volume);
        switches.insert(number, Rc::downgrade(&switch));
        switch
    }

    /// Returns the number of changes that wait for space, on all disks.
    pub(crate) fn waiting(&self) -> u64 {
        let switches = self.switches.borrow();
        switches.values().filter_map(Weak::upgrade).map(|switch| switch.waiting.get()).sum()
    }

    pub(crate) fn enter(&self, counted: Rc<Client>, peer: &Peer) -> Rc<Guest> {
        let (number, access) = (counted.disk, Cell::new(Access::Undecided));
        let guest =
            Rc::new(Guest { number, peer: peer.clone(), access, counted: RefCell::new(Some(counted)) });
        let mut clients = self.clients.borrow_mut();
        clients.retain(|known| known.strong_count() > 0);
        clients.push(Rc::downgrade(&guest));
        guest
    }

    /// Returns whether this refusal of `client` has not been reported yet; `other` is the client that caused it, if
    /// any. A client tries several times for one connection, and QEMU reconnects every few seconds.
    pub(crate) fn is_news(&self, client: ClientId, other: Option<ClientId>) -> bool {
        self.refusals.is_news((client, other))
    }

    /// Returns the clients of one disk in the order of their connection.
    pub(crate) fn of_disk(&self, number: u32) -> Vec<Rc<Guest>> {
        let clients = self.clients.borrow();
        clients.iter().filter_map(Weak::upgrade).filter(|guest| guest.number == number).collect()
    }

    /// Returns the access of the client of that name to the disk.
    pub(crate) fn access(&self, number: u32, name: &str) -> Access {
        let found = self.of_disk(number).into_iter().find(|guest| guest.peer.name == name);
        found.map_or(Access::Undecided, |guest| guest.access.get())
    }

    /// Returns the connected clients, each with its counter in `vm`. No client may be admitted meanwhile.
    pub(crate) async fn counted_by(&self, vm: &dyn Machine) -> Result<Vec<(Rc<Guest>, Rc<Client>)>> {
        let present: Vec<_> = self.clients.borrow().iter().filter_map(Weak::upgrade).collect();
        let mut counted = Vec::with_capacity(present.len());
        for guest in present {
            let (_, client) = vm.attach(guest.number, &guest.peer.name).await?;
            counted.push((guest, client));
        }
        Ok(counted)
    }
}

impl Guest {
    pub(crate) fn count_as(&self, client: Rc<Client>) {
        self.counted.replace(Some(client));
    }

    /// Ends the count on this core.
    pub(crate) fn end_count(&self) {
        self.counted.take();
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use blk::uring::UringReactor;
    use blk::volume::{BlockStatus, VolumeInfo, ZeroMode};
    use blk::{Buf, Executor, Local, Slice};

    use super::*;

    /// Disk that only counts its flushes.
    #[derive(Default)]
    struct Disk(Cell<u32>);

    impl Volume for Disk {
        fn info(&self) -> VolumeInfo {
            VolumeInfo { size_bytes: 512, read_only: false, preferred_bytes: 512, fast_zero: false }
        }

        fn read(self: Rc<Self>, _: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
            Box::pin(std::future::ready((buf, Ok(()))))
        }

        fn write(self: Rc<Self>, _: u64, _: Slice) -> Local<'static, Result<()>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
            self.0.set(self.0.get() + 1);
            Box::pin(std::future::ready(Ok(())))
        }

        fn discard(self: Rc<Self>, _: Range<u64>) -> Local<'static, Result<()>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn write_zeroes(self: Rc<Self>, _: Range<u64>, _: ZeroMode) -> Local<'static, Result<()>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn status(self: Rc<Self>, _: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
            Box::pin(std::future::ready(Ok(Vec::new())))
        }
    }

    #[test]
    fn a_disk_is_replaced_under_its_clients_and_its_writes_are_waited_for() {
        let executor = Executor::new(Rc::new(UringReactor::new().unwrap()));
        let done = executor.run(async {
            let guests = Guests::default();
            let (old, new) = (Rc::new(Disk::default()), Rc::new(Disk::default()));
            let switch = guests.switch(0, old.clone());
            assert!(Rc::ptr_eq(&switch, &guests.switch(0, new.clone())), "one for all clients");
            let (admitted, volume) = switch.enter();
            let write = volume.write(0, Buf::zeroed(512).freeze());
            let drained = std::pin::pin!(switch.replace(new.clone()));
            let drained = match futures_util::future::select(drained, std::future::ready(())).await {
                futures_util::future::Either::Left(_) => panic!("a write was under way"),
                futures_util::future::Either::Right(((), drained)) => drained,
            };
            write.await.unwrap();
            drop(admitted);
            drained.await;
            switch.current().flush().await.unwrap();
            assert_eq!((old.0.get(), new.0.get()), (0, 1));
        });
        assert!(done.is_some());
    }
}
