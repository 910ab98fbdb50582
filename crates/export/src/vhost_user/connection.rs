//! One connection: receives messages, has the device carry them out, and sends replies.

use std::pin::pin;
use std::rc::Rc;

use blk::passed::Descriptor;
use blk::socket::Socket;
use blk::volume::Attachment;
use blk::{Buf, Env, Error, Result};
use futures_util::future::{Either, select};

use super::device::{Device, Reply};
use super::message::{self, Header, Request};
use super::protocol::*;
use super::session::{Halt, Session};
use crate::fair::REQUEST_COST;

/// Cost of a file that a client passes, in requests: two system calls for its kind, a mapping, and a thread that closes it.
const FILE_REQUESTS: u64 = 16;

/// Serves an attached connection until the client closes it, breaks a rule, or the front end ends it.
///
/// The attachment is kept until no request is under way. After its end, nothing of this client can reach the volume.
pub(super) async fn serve(socket: Socket, session: Rc<Session>, attachment: Attachment) -> Result<()> {
    let device = Device::new(&session);
    let result = converse(&socket, &session, &device).await;
    session.detach();
    device.close();
    drop(socket);
    for queue in device.queues() {
        queue.drain().await;
    }
    drop(device);
    drop(attachment);
    result
}

async fn converse(socket: &Socket, session: &Rc<Session>, device: &Device) -> Result<()> {
    let mut messages = pin!(exchange(socket, session, device));
    loop {
        let changed = session.changed.wait();
        if let Some(fault) = session.take_fault() {
            return Err(fault);
        }
        match session.halt() {
            Halt::Run => {}
            Halt::Finish => return finish(session, device).await,
            Halt::Cut => return Err(Error::cancelled(&session.peer.name)),
        }
        device.notice_size();
        match select(messages.as_mut(), pin!(changed)).await {
            Either::Left((ended, _)) => return ended,
            Either::Right(_) => {}
        }
    }
}

/// Answers the requests under way, unless the connection is cut meanwhile.
async fn finish(session: &Rc<Session>, device: &Device) -> Result<()> {
    session.permit_delayed();
    let drained = pin!(async {
        for queue in device.queues() {
            queue.drain().await;
        }
    });
    let cut = pin!(async {
        loop {
            let changed = session.changed.wait();
            if session.halt() == Halt::Cut {
                return;
            }
            changed.await;
        }
    });
    select(drained, cut).await;
    Ok(())
}

/// Carries out messages until the client closes the connection.
async fn exchange(socket: &Socket, session: &Rc<Session>, device: &Device) -> Result<()> {
    let invalid = |cause| Error::invalid(&session.export, cause);
    while let Some((header, payload, passed)) = receive(socket).await? {
        let wants_reply = header.flags & FLAG_NEED_REPLY != 0;
        let request = message::request(&header, &payload, passed.len()).map_err(invalid)?;
        // Each file may become a mapping, and end on a thread of its own.
        session.pay(REQUEST_COST * (1 + FILE_REQUESTS * passed.len() as u64)).await;
        let carried_out = carry_out(socket, device, request, passed).await?;
        match carried_out {
            Ok(Reply::Done) if wants_reply => acknowledge(socket, header.request, 0).await?,
            Ok(Reply::Declined) if wants_reply => acknowledge(socket, header.request, 1).await?,
            Ok(Reply::Done | Reply::Declined) => {}
            Ok(Reply::Payload(payload)) => send(socket, message::reply(header.request, &payload)).await?,
            Ok(Reply::Passed(payload, file)) => {
                let bytes = Buf::copy_of(&message::reply(header.request, &payload)).freeze();
                // One page always fits into a new socket's buffer, and the kernel takes a message of that size whole.
                socket.send_descriptor(bytes, file).await?;
            }
            Err(error) => {
                if wants_reply {
                    acknowledge(socket, header.request, 1).await?;
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Carries out a message. The outer error is the end of the client, which is noticed while the device waits for its
/// requests.
async fn carry_out(
    socket: &Socket,
    device: &Device,
    request: Request,
    passed: Vec<Descriptor>,
) -> Result<Result<Reply>> {
    // Only this message waits for anything.
    if !matches!(request, Request::GetRingBase { .. } | Request::ResetOwner) {
        return Ok(device.carry_out(request, passed).await);
    }
    match select(pin!(device.carry_out(request, passed)), pin!(socket.hung_up())).await {
        Either::Left((carried_out, _)) => Ok(carried_out),
        Either::Right((ended, _)) => {
            ended?;
            Err(Error::new(blk::ErrorKind::Io, socket.peer(), "the client closed the connection"))
        }
    }
}

async fn acknowledge(socket: &Socket, request: u32, status: u64) -> Result<()> {
    send(socket, message::reply(request, &status.to_le_bytes())).await
}

async fn send(socket: &Socket, bytes: Vec<u8>) -> Result<()> {
    let mut rest = Buf::copy_of(&bytes).freeze();
    while !rest.is_empty() {
        let sent = socket.send(vec![rest.clone()]).await? as usize;
        rest = rest.slice(sent..rest.len());
    }
    Ok(())
}

/// Receives one message with its descriptors. None if the client has closed the connection between two messages.
async fn receive(socket: &Socket) -> Result<Option<(Header, Vec<u8>, Vec<Descriptor>)>> {
    let mut passed = Vec::new();
    let Some(head) = receive_exactly(socket, HEADER_BYTES, &mut passed).await? else { return Ok(None) };
    let head: &[u8; HEADER_BYTES] = head.first_chunk().expect("received exactly");
    let header = message::header(head).map_err(|cause| Error::invalid(socket.peer(), cause))?;
    if header.payload == 0 {
        return Ok(Some((header, Vec::new(), passed)));
    }
    let payload = receive_exactly(socket, header.payload, &mut passed).await?;
    let payload = payload.ok_or_else(|| Error::invalid(socket.peer(), "the stream ends inside a message"))?;
    Ok(Some((header, payload.to_vec(), passed)))
}

async fn receive_exactly(socket: &Socket, len: usize, passed: &mut Vec<Descriptor>) -> Result<Option<Buf>> {
    let mut buf = Buf::alloc(len);
    let mut have = 0;
    while have < len {
        let (returned, received) = socket.recv_descriptors(buf, have).await;
        buf = returned;
        let (n, descriptors) = received?;
        passed.extend(descriptors);
        if passed.len() > REGIONS_MAX {
            return Err(Error::invalid(socket.peer(), "a message with too many descriptors"));
        }
        match n {
            0 if have == 0 => return Ok(None),
            0 => return Err(Error::invalid(socket.peer(), "the stream ends inside a message")),
            n => have += n,
        }
    }
    Ok(Some(buf))
}

/// Returns the first bytes of a text as a serial number, zeros behind them.
pub(super) fn serial_of(text: &str) -> [u8; SERIAL_BYTES] {
    let mut serial = [0; SERIAL_BYTES];
    let len = text.len().min(SERIAL_BYTES);
    serial[..len].copy_from_slice(&text.as_bytes()[..len]);
    serial
}

/// Waits until `ended` resolves, for at most the time that a client may wait for its predecessor.
pub(super) async fn predecessor_ended(env: &Env, ended: impl Future<Output = ()>) -> bool {
    let late = pin!(env.sleep_us(PREDECESSOR_WAIT_US));
    matches!(select(pin!(ended), late).await, Either::Left(_))
}
