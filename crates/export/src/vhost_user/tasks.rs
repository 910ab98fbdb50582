//! The tasks of a queue: one takes requests at each kick, one interrupts the guest.

use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};

use super::queue::Queue;
use super::request;
use super::ring::Fault;
use crate::fair::REQUEST_COST;

/// Requests of one visit after which the ring is examined once more before the queue sleeps. One request alone is not
/// worth another turn of the reactor. Watching the ring for 10 to 50 us after each request answers no more requests per
/// second, and takes up to twice the processor time.
const BUSY_REQUESTS: usize = 2;

/// Starts the tasks of a queue. They end when the connection has detached.
pub(super) fn spawn(queue: &Rc<Queue>) {
    let env = &queue.session.env;
    env.spawn_detached(Box::pin(run(queue.clone())));
    env.spawn_detached(Box::pin(interrupt(queue.clone())));
}

/// Takes all requests that wait, until there is none and the guest will kick for the next. Returns whether there was one.
async fn serve(queue: &Rc<Queue>) -> std::result::Result<bool, Fault> {
    let mut found = false;
    loop {
        let mut taken = 0;
        while let Some(request) = queue.take()? {
            request::start(request).await?;
            taken += 1;
        }
        found |= taken > 0;
        if taken >= BUSY_REQUESTS {
            queue.session.env.next_turn().await;
            continue;
        }
        if !queue.enable_kicks()? {
            return Ok(found);
        }
    }
}

/// Serves the ring at each kick and each change of the configuration. A kick without a request is paid for like one: a
/// guest that kicks in a loop waits for the turn of its VM.
async fn run(queue: Rc<Queue>) {
    let mut kicked = None;
    while !queue.session.is_detached() {
        let changed = queue.changed.wait();
        match serve(&queue).await {
            Ok(true) => {}
            Ok(false) => queue.session.pay(REQUEST_COST).await,
            Err(cause) => return queue.session.fail(queue.fault(&cause)),
        }
        let (number, event) = queue.kick();
        let Some(event) = event else {
            kicked = None;
            changed.await;
            continue;
        };
        if !matches!(kicked, Some((known, _)) if known == number) {
            kicked = Some((number, event.wait()));
        }
        let (_, wait) = kicked.as_mut().expect("set above");
        match select(wait, pin!(changed)).await {
            Either::Left((Ok(()), _)) => kicked = None,
            Either::Left((Err(error), _)) => return queue.session.fail(error),
            Either::Right(_) => {}
        }
    }
}

/// Interrupts the guest when answers wait. Answers that arrive while an interrupt is under way cause another one.
async fn interrupt(queue: Rc<Queue>) {
    while !queue.session.is_detached() {
        let wanted = queue.interrupts.wait();
        let Some(call) = queue.take_interrupt() else {
            wanted.await;
            continue;
        };
        // A client that has filled its own counter is interrupted already.
        let _ = select(call.signal(), pin!(given_up(&queue, queue.calls()))).await;
    }
}

/// Resolves when the connection has detached, or the client has passed another event.
async fn given_up(queue: &Queue, calls: u64) {
    loop {
        let changed = queue.interrupts.wait();
        if queue.session.is_detached() || queue.calls() != calls {
            return;
        }
        changed.await;
    }
}
