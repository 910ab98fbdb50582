//! Accepts connections, and runs the handshake and the transmission of each.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use blk::socket::{Listener, Peer};
use blk::volume::{Attachment, ExportEntry, Exports};
use blk::{Env, Error, ErrorKind, Local, Result};

use super::front_end::{FrontEnd, Halt, RefusalGuard, Session, SessionEntry};
use super::handover::HandedOver;
use super::handshake::{End, Start, handshake};
use super::handshake_timer::HandshakeTimer;
use super::proto::*;
use super::session::transmit;
use super::stream::Stream;
use super::tls::TlsSource;

/// Serves the catalogue on one listener until `control` is stopped, and then until its connections are closed: requests
/// under way have [`STOP_GRACE_US`] to finish, and the same time again after their connection was cut. Several
/// listeners may share one [`FrontEnd`].
///
/// A failed accept is recorded there and retried: running out of descriptors must not end the listener.
///
/// With `tls`, a client has to start TLS before it names an export.
pub async fn serve(
    env: Env,
    listener: Listener,
    exports: Rc<dyn Exports>,
    control: Rc<FrontEnd>,
    tls: Option<TlsSource>,
) {
    loop {
        match control.unless_stopped(listener.accept()).await {
            None => break,
            Some(Ok(socket)) => {
                let timer = HandshakeTimer::new(&env, NEGOTIATION_LIMIT_US);
                let (stream, start) = (Stream::new(socket), Start::new(tls.as_ref().map(TlsSource::now)));
                admit(&env, listener.address(), stream, &exports, &control, start, timer);
            }
            Some(Err(error)) => {
                control.note(listener.address(), "", error.kind, error.cause);
                control.unless_stopped(env.sleep_us(ACCEPT_RETRY_US)).await;
            }
        }
    }
    drop(listener);
    drain(&env, &control).await;
}

/// Waits until the connections of a stopped front end are closed, as [`serve`] does.
pub async fn drain(env: &Env, control: &FrontEnd) {
    control.empty_within(env, STOP_GRACE_US).await;
    control.tell_all(Halt::Cut);
    control.empty_within(env, STOP_GRACE_US).await;
}

/// Continues the handshake of a connection that another core has handed over, and then serves the connection.
pub fn resume(env: &Env, connection: HandedOver, exports: &Rc<dyn Exports>, control: &Rc<FrontEnd>) {
    let HandedOver { stream, negotiation, export, listener, left_ns } = connection;
    let Some(socket) = Stream::attach(env, stream) else { return };
    // TLS has begun where it is required: the client has named an export.
    let start = Start { negotiation, requested: Some(export), tls: None };
    admit(env, &listener, socket, exports, control, start, HandshakeTimer::with_left(env, left_ns));
}

/// Admits a connection, which continues its handshake from `start`.
fn admit(
    env: &Env,
    listener: &str,
    socket: Stream,
    exports: &Rc<dyn Exports>,
    control: &Rc<FrontEnd>,
    start: Start,
    timer: HandshakeTimer,
) {
    match control.enter(listener, socket.peer()) {
        Ok(entered) => {
            let served = connection(env.clone(), socket, exports.clone(), entered, start, timer);
            env.spawn_detached(Box::pin(served));
        }
        Err(cause) => {
            if let Some(refusing) = control.refuse(socket.peer(), &cause) {
                env.spawn_detached(Box::pin(refuse(env.clone(), socket, refusing, cause, start)));
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
async fn refuse(env: Env, socket: Stream, refusing: RefusalGuard, cause: String, start: Start) {
    let exports: Rc<dyn Exports> = Rc::new(RefusingCatalogue(cause));
    let timer = HandshakeTimer::new(&env, REFUSAL_LIMIT_US);
    let control = refusing.front_end().clone();
    // A refused client is not handed over.
    let alone = FrontEnd::new();
    // The client is refused whatever it sends.
    let refused = control.unless_stopped(handshake(&socket, &exports, &alone, &timer, start)).await;
    drop((refused, refusing));
}

async fn connection(
    env: Env,
    socket: Stream,
    exports: Rc<dyn Exports>,
    entered: SessionEntry,
    start: Start,
    timer: HandshakeTimer,
) {
    let control = entered.front_end().clone();
    let session = entered.session.clone();
    let negotiation = handshake(&socket, &exports, &control, &timer, start);
    let result = match unless_halted(&session, negotiation).await {
        Ok(End::Left) => Ok(()),
        Ok(End::Agreed(agreed)) => transmit(env, socket, agreed, &control, session).await,
        Ok(End::Elsewhere { core, start }) => {
            let listener = session.listener().to_owned();
            // The connection does not count on both cores.
            drop((session, entered));
            return hand_over(&control, core, socket, start, listener, timer.left_ns());
        }
        Err(error) => Err(error),
    };
    if let Err(error) = result
        && error.kind != ErrorKind::Cancelled
    {
        entered.note(error.kind, error.cause);
    }
}

fn hand_over(
    control: &FrontEnd,
    core: usize,
    socket: Stream,
    Start { negotiation, requested, .. }: Start,
    listener: String,
    left_ns: u64,
) {
    let (Some(routes), Some(export)) = (control.routes(), requested) else { return };
    let peer = socket.peer().to_owned();
    match socket.detach() {
        Some(stream) => {
            let connection = HandedOver { stream, negotiation, export, listener, left_ns };
            routes.hand_over(core, connection);
        }
        None => {
            control.note(&peer, &export, ErrorKind::Io, "the connection cannot change its core".to_owned());
        }
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
