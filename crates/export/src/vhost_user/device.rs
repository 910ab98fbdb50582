//! The device of one connection: carries out the client's messages.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::event::Event;
use blk::passed::Descriptor;
use blk::socket::Socket;
use blk::uring::SharedMemory;
use blk::{Buf, Error, Result};

use super::config;
use super::inflight::queue_bytes;
use super::message::{self, InflightLayout, Region, Request};
use super::protocol::*;
use super::queue::Queue;
use super::session::Session;
use super::tasks;

pub(super) struct Device {
    session: Rc<Session>,
    queues: Vec<Rc<Queue>>,
    /// Protocol features that the client has accepted.
    protocol: Cell<u64>,
    /// Records of requests under way; kept mapped for queues that start later.
    records: RefCell<Option<Rc<SharedMemory>>>,
    /// The channel for messages to the client.
    channel: RefCell<Option<Rc<Socket>>>,
}

/// What a message is answered with.
pub(super) enum Reply {
    /// Nothing, or an acknowledgement if the client has requested one.
    Done,
    /// A refusal, if the client has requested an acknowledgement. The connection goes on.
    Declined,
    Payload(Vec<u8>),
    /// A payload with a descriptor.
    Passed(Vec<u8>, Descriptor),
}

fn number(value: u64) -> Reply {
    Reply::Payload(value.to_le_bytes().to_vec())
}

impl Device {
    pub(super) fn new(session: &Rc<Session>) -> Device {
        let queues: Vec<_> = (0..QUEUES_MAX).map(|index| Queue::new(index, session)).collect();
        queues.iter().for_each(tasks::spawn);
        Device {
            session: session.clone(),
            queues,
            protocol: Cell::new(0),
            records: RefCell::default(),
            channel: RefCell::default(),
        }
    }

    pub(super) fn queues(&self) -> &[Rc<Queue>] {
        &self.queues
    }

    fn queue(&self, index: u16) -> &Rc<Queue> {
        // `message` has checked the index.
        &self.queues[usize::from(index)]
    }

    fn invalid<T>(&self, cause: impl Into<String>) -> Result<T> {
        Err(Error::invalid(&self.session.export, cause))
    }

    /// Carries out a message. The error ends the connection.
    pub(super) async fn carry_out(&self, request: Request, mut passed: Vec<Descriptor>) -> Result<Reply> {
        let file = passed.pop();
        match request {
            Request::GetFeatures => return Ok(number(config::features(&self.session.volume.info()))),
            Request::SetFeatures(features) => self.set_features(features)?,
            Request::SetOwner | Request::SetLogFd => {}
            Request::ResetOwner => self.stop_all().await,
            Request::SetMemTable(regions) => {
                passed.extend(file);
                let space = self.session.space.borrow().replaced(&regions, &passed)?;
                self.use_memory(space)?;
            }
            Request::AddRegion(region) => self.add_region(&region, file)?,
            Request::RemoveRegion(region) => {
                let space = self.session.space.borrow().without(&region)?;
                self.use_memory(space)?;
            }
            Request::GetMemorySlots => return Ok(number(REGIONS_MAX as u64)),
            Request::SetLogBase { bytes, offset } => return self.set_log(bytes, offset, file),
            Request::GetProtocolFeatures => return Ok(number(config::PROTOCOL_FEATURES)),
            Request::SetProtocolFeatures(features) => self.protocol.set(features & config::PROTOCOL_FEATURES),
            Request::GetQueueNumber => return Ok(number(u64::from(QUEUES_MAX))),
            Request::SetBackendChannel => self.set_channel(file)?,
            Request::GetConfig { offset, len, flags } => return Ok(self.config(offset, len, flags)),
            // No field may be changed by the guest: the mode of the cache is not offered.
            Request::SetConfig => return Ok(Reply::Declined),
            Request::GetInflight(layout) => return self.make_records(layout),
            Request::SetInflight(layout) => self.set_records(layout, file)?,
            other => return self.carry_out_on_queue(other, file).await,
        }
        Ok(Reply::Done)
    }

    async fn carry_out_on_queue(&self, request: Request, file: Option<Descriptor>) -> Result<Reply> {
        let env = &self.session.env;
        let event = || file.map(|file| Event::new(env, file)).transpose();
        match request {
            Request::SetRingEntries { queue, entries } => self.queue(queue).set_entries(entries)?,
            Request::SetRingAddresses { queue, addresses } => {
                self.queue(queue).set_addresses(addresses)?;
                self.queue(queue).activate()?;
            }
            Request::SetRingBase { queue, base } => self.queue(queue).set_base(base)?,
            Request::SetKick { queue, .. } => self.queue(queue).set_kick(event()?)?,
            Request::SetCall { queue, .. } => self.queue(queue).set_call(event()?),
            // An error ends the connection, which the client notices by itself.
            Request::SetError { .. } => drop(event()?),
            Request::EnableRing { queue, enabled } => self.queue(queue).enable(enabled)?,
            Request::GetRingBase { queue } => {
                let base = self.queue(queue).stop().await;
                let fields = [u32::from(queue), u32::from(base)];
                return Ok(Reply::Payload(fields.iter().flat_map(|field| field.to_le_bytes()).collect()));
            }
            other => return self.invalid(format!("{other:?} is not a message to a queue")),
        }
        Ok(Reply::Done)
    }

    /// Sets the features. A client does that with running rings too, when it begins to log changes.
    fn set_features(&self, features: u64) -> Result<()> {
        // The disk may have become writable for this client since it asked; what counts is the present state.
        let offered = config::features(&self.session.volume.info()) | F_RO;
        if features & !offered != 0 {
            return self.invalid(format!("features {:#x} that were not offered", features & !offered));
        }
        self.session.features.set(features);
        self.queues.iter().try_for_each(|queue| queue.place_again())
    }

    fn add_region(&self, region: &Region, file: Option<Descriptor>) -> Result<()> {
        let Some(file) = file else { return self.invalid("a region of memory without its file") };
        let space = self.session.space.borrow().with(region, &file)?;
        self.use_memory(space)
    }

    /// Uses another table of memory from now on. Requests under way keep theirs.
    fn use_memory(&self, space: super::address_space::AddressSpace) -> Result<()> {
        self.session.space.replace(Rc::new(space));
        self.queues.iter().try_for_each(|queue| queue.place_again())
    }

    fn set_log(&self, bytes: u64, offset: u64, file: Option<Descriptor>) -> Result<Reply> {
        let Some(file) = file else { return self.invalid("a log of dirty memory without its file") };
        self.session.space.borrow().set_log(SharedMemory::map(&file, offset, bytes)?);
        Ok(number(0))
    }

    fn set_channel(&self, file: Option<Descriptor>) -> Result<()> {
        let Some(file) = file else { return self.invalid("a channel without its socket") };
        let socket = Socket::adopt(&self.session.env, file, self.session.peer.clone())?;
        self.channel.replace(Some(Rc::new(socket)));
        Ok(())
    }

    fn config(&self, offset: u32, len: u32, flags: u32) -> Reply {
        let bytes = config::read(&self.session.volume.info(), offset, len);
        let len = bytes.len() as u32;
        let mut payload: Vec<u8> =
            [offset, len, flags].iter().flat_map(|field| field.to_le_bytes()).collect();
        payload.extend(bytes);
        Reply::Payload(payload)
    }

    /// Creates records for the client to keep.
    fn make_records(&self, layout: InflightLayout) -> Result<Reply> {
        let bytes = queue_bytes(layout.entries) * u64::from(layout.queues);
        let (_, file) = SharedMemory::create("unstun-inflight", bytes)?;
        let mut payload = Vec::new();
        payload.extend(bytes.to_le_bytes());
        payload.extend(0u64.to_le_bytes());
        payload.extend(layout.queues.to_le_bytes());
        payload.extend(layout.entries.to_le_bytes());
        // The client's structure has four bytes of padding at its end.
        payload.extend([0; 4]);
        Ok(Reply::Passed(payload, file))
    }

    fn set_records(&self, layout: InflightLayout, file: Option<Descriptor>) -> Result<()> {
        let Some(file) = file else { return self.invalid("records of requests without their file") };
        let memory = Rc::new(SharedMemory::map(&file, layout.offset, layout.bytes)?);
        let queues = &self.queues[..usize::from(layout.queues)];
        queues.iter().try_for_each(|queue| queue.set_records(&memory))?;
        self.records.replace(Some(memory));
        Ok(())
    }

    async fn stop_all(&self) {
        for queue in &self.queues {
            queue.stop().await;
        }
    }

    /// Notices another size of the disk, and tells the client if it listens.
    pub(super) fn notice_size(&self) {
        let mut disk = self.session.disk.get();
        let size_bytes = self.session.volume.info().size_bytes;
        if disk.size_bytes == size_bytes {
            return;
        }
        disk.size_bytes = size_bytes;
        self.session.disk.set(disk);
        if let Some(channel) = self.channel.borrow().clone() {
            let bytes = message::encode(BACKEND_CONFIG_CHANGE, VERSION, &[]);
            self.session.env.spawn_detached(Box::pin(async move {
                // A client that does not read its channel keeps the old size.
                let _ = channel.send(vec![Buf::copy_of(&bytes).freeze()]).await;
            }));
        }
    }

    /// Closes the channel, which ends a send under way.
    pub(super) fn close(&self) {
        self.channel.replace(None);
        self.queues.iter().for_each(|queue| queue.wake());
    }
}
