//! Events by which two processes wake each other.

use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::error::{Error, Result};
use crate::exec::{Env, OpFuture};
use crate::passed::Descriptor;
use crate::reactor::{Op, Outcome};
use crate::uring::closing::is_event;

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
        if !is_event(descriptor.as_fd()) {
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
    op: OpFuture,
    doing: &'static str,
}

impl Future for Outcomes {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let outcome = ready!(Pin::new(&mut self.op).poll(cx));
        let Outcome::Unit(result) = outcome else { unreachable!("an event answers with a unit") };
        Poll::Ready(result.map_err(|e| e.at("event", self.doing)))
    }
}
