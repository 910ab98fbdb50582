//! The other end of a connection, and what identifies a client.

use core::net::IpAddr;
use std::fmt;

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// For messages: `pid 4711 (qemu-system-x86)`, `127.0.0.1:50312`. Printable whatever the peer calls itself.
    pub name: String,
    /// Tells the connections of one client from those of others.
    pub client: ClientId,
}

/// What the connections of one client have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientId {
    /// A process that connected to a Unix socket.
    Process {
        /// Process ID in this process's PID namespace.
        pid: u32,
        /// In clock ticks after the boot; tells a number that is used again. None where `/proc` does not show the process.
        started: Option<u64>,
    },
    /// All processes of one TCP address: nothing tells them apart.
    Host(IpAddr),
    /// The number of a connection whose other end the kernel does not name (a process of another PID namespace).
    Connection(u64),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
