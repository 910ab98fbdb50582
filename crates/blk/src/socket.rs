//! Stream sockets on the reactor, for front ends. The simulator has none.

use std::cell::Cell;
use std::os::fd::OwnedFd;

use crate::buf::{Buf, Slice};
use crate::error::{Errno, Error, Result};
use crate::exec::Env;
use crate::passed::Descriptor;
pub use crate::peer::{ClientId, Peer};
use crate::reactor::{Handle, Op, Outcome};

/// A listening socket. Made by the real reactor; the simulator has no addresses.
pub struct Listener {
    env: Env,
    handle: Handle,
    address: String,
    closed: Cell<bool>,
}

/// A connected stream. Dropping it shuts the connection down.
pub struct Socket {
    env: Env,
    handle: Handle,
    peer: Peer,
}

impl Listener {
    /// Wraps the listening socket `handle`; `address` is for messages.
    pub fn new(env: Env, handle: Handle, address: String) -> Listener {
        Listener { env, handle, address, closed: Cell::new(false) }
    }

    /// Returns the address as it was given when the socket was made.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Closes the socket now, and removes its file. An accept under way fails.
    pub fn close(&self) {
        if !self.closed.replace(true) {
            self.env.close(self.handle);
        }
    }

    /// Waits for the next connection.
    pub async fn accept(&self) -> Result<Socket> {
        if self.closed.get() {
            return Err(Error::cancelled(&self.address));
        }
        let Outcome::Accepted(result) = self.env.op(Op::Accept { socket: self.handle }).await else {
            unreachable!("an accept answers with a connection")
        };
        let (handle, peer) = result.map_err(|e: Errno| e.at(&self.address, "accepting a connection"))?;
        Ok(Socket { env: self.env.clone(), handle, peer })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

impl Socket {
    /// Gives the core of `env` a stream that is connected to `server`, for clients. None if the core has no sockets; the
    /// connection has ended then.
    pub fn connected(env: &Env, fd: OwnedFd, server: &str) -> Option<Socket> {
        let handle = env.adopt_stream(fd)?;
        let peer = Peer { name: server.to_owned(), client: ClientId::Connection(u64::from(handle.0)) };
        Some(Socket { env: env.clone(), handle, peer })
    }

    /// Wraps a stream that a peer has passed; `peer` is the process at its other end.
    pub fn adopt(env: &Env, descriptor: Descriptor, peer: Peer) -> Result<Socket> {
        let handle =
            env.adopt(descriptor).map_err(|e| e.at(&peer.name, "using the socket that it passed"))?;
        Ok(Socket { env: env.clone(), handle, peer })
    }

    /// Returns the name of the peer, for messages.
    pub fn peer(&self) -> &str {
        &self.peer.name
    }

    /// Returns the peer with its identity.
    pub fn client(&self) -> &Peer {
        &self.peer
    }

    /// Fills `buf` from `at` with received data, at least one byte. 0 is the end of the stream.
    pub async fn recv(&self, buf: Buf, at: usize) -> (Buf, Result<usize>) {
        let outcome = self.env.op(Op::Recv { socket: self.handle, buf, at }).await;
        let Outcome::Read(buf, result) = outcome else { unreachable!("a receive answers with a read") };
        (buf, result.map_err(|e| e.at(self.peer(), "receiving")))
    }

    /// Receives like [`Socket::recv`], with the descriptors that the peer passes.
    pub async fn recv_descriptors(&self, buf: Buf, at: usize) -> (Buf, Result<(usize, Vec<Descriptor>)>) {
        let outcome = self.env.op(Op::RecvDescriptors { socket: self.handle, buf, at }).await;
        let Outcome::Received(buf, result) = outcome else {
            unreachable!("it answers with what it received")
        };
        (buf, result.map_err(|e| e.at(self.peer(), "receiving")))
    }

    /// Sends the data with a descriptor. The number of bytes taken may be less than all.
    pub async fn send_descriptor(&self, data: Slice, descriptor: Descriptor) -> Result<u64> {
        let op = Op::SendDescriptor { socket: self.handle, data, descriptor };
        let Outcome::Count(result) = self.env.op(op).await else {
            unreachable!("a send answers with a count")
        };
        result.map_err(|e| e.at(self.peer(), "sending"))
    }

    /// Resolves when the peer will send no more. Bytes from it may still wait to be received.
    pub async fn hung_up(&self) -> Result<()> {
        let Outcome::Unit(result) = self.env.op(Op::HungUp { socket: self.handle }).await else {
            unreachable!("a hang-up answers with a unit")
        };
        result.map_err(|e| e.at(self.peer(), "waiting for the end of the connection"))
    }

    /// Sends some of the parts, in order. The number of bytes taken may be less than their sum.
    pub async fn send(&self, parts: Vec<Slice>) -> Result<u64> {
        let Outcome::Count(result) = self.env.op(Op::Send { socket: self.handle, parts }).await else {
            unreachable!("a send answers with a count")
        };
        result.map_err(|e| e.at(self.peer(), "sending"))
    }
}

/// A connected stream on its way from one core to another.
pub struct DetachedSocket {
    fd: OwnedFd,
    peer: Peer,
}

impl Socket {
    /// Takes the stream away from its core. The connection stays. Every operation on the socket must have ended. None if
    /// the core cannot release it, or has no sockets; the connection has ended then.
    pub fn detach(self) -> Option<DetachedSocket> {
        let fd = self.env.release_stream(self.handle)?;
        Some(DetachedSocket { fd, peer: self.peer.clone() })
    }

    /// Gives a stream to the core of `env`. None if that core has no sockets; the connection has ended then.
    pub fn attach(env: &Env, detached: DetachedSocket) -> Option<Socket> {
        let handle = env.adopt_stream(detached.fd)?;
        Some(Socket { env: env.clone(), handle, peer: detached.peer })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.env.close(self.handle);
    }
}
