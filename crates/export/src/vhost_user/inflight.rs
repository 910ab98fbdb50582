//! Records of requests under way, in memory that outlives this process ("Inflight I/O tracking").
//!
//! The client keeps the memory. After the death of this process, the next one learns from it which requests were taken
//! and not answered, and executes them again: nothing is lost, and nothing is answered twice. Each field is written in
//! the order of the specification, so that the records are right wherever the process ends.

use std::rc::Rc;

use blk::uring::SharedMemory;

use super::ring::{Fault, Ring};

/// Features, version, entries, last head, position in the ring of answers.
const HEADER_BYTES: u64 = 16;
const VERSION: u64 = 8;
const ENTRIES: u64 = 10;
const LAST_HEAD: u64 = 12;
const USED_INDEX: u64 = 14;
/// A record: under way (8 bits), padding, the previous answered head (16 bits), number of the request (64 bits).
const RECORD_BYTES: u64 = 16;
const RECORD_NEXT: u64 = 6;
const RECORD_NUMBER: u64 = 8;
/// The records of each queue begin on a cache line.
const ALIGN: u64 = 64;

/// Returns the bytes of one queue's records.
pub(super) fn queue_bytes(entries: u16) -> u64 {
    (HEADER_BYTES + u64::from(entries) * RECORD_BYTES).next_multiple_of(ALIGN)
}

/// The records of one queue.
pub(super) struct Inflight {
    memory: Rc<SharedMemory>,
    at: u64,
    entries: u16,
    /// Number of the next request, which gives the order in which requests were taken.
    number: u64,
    last_head: u16,
}

impl Inflight {
    /// Opens the records of queue `queue`.
    ///
    /// # Errors
    /// The memory is too small for them.
    pub(super) fn open(memory: &Rc<SharedMemory>, queue: u16, entries: u16) -> Result<Inflight, Fault> {
        let at = u64::from(queue) * queue_bytes(entries);
        if at + queue_bytes(entries) > memory.len() {
            return Err(format!(
                "the records of requests have {} bytes, too few for queue {queue}",
                memory.len()
            ));
        }
        Ok(Inflight { memory: memory.clone(), at, entries, number: 0, last_head: 0 })
    }

    fn u16(&self, at: u64) -> u16 {
        self.memory.load_u16(self.at + at).unwrap_or(0)
    }

    fn set_u16(&self, at: u64, value: u16) {
        // The whole of the records is inside the memory.
        let _ = self.memory.store_u16(self.at + at, value);
    }

    fn record(&self, head: u16) -> u64 {
        HEADER_BYTES + u64::from(head) * RECORD_BYTES
    }

    fn is_under_way(&self, head: u16) -> bool {
        let mut byte = [0];
        self.memory.read(self.at + self.record(head), &mut byte).is_some() && byte[0] == 1
    }

    fn set_under_way(&self, head: u16, value: bool) {
        let _ = self.memory.store_u8(self.at + self.record(head), u8::from(value));
    }

    fn number_of(&self, head: u16) -> u64 {
        let mut bytes = [0; 8];
        let _ = self.memory.read(self.at + self.record(head) + RECORD_NUMBER, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Completes the last answer of the previous process, and returns the requests that it had taken and not answered,
    /// in the order in which it took them. The ring continues behind them.
    pub(super) fn recover(&mut self, ring: &mut Ring) -> Result<Vec<u16>, Fault> {
        if self.u16(VERSION) != 1 {
            self.set_u16(ENTRIES, self.entries);
            self.set_u16(LAST_HEAD, 0);
            self.set_u16(USED_INDEX, ring.next_used());
            self.set_u16(VERSION, 1);
        } else if self.u16(ENTRIES) != self.entries {
            return Err(format!(
                "records of a ring of {} entries, expected {}",
                self.u16(ENTRIES),
                self.entries
            ));
        }
        self.finish_answers(ring.next_used());
        let mut heads: Vec<u16> = (0..self.entries).filter(|head| self.is_under_way(*head)).collect();
        heads.sort_by_key(|head| self.number_of(*head));
        self.number = heads.last().map_or(0, |last| self.number_of(*last).wrapping_add(1));
        ring.set_next_available(ring.next_used().wrapping_add(heads.len() as u16));
        Ok(heads)
    }

    /// Clears the records of answers that the guest can see already.
    fn finish_answers(&mut self, used: u16) {
        self.last_head = self.u16(LAST_HEAD).min(self.entries - 1);
        let answered = used.wrapping_sub(self.u16(USED_INDEX)).min(self.entries);
        let mut head = self.last_head;
        for _ in 0..answered {
            self.set_under_way(head, false);
            head = self.u16(self.record(head) + RECORD_NEXT).min(self.entries - 1);
        }
        self.set_u16(USED_INDEX, used);
    }

    /// Records that a request was taken.
    pub(super) fn taken(&mut self, head: u16) {
        let record = self.at + self.record(head);
        let _ = self.memory.store_u64(record + RECORD_NUMBER, self.number);
        self.number = self.number.wrapping_add(1);
        self.set_under_way(head, true);
    }

    /// Records an answer. `show` makes it visible to the guest, at the position `used` of the ring of answers.
    pub(super) fn answered(&mut self, head: u16, used: u16, show: &mut dyn FnMut()) {
        self.set_u16(self.record(head) + RECORD_NEXT, self.last_head);
        self.last_head = head;
        self.set_u16(LAST_HEAD, head);
        show();
        self.set_under_way(head, false);
        self.set_u16(USED_INDEX, used);
    }
}
