//! Accepts connections and walks each through its two phases.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use blk::socket::{Listener, Socket};
use blk::volume::Exports;
use blk::{Env, Error, ErrorKind, Result};

use super::doors::{Doors, Entered, Halt, Session};
use super::handshake::handshake;
use super::proto::*;
use super::session::transmit;

/// Serves the catalogue on one listener until `control` is told to stop, then until its connections are closed:
/// [`STOP_GRACE_US`] for what is under way, the same again once it has been cut. Several listeners may share one
/// [`Doors`].
///
/// A failing accept is noted there and tried again: running out of descriptors must not close the door for good.
pub async fn serve(env: Env, listener: Listener, exports: Rc<dyn Exports>, control: Rc<Doors>) {
    loop {
        control.below(CONNECTIONS_MAX).await;
        match control.unless_stopped(listener.accept()).await {
            None => break,
            Some(Ok(socket)) => {
                let entered = control.enter(socket.peer());
                env.spawn_detached(Box::pin(connection(env.clone(), socket, exports.clone(), entered)));
            }
            Some(Err(error)) => {
                control.note(listener.address(), "", error.to_string());
                control.unless_stopped(env.sleep_us(ACCEPT_RETRY_US)).await;
            }
        }
    }
    drop(listener);
    control.empty_within(&env, STOP_GRACE_US).await;
    control.tell_all(Halt::Cut);
    control.empty_within(&env, STOP_GRACE_US).await;
}

async fn connection(env: Env, socket: Socket, exports: Rc<dyn Exports>, entered: Entered) {
    let result = both_phases(env, socket, exports, entered.session.clone()).await;
    if let Err(error) = result
        && error.kind != ErrorKind::Cancelled
    {
        entered.note(error.cause);
    }
}

async fn both_phases(env: Env, socket: Socket, exports: Rc<dyn Exports>, session: Rc<Session>) -> Result<()> {
    match in_time(&env, &session, handshake(&socket, &exports)).await? {
        Some(agreed) => transmit(env, socket, agreed, session).await,
        None => Ok(()),
    }
}

/// `negotiation`'s result, unless it takes too long or the doors close.
async fn in_time<T>(env: &Env, session: &Session, negotiation: impl Future<Output = Result<T>>) -> Result<T> {
    let mut negotiation = pin!(negotiation);
    let mut late = pin!(env.sleep_us(NEGOTIATION_LIMIT_US));
    poll_fn(|cx| {
        if session.watch(cx) != Halt::Run {
            return Poll::Ready(Err(Error::cancelled(session.peer())));
        }
        if late.as_mut().poll(cx).is_ready() {
            let cause = format!("no export chosen within {} s", NEGOTIATION_LIMIT_US / 1_000_000);
            return Poll::Ready(Err(Error::invalid(session.peer(), cause)));
        }
        negotiation.as_mut().poll(cx)
    })
    .await
}
