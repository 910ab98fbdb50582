//! Descriptors that another process has passed over a socket, and events made of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::exec::Env;
use crate::reactor::{Op, Outcome};

/// A descriptor that a peer has passed: memory, an event or a socket. It is closed with its last clone, and after the
/// operations that use it.
#[derive(Debug, Clone)]
pub struct Descriptor(pub(crate) Arc<OwnedFd>);

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Descriptor {
        Descriptor(Arc::new(fd))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A counter of the kernel by which two processes wake each other.
///
/// The peer shares the descriptor and may change its flags at any time. All operations therefore run in the reactor,
/// which they cannot block.
#[derive(Clone)]
pub struct Event {
    env: Env,
    descriptor: Descriptor,
}

impl Event {
    /// Wraps a passed descriptor.
    ///
    /// # Errors
    /// `Invalid` if it is not an eventfd: a read of another file could return at once without end.
    pub fn new(env: &Env, descriptor: Descriptor) -> Result<Event> {
        if !crate::uring::is_event(&descriptor) {
            return Err(Error::invalid("passed descriptor", "it is not an eventfd"));
        }
        Ok(Event { env: env.clone(), descriptor })
    }

    /// Resolves when the counter is not zero, and clears it. Dropping the future ends the wait.
    pub fn wait(&self) -> impl Future<Output = Result<()>> + Unpin + use<> {
        Outcomes {
            op: self.env.op(Op::WaitEvent { event: self.descriptor.clone() }),
            doing: "waiting for an event",
        }
    }

    /// Increments the counter. Resolves when that is done, which is never if the peer has filled the counter.
    pub fn signal(&self) -> impl Future<Output = Result<()>> + Unpin + use<> {
        Outcomes {
            op: self.env.op(Op::SignalEvent { event: self.descriptor.clone() }),
            doing: "signalling an event",
        }
    }
}

struct Outcomes {
    op: crate::exec::OpFuture,
    doing: &'static str,
}

impl Future for Outcomes {
    type Output = Result<()>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<()>> {
        let outcome = std::task::ready!(std::pin::Pin::new(&mut self.op).poll(cx));
        let Outcome::Unit(result) = outcome else { unreachable!("an event answers with a unit") };
        std::task::Poll::Ready(result.map_err(|e| e.at("event", self.doing)))
    }
}
