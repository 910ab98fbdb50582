//! Memory of connections: what each is promised, and what it may use beyond that.
//!
//! All of it is charged to one budget before it is allocated:
//! * Half of the budget is for the promises to connections, [`CONNECTION_BYTES`] for each accepted connection.
//! * A quarter is shared. The memory of a connection's requests beyond `OWN_BYTES` is its excess, which is charged
//!   there. An excess may not grow beyond what is free afterwards. One greedy connection therefore takes at most half
//!   of the shared part, n greedy ones take n parts of n + 1, and one part is free for the next.
//! * A sixteenth is for larger receive buffers. Connections without one are slower, and have no other disadvantage.
//! * The rest is for volumes and is not charged. A volume may need as much again as a request: a read whose parts are
//!   not contiguous is assembled from copies.
//!
//! No request waits for the memory of another connection, so there is no queue, no order of locking and no deadlock. A
//! request waits only for requests of its own connection. When none of those is left, the next one begins with at least
//! `OWN_BYTES`, which no other connection can take; it is cut into pieces of that size if no more is free. Small
//! requests never starve behind large ones for the same reason.
//!
//! A client that does not read its answers, or does not send an announced payload, pins the memory of its own
//! connection only.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::budget::{Budget, Charge};
use blk::buf::slab_bytes;

/// Largest piece of a request that is held, read or written at once. Larger requests are carried out in pieces, so that
/// none needs much memory, or the core for long.
pub const PIECE_BYTES_MAX: u64 = 1 << 20;
/// Requests of one connection (and pieces of large ones) that are accepted and whose reply has not been sent; no more
/// are received. 256 simple replies are one page. Known clients keep at most 64 (nbdcopy) or 128 (kernel) under way.
pub const REQUESTS_MAX: usize = 256;
/// Limit of the memory of these requests in both directions, however much is free: 64 MiB of payload, and 1 MiB in
/// addition.
pub const IN_FLIGHT_BYTES_MAX: u64 = 65 << 20;
/// Maximum memory of a connection's requests while requests of its VM wait for the VM's limits. They may wait for long, and
/// other VMs need the memory.
pub const DELAYED_BYTES_MAX: u64 = 8 << 20;
/// Promise to each connection: a receive buffer of 8 KiB, a page of answers, 12 KiB for its tasks, names and list
/// entries, and `OWN_BYTES` for requests.
pub const CONNECTION_BYTES: u64 = 64 << 10;
/// Longest list of a request's parts, which a vhost-user request has in addition to its payload. One request of a
/// connection at a time may have more than [`SHORT_LIST_BYTES`] and begin.
pub(crate) const LIST_BYTES_MAX: u64 = (16 << 10) + 128;
/// Longest list of an ordinary request.
pub(crate) const SHORT_LIST_BYTES: u64 = (2 << 10) + 128;
/// Memory that a connection's requests may always use: one of 32 KiB with its headroom, or four of 4 KiB.
pub(crate) const OWN_BYTES: u64 = 40 << 10;
/// Memory of a request's tasks, in addition to its payload.
const TASK_BYTES: u64 = 2 << 10;

/// The memory of all connections of a server.
pub struct Memory {
    promises: Rc<Budget>,
    shared: Rc<Budget>,
    buffers: Rc<Budget>,
}

/// The part of the memory that one connection uses.
pub(crate) struct Holding {
    _promised: Charge,
    shared: Rc<Budget>,
    buffers: Rc<Budget>,
    excess: RefCell<Charge>,
    /// Memory of accepted requests whose reply has not been sent.
    held: Cell<u64>,
    requests: Cell<usize>,
    /// Planted defect: nothing is charged, and nothing waits.
    uncharged: bool,
}

/// Returns the memory of a piece of a request with `len` bytes of payload.
fn piece_cost(len: u64) -> u64 {
    TASK_BYTES + if len == 0 { 0 } else { slab_bytes(len as usize) as u64 }
}

const _: () = assert!(OWN_BYTES + (24 << 10) <= CONNECTION_BYTES);
// A piece of 16 KiB fits beside the longest list, so that a request with one always goes on.
const _: () = assert!(LIST_BYTES_MAX + TASK_BYTES + (20 << 10) <= OWN_BYTES);

impl Memory {
    pub(crate) fn new(bytes: u64) -> Memory {
        Memory {
            promises: Budget::new(bytes / 2),
            shared: Budget::new(bytes / 4),
            buffers: Budget::new(bytes / 16),
        }
    }

    /// Returns the bytes that are charged now.
    pub fn used(&self) -> u64 {
        self.promises.used() + self.shared.used() + self.buffers.used()
    }

    /// Returns the maximum that was charged, as the sum of the parts' maxima.
    pub fn peak(&self) -> u64 {
        self.promises.peak() + self.shared.peak() + self.buffers.peak()
    }
}

impl Holding {
    /// Creates the holding of a connection. None if there is no memory for another connection.
    pub(crate) fn new(memory: &Memory, uncharged: bool) -> Option<Holding> {
        Holding::with_promise(memory, CONNECTION_BYTES, uncharged)
    }

    /// Creates the holding of a connection that is promised `promise` bytes, at least [`CONNECTION_BYTES`].
    pub(crate) fn with_promise(memory: &Memory, promise: u64, uncharged: bool) -> Option<Holding> {
        Some(Holding {
            _promised: memory.promises.take(promise)?,
            shared: memory.shared.clone(),
            buffers: memory.buffers.clone(),
            excess: RefCell::new(memory.shared.take(0)?),
            held: Cell::new(0),
            requests: Cell::new(0),
            uncharged,
        })
    }

    /// Returns the number of requests, and pieces of requests, that use memory.
    pub(crate) fn requests(&self) -> usize {
        self.requests.get()
    }

    /// Returns how much more this connection may use now.
    fn allowed(&self) -> u64 {
        let excess = self.excess.borrow().bytes();
        let excess_max = (self.shared.free() + excess) / 2;
        (OWN_BYTES + excess_max).min(IN_FLIGHT_BYTES_MAX).saturating_sub(self.held.get())
    }

    /// Charges a piece of up to `len` bytes. Returns the granted length and the memory charged for it. The length is
    /// less than `len` only if nothing else of this connection is under way. None: the piece must wait for requests of
    /// its own connection. `list` bytes, at most [`SHORT_LIST_BYTES`], are charged with it.
    pub(crate) fn grant(&self, len: u64, list: u64) -> Option<(u64, u64)> {
        assert!(list <= SHORT_LIST_BYTES, "a longer list is held by `hold_list`");
        if self.requests.get() >= REQUESTS_MAX {
            return None;
        }
        let wanted = len.min(PIECE_BYTES_MAX);
        if self.uncharged {
            self.requests.set(self.requests.get() + 1);
            return Some((wanted, 0));
        }
        let allowed = self.allowed();
        let granted = match piece_cost(wanted) + list <= allowed {
            true => wanted,
            false if self.requests.get() > 0 => return None,
            // What is held without a piece is one long list.
            false => cut(wanted, allowed.max(OWN_BYTES - self.held.get()) - list),
        };
        let cost = piece_cost(granted) + list;
        self.hold(self.held.get() + cost);
        self.requests.set(self.requests.get() + 1);
        Some((granted, cost))
    }

    /// Charges a list of up to [`LIST_BYTES_MAX`], for which only one request at a time may ask. Returns false if it must
    /// wait for requests of its own connection.
    pub(crate) fn hold_list(&self, bytes: u64) -> bool {
        let fits = bytes <= self.allowed() || self.requests.get() == 0;
        if fits {
            self.hold(self.held.get() + bytes);
        }
        fits
    }

    pub(crate) fn give_back_list(&self, bytes: u64) {
        self.hold(self.held.get() - bytes);
    }

    /// Returns the memory of accepted requests whose reply has not been sent.
    pub(crate) fn held(&self) -> u64 {
        self.held.get()
    }

    pub(crate) fn give_back(&self, cost: u64) {
        self.requests.set(self.requests.get() - 1);
        self.hold(self.held.get() - cost);
    }

    fn hold(&self, bytes: u64) {
        let charged = self.excess.borrow_mut().set(bytes.saturating_sub(OWN_BYTES));
        assert!(charged, "what is allowed is free");
        self.held.set(bytes);
    }

    /// Charges a larger receive buffer if there is memory for it.
    pub(crate) fn buffer(&self, bytes: u64) -> Option<Charge> {
        self.buffers.take(bytes)
    }
}

/// Returns the largest power of two up to `len` whose piece costs no more than `most`.
fn cut(len: u64, most: u64) -> u64 {
    let mut now = PIECE_BYTES_MAX;
    while now > len || piece_cost(now) > most {
        now /= 2;
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A connection, and what its pieces hold.
    struct Greedy(Holding, Vec<u64>);

    /// Fills the memory: connections take pieces of `len` until each has to wait.
    fn fill(memory: &Memory, connections: usize, len: u64) -> Vec<Greedy> {
        let new = |_| Greedy(Holding::new(memory, false).unwrap(), Vec::new());
        let mut all: Vec<Greedy> = (0..connections).map(new).collect();
        let mut granted = true;
        while granted {
            granted = false;
            for Greedy(holding, costs) in &mut all {
                if let Some((_, cost)) = holding.grant(len, 0) {
                    costs.push(cost);
                    granted = true;
                }
            }
        }
        all
    }

    #[test]
    fn greedy_connections_leave_memory_for_the_next() {
        for connections in [1, 2, 10, 100] {
            let memory = Memory::new(512 * MIB);
            let greedy = fill(&memory, connections, MIB);
            assert!(memory.peak() <= 512 * MIB);
            let most = greedy.iter().map(|Greedy(holding, _)| holding.held.get()).max().unwrap();
            let next = Holding::new(&memory, false).unwrap();
            assert!(next.allowed() + MIB >= most / 2, "{} beside {most}", next.allowed());
            assert!(next.grant(256 << 10, 0).is_some(), "the next one has a share");
        }
    }

    #[test]
    fn progress_never_needs_anothers_memory() {
        let memory = Memory::new(8 * MIB);
        let mut taken = Vec::new();
        for Greedy(holding, costs) in &fill(&memory, 64, MIB) {
            costs.iter().for_each(|cost| holding.give_back(*cost));
            // The other connections take what was freed at once: all that is free.
            taken.push(memory.shared.take(memory.shared.free()).unwrap());
            let (granted, cost) = holding.grant(32 * MIB, 0).expect("its own is always there");
            assert_eq!((granted, cost <= OWN_BYTES), (32 << 10, true));
            assert!(holding.grant(MIB, 0).is_none(), "and no more than that");
        }
    }

    #[test]
    fn lists_are_charged_and_the_longest_leaves_memory_for_a_piece() {
        let memory = Memory::new(MIB);
        let holding = Holding::new(&memory, false).unwrap();
        let _greedy = memory.shared.take(memory.shared.free()).unwrap();
        assert!(holding.hold_list(LIST_BYTES_MAX), "its own memory is always there");
        let (granted, cost) = holding.grant(MIB, 0).unwrap();
        assert_eq!(granted, 16 << 10);
        assert!(!holding.hold_list(LIST_BYTES_MAX), "the second one waits");
        holding.give_back(cost);
        holding.give_back_list(LIST_BYTES_MAX);
        let (granted, cost) = holding.grant(4096, SHORT_LIST_BYTES).unwrap();
        assert_eq!((granted, cost, holding.held()), (4096, piece_cost(4096) + SHORT_LIST_BYTES, cost));
        holding.give_back(cost);
        let (granted, cost) = holding.grant(MIB, 2 << 10).unwrap();
        assert_eq!(granted, 32 << 10);
        holding.give_back(cost);
        assert_eq!(holding.held(), 0);
    }

    #[test]
    fn all_memory_is_returned() {
        let memory = Memory::new(256 * MIB);
        let holding = Holding::new(&memory, false).unwrap();
        let costs: Vec<u64> = std::iter::from_fn(|| holding.grant(MIB, 0)).map(|(_, cost)| cost).collect();
        assert!((20..=32).contains(&costs.len()), "{} pieces of half of 64 MiB", costs.len());
        costs.into_iter().for_each(|cost| holding.give_back(cost));
        assert_eq!(memory.used(), CONNECTION_BYTES);
        drop(holding);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn guaranteed_memory_is_at_most_half_and_is_never_used_by_others() {
        let memory = Memory::new(MIB);
        let all = fill(&memory, 8, MIB);
        assert!(Holding::new(&memory, false).is_none());
        assert_eq!(memory.promises.free(), 0);
        drop(all);
        let _greedy = fill(&memory, 7, MIB);
        assert!(Holding::new(&memory, false).is_some());
    }
}
