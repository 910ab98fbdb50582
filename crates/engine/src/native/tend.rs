//! What a store does by itself: flushes that bound the window of doubt, checkpoints, freed space put back to use, dropped
//! states given back. One task, that sleeps while there is nothing to do.

use std::pin::pin;
use std::rc::{Rc, Weak};

use blk::{Env, Result};
use futures_util::future::{Either, select};

use super::store::Store;
use crate::options::Defect;

/// How often a checkpoint that found no space is tried again.
const RETRY_US: u64 = 250_000;
/// Whole free MiB given back to the file system at each look.
const PUNCHED_AT_ONCE: usize = 16;
/// Longest rest between two steps of giving space back.
const REST_US_MAX: u64 = 1_000_000;

impl Store {
    /// Begins to tend; ends with `close`, or with the last user.
    pub(super) fn tend(self: &Rc<Self>) {
        self.tended.set(true);
        let (env, store) = (self.env.clone(), Rc::downgrade(self));
        self.env.spawn_detached(Box::pin(async move { tend_while_used(env, store).await }));
    }

    fn ends(&self) -> bool {
        self.closed.get() || self.broken().is_some()
    }

    /// Until when the next look may wait; None is until somebody says so.
    fn patience_us(&self) -> Option<u64> {
        let unconfirmed = self.journal.last_lsn() > self.journal.durable_flushed_lsn();
        unconfirmed.then_some(self.options.flush_us)
    }

    async fn look_after(&self, waited_out: bool) -> Result<()> {
        if waited_out || self.journal.unflushed_bytes() >= self.options.flush_bytes {
            self.flush().await?;
        }
        self.put_back().await;
        if self.wants_checkpoint() || self.starved.take() {
            self.checkpoint().await?;
        } else if self.has_to_reclaim() {
            let began_ns = self.env.now_ns();
            let before = self.requests.get();
            self.checkpoint().await?;
            if self.requests.get() != before {
                let rest_us = (self.env.now_ns() - began_ns) / 1000 * self.options.reclaim_rest;
                let rest = self.env.sleep_us(rest_us.min(REST_US_MAX));
                select(pin!(self.ending.wait()), pin!(rest)).await;
            }
        }
        self.put_back().await;
        self.space.punch(PUNCHED_AT_ONCE).await.map(drop)
    }

    /// Freed space is used again when what freed it is durable and nobody admitted before may still look at it.
    async fn put_back(&self) {
        let early = self.options.defects.has(Defect::EarlyReuse);
        let durable = if early { u64::MAX } else { self.journal.durable_flushed_lsn() };
        let batch = self.space.take_releasable(durable);
        if batch.is_empty() {
            return;
        }
        if !early {
            let (reads, writes) = (self.reads.drain(), self.writes.drain());
            reads.await;
            writes.await;
        }
        self.space.release(batch);
        self.progress.notify();
    }
}

async fn tend_while_used(env: Env, store: Weak<Store>) {
    let mut waited_out = false;
    loop {
        let Some(used) = store.upgrade() else { return };
        let signal = used.work.clone();
        let work = signal.wait();
        let looked = match used.ends() {
            true => Ok(()),
            false => used.look_after(waited_out).await,
        };
        if used.ends() {
            used.tended.set(false);
            used.progress.notify();
            return;
        }
        let patience_us = used.patience_us();
        // Whoever waits does not keep the store alive.
        drop(used);
        waited_out = match (looked, patience_us) {
            // Guests who wait for space ask again and again.
            (Err(_), _) => {
                env.sleep_us(RETRY_US).await;
                false
            }
            (Ok(()), None) => {
                work.await;
                false
            }
            (Ok(()), Some(us)) => {
                matches!(select(pin!(work), pin!(env.sleep_us(us))).await, Either::Right(_))
            }
        };
    }
}
