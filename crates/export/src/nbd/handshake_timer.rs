//! The time limit of a client's handshake. Only time in which the server waits for the client counts.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use blk::{Env, Error, Result};

use super::proto::NEGOTIATION_LIMIT_US;

pub(super) struct HandshakeTimer {
    env: Env,
    limit_us: u64,
    left_ns: Cell<u64>,
}

impl HandshakeTimer {
    pub(super) fn new(env: &Env, limit_us: u64) -> HandshakeTimer {
        HandshakeTimer { env: env.clone(), limit_us, left_ns: Cell::new(limit_us * 1000) }
    }

    /// Continues the time of a negotiation that has begun on another core.
    pub(super) fn with_left(env: &Env, left_ns: u64) -> HandshakeTimer {
        HandshakeTimer { env: env.clone(), limit_us: NEGOTIATION_LIMIT_US, left_ns: Cell::new(left_ns) }
    }

    pub(super) fn left_ns(&self) -> u64 {
        self.left_ns.get()
    }

    /// Waits for `answer`, which the client has to give: it sends, or receives what was sent.
    ///
    /// # Errors
    /// `Invalid` if the client has used up its time over all its answers.
    pub(super) async fn wait<T>(&self, peer: &str, answer: impl Future<Output = Result<T>>) -> Result<T> {
        let began_ns = self.env.now_ns();
        let mut answer = pin!(answer);
        let mut late = pin!(self.env.sleep_until(began_ns + self.left_ns.get()));
        let result = poll_fn(|cx| {
            if let Poll::Ready(result) = answer.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            late.as_mut().poll(cx).map(|()| {
                let cause = format!("no export chosen within {} s", self.limit_us / 1_000_000);
                Err(Error::invalid(peer, cause))
            })
        })
        .await;
        let took_ns = self.env.now_ns() - began_ns;
        self.left_ns.set(self.left_ns.get().saturating_sub(took_ns));
        result
    }
}

#[cfg(test)]
mod tests {
    use sim::SimWorld;

    use super::*;

    #[test]
    fn only_waiting_for_the_client_counts() {
        let world = SimWorld::new(1, sim::Options::default());
        world.run(|env| async move {
            let timer = HandshakeTimer::new(&env, 10_000_000);
            let after = |us: u64| {
                let env = env.clone();
                async move {
                    env.sleep_us(us).await;
                    Ok(())
                }
            };
            timer.wait("client", after(4_000_000)).await.unwrap();
            // The server opens a VM meanwhile.
            env.sleep_us(60_000_000).await;
            timer.wait("client", after(5_000_000)).await.unwrap();
            let began_ns = env.now_ns();
            let error = timer.wait("client", after(3_600_000_000)).await.unwrap_err();
            assert!(error.cause.contains("within 10 s"), "{error}");
            assert_eq!((env.now_ns() - began_ns) / 1_000_000, 1000);
        });
    }
}
