//! Carries a negotiation's bytes and answers its questions from the catalogue.

use std::rc::Rc;

use blk::socket::{Peer, Socket};
use blk::volume::{Attachment, ExportEntry, Exports};
use blk::{Buf, Error, Result};

use super::negotiate::{Negotiation, Offer, Step, Terms};
use super::outbox::advance;

/// Options are small; one page at a time.
const HANDSHAKE_RECEIVE_BYTES: usize = 4096;

/// A client that has chosen its export.
pub struct Agreed {
    pub terms: Terms,
    pub attachment: Attachment,
    /// Bytes that came after the handshake: the first requests.
    pub rest: Vec<u8>,
}

/// Negotiates with one client. None when it left in peace.
pub async fn handshake(socket: &Socket, exports: &Rc<dyn Exports>) -> Result<Option<Agreed>> {
    let mut negotiation = Negotiation::new();
    let mut buf = Buf::alloc(HANDSHAKE_RECEIVE_BYTES);
    loop {
        send(socket, &negotiation.take_output()).await?;
        match negotiation.step() {
            Step::Answered => {}
            Step::List => negotiation.list(&exports.list()),
            Step::Lookup(name) => match lookup(exports, &name, socket.client()).await {
                Err(error) => negotiation.not_found(&error),
                Ok((offer, attachment)) => {
                    if let Some(terms) = negotiation.found(&offer) {
                        send(socket, &negotiation.take_output()).await?;
                        return Ok(Some(Agreed { terms, attachment, rest: negotiation.into_rest() }));
                    }
                }
            },
            Step::Receive => {
                let (returned, received) = socket.recv(buf, 0).await;
                buf = returned;
                match received? {
                    0 => return Ok(None),
                    n => negotiation.feed(&buf[..n]),
                }
            }
            Step::Left => {
                // The client may already be gone; its acknowledgement is a courtesy.
                let _ = send(socket, &negotiation.take_output()).await;
                return Ok(None);
            }
            Step::Close(why) => return Err(Error::invalid(socket.peer(), why)),
        }
    }
}

/// The empty name stands for the only export, if there is exactly one ("NBD_OPT_EXPORT_NAME").
async fn lookup(exports: &Rc<dyn Exports>, name: &str, client: &Peer) -> Result<(Offer, Attachment)> {
    let mut list = exports.list();
    let entry = match (name, list.len()) {
        ("", 1) => list.swap_remove(0),
        ("", n) => {
            return Err(Error::not_found("", format!("{n} exports are served, so one has to be named")));
        }
        _ => list
            .into_iter()
            .find(|entry| entry.name == name)
            .unwrap_or_else(|| ExportEntry { name: name.to_string(), description: String::new() }),
    };
    let attachment = exports.attach(&entry.name, client).await?;
    let info = attachment.volume.info();
    Ok((Offer { name: entry.name, description: entry.description, info }, attachment))
}

async fn send(socket: &Socket, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    send_all(socket, vec![Buf::copy_of(bytes).freeze()]).await
}

/// Sends every byte of the parts, over as many sends as it takes.
pub async fn send_all(socket: &Socket, mut parts: Vec<blk::Slice>) -> Result<()> {
    while !parts.is_empty() {
        match socket.send(parts.clone()).await? {
            0 => return Err(Error::invalid(socket.peer(), "the connection takes nothing more")),
            sent => advance(&mut parts, sent),
        }
    }
    Ok(())
}
