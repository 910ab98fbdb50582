//! The split ring ("Split Virtqueues" of virtio 1.2): requests in, answers out.
//!
//! Everything in a ring is written by a guest: indices may jump, descriptors may point anywhere, and chains may have no
//! end. A ring that contradicts itself is an error for its client; nothing is read outside the client's memory.

use std::sync::atomic::{Ordering, fence};

use super::address_space::{AddressSpace, Place};
use super::message::RingAddresses;
use super::protocol::CHAIN_DESCRIPTORS_MAX;

const DESCRIPTOR_BYTES: u64 = 16;
const FLAG_NEXT: u16 = 1;
const FLAG_WRITE: u16 = 2;
const FLAG_INDIRECT: u16 = 4;
/// The guest wants no interrupts (without event-idx).
const AVAILABLE_NO_INTERRUPT: u16 = 1;
/// The device wants no kicks (without event-idx).
const USED_NO_NOTIFY: u16 = 1;
/// Flags and index in front of the entries of both rings.
const RING_HEADER: u64 = 4;

/// A run of bytes of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub address: u64,
    pub len: u32,
}

/// The descriptors of one request: those that the device reads, then those that it writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chain {
    pub readable: Vec<Segment>,
    pub writable: Vec<Segment>,
}

/// What is wrong with a ring.
pub(super) type Fault = String;

/// One ring of a guest, with the position of this process in it.
pub(super) struct Ring {
    entries: u16,
    descriptors: Place,
    available: Place,
    used: Place,
    /// Guest address of the used ring if its changes are logged.
    log: Option<u64>,
    event_idx: bool,
    indirect: bool,
    next_available: u16,
    next_used: u16,
    /// Index of the used ring at the last interrupt; None before the first.
    signalled: Option<u16>,
}

/// Features that change a ring's layout or rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RingRules {
    pub event_idx: bool,
    pub indirect: bool,
}

struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn of(bytes: &[u8; DESCRIPTOR_BYTES as usize]) -> Descriptor {
        let (address, rest) = bytes.split_first_chunk().expect("16 bytes");
        let (len, rest) = rest.split_first_chunk().expect("8 bytes");
        let (flags, next) = rest.split_first_chunk().expect("4 bytes");
        Descriptor {
            address: u64::from_le_bytes(*address),
            len: u32::from_le_bytes(*len),
            flags: u16::from_le_bytes(*flags),
            next: u16::from_le_bytes(next.try_into().expect("2 bytes")),
        }
    }
}

impl Ring {
    /// Places a ring in the memory of its guest. `base` is the first entry that was not taken yet.
    pub(super) fn new(
        space: &AddressSpace,
        addresses: &RingAddresses,
        entries: u16,
        rules: RingRules,
        base: u16,
    ) -> Result<Ring, Fault> {
        let n = u64::from(entries);
        let place = |what: &str, address, len, align| {
            let outside =
                || format!("the {what} at {address:#x} is not inside one region of the guest's memory");
            space.place(address, len, align).ok_or_else(outside)
        };
        let mut ring = Ring {
            entries,
            descriptors: place("table of descriptors", addresses.descriptors, n * DESCRIPTOR_BYTES, 16)?,
            available: place("ring of requests", addresses.available, RING_HEADER + 2 * n + 2, 2)?,
            used: place("ring of answers", addresses.used, RING_HEADER + 8 * n + 2, 4)?,
            log: addresses.logged.then_some(addresses.log),
            event_idx: rules.event_idx,
            indirect: rules.indirect,
            next_available: base,
            next_used: 0,
            signalled: None,
        };
        ring.next_used =
            ring.used.memory.load_u16(ring.used.at + 2).ok_or("the ring of answers is not aligned")?;
        Ok(ring)
    }

    pub(super) fn entries(&self) -> u16 {
        self.entries
    }

    /// Returns the position in the ring of requests: of the next one that was not taken.
    pub(super) fn next_available(&self) -> u16 {
        self.next_available
    }

    pub(super) fn set_next_available(&mut self, next: u16) {
        self.next_available = next;
    }

    /// Returns the position in the ring of answers.
    pub(super) fn next_used(&self) -> u16 {
        self.next_used
    }

    /// Keeps the position of an earlier placement of this ring.
    pub(super) fn follow(&mut self, earlier: &Ring) {
        (self.next_available, self.signalled) = (earlier.next_available, earlier.signalled);
        self.next_used = earlier.next_used;
    }

    /// Returns the head of the next request, or None if there is none.
    pub(super) fn next_head(&self) -> Result<Option<u16>, Fault> {
        let index = self.available.memory.load_u16(self.available.at + 2).ok_or("the ring is not aligned")?;
        let waiting = index.wrapping_sub(self.next_available);
        if waiting > self.entries {
            return Err(format!("{waiting} requests wait in a ring of {} entries", self.entries));
        }
        if waiting == 0 {
            return Ok(None);
        }
        let at = self.available.at + RING_HEADER + 2 * u64::from(self.next_available % self.entries);
        let head = self.available.memory.load_u16(at).ok_or("the ring is not aligned")?;
        if head >= self.entries {
            return Err(format!("descriptor {head} of a ring of {} entries", self.entries));
        }
        Ok(Some(head))
    }

    /// Steps over the request that `next_head` returned.
    pub(super) fn take(&mut self) {
        self.next_available = self.next_available.wrapping_add(1);
    }

    /// Reads the descriptors of a request, all of which must be in the guest's memory. None if there are more than
    /// `most`.
    pub(super) fn chain(&self, space: &AddressSpace, head: u16, most: usize) -> Result<Option<Chain>, Fault> {
        let mut chain = Chain { readable: Vec::new(), writable: Vec::new() };
        let mut next = head;
        let mut length = 0;
        loop {
            if next >= self.entries {
                return Err(format!("descriptor {next} of a ring of {} entries", self.entries));
            }
            let mut bytes = [0; DESCRIPTOR_BYTES as usize];
            let at = self.descriptors.at + u64::from(next) * DESCRIPTOR_BYTES;
            self.descriptors.memory.read(at, &mut bytes).ok_or("a descriptor outside of its table")?;
            let descriptor = Descriptor::of(&bytes);
            length += 1;
            if length > usize::from(self.entries) {
                return Err("a chain of more descriptors than the ring has".to_owned());
            }
            if descriptor.flags & FLAG_INDIRECT != 0 {
                let is_whole = self.read_indirect(space, &descriptor, &mut chain, most)?;
                return Ok(is_whole.then_some(chain));
            }
            if chain.len() == most {
                return Ok(None);
            }
            chain.add(space, &descriptor)?;
            if descriptor.flags & FLAG_NEXT == 0 {
                return Ok(Some(chain));
            }
            next = descriptor.next;
        }
    }

    /// Reads a table of descriptors, which ends the chain. Returns false if the chain has more than `most` then.
    fn read_indirect(
        &self,
        space: &AddressSpace,
        descriptor: &Descriptor,
        chain: &mut Chain,
        most: usize,
    ) -> Result<bool, Fault> {
        let len = descriptor.len as usize;
        let count = len / DESCRIPTOR_BYTES as usize;
        if !self.indirect || descriptor.flags & FLAG_NEXT != 0 {
            return Err("an indirect descriptor that is not allowed there".to_owned());
        }
        if !len.is_multiple_of(DESCRIPTOR_BYTES as usize) || count == 0 || count > CHAIN_DESCRIPTORS_MAX {
            return Err(format!("an indirect table of {len} bytes"));
        }
        if chain.len() + count > most {
            return Ok(false);
        }
        // Copied once, so that what is checked is what is used.
        let mut table = vec![0; len];
        space
            .read(descriptor.address, &mut table)
            .ok_or("an indirect table outside of the guest's memory")?;
        let (descriptors, _) = table.as_chunks::<{ DESCRIPTOR_BYTES as usize }>();
        let mut next = 0;
        for _ in 0..count {
            let descriptor = Descriptor::of(descriptors.get(next).ok_or("a link out of an indirect table")?);
            if descriptor.flags & FLAG_INDIRECT != 0 {
                return Err("an indirect descriptor in an indirect table".to_owned());
            }
            chain.add(space, &descriptor)?;
            if descriptor.flags & FLAG_NEXT == 0 {
                return Ok(true);
            }
            next = usize::from(descriptor.next);
        }
        Err("a chain without an end in an indirect table".to_owned())
    }

    /// Puts an answer into the ring. `before` and `after` surround the moment from which the guest sees it.
    pub(super) fn answer(
        &mut self,
        space: &AddressSpace,
        head: u16,
        len: u32,
        publish: impl FnOnce(u16, &mut dyn FnMut()),
    ) {
        let slot = RING_HEADER + 8 * u64::from(self.next_used % self.entries);
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&len.to_le_bytes());
        // The whole ring was inside its region when it was placed, and regions never shrink.
        let _ = self.used.memory.write(self.used.at + slot, &entry);
        let next = self.next_used.wrapping_add(1);
        publish(next, &mut || {
            let _ = self.used.memory.store_u16(self.used.at + 2, next);
        });
        self.next_used = next;
        if let Some(log) = self.log {
            space.log_dirty(log.saturating_add(slot), 8);
            space.log_dirty(log.saturating_add(2), 2);
        }
    }

    /// Returns whether the guest wants an interrupt for the answers since the last one ("Used Buffer Notification
    /// Suppression"). The caller then signals.
    pub(super) fn wants_interrupt(&mut self) -> bool {
        // The guest writes its wish and then looks at the index; this process does it the other way around.
        fence(Ordering::SeqCst);
        if !self.event_idx {
            let flags = self.available.memory.load_u16(self.available.at).unwrap_or(0);
            return flags & AVAILABLE_NO_INTERRUPT == 0;
        }
        let at = self.available.at + RING_HEADER + 2 * u64::from(self.entries);
        let wanted = self.available.memory.load_u16(at).unwrap_or(0);
        let before = self.signalled.replace(self.next_used);
        before.is_none_or(|before| passes(wanted, self.next_used, before))
    }

    /// Requests a kick for the next request ("Available Buffer Notification Suppression"). Returns whether a request
    /// has arrived already, for which there may be no kick.
    pub(super) fn enable_kicks(&mut self, space: &AddressSpace) -> Result<bool, Fault> {
        let (at, value) = match self.event_idx {
            true => (RING_HEADER + 8 * u64::from(self.entries), self.next_available),
            false => (0, 0),
        };
        let _ = self.used.memory.store_u16(self.used.at + at, value);
        if let Some(log) = self.log {
            space.log_dirty(log.saturating_add(at), 2);
        }
        fence(Ordering::SeqCst);
        self.next_head().map(|head| head.is_some())
    }

    /// Suppresses kicks while requests are taken anyway. With event-idx the last position does that by itself.
    pub(super) fn disable_kicks(&mut self) {
        if !self.event_idx {
            let _ = self.used.memory.store_u16(self.used.at, USED_NO_NOTIFY);
        }
    }
}

/// Returns whether an index has passed the position for which an event is wanted, going from `before` to `now`.
fn passes(wanted: u16, now: u16, before: u16) -> bool {
    now.wrapping_sub(wanted).wrapping_sub(1) < now.wrapping_sub(before)
}

impl Chain {
    fn len(&self) -> usize {
        self.readable.len() + self.writable.len()
    }

    fn add(&mut self, space: &AddressSpace, descriptor: &Descriptor) -> Result<(), Fault> {
        let segment = Segment { address: descriptor.address, len: descriptor.len };
        if !space.contains(segment.address, segment.len) {
            let Segment { address, len } = segment;
            return Err(format!("{len} bytes at {address:#x}, outside of the guest's memory"));
        }
        match descriptor.flags & FLAG_WRITE != 0 {
            true => self.writable.push(segment),
            false if self.writable.is_empty() => self.readable.push(segment),
            false => return Err("a readable descriptor behind a writable one".to_owned()),
        }
        Ok(())
    }
}
