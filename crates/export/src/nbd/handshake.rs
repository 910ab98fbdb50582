//! The handshake with one client: transfers the bytes of a negotiation, and looks exports up in the catalogue.

use std::rc::Rc;

use blk::socket::Socket;
use blk::volume::{Attachment, ExportEntry, Exports};
use blk::{Buf, Error, Result};

use super::front_end::FrontEnd;
use super::handshake_timer::HandshakeTimer;
use super::negotiate::{FoundExport, Negotiation, Step, Terms};
use super::outbox::advance;

/// Size of a receive: options are small, so it is one page.
const HANDSHAKE_RECEIVE_BYTES: usize = 4096;

/// Result of a handshake: a client that has chosen its export.
pub(super) struct Negotiated {
    pub terms: Terms,
    pub attachment: Attachment,
    /// The party whose share of the core the client uses.
    pub group: String,
    /// Bytes received after the handshake: the first requests.
    pub rest: Vec<u8>,
}

/// Negotiates with one client, within the time of `patience`. Returns None if the client ended the handshake.
pub(super) async fn handshake(
    socket: &Socket,
    exports: &Rc<dyn Exports>,
    front_end: &FrontEnd,
    timer: &HandshakeTimer,
) -> Result<Option<Negotiated>> {
    let peer = socket.peer();
    let mut negotiation = Negotiation::new();
    loop {
        let output = negotiation.take_output();
        timer.wait(peer, send(socket, &output)).await?;
        match negotiation.step() {
            Step::Answered => {}
            Step::List => negotiation.list(&exports.list()),
            Step::Lookup(name) => match lookup(exports, front_end, &name, socket).await {
                Err(error) => negotiation.not_found(&error),
                Ok((export, attachment)) => {
                    if let Some(terms) = negotiation.found(&export) {
                        let output = negotiation.take_output();
                        timer.wait(peer, send(socket, &output)).await?;
                        let group = exports.client_group(&terms.export);
                        return Ok(Some(Negotiated {
                            terms,
                            attachment,
                            group,
                            rest: negotiation.into_rest(),
                        }));
                    }
                }
            },
            Step::Receive => {
                let received = async {
                    let (buf, received) = socket.recv(Buf::alloc(HANDSHAKE_RECEIVE_BYTES), 0).await;
                    received.map(|n| (buf, n))
                };
                match timer.wait(peer, received).await? {
                    (_, 0) => return Ok(None),
                    (buf, n) => negotiation.feed(&buf[..n]),
                }
            }
            Step::Left => {
                // The client may have disconnected; its acknowledgement is not required.
                let output = negotiation.take_output();
                let _ = timer.wait(peer, send(socket, &output)).await;
                return Ok(None);
            }
            Step::Close(why) => return Err(Error::invalid(socket.peer(), why)),
        }
    }
}

/// Looks up an export. The empty name means the only export, if there is exactly one ("NBD_OPT_EXPORT_NAME").
async fn lookup(
    exports: &Rc<dyn Exports>,
    front_end: &FrontEnd,
    name: &str,
    socket: &Socket,
) -> Result<(FoundExport, Attachment)> {
    let entry = match name {
        "" => only_export(exports.list())?,
        _ => ExportEntry { name: name.to_string(), description: exports.description(name) },
    };
    front_end
        .refuse_export(socket.peer(), &entry.name)
        .map_err(|cause| Error::refused(&entry.name, cause))?;
    let attachment = exports.attach(&entry.name, socket.client()).await?;
    let info = attachment.volume.info();
    Ok((FoundExport { name: entry.name, description: entry.description, info }, attachment))
}

fn only_export(mut list: Vec<ExportEntry>) -> Result<ExportEntry> {
    match list.len() {
        1 => Ok(list.swap_remove(0)),
        n => Err(Error::not_found("", format!("{n} exports are served, so one has to be named"))),
    }
}

async fn send(socket: &Socket, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    send_all(socket, vec![Buf::copy_of(bytes).freeze()]).await
}

/// Sends all bytes of the parts, with as many sends as necessary.
pub(super) async fn send_all(socket: &Socket, mut parts: Vec<blk::Slice>) -> Result<()> {
    while !parts.is_empty() {
        match socket.send(parts.clone()).await? {
            0 => return Err(Error::invalid(socket.peer(), "the connection takes nothing more")),
            sent => advance(&mut parts, sent),
        }
    }
    Ok(())
}
