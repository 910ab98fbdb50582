//! Pings of a run in real time, which show what a guest would notice: a small read of its first disk once a second.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;

use blk::{Buf, Env};
use futures_util::future::{Either, select};

use crate::run::Beat;
use crate::subject::Subject;

const INTERVAL_US: u64 = 1_000_000;
/// Limit of an answer; a later one counts as lost, as in `ping`. It equals the interval, so only one read is under way.
const LIMIT_US: u64 = 1_000_000;
/// One page, bytes; smaller if the disk is smaller.
const PING_BYTES: u64 = 4096;

/// A task that pings until this handle is dropped.
pub(super) struct Pings(Rc<State>);

#[derive(Default)]
struct State {
    /// Results that have not been taken yet.
    beats: RefCell<Vec<Beat>>,
    over: Cell<bool>,
}

impl Pings {
    /// Starts the pings. The first one is sent now, at the begin of the run.
    pub(super) fn start(env: &Env, subject: Rc<dyn Subject>) -> Pings {
        let state = Rc::<State>::default();
        env.spawn_detached(Box::pin(ping(env.clone(), subject, state.clone())));
        Pings(state)
    }

    /// Returns the results since the last call, in order of time.
    pub(super) fn take(&self) -> Vec<Beat> {
        self.0.beats.take()
    }
}

impl Drop for Pings {
    fn drop(&mut self) {
        self.0.over.set(true);
    }
}

async fn ping(env: Env, subject: Rc<dyn Subject>, state: Rc<State>) {
    let began_ns = env.now_ns();
    for n in 0.. {
        let at_us = n * INTERVAL_US;
        env.sleep_until(began_ns + at_us * 1000).await;
        if state.over.get() {
            return;
        }
        let lost = !is_answered(&env, &*subject).await;
        state.beats.borrow_mut().push(Beat { at_us, lost });
    }
}

/// Returns whether the first disk answers in time. A read that exceeds the limit continues on its own, with the buffer
/// it needs.
async fn is_answered(env: &Env, subject: &dyn Subject) -> bool {
    let Some(disk) = subject.disks().into_iter().next() else { return false };
    let buf = Buf::alloc(PING_BYTES.min(disk.info().size_bytes) as usize);
    let read = env.spawn(async move { disk.read(0, buf).await.1.is_ok() });
    match select(pin!(read.join()), pin!(env.sleep_us(LIMIT_US))).await {
        Either::Left((answered, _)) => answered,
        Either::Right(_) => false,
    }
}
