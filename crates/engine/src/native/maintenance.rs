//! Background maintenance of a store: flushes that bound how long records are in doubt, reuse of freed space, and
//! checkpoints, which also reclaim dropped states. There are three tasks, since a checkpoint may take long and the
//! others must not wait for it. Each sleeps while there is nothing to do.

use std::pin::pin;
use std::rc::{Rc, Weak};

use blk::{Env, Result};
use futures_util::future::select;

use super::store::Store;
use crate::options::Defect;

/// Interval between two tries of maintenance that failed, such as a checkpoint that found no space.
const RETRY_US: u64 = 250_000;
/// Wholly free MiB given back to the file system in one step.
const PUNCHED_AT_ONCE: usize = 16;
/// Interval between two punches while guests are active, then of one MiB each: a file system holds back all I/O on the
/// file while it punches.
const PUNCH_US: u64 = 100_000;
/// Time without a request after which guests are idle.
const IDLE_NS: u64 = 100_000_000;
/// Interval between two looks whether guests are idle.
const IDLE_LOOK_US: u64 = 250_000;
/// Chunks of space made ready between two looks.
const READY_AT_ONCE: usize = 16;
/// Longest pause between two steps of reclaim.
const REST_US_MAX: u64 = 1_000_000;
/// Longest pause after a step of calculation: a step that stood behind a device that hung must not stop the checkpoint
/// for a multiple of that time.
const STEP_REST_NS_MAX: u64 = 20_000_000;
/// Extents released in one turn of the reactor: about 50 us.
const RELEASED_AT_ONCE: usize = 512;

impl Store {
    /// Starts the tasks; they end with `close`, or with the last user. Each work function returns the time to its next
    /// run in microseconds; None waits for the signal `work`.
    pub(super) fn maintain(self: &Rc<Self>) {
        self.start(async |store: &Store| store.flush_in_time().await);
        self.start(async |store: &Store| store.put_back().await);
        self.start(async |store: &Store| store.make_room().await);
    }

    fn start(self: &Rc<Self>, work: impl AsyncFn(&Store) -> Result<Option<u64>> + 'static) {
        self.tended.update(|tasks| tasks + 1);
        let (env, store) = (self.env.clone(), Rc::downgrade(self));
        self.env.spawn_detached(Box::pin(async move { maintain_while_used(env, store, work).await }));
    }

    fn ends(&self) -> bool {
        self.closed.get() || self.broken().is_some()
    }

    /// Flushes redirects that have waited as long as the options allow.
    async fn flush_in_time(&self) -> Result<Option<u64>> {
        if self.journal.last_lsn() == self.journal.durable_flushed_lsn() {
            self.flush_due_ns.set(0);
            return Ok(None);
        }
        let now_ns = self.env.now_ns();
        if self.flush_due_ns.get() == 0 {
            self.flush_due_ns.set(now_ns + self.options.flush_us * 1000);
        }
        if now_ns >= self.flush_due_ns.get() || self.journal.unflushed_bytes() >= self.options.flush_bytes {
            self.flush().await?;
            self.flush_due_ns.set(self.env.now_ns() + self.options.flush_us * 1000);
        }
        Ok(Some((self.flush_due_ns.get().saturating_sub(self.env.now_ns()) / 1000).max(1)))
    }

    /// Releases freed space. Before, what freed it is durable, no older superblock can be taken for the newest, and
    /// every request admitted earlier has ended.
    async fn put_back(&self) -> Result<Option<u64>> {
        let early = self.options.defects.has(Defect::EarlyReuse);
        self.put_back_to.set(self.journal.durable_flushed_lsn());
        let durable = if early { u64::MAX } else { self.put_back_to.get() };
        let unnamed = early || self.options.defects.has(Defect::ReuseBeforeNamed);
        let named = if unnamed { u64::MAX } else { self.journal.named_checkpoint() };
        let batch = self.space.take_releasable(durable, named);
        if batch.is_empty() {
            return Ok(None);
        }
        if !early {
            let (reads, writes) = (self.reads.drain(), self.writes.drain());
            reads.await;
            writes.await;
        }
        // A checkpoint frees tens of thousands of extents, and guests wait for the core meanwhile.
        for some in batch.chunks(RELEASED_AT_ONCE) {
            let began_ns = self.env.now_ns();
            self.space.release(some);
            if batch.len() > RELEASED_AT_ONCE {
                self.yield_to_guests(began_ns).await;
            }
        }
        self.progress.notify();
        // The task that punches looks for chunks again.
        self.work.notify();
        Ok(None)
    }

    async fn make_room(&self) -> Result<Option<u64>> {
        if self.wants_checkpoint() || self.starved.take() {
            self.checkpoint().await?;
        } else if self.has_to_reclaim() {
            let (began_ns, before) = (self.env.now_ns(), self.guest_requests());
            self.checkpoint().await?;
            if self.guest_requests() != before {
                self.rest((self.env.now_ns() - began_ns) / 1000 * self.options.reclaim_rest).await;
            }
        }
        self.remove_sources().await?;
        let idle = self.is_idle();
        let (punch_us, ready_us) = (self.punch(idle).await?, self.make_ready(idle).await?);
        Ok(punch_us.into_iter().chain(ready_us).min())
    }

    /// Returns whether no request has begun or ended for `IDLE_NS`, as far as earlier looks can say.
    fn is_idle(&self) -> bool {
        let (requests, now_ns) = (self.guest_requests(), self.env.now_ns());
        let under_way = self.reads.in_flight() + self.writes.in_flight() > 0;
        if self.requests_at_look.replace(requests) != requests || under_way {
            self.active_ns.set(now_ns);
        }
        now_ns - self.active_ns.get() >= IDLE_NS
    }

    async fn punch(&self, idle: bool) -> Result<Option<u64>> {
        let now_ns = self.env.now_ns();
        if now_ns < self.punch_due_ns.get() {
            return Ok(Some(PUNCH_US));
        }
        self.punch_due_ns.set(now_ns + PUNCH_US * 1000);
        let punched = self.space.punch(if idle { PUNCHED_AT_ONCE } else { 1 }).await?;
        Ok((punched > 0).then_some(PUNCH_US))
    }

    /// Makes the space ready that is kept for first writes, while guests are idle.
    async fn make_ready(&self, idle: bool) -> Result<Option<u64>> {
        for _ in 0..READY_AT_ONCE {
            if !self.space.wants_ready() {
                return Ok(None);
            }
            if !idle || self.guest_requests() != self.requests_at_look.get() {
                return Ok(Some(IDLE_LOOK_US));
            }
            if self.ends() || self.starved.get() || self.wants_checkpoint() {
                return Ok(Some(1));
            }
            self.space.make_ready().await?;
        }
        Ok(Some(1))
    }

    /// Ends a step of calculation that began at `began_ns`: pauses `reclaim_rest` times as long while guests are active,
    /// unless they wait for this work. Other tasks get a turn in any case.
    pub(super) async fn yield_to_guests(&self, began_ns: u64) {
        let requests = self.guest_requests();
        let idle = self.requests_at_step.replace(requests) == requests;
        if idle || self.starved.get() || self.is_behind() || self.ends() {
            self.env.next_turn().await;
            return;
        }
        let now_ns = self.env.now_ns();
        let rest_ns = (now_ns - began_ns) * self.options.reclaim_rest;
        self.env.sleep_until(now_ns + rest_ns.min(STEP_REST_NS_MAX)).await;
    }

    /// Pauses for the guests, unless one of them needs the next checkpoint.
    async fn rest(&self, us: u64) {
        let until_ns = self.env.now_ns() + us.min(REST_US_MAX) * 1000;
        while self.env.now_ns() < until_ns && !self.ends() && !self.wants_checkpoint() && !self.starved.get()
        {
            select(pin!(self.work.wait()), pin!(self.env.sleep_until(until_ns))).await;
        }
    }
}

async fn maintain_while_used(
    env: Env,
    store: Weak<Store>,
    work: impl AsyncFn(&Store) -> Result<Option<u64>> + 'static,
) {
    loop {
        let Some(used) = store.upgrade() else { return };
        let signal = used.work.clone();
        let signalled = signal.wait();
        let looked = if used.ends() { Ok(None) } else { work(&used).await };
        if used.ends() {
            used.tended.update(|tasks| tasks - 1);
            used.progress.notify();
            return;
        }
        // A waiting task does not keep the store alive.
        drop(used);
        match looked {
            // Guests that wait for space retry repeatedly.
            Err(_) => env.sleep_us(RETRY_US).await,
            Ok(None) => signalled.await,
            Ok(Some(us)) => {
                select(pin!(signalled), pin!(env.sleep_us(us))).await;
            }
        }
    }
}
