//! Replies that wait for the socket. NBD does not order replies, so successes without payload are packed together.

use blk::{Buf, Slice};

use super::connection::Ticket;
use super::proto::*;
use crate::memory::REQUESTS_MAX;

/// Space for the successes without payload of one batch: one for each request that can be under way.
const ACKS_BYTES: usize = REQUESTS_MAX * SIMPLE_REPLY_BYTES;

/// Content of one send. Its tickets free their memory when the batch is dropped, after it was sent or abandoned.
pub(super) struct Batch {
    pub parts: Vec<Slice>,
    _tickets: Vec<Ticket>,
}

#[derive(Default)]
pub(super) struct Outbox {
    acks: Option<Buf>,
    acks_len: usize,
    /// Replies with payload or error, one part each.
    parts: Vec<Slice>,
    tickets: Vec<Ticket>,
}

impl Outbox {
    pub(super) fn push_ack(&mut self, ticket: Ticket, reply: [u8; SIMPLE_REPLY_BYTES]) {
        let acks = self.acks.get_or_insert_with(|| Buf::alloc(ACKS_BYTES));
        acks[self.acks_len..][..reply.len()].copy_from_slice(&reply);
        self.acks_len += reply.len();
        self.tickets.push(ticket);
    }

    pub(super) fn push(&mut self, ticket: Ticket, reply: Slice) {
        self.parts.push(reply);
        self.tickets.push(ticket);
    }

    /// Takes all waiting replies; None if there are none.
    pub(super) fn take(&mut self) -> Option<Batch> {
        if self.tickets.is_empty() {
            return None;
        }
        let mut parts = std::mem::take(&mut self.parts);
        if let Some(mut acks) = self.acks.take() {
            acks.truncate(self.acks_len);
            self.acks_len = 0;
            parts.push(acks.freeze());
        }
        Some(Batch { parts, _tickets: std::mem::take(&mut self.tickets) })
    }
}
