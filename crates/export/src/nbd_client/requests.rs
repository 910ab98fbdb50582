//! The requests under way on one connection, by cookie.

use std::cell::RefCell;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

use blk::{Buf, Error, ErrorKind, Result, Slice};

use super::coverage::Coverage;
use super::extents::Extent;
use crate::nbd::proto::*;

/// A request of the volume.
pub(super) struct Request {
    /// One of the `CMD_` constants.
    pub kind: u16,
    pub flags: u16,
    /// In bytes; shorter than 4 GiB.
    pub range: Range<u64>,
    /// Data of a write.
    pub payload: Option<Slice>,
    /// Buffer of a read, as long as the range.
    pub into: Option<Buf>,
}

impl Request {
    /// Creates a request without data.
    pub(super) fn plain(kind: u16, flags: u16, range: Range<u64>) -> Request {
        Request { kind, flags, range, payload: None, into: None }
    }

    /// Returns the "Request message".
    pub(super) fn header(&self, cookie: u64) -> Slice {
        let mut header = Buf::alloc(REQUEST_BYTES);
        let len = u32::try_from(self.range.end - self.range.start).expect("requests are split to 32 bits");
        header[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        header[4..6].copy_from_slice(&self.flags.to_be_bytes());
        header[6..8].copy_from_slice(&self.kind.to_be_bytes());
        header[8..16].copy_from_slice(&cookie.to_be_bytes());
        header[16..24].copy_from_slice(&self.range.start.to_be_bytes());
        header[24..28].copy_from_slice(&len.to_be_bytes());
        header.freeze()
    }
}

/// What the replies to a request have brought so far.
pub(super) struct UnderWay {
    pub kind: u16,
    pub range: Range<u64>,
    /// Buffer of a read. Absent while the receiver fills it.
    pub into: Option<Buf>,
    /// Part of the buffer that is filled, with structured replies.
    pub coverage: Coverage,
    /// Extents by the ID of their context.
    pub extents: Vec<(u32, Vec<Extent>)>,
    /// The first error that a chunk reported.
    pub failure: Option<Error>,
    /// A chunk was received.
    pub began: bool,
}

/// End of a request.
pub(super) struct Ended {
    /// The buffer of a read.
    pub into: Option<Buf>,
    /// Extents of a BLOCK_STATUS by the ID of their context.
    pub extents: Vec<(u32, Vec<Extent>)>,
    pub result: Result<()>,
}

enum State {
    Free,
    UnderWay(UnderWay),
    Ended(Ended),
    /// The caller has left; the reply is still to come.
    Abandoned(UnderWay),
}

struct Slot {
    state: State,
    /// Distinguishes the requests that use this slot one after the other.
    generation: u32,
    waker: Option<Waker>,
}

/// Cookies consist of a slot's generation and its index, so that a second reply to a request is detected after its slot
/// was used again.
#[derive(Default)]
pub(super) struct Requests {
    place: String,
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
    /// The error that ended the connection.
    broken: RefCell<Option<Error>>,
}

impl Requests {
    pub(super) fn new(place: String) -> Requests {
        Requests { place, ..Requests::default() }
    }

    /// Returns the address of the export, for messages.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn wrong(&self, cause: impl Into<String>) -> Error {
        Error::new(ErrorKind::Io, &self.place, cause)
    }

    pub(super) fn broken(&self) -> Option<Error> {
        self.broken.borrow().clone()
    }

    /// Registers a request. Returns its cookie.
    pub(super) fn begin(&self, request: &mut Request) -> u64 {
        let mut slots = self.slots.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(Slot { state: State::Free, generation: 0, waker: None });
            u32::try_from(slots.len() - 1).expect("fewer than 2^32 requests")
        });
        let slot = &mut slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = State::UnderWay(UnderWay {
            kind: request.kind,
            range: request.range.clone(),
            into: request.into.take(),
            coverage: Coverage::default(),
            extents: Vec::new(),
            failure: None,
            began: false,
        });
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// Waits for the end of a request. If the wait is dropped, the reply is received and dropped.
    pub(super) async fn ended(self: &Rc<Self>, cookie: u64) -> Ended {
        let waiting = Waiting { requests: self.clone(), index: cookie as u32 };
        poll_fn(|cx| {
            let mut slots = self.slots.borrow_mut();
            let slot = &mut slots[waiting.index as usize];
            match std::mem::replace(&mut slot.state, State::Free) {
                State::Ended(ended) => Poll::Ready(ended),
                other => {
                    slot.state = other;
                    slot.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Gives access to the request that a reply names.
    ///
    /// # Errors
    /// `Io` if it is not under way.
    pub(super) fn with<T>(&self, cookie: u64, f: impl FnOnce(&mut UnderWay) -> T) -> Result<T> {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(cookie as u32 as usize);
        let slot = slot.filter(|slot| u64::from(slot.generation) == cookie >> 32);
        match slot.map(|slot| &mut slot.state) {
            Some(State::UnderWay(request) | State::Abandoned(request)) => Ok(f(request)),
            _ => Err(self.wrong(format!("a reply to request {cookie:#x}, which is not under way"))),
        }
    }

    /// Ends a request that is under way, with the failure of its chunks or with success.
    pub(super) fn finish(&self, cookie: u64) {
        let index = cookie as u32;
        let mut slots = self.slots.borrow_mut();
        let slot = &mut slots[index as usize];
        match std::mem::replace(&mut slot.state, State::Free) {
            State::UnderWay(UnderWay { into, extents, failure, .. }) => {
                slot.state = State::Ended(Ended { into, extents, result: failure.map_or(Ok(()), Err) });
                slot.waker.take().into_iter().for_each(Waker::wake);
            }
            State::Abandoned(_) => self.free.borrow_mut().push(index),
            other => slot.state = other,
        }
    }

    /// Fails all requests under way, and all later ones, with the first such error.
    pub(super) fn break_off(&self, error: Error) {
        let error = self.broken.borrow_mut().get_or_insert(error).clone();
        for slot in self.slots.borrow_mut().iter_mut() {
            match std::mem::replace(&mut slot.state, State::Free) {
                State::UnderWay(UnderWay { into, .. }) => {
                    slot.state =
                        State::Ended(Ended { into, extents: Vec::new(), result: Err(error.clone()) });
                    slot.waker.take().into_iter().for_each(Waker::wake);
                }
                // No reply to it is awaited any more, and no request begins.
                State::Abandoned(_) => {}
                other => slot.state = other,
            }
        }
    }
}

/// A caller that waits for its request. Dropping it frees the slot, now or when the reply has come.
struct Waiting {
    requests: Rc<Requests>,
    index: u32,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut slots = self.requests.slots.borrow_mut();
        let slot = &mut slots[self.index as usize];
        slot.waker = None;
        match std::mem::replace(&mut slot.state, State::Free) {
            State::UnderWay(request) => slot.state = State::Abandoned(request),
            State::Free | State::Ended(_) => self.requests.free.borrow_mut().push(self.index),
            other @ State::Abandoned(_) => slot.state = other,
        }
    }
}
