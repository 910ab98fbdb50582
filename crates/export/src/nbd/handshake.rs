//! The handshake with one client: transfers the bytes of a negotiation, and looks exports up in the catalogue.

use std::rc::Rc;

use blk::volume::{Attachment, ExportEntry, Exports};
use blk::{Buf, Error, Result};

use super::front_end::FrontEnd;
use super::handshake_timer::HandshakeTimer;
use super::negotiate::{FoundExport, Negotiation, Step, Terms};
use super::stream::{Stream, advance};
use super::tls::TlsTerms;

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

/// Where a handshake begins: at its beginning, or at an export that the client has requested on another core.
pub(super) struct Start {
    pub negotiation: Negotiation,
    pub requested: Option<String>,
    /// For TLS, where the listener requires it and it has not begun.
    pub tls: Option<TlsTerms>,
}

impl Start {
    pub(super) fn new(tls: Option<TlsTerms>) -> Start {
        Start { negotiation: Negotiation::new(tls.is_some()), requested: None, tls }
    }
}

/// How a handshake ends.
pub(super) enum End {
    /// The client has ended it.
    Left,
    Agreed(Negotiated),
    /// Another core serves the requested export and continues the handshake.
    Elsewhere {
        core: usize,
        start: Start,
    },
}

/// An export that was looked up.
enum Found {
    Here(FoundExport, Attachment),
    Elsewhere(usize),
}

/// Negotiates with one client, within the time of `timer`.
pub(super) async fn handshake(
    socket: &Stream,
    exports: &Rc<dyn Exports>,
    front_end: &FrontEnd,
    timer: &HandshakeTimer,
    start: Start,
) -> Result<End> {
    let peer = socket.peer();
    let Start { mut negotiation, mut requested, mut tls } = start;
    loop {
        let output = negotiation.take_output();
        timer.wait(peer, send(socket, &output)).await?;
        match requested.take().map_or_else(|| negotiation.step(), Step::Lookup) {
            Step::Answered => {}
            Step::List => negotiation.list(&permitted(exports, socket).await),
            Step::Lookup(name) => match lookup(exports, front_end, &name, socket).await {
                Err(error) => negotiation.not_found(&error),
                Ok(Found::Elsewhere(core)) => {
                    let start = Start { negotiation, requested: Some(name), tls };
                    return Ok(End::Elsewhere { core, start });
                }
                Ok(Found::Here(export, attachment)) => {
                    if let Some(terms) = negotiation.found(&export) {
                        let output = negotiation.take_output();
                        timer.wait(peer, send(socket, &output)).await?;
                        let group = exports.client_group(&terms.export);
                        let rest = negotiation.into_rest();
                        return Ok(End::Agreed(Negotiated { terms, attachment, group, rest }));
                    }
                }
            },
            Step::Receive => {
                let received = async {
                    let (buf, received) = socket.recv(Buf::alloc(HANDSHAKE_RECEIVE_BYTES), 0).await;
                    received.map(|n| (buf, n))
                };
                match timer.wait(peer, received).await? {
                    (_, 0) => return Ok(End::Left),
                    (buf, n) => negotiation.feed(&buf[..n]),
                }
            }
            Step::StartTls => {
                let output = negotiation.take_output();
                timer.wait(peer, send(socket, &output)).await?;
                let terms = tls.take().expect("the negotiation offers TLS once, where it is required");
                timer.wait(peer, socket.start_tls(terms)).await?;
            }
            Step::Left => {
                // The client may have disconnected; its acknowledgement is not required.
                let output = negotiation.take_output();
                let _ = timer.wait(peer, send(socket, &output)).await;
                return Ok(End::Left);
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
    socket: &Stream,
) -> Result<Found> {
    let wanted = match name {
        "" => only_export(permitted(exports, socket).await)?.name,
        _ => name.to_string(),
    };
    if !socket.permits(&wanted) {
        let cause = "the certificate of this client does not permit it";
        return Err(Error::refused(&wanted, cause));
    }
    if let Some(core) = front_end.other_core(&wanted).await {
        return Ok(Found::Elsewhere(core));
    }
    let entry = ExportEntry { description: exports.description(&wanted), name: wanted };
    front_end
        .refuse_export(socket.peer(), &entry.name)
        .map_err(|cause| Error::refused(&entry.name, cause))?;
    let attachment = exports.attach(&entry.name, socket.client()).await?;
    let info = attachment.volume.info();
    let states = attachment.changes.as_ref().map_or_else(Vec::new, |changes| changes.states());
    let found = FoundExport { name: entry.name, description: entry.description, info, states };
    Ok(Found::Here(found, attachment))
}

/// Returns the exports that the client may use.
async fn permitted(exports: &Rc<dyn Exports>, socket: &Stream) -> Vec<ExportEntry> {
    let mut all = exports.list_all().await;
    all.retain(|entry| socket.permits(&entry.name));
    all
}

fn only_export(mut list: Vec<ExportEntry>) -> Result<ExportEntry> {
    match list.len() {
        1 => Ok(list.swap_remove(0)),
        n => Err(Error::not_found("", format!("{n} exports are served, so one has to be named"))),
    }
}

async fn send(socket: &Stream, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    send_all(socket, vec![Buf::copy_of(bytes).freeze()]).await
}

/// Sends all bytes of the parts, with as many sends as necessary.
pub(super) async fn send_all(socket: &Stream, mut parts: Vec<blk::Slice>) -> Result<()> {
    while !parts.is_empty() {
        match socket.send(parts.clone()).await? {
            0 => return Err(Error::invalid(socket.peer(), "the connection takes nothing more")),
            sent => advance(&mut parts, sent),
        }
    }
    Ok(())
}
