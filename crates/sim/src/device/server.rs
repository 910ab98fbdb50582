//! The interface of a model in operation, and parts that most models share.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    /// Makes acknowledged writes safe.
    Flush,
}

/// One request to one device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    /// The caller's tag, returned when the request is done. Several requests may carry the same tag.
    pub tag: u32,
    pub access: Access,
    /// Position on the device in bytes.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Stands for no next event: nothing is under way.
pub(crate) const NEVER_NS: u64 = u64::MAX;

/// A model in operation. Time never decreases between two calls.
pub(crate) trait Server {
    /// Accepts a request. Returns the time at which it will be done, if that is known; the request is then not reported
    /// again. Otherwise `advance` reports it.
    fn submit(&mut self, now_ns: u64, request: Request) -> Option<u64>;

    /// Returns when `advance` must be called next; `NEVER_NS` if nothing is under way.
    fn next_ns(&self) -> u64;

    /// Advances to `now_ns`, which is not later than `next_ns`. Adds the tags of completed requests.
    fn advance(&mut self, now_ns: u64, done: &mut Vec<u32>);

    /// Returns the distance of the head from a byte; 0 without a head.
    fn distance(&self, _at: u64) -> u64 {
        0
    }

    /// Forgets all requests after a loss of power.
    fn reset(&mut self);
}

/// Events at known times, in order; ties in order of insertion.
#[derive(Default)]
pub(crate) struct Timers {
    due: BinaryHeap<Reverse<(u64, u64, u32)>>,
    sequence: u64,
}

impl Timers {
    pub(super) fn push(&mut self, at_ns: u64, tag: u32) {
        self.sequence += 1;
        self.due.push(Reverse((at_ns, self.sequence, tag)));
    }

    pub(super) fn next_ns(&self) -> u64 {
        self.due.peek().map_or(NEVER_NS, |Reverse((at_ns, ..))| *at_ns)
    }

    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<u32> {
        if self.next_ns() > now_ns {
            return None;
        }
        self.due.pop().map(|Reverse((_, _, tag))| tag)
    }

    pub(super) fn clear(&mut self) {
        self.due.clear();
    }
}

/// A cable, or a limit on a rate: it serves one request at a time, in order.
#[derive(Default)]
pub(super) struct Serial {
    free_ns: u64,
}

impl Serial {
    /// Occupies it for `ns`, from `now_ns` or from the time at which it becomes free. Returns the end.
    pub(super) fn pass(&mut self, now_ns: u64, ns: u64) -> u64 {
        self.free_ns = self.free_ns.max(now_ns) + ns;
        self.free_ns
    }
}

/// Values by tag. A removed value's tag is used again, the last one first.
pub(super) struct Slab<T> {
    values: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { values: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn add(&mut self, value: T) -> u32 {
        let tag = self.free.pop().unwrap_or_else(|| {
            self.values.push(None);
            self.values.len() as u32 - 1
        });
        self.values[tag as usize] = Some(value);
        tag
    }

    pub(super) fn get(&mut self, tag: u32) -> &mut T {
        self.values[tag as usize].as_mut().expect("a tag of a value")
    }

    pub(super) fn remove(&mut self, tag: u32) -> T {
        self.free.push(tag);
        self.values[tag as usize].take().expect("a tag of a value")
    }
}

/// Returns the first lane that is free, or else the one that becomes free first.
pub(super) fn earliest(free_at_ns: &[u64], now_ns: u64) -> usize {
    let mut best = 0;
    for (lane, &at_ns) in free_at_ns.iter().enumerate() {
        if at_ns <= now_ns {
            return lane;
        }
        if at_ns < free_at_ns[best] {
            best = lane;
        }
    }
    best
}

/// A server below another one. It reports everything through `advance`, also requests whose end was known at
/// submission.
pub(crate) struct LowerDevice {
    server: Box<dyn Server>,
    known: Timers,
    /// The earlier of both times. It is read far more often than it changes.
    next_ns: u64,
}

impl LowerDevice {
    pub(super) fn new(server: Box<dyn Server>) -> LowerDevice {
        LowerDevice { server, known: Timers::default(), next_ns: NEVER_NS }
    }

    /// Submits a request, and returns the end if the server knows it.
    pub(super) fn submit_known(&mut self, now_ns: u64, request: Request) -> Option<u64> {
        let known = self.server.submit(now_ns, request);
        self.look();
        known
    }

    pub(super) fn submit(&mut self, now_ns: u64, request: Request) {
        if let Some(done_ns) = self.server.submit(now_ns, request) {
            self.known.push(done_ns, request.tag);
        }
        self.look();
    }

    fn look(&mut self) {
        self.next_ns = self.known.next_ns().min(self.server.next_ns());
    }

    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    pub(super) fn advance(&mut self, now_ns: u64, done: &mut Vec<u32>) {
        if self.next_ns > now_ns {
            return;
        }
        while let Some(tag) = self.known.pop_due(now_ns) {
            done.push(tag);
        }
        if self.server.next_ns() <= now_ns {
            self.server.advance(now_ns, done);
        }
        self.look();
    }

    pub(super) fn distance(&self, at: u64) -> u64 {
        self.server.distance(at)
    }

    pub(super) fn reset(&mut self) {
        self.server.reset();
        self.known.clear();
        self.next_ns = NEVER_NS;
    }
}
