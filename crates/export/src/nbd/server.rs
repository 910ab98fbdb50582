//! Accepts connections, and runs the handshake and the transmission of each.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use blk::socket::{Listener, Peer, Socket};
use blk::volume::{Attachment, ExportEntry, Exports};
use blk::{Env, Error, ErrorKind, Local, Result};

use super::front_end::{FrontEnd, Halt, RefusalGuard, Session, SessionEntry};
use super::handshake::handshake;
use super::handshake_timer::HandshakeTimer;
use super::proto::*;
use super::session::transmit;

/// Serves the catalogue on one listener until `control` is stopped, and then until its connections are closed: requests
/// under way have [`STOP_GRACE_US`] to finish, and the same time again after their connection was cut. Several
/// listeners may share one [`FrontEnd`].
///
/// A failed accept is recorded there and retried: running out of descriptors must not end the listener.
pub async fn serve(env: Env, listener: Listener, exports: Rc<dyn Exports>, control: Rc<FrontEnd>) {
    loop {
        match control.unless_stopped(listener.accept()).await {
            None => break,
            Some(Ok(socket)) => {
                admit(&env, listener.address(), socket, &exports, &control);
            }
            Some(Err(error)) => {
                control.note(listener.address(), "", error.kind, error.cause);
                control.unless_stopped(env.sleep_us(ACCEPT_RETRY_US)).await;
            }
        }
    }
    drop(listener);
    control.empty_within(&env, STOP_GRACE_US).await;
    control.tell_all(Halt::Cut);
    control.empty_within(&env, STOP_GRACE_US).await;
}

fn admit(env: &Env, listener: &str, socket: Socket, exports: &Rc<dyn Exports>, control: &Rc<FrontEnd>) {
    match control.enter(listener, socket.peer()) {
        Ok(entered) => {
            env.spawn_detached(Box::pin(connection(
                env.clone(),
                socket,
                exports.clone(),
                control.clone(),
                entered,
            )));
        }
        Err(cause) => {
            if let Some(refusing) = control.refuse(socket.peer(), &cause) {
                env.spawn_detached(Box::pin(refuse(env.clone(), socket, control.clone(), refusing, cause)));
            }
        }
    }
}

/// A catalogue for clients that are refused: every export exists, and none can be attached.
struct RefusingCatalogue(String);

impl Exports for RefusingCatalogue {
    fn list(&self) -> Vec<ExportEntry> {
        vec![ExportEntry { name: String::new(), description: self.0.clone() }]
    }

    fn attach<'a>(&'a self, name: &'a str, _client: &'a Peer) -> Local<'a, Result<Attachment>> {
        Box::pin(std::future::ready(Err(Error::refused(name, &self.0))))
    }
}

/// Tells a client why it is not served, in the reply to the first option whose reply can carry a text.
async fn refuse(env: Env, socket: Socket, control: Rc<FrontEnd>, refusing: RefusalGuard, cause: String) {
    let exports: Rc<dyn Exports> = Rc::new(RefusingCatalogue(cause));
    let timer = HandshakeTimer::new(&env, REFUSAL_LIMIT_US);
    // The client is refused whatever it sends.
    let refused = control.unless_stopped(handshake(&socket, &exports, &control, &timer)).await;
    drop((refused, refusing));
}

async fn connection(
    env: Env,
    socket: Socket,
    exports: Rc<dyn Exports>,
    control: Rc<FrontEnd>,
    entered: SessionEntry,
) {
    let result = both_phases(env, socket, exports, &control, entered.session.clone()).await;
    if let Err(error) = result
        && error.kind != ErrorKind::Cancelled
    {
        entered.note(error.kind, error.cause);
    }
}

async fn both_phases(
    env: Env,
    socket: Socket,
    exports: Rc<dyn Exports>,
    control: &FrontEnd,
    session: Rc<Session>,
) -> Result<()> {
    let timer = HandshakeTimer::new(&env, NEGOTIATION_LIMIT_US);
    let negotiated = unless_halted(&session, handshake(&socket, &exports, control, &timer)).await?;
    match negotiated {
        Some(agreed) => transmit(env, socket, agreed, control, session).await,
        None => Ok(()),
    }
}

/// Returns the result of `negotiation`, unless the front end stops first.
async fn unless_halted<T>(session: &Session, negotiation: impl Future<Output = Result<T>>) -> Result<T> {
    let mut negotiation = pin!(negotiation);
    poll_fn(|cx| {
        if session.watch(cx) != Halt::Run {
            return Poll::Ready(Err(Error::cancelled(session.peer())));
        }
        negotiation.as_mut().poll(cx)
    })
    .await
}
