//! The transmission phase: one task receives (`receive`) and sends; every request is a task of its own (`work`).
//!
//! One send is under way at a time. Requests that are answered meanwhile are sent with the next one.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use blk::volume::Attachment;
use blk::{Env, Error, Result};

use super::connection::Connection;
use super::front_end::{FrontEnd, Halt, Session};
use super::handshake::{Negotiated, send_all};
use super::receive::Receiver;
use super::stream::Stream;

/// Serves one connection from the first request to the last reply. The error is the reason why the stream broke.
///
/// The attachment is kept until no request is under way. After its end, nothing of this client can reach the volume.
pub(super) async fn transmit(
    env: Env,
    socket: Stream,
    agreed: Negotiated,
    front_end: &FrontEnd,
    session: Rc<Session>,
) -> Result<()> {
    let Negotiated { terms, attachment, group, rest } = agreed;
    let Attachment { volume, changes, token } = attachment;
    front_end.set_export(&session, &terms.export);
    let line = Connection::new((volume, changes), terms, session, front_end.scheduler(), &group);
    let result = pump(env.clone(), &line, &socket, &rest).await;
    line.close();
    line.abandon(&env);
    drop(socket);
    line.idle().await;
    drop(line);
    drop(token);
    result
}

/// Receives and sends until the client has disconnected and is answered, the stream breaks, or the front end ends it.
async fn pump(env: Env, line: &Rc<Connection>, socket: &Stream, rest: &[u8]) -> Result<()> {
    let mut receive = pin!(Some(Receiver::new(env.clone(), line, socket, rest).run()));
    let mut send = pin!(send_replies(line, socket));
    let mut received = Ok(());
    poll_fn(|cx| {
        let halt = line.session.watch(cx);
        if halt == Halt::Cut {
            return Poll::Ready(Err(Error::cancelled(line.session.peer())));
        }
        let polled = receive.as_mut().as_pin_mut().map(|receive| receive.poll(cx));
        let ended = match polled {
            None => false,
            Some(Poll::Pending) => halt == Halt::Finish,
            Some(Poll::Ready(result)) => {
                received = result;
                true
            }
        };
        if ended {
            // Dropped now: otherwise a request that was received in part would be waited for.
            receive.set(None);
            line.finish();
            match halt {
                Halt::Finish => line.permit_delayed(&env),
                // The client has disconnected, or sends no more: its requests could wait without limit.
                _ => line.abandon(&env),
            }
        }
        send.as_mut().poll(cx).map(|sent| std::mem::replace(&mut received, Ok(())).and(sent))
    })
    .await
}

async fn send_replies(line: &Connection, socket: &Stream) -> Result<()> {
    while let Some(mut batch) = line.next_batch().await {
        send_all(socket, std::mem::take(&mut batch.parts)).await?;
    }
    Ok(())
}
