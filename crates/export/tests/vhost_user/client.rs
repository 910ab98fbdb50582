//! A small vhost-user client without a guest: memory, one ring, and requests with which a driver would fill it.

#![allow(dead_code)]

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use blk::passed::Descriptor;
use blk::uring::{SharedMemory, new_event};
use export::vhost_user::protocol::request::*;
use export::vhost_user::protocol::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

pub(crate) const MEMORY_BYTES: u64 = 16 << 20;
/// Where the client's process has the guest's memory: another number than the guest's own.
pub(crate) const USER: u64 = 0x7000_0000_0000;
pub(crate) const DESCRIPTORS: u64 = 0;
pub(crate) const AVAILABLE: u64 = 0x4000;
pub(crate) const USED: u64 = 0x5000;
/// Headers, statuses and data of requests, by slot.
const HEADERS: u64 = 0x8000;
const STATUSES: u64 = 0xc000;
pub(crate) const DATA: u64 = 0x10_0000;
/// Data of one slot.
pub(crate) const SLOT_BYTES: u64 = 64 << 10;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

pub(crate) struct Client {
    pub stream: UnixStream,
    pub memory: SharedMemory,
    pub file: Descriptor,
    pub kick: Descriptor,
    pub call: Descriptor,
    pub entries: u16,
    pub event_idx: bool,
    /// Next entry of the ring of requests, and of the ring of answers.
    pub next: u16,
    pub seen: u16,
    pub inflight: Option<(Descriptor, Vec<u8>)>,
}

/// The features that a modern guest accepts.
pub(crate) const FEATURES: u64 =
    F_VERSION_1 | F_EVENT_IDX | F_INDIRECT | F_FLUSH | F_DISCARD | F_WRITE_ZEROES | F_PROTOCOL_FEATURES;

impl Client {
    /// Connects, without any message yet.
    pub(crate) fn connect(socket: &Path, entries: u16) -> Client {
        let (memory, file) = SharedMemory::create("guest", MEMORY_BYTES).unwrap();
        let (kick, call) = (new_event().unwrap(), new_event().unwrap());
        Client::over(socket, entries, (memory, file), (kick, call))
    }

    fn over(
        socket: &Path,
        entries: u16,
        (memory, file): (SharedMemory, Descriptor),
        (kick, call): (Descriptor, Descriptor),
    ) -> Client {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client {
            stream,
            memory,
            file,
            kick,
            call,
            entries,
            event_idx: true,
            next: 0,
            seen: 0,
            inflight: None,
        }
    }

    /// Connects anew with the same memory, as after the death of the server.
    pub(crate) fn reconnect(mut self, socket: &Path) -> Client {
        self.stream = UnixStream::connect(socket).unwrap();
        self.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        self
    }

    pub(crate) fn send(&self, request: u32, flags: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        self.try_send(request, flags, payload, files).unwrap();
    }

    pub(crate) fn try_send(
        &self,
        request: u32,
        flags: u32,
        payload: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<usize> {
        let mut bytes = Vec::new();
        for field in [request, VERSION | flags, payload.len() as u32] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(payload);
        let mut space = [MaybeUninit::uninit(); 128];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
    }

    /// Receives a reply: its payload, and a descriptor if one came.
    pub(crate) fn reply(&mut self, request: u32) -> (Vec<u8>, Option<OwnedFd>) {
        let mut head = [0; HEADER_BYTES];
        let mut space = [MaybeUninit::uninit(); 64];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut vectors = [std::io::IoSliceMut::new(&mut head)];
        let got = recvmsg(&self.stream, &mut vectors, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        assert_eq!(got.bytes, HEADER_BYTES, "a reply to {request}");
        let mut file = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut files) = message {
                file = files.next();
            }
        }
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4) & FLAG_REPLY), (request, FLAG_REPLY));
        let mut payload = vec![0; word(8) as usize];
        self.stream.read_exact(&mut payload).unwrap();
        (payload, file)
    }

    pub(crate) fn ask(&mut self, request: u32, payload: &[u8]) -> u64 {
        self.send(request, 0, payload, &[]);
        u64::from_le_bytes(self.reply(request).0[..8].try_into().unwrap())
    }

    /// Sends a message and waits until it was carried out.
    pub(crate) fn acked(&mut self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> u64 {
        self.send(request, FLAG_NEED_REPLY, payload, files);
        u64::from_le_bytes(self.reply(request).0[..8].try_into().unwrap())
    }

    /// Returns the features that the server offers.
    pub(crate) fn offered(&mut self) -> u64 {
        self.ask(GET_FEATURES, &[])
    }

    pub(crate) fn config(&mut self, offset: u32, len: u32) -> Vec<u8> {
        let mut payload: Vec<u8> = [offset, len, 0].iter().flat_map(|n| n.to_le_bytes()).collect();
        payload.resize(12 + len as usize, 0);
        self.send(GET_CONFIG, 0, &payload, &[]);
        self.reply(GET_CONFIG).0.split_off(12)
    }

    pub(crate) fn memory_table(&self) -> Vec<u8> {
        let mut payload: Vec<u8> = [1u32, 0].iter().flat_map(|n| n.to_le_bytes()).collect();
        payload.extend([0, MEMORY_BYTES, USER, 0].iter().flat_map(|n: &u64| n.to_le_bytes()));
        payload
    }

    /// Negotiates and describes memory and ring, with everything but the start of the ring.
    pub(crate) fn set_up(&mut self, features: u64, base: u16) {
        self.event_idx = features & F_EVENT_IDX != 0;
        self.ask(GET_FEATURES, &[]);
        let offered = self.ask(GET_PROTOCOL_FEATURES, &[]);
        let known = PROTOCOL_MQ | PROTOCOL_REPLY_ACK | PROTOCOL_CONFIG | PROTOCOL_INFLIGHT;
        self.send(SET_PROTOCOL_FEATURES, 0, &(known & offered).to_le_bytes(), &[]);
        self.send(SET_OWNER, 0, &[], &[]);
        self.send(SET_FEATURES, 0, &features.to_le_bytes(), &[]);
        let table = self.memory_table();
        let file = self.file.clone();
        assert_eq!(self.acked(SET_MEM_TABLE, &table, &[file.as_fd()]), 0);
        if let Some((file, layout)) = self.inflight.clone() {
            assert_eq!(self.acked(SET_INFLIGHT_FD, &layout, &[file.as_fd()]), 0);
        }
        self.send(SET_VRING_NUM, 0, &pair(0, self.entries.into()), &[]);
        self.send(SET_VRING_BASE, 0, &pair(0, base.into()), &[]);
        self.send(SET_VRING_ADDR, 0, &addresses(USER + DESCRIPTORS, USER + USED, USER + AVAILABLE), &[]);
        let call = self.call.clone();
        self.send(SET_VRING_CALL, 0, &0u64.to_le_bytes(), &[call.as_fd()]);
    }

    pub(crate) fn start(&mut self) {
        let kick = self.kick.clone();
        self.send(SET_VRING_KICK, 0, &0u64.to_le_bytes(), &[kick.as_fd()]);
        assert_eq!(self.acked(SET_VRING_ENABLE, &pair(0, 1), &[]), 0);
    }

    /// Requests records of requests under way, which this client keeps.
    pub(crate) fn get_inflight(&mut self) {
        let mut layout = vec![0; 16];
        layout.extend(1u16.to_le_bytes());
        layout.extend(self.entries.to_le_bytes());
        layout.extend([0; 4]);
        self.send(GET_INFLIGHT_FD, 0, &layout, &[]);
        let (layout, file) = self.reply(GET_INFLIGHT_FD);
        self.inflight = Some((Descriptor::from(file.expect("a file")), layout));
    }

    pub(crate) fn stop(&mut self) -> u16 {
        self.send(GET_VRING_BASE, 0, &pair(0, 0), &[]);
        let (payload, _) = self.reply(GET_VRING_BASE);
        u32::from_le_bytes(payload[4..8].try_into().unwrap()) as u16
    }

    pub(crate) fn put_descriptor(
        &self,
        table: u64,
        index: u64,
        address: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let mut bytes = Vec::new();
        bytes.extend(address.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.memory.write(table + 16 * index, &bytes).unwrap();
    }

    pub(crate) fn header(slot: u64) -> u64 {
        HEADERS + 16 * slot
    }

    pub(crate) fn status_at(slot: u64) -> u64 {
        STATUSES + slot
    }

    pub(crate) fn data(slot: u64) -> u64 {
        DATA + slot * SLOT_BYTES
    }

    /// Fills a slot with a request of three descriptors. Slot n uses the descriptors from 3n on.
    pub(crate) fn prepare(&self, slot: u64, kind: u32, sector: u64, len: u32) {
        let mut header = Vec::new();
        header.extend(kind.to_le_bytes());
        header.extend(0u32.to_le_bytes());
        header.extend(sector.to_le_bytes());
        self.memory.write(Self::header(slot), &header).unwrap();
        self.memory.write(Self::status_at(slot), &[0xff]).unwrap();
        let first = 3 * slot as u16;
        let is_answer = if kind == BLK_IN || kind == BLK_GET_ID { WRITE } else { 0 };
        let status = if len > 0 { first + 2 } else { first + 1 };
        self.put_descriptor(DESCRIPTORS, first.into(), Self::header(slot), 16, NEXT, first + 1);
        if len > 0 {
            self.put_descriptor(
                DESCRIPTORS,
                u64::from(first) + 1,
                Self::data(slot),
                len,
                NEXT | is_answer,
                status,
            );
        }
        self.put_descriptor(DESCRIPTORS, status.into(), Self::status_at(slot), 1, WRITE, 0);
    }

    /// Makes a chain visible to the server.
    pub(crate) fn publish(&mut self, head: u16) {
        let at = AVAILABLE + 4 + 2 * u64::from(self.next % self.entries);
        self.memory.store_u16(at, head).unwrap();
        self.next = self.next.wrapping_add(1);
        self.memory.store_u16(AVAILABLE + 2, self.next).unwrap();
    }

    pub(crate) fn kick(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// Kicks if the server wants a kick for what was published since `before`.
    pub(crate) fn kick_if_wanted(&self, before: u16) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let wanted = match self.event_idx {
            true => {
                let event = self.memory.load_u16(USED + 4 + 8 * u64::from(self.entries)).unwrap();
                self.next.wrapping_sub(event).wrapping_sub(1) < self.next.wrapping_sub(before)
            }
            false => self.memory.load_u16(USED).unwrap() & 1 == 0,
        };
        if wanted {
            self.kick();
        }
    }

    pub(crate) fn used_index(&self) -> u16 {
        self.memory.load_u16(USED + 2).unwrap()
    }

    /// Returns the next answer, a head and a length, if there is one.
    pub(crate) fn answer(&mut self) -> Option<(u32, u32)> {
        if self.used_index() == self.seen {
            return None;
        }
        let mut entry = [0; 8];
        self.memory.read(USED + 4 + 8 * u64::from(self.seen % self.entries), &mut entry).unwrap();
        self.seen = self.seen.wrapping_add(1);
        let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().unwrap());
        Some((word(0), word(4)))
    }

    /// Waits for the next answer by the interrupt, within `ms`.
    pub(crate) fn wait_within(&mut self, ms: i64) -> Option<(u32, u32)> {
        loop {
            self.memory.store_u16(AVAILABLE + 4 + 2 * u64::from(self.entries), self.seen).unwrap();
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            if let Some(answer) = self.answer() {
                return Some(answer);
            }
            let limit = rustix::time::Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
            let mut polled = [PollFd::new(&self.call, PollFlags::IN)];
            if poll(&mut polled, Some(&limit)).unwrap() == 0 {
                return None;
            }
            let _ = rustix::io::read(&self.call, &mut [0; 8][..]);
        }
    }

    pub(crate) fn wait(&mut self) -> (u32, u32) {
        self.wait_within(20_000).expect("an answer within 20 s")
    }

    pub(crate) fn status(&self, slot: u64) -> u8 {
        let mut status = [0];
        self.memory.read(Self::status_at(slot), &mut status).unwrap();
        status[0]
    }

    /// Executes one request in slot 0, and returns its status and the length of its answer.
    pub(crate) fn execute(&mut self, kind: u32, sector: u64, len: u32) -> (u8, u32) {
        self.prepare(0, kind, sector, len);
        let before = self.next;
        self.publish(0);
        self.kick_if_wanted(before);
        let (head, len) = self.wait();
        assert_eq!(head, 0);
        (self.status(0), len)
    }

    pub(crate) fn put_data(&self, slot: u64, bytes: &[u8]) {
        self.memory.write(Self::data(slot), bytes).unwrap();
    }

    pub(crate) fn get_data(&self, slot: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(Self::data(slot), &mut bytes).unwrap();
        bytes
    }

    /// Returns whether the server closes the connection within its time limit.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut bytes = [0; 256];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) => return e.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }

    pub(crate) fn write_raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }
}

pub(crate) fn pair(a: u32, b: u32) -> Vec<u8> {
    [a, b].iter().flat_map(|n| n.to_le_bytes()).collect()
}

pub(crate) fn addresses(descriptors: u64, used: u64, available: u64) -> Vec<u8> {
    let mut payload = pair(0, 0);
    payload.extend([descriptors, used, available, 0].iter().flat_map(|n| n.to_le_bytes()));
    payload
}
