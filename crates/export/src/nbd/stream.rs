//! The byte stream of a connection: its socket in clear text, or under TLS from STARTTLS on.

use std::cell::{OnceCell, RefCell};

use blk::socket::{DetachedSocket, Peer, Socket};
use blk::{Buf, Env, Error, Result, Slice};

use super::tls::{Tls, TlsTerms};

/// Size of a receive of ciphertext: two records.
const RECEIVE_BYTES: usize = 32 << 10;

pub(super) struct Stream {
    socket: Socket,
    /// Not set in clear text.
    tls: OnceCell<Box<RefCell<Tls>>>,
}

/// A stream on its way from one core to another.
pub(super) struct DetachedStream {
    socket: DetachedSocket,
    tls: Option<Box<RefCell<Tls>>>,
}

impl Stream {
    pub(super) fn new(socket: Socket) -> Stream {
        Stream { socket, tls: OnceCell::new() }
    }

    /// Returns the name of the peer, for messages.
    pub(super) fn peer(&self) -> &str {
        self.socket.peer()
    }

    /// Returns the peer with its identity.
    pub(super) fn client(&self) -> &Peer {
        self.socket.client()
    }

    /// Returns whether the client may use an export. In clear text every client may.
    pub(super) fn permits(&self, export: &str) -> bool {
        self.tls.get().is_none_or(|tls| tls.borrow().permits(export))
    }

    /// See [`Socket::hung_up`].
    pub(super) async fn hung_up(&self) -> Result<()> {
        self.socket.hung_up().await
    }

    /// Fills `buf` from `at` with received data, at least one byte. 0 is the end of the stream.
    pub(super) async fn recv(&self, buf: Buf, at: usize) -> (Buf, Result<usize>) {
        match self.tls.get() {
            None => self.socket.recv(buf, at).await,
            Some(tls) => self.recv_encrypted(tls, buf, at).await,
        }
    }

    /// Sends some of the parts, in order. The number of bytes taken may be less than their sum.
    pub(super) async fn send(&self, parts: Vec<Slice>) -> Result<u64> {
        match self.tls.get() {
            None => self.socket.send(parts).await,
            Some(tls) => {
                // One send is under way at a time, so the records keep their order.
                let encrypted = tls.borrow_mut().encrypt(&parts);
                let (taken, records) = encrypted.map_err(|cause| self.broken(&cause))?;
                self.send_raw(&records).await?;
                Ok(taken)
            }
        }
    }

    async fn recv_encrypted(&self, tls: &RefCell<Tls>, mut buf: Buf, at: usize) -> (Buf, Result<usize>) {
        loop {
            let decrypted = tls.borrow_mut().decrypt(&mut buf[at..]);
            match decrypted {
                Ok(Some(n)) => return (buf, Ok(n)),
                Ok(None) => {}
                Err(cause) => return (buf, Err(self.broken(&cause))),
            }
            match self.recv_raw().await {
                // Most clients end without a `close_notify`. What they have sent in part is not carried out.
                Ok(received) if received.is_empty() => return (buf, Ok(0)),
                Ok(received) => tls.borrow_mut().put(&received),
                Err(error) => return (buf, Err(error)),
            }
        }
    }

    /// Carries out the TLS handshake as the server. From then on the stream is encrypted.
    pub(super) async fn start_tls(&self, terms: TlsTerms) -> Result<()> {
        let mut tls = Tls::new(terms).map_err(|cause| self.broken(&cause))?;
        loop {
            let progress = tls.handshake();
            // After a failure the client gets an alert that names the cause.
            let records = tls.take_records().map_err(|cause| self.broken(&cause))?;
            self.send_raw(&records).await?;
            if progress.map_err(|cause| self.broken(&cause))? {
                break;
            }
            let received = self.recv_raw().await?;
            if received.is_empty() {
                return Err(self.broken("the client has left during the handshake"));
            }
            tls.put(&received);
        }
        match self.tls.set(Box::new(RefCell::new(tls))) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.broken("the connection is encrypted already")),
        }
    }

    async fn recv_raw(&self) -> Result<Vec<u8>> {
        let (buf, received) = self.socket.recv(Buf::alloc(RECEIVE_BYTES), 0).await;
        Ok(buf[..received?].to_vec())
    }

    async fn send_raw(&self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut parts = vec![Buf::copy_of(bytes).freeze()];
        while !parts.is_empty() {
            match self.socket.send(parts.clone()).await? {
                0 => return Err(Error::invalid(self.peer(), "the connection takes nothing more")),
                sent => advance(&mut parts, sent),
            }
        }
        Ok(())
    }

    fn broken(&self, cause: &str) -> Error {
        Error::invalid(self.peer(), format!("TLS: {cause}"))
    }

    /// Takes the stream away from its core; see [`Socket::detach`].
    pub(super) fn detach(self) -> Option<DetachedStream> {
        let Stream { socket, tls } = self;
        Some(DetachedStream { socket: socket.detach()?, tls: tls.into_inner() })
    }

    /// Gives a stream to the core of `env`; see [`Socket::attach`].
    pub(super) fn attach(env: &Env, detached: DetachedStream) -> Option<Stream> {
        let stream = Stream::new(Socket::attach(env, detached.socket)?);
        if let Some(tls) = detached.tls {
            stream.tls.get_or_init(|| tls);
        }
        Some(stream)
    }
}

/// Drops the first `sent` bytes of `parts`.
pub(crate) fn advance(parts: &mut Vec<Slice>, sent: u64) {
    let mut left = sent;
    let whole = parts.iter().take_while(|part| {
        let fits = part.len() as u64 <= left;
        left -= if fits { part.len() as u64 } else { 0 };
        fits
    });
    let whole = whole.count();
    parts.drain(..whole);
    if left > 0 {
        let first = &parts[0];
        parts[0] = first.slice(left as usize..first.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_send_continues_where_it_stopped() {
        let whole =
            || vec![Buf::copy_of(b"abc").freeze(), Buf::copy_of(b"de").freeze(), Buf::copy_of(b"f").freeze()];
        for sent in 0..=6 {
            let mut parts = whole();
            advance(&mut parts, sent as u64);
            let rest: Vec<u8> = parts.iter().flat_map(|p| p.to_vec()).collect();
            assert_eq!(rest, b"abcdef"[sent..]);
        }
    }
}
