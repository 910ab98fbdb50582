//! Accepts connections to one disk's socket, and attaches their clients.

use std::cell::Cell;
use std::rc::Rc;

use blk::socket::{Listener, Socket};
use blk::sync::Signal;
use blk::volume::Exports;
use blk::{Env, Error, ErrorKind, Result};

use super::connection::{self, predecessor_ended, serial_of};
use super::front_end::FrontEnd;
use super::protocol::*;
use super::session::Attached;

/// A socket that is served until this is dropped: it is closed then, and its file removed. Its connections stay.
pub struct Serving {
    ended: Rc<Ended>,
    listener: Rc<Listener>,
}

#[derive(Default)]
struct Ended {
    is_ended: Cell<bool>,
    signal: Signal,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.ended.is_ended.set(true);
        // At once: another socket may be made at the same path now.
        self.listener.close();
        self.ended.signal.notify();
    }
}

/// What a socket serves.
struct Target {
    env: Env,
    exports: Rc<dyn Exports>,
    /// Name of the export, as in an NBD client's request.
    export: String,
    /// Serial number that the guest sees.
    serial: [u8; SERIAL_BYTES],
    front_end: Rc<FrontEnd>,
}

/// Serves one export on one socket, until the returned value is dropped or the front end stops. The guest sees the first
/// 20 bytes of `serial` as the disk's serial number.
///
/// A failed accept is recorded and retried: running out of descriptors must not end the listener.
pub fn serve(
    env: &Env,
    listener: Listener,
    exports: &Rc<dyn Exports>,
    (export, serial): (&str, &str),
    front_end: &Rc<FrontEnd>,
) -> Serving {
    let (ended, listener) = (Rc::<Ended>::default(), Rc::new(listener));
    let target = Rc::new(Target {
        env: env.clone(),
        exports: exports.clone(),
        export: export.to_string(),
        serial: serial_of(serial),
        front_end: front_end.clone(),
    });
    env.spawn_detached(Box::pin(accept(listener.clone(), target, ended.clone())));
    Serving { ended, listener }
}

async fn accept(listener: Rc<Listener>, target: Rc<Target>, ended: Rc<Ended>) {
    let (front_end, env) = (&target.front_end, &target.env);
    loop {
        let accepted = listener.accept();
        match front_end.unless_stopped(&ended.signal, &ended.is_ended, accepted).await {
            None => return listener.close(),
            Some(Err(_)) if ended.is_ended.get() => return,
            Some(Ok(socket)) => env.spawn_detached(Box::pin(connection(socket, target.clone()))),
            Some(Err(error)) => {
                front_end.note(listener.address(), &target.export, error.kind, error.cause);
                let pause = env.sleep_us(ACCEPT_RETRY_US);
                front_end.unless_stopped(&ended.signal, &ended.is_ended, pause).await;
            }
        }
    }
}

async fn connection(socket: Socket, target: Rc<Target>) {
    let peer = socket.peer().to_string();
    if let Err(error) = attach_and_serve(socket, &target).await
        && error.kind != ErrorKind::Cancelled
    {
        target.front_end.note(&peer, &target.export, error.kind, error.cause);
    }
}

async fn attach_and_serve(socket: Socket, target: &Target) -> Result<()> {
    let Target { env, exports, export, front_end, .. } = target;
    let refused = |cause| Error::refused(export, cause);
    let (memory, _reserved) = front_end.reserve().map_err(refused)?;
    let peer = socket.client().clone();
    if !predecessor_ended(env, front_end.without_predecessor(export, &peer)).await {
        let cause = "an earlier connection of this client is still open, or has requests that have not ended";
        return Err(refused(cause.to_owned()));
    }
    let attachment = exports.attach(export, &peer).await?;
    let attached = Attached {
        peer,
        export: export.clone(),
        serial: target.serial,
        volume: attachment.volume.clone(),
        group: exports.client_group(export),
    };
    let entry = front_end.enter(env, attached, memory);
    let result = connection::serve(socket, entry.session.clone(), attachment).await;
    drop(entry);
    result
}
