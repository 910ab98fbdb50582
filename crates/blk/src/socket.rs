//! Stream sockets on the reactor: what the doors speak through. Real world only.

use crate::buf::{Buf, Slice};
use crate::error::{Errno, Result};
use crate::exec::Env;
use crate::reactor::{Handle, Op, Outcome};

/// A listening socket. Made by the real reactor, which knows addresses.
pub struct Listener {
    env: Env,
    handle: Handle,
    address: String,
}

/// A connected stream. Dropping it shuts the connection down.
pub struct Socket {
    env: Env,
    handle: Handle,
    peer: String,
}

impl Listener {
    pub fn new(env: Env, handle: Handle, address: String) -> Listener {
        Listener { env, handle, address }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub async fn accept(&self) -> Result<Socket> {
        let Outcome::Opened(result) = self.env.op(Op::Accept { socket: self.handle }).await else {
            unreachable!("an accept answers with a handle")
        };
        let (handle, _) = result.map_err(|e: Errno| e.at(&self.address, "accepting a connection"))?;
        let peer = format!("{} #{}", self.address, handle.0);
        Ok(Socket { env: self.env.clone(), handle, peer })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.env.close(self.handle);
    }
}

impl Socket {
    pub(crate) fn connected(env: Env, handle: Handle, peer: String) -> Socket {
        Socket { env, handle, peer }
    }

    /// For messages and for "who is attached".
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Fills `buf` from `at` with what has arrived, at least one byte; 0 is the end of the stream.
    pub async fn recv(&self, buf: Buf, at: usize) -> (Buf, Result<usize>) {
        let outcome = self.env.op(Op::Recv { socket: self.handle, buf, at }).await;
        let Outcome::Read(buf, result) = outcome else { unreachable!("a receive answers with a read") };
        (buf, result.map_err(|e| e.at(&self.peer, "receiving")))
    }

    /// Sends some of the parts, in order; the number of bytes taken may be less than their sum.
    pub async fn send(&self, parts: Vec<Slice>) -> Result<u64> {
        let Outcome::Count(result) = self.env.op(Op::Send { socket: self.handle, parts }).await else {
            unreachable!("a send answers with a count")
        };
        result.map_err(|e| e.at(&self.peer, "sending"))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.env.close(self.handle);
    }
}
