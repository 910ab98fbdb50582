//! What a front end reports of its connections.

use blk::ErrorKind;

/// One connection, for `vm show`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// Number of the connection, unique among all front ends of a server.
    pub id: u64,
    /// [`blk::socket::Peer::name`] of the client.
    pub peer: String,
    /// Name of the export; empty until the client has chosen one.
    pub export: String,
    /// Requests accepted since the connection began.
    pub requests: u64,
    /// Bytes of payload of reads and writes.
    pub bytes: u64,
}

/// Why a connection, or an attempt at one, ended otherwise than by the client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionFailure {
    /// Name of the client, like `SessionInfo::peer`.
    pub peer: String,
    /// Name of the export; empty before one was chosen.
    pub export: String,
    /// `Refused` for a refused connection or export; otherwise the kind of the error.
    pub kind: ErrorKind,
    /// The cause, which may contain untrusted text.
    pub cause: String,
}
