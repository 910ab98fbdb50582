//! TLS of one connection, without I/O: records in, bytes out, and the reverse.

use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard};

use blk::Slice;
use rustls::{ServerConfig, ServerConnection};

/// Maximum number of bytes that are encrypted for one send: four records. It bounds the memory of the ciphertext.
const SEND_BYTES_MAX: usize = 64 << 10;

/// Why a connection under TLS breaks.
type Cause = String;

/// TLS of a listener: its certificates, and which of its clients may use which export.
#[derive(Debug, Clone)]
pub struct TlsTerms {
    /// Requires certificates of the clients.
    pub config: Arc<ServerConfig>,
    /// Decides by the certificate of a client.
    pub permits: Arc<dyn Permits>,
}

/// The terms for new connections, which may be replaced. Connections that are open keep theirs.
#[derive(Debug, Clone)]
pub struct TlsSource(Arc<Mutex<TlsTerms>>);

impl TlsSource {
    /// Makes a source that begins with these terms.
    pub fn new(terms: TlsTerms) -> TlsSource {
        TlsSource(Arc::new(Mutex::new(terms)))
    }

    /// Has the next connections served by other terms.
    pub fn replace(&self, terms: TlsTerms) {
        *self.lock() = terms;
    }

    pub(super) fn now(&self) -> TlsTerms {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, TlsTerms> {
        self.0.lock().expect("no thread panics with the lock")
    }
}

/// Decides what a client may use.
pub trait Permits: std::fmt::Debug + Send + Sync {
    /// Returns whether the client with this certificate (X.509 in DER) may use the export of this name.
    fn permits(&self, certificate: &[u8], export: &str) -> bool;
}

pub(super) struct Tls {
    connection: ServerConnection,
    permits: Arc<dyn Permits>,
    /// Records that were received and are not decrypted yet.
    received: Vec<u8>,
    /// Number of bytes at their beginning that are decrypted.
    used: usize,
}

fn cause(error: impl std::fmt::Display) -> Cause {
    error.to_string()
}

impl Tls {
    pub(super) fn new(terms: TlsTerms) -> Result<Tls, Cause> {
        let TlsTerms { config, permits } = terms;
        let mut connection = ServerConnection::new(config).map_err(cause)?;
        // `encrypt` bounds what waits.
        connection.set_buffer_limit(None);
        Ok(Tls { connection, permits, received: Vec::new(), used: 0 })
    }

    /// Returns whether the client may use an export. Without a certificate it may use none.
    pub(super) fn permits(&self, export: &str) -> bool {
        let certificates = self.connection.peer_certificates().unwrap_or_default();
        certificates.first().is_some_and(|certificate| self.permits.permits(certificate, export))
    }

    /// Adds received records.
    pub(super) fn put(&mut self, records: &[u8]) {
        self.received.drain(..self.used);
        self.used = 0;
        self.received.extend_from_slice(records);
    }

    /// Continues the handshake with what was received. Returns whether it is complete.
    pub(super) fn handshake(&mut self) -> Result<bool, Cause> {
        while self.used < self.received.len() && self.connection.is_handshaking() {
            self.process()?;
        }
        Ok(!self.connection.is_handshaking())
    }

    fn process(&mut self) -> Result<(), Cause> {
        self.used += self.connection.read_tls(&mut &self.received[self.used..]).map_err(cause)?;
        self.connection.process_new_packets().map(drop).map_err(cause)
    }

    /// Decrypts into `bytes`. Returns the number of bytes, 0 at the end of the stream, or None if more has to be received.
    pub(super) fn decrypt(&mut self, bytes: &mut [u8]) -> Result<Option<usize>, Cause> {
        loop {
            match self.connection.reader().read(bytes) {
                Ok(n) => return Ok(Some(n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(cause(e)),
            }
            if self.used == self.received.len() {
                return Ok(None);
            }
            self.process()?;
        }
    }

    /// Encrypts the first bytes of the parts. Returns their number, and the records.
    pub(super) fn encrypt(&mut self, parts: &[Slice]) -> Result<(u64, Vec<u8>), Cause> {
        let mut taken = 0;
        for part in parts {
            let now = part.len().min(SEND_BYTES_MAX - taken);
            self.connection.writer().write_all(&part[..now]).map_err(cause)?;
            taken += now;
        }
        Ok((taken as u64, self.take_records()?))
    }

    /// Returns the records that wait to be sent.
    pub(super) fn take_records(&mut self) -> Result<Vec<u8>, Cause> {
        let mut records = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut records).map_err(cause)?;
        }
        Ok(records)
    }
}
