//! What a party has under way at its devices while other parties use the core too.
//!
//! The parties' turns on the core (`fair.rs`) say nothing about devices: 64 requests of 1 MiB cost the core little, and
//! stand in the device's queue before a request of another VM. While another party is active, a party therefore begins
//! no further request when it has [`SHARED_BYTES_MAX`] under way, also if that one is on another core. A party that is
//! alone is not limited.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blk::Env;
use blk::sync::{Signal, TaskMutex};
use futures_util::future::select;

/// Most bytes that a party has under way beside others. It is enough for 4 GB/s at a latency of 1 ms, and takes a device
/// of 500 MB/s 8 ms.
pub(crate) const SHARED_BYTES_MAX: u64 = 4 << 20;
/// A party counts as active for so long after it has begun a request.
const ACTIVE_NS: u64 = 100_000_000;
const PERIOD_NS: u64 = 250_000_000;
/// Periods in which a request counts. One that takes longer waits for something else than the device, such as space or a
/// limit, and must not hold back the others.
const PERIODS: u64 = 4;
/// A core notes its activity again after this time.
const NOTED_NS: u64 = ACTIVE_NS / 100;

/// When each core of a process last began a request. The cores share devices.
#[derive(Debug)]
pub struct Activity(Vec<AtomicU64>);

impl Activity {
    /// Creates the activity of `cores` cores, none of which has begun a request.
    pub fn new(cores: usize) -> Arc<Activity> {
        Arc::new(Activity((0..cores).map(|_| AtomicU64::new(0)).collect()))
    }

    fn note(&self, core: usize, now_ns: u64) {
        let noted_ns = self.0[core].load(Ordering::Relaxed);
        if now_ns.saturating_sub(noted_ns) > NOTED_NS {
            self.0[core].store(now_ns, Ordering::Relaxed);
        }
    }

    fn has_other(&self, core: usize, now_ns: u64) -> bool {
        let is_active = |at: &AtomicU64| {
            let at_ns = at.load(Ordering::Relaxed);
            at_ns > 0 && now_ns.saturating_sub(at_ns) < ACTIVE_NS
        };
        self.0.iter().enumerate().any(|(other, at)| other != core && is_active(at))
    }
}

/// Whether several parties are active now.
#[derive(Default)]
pub(crate) struct Sharing {
    /// The party of this core that has begun a request last, compared by its address only.
    last: Cell<usize>,
    /// When a request last followed one of another party.
    shared_at_ns: Cell<Option<u64>>,
    /// All cores of the process, and the number of this one.
    pub cores: OnceCell<(Arc<Activity>, usize)>,
}

impl Sharing {
    fn note(&self, party: usize, now_ns: u64) {
        let last = self.last.replace(party);
        if last != 0 && last != party {
            self.shared_at_ns.set(Some(now_ns));
        }
        if let Some((all, own)) = self.cores.get() {
            all.note(*own, now_ns);
        }
    }

    fn is_shared(&self, now_ns: u64) -> bool {
        let is_recent = |at: u64| now_ns.saturating_sub(at) < ACTIVE_NS;
        self.shared_at_ns.get().is_some_and(is_recent)
            || self.cores.get().is_some_and(|(all, own)| all.has_other(*own, now_ns))
    }
}

/// The bytes that a party has under way.
#[derive(Default)]
pub(crate) struct UnderWay {
    /// Bytes by the period in which they began, oldest first.
    periods: RefCell<VecDeque<(u64, u64)>>,
    freed: Signal,
    /// The requests that wait, in the order of their arrival: later small ones do not pass a large one.
    queue: TaskMutex,
}

/// A request under way. Its owner gives it back to [`UnderWay::end`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Begun {
    period: u64,
    bytes: u64,
}

impl UnderWay {
    /// Waits until the party may begin a request of `bytes` beside others, and counts it.
    pub(crate) async fn begin(&self, env: &Env, sharing: &Sharing, bytes: u64) -> Begun {
        let party = std::ptr::from_ref(self).addr();
        let mut now_ns = env.now_ns();
        sharing.note(party, now_ns);
        if self.queue.is_idle() && (self.has_room(now_ns, bytes) || !sharing.is_shared(now_ns)) {
            return self.add(now_ns, bytes);
        }
        let _turn = self.queue.lock().await;
        now_ns = env.now_ns();
        while !self.has_room(now_ns, bytes) && sharing.is_shared(now_ns) {
            let freed = self.freed.wait();
            select(pin!(freed), pin!(env.sleep_us(PERIOD_NS / 1000))).await;
            now_ns = env.now_ns();
        }
        self.add(now_ns, bytes)
    }

    /// Returns whether a request fits. One that is larger than all goes alone.
    fn has_room(&self, now_ns: u64, bytes: u64) -> bool {
        let oldest = (now_ns / PERIOD_NS).saturating_sub(PERIODS - 1);
        let periods = self.periods.borrow();
        let sum: u64 = periods.iter().filter(|(period, _)| *period >= oldest).map(|(_, bytes)| bytes).sum();
        sum == 0 || sum + bytes <= SHARED_BYTES_MAX
    }

    fn add(&self, now_ns: u64, bytes: u64) -> Begun {
        let period = now_ns / PERIOD_NS;
        let mut periods = self.periods.borrow_mut();
        match periods.back_mut() {
            Some((last, sum)) if *last == period => *sum += bytes,
            _ => periods.push_back((period, bytes)),
        }
        // What is older does not count any more.
        if periods.len() as u64 > PERIODS {
            periods.pop_front();
        }
        Begun { period, bytes }
    }

    /// Ends a request.
    pub(crate) fn end(&self, begun: Begun) {
        let mut periods = self.periods.borrow_mut();
        if let Some((_, sum)) = periods.iter_mut().find(|(period, _)| *period == begun.period) {
            *sum -= begun.bytes;
        }
        drop(periods);
        self.freed.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use blk::sync::TaskMutex;
    use sim::SimWorld;

    use super::*;

    /// A device that carries out one request at a time, at 1 GB/s.
    #[derive(Default)]
    struct Device(TaskMutex);

    impl Device {
        async fn carry_out(&self, env: &Env, bytes: u64) {
            let _turn = self.0.lock().await;
            env.sleep_us(bytes.div_ceil(1000)).await;
        }
    }

    struct World {
        env: Env,
        device: Device,
        sharing: Sharing,
        is_over: Cell<bool>,
        largest: Cell<u64>,
    }

    /// Requests of 1 MiB, as soon as each may begin.
    async fn greedy(world: Rc<World>, under_way: Rc<UnderWay>) {
        while !world.is_over.get() {
            let begun = under_way.begin(&world.env, &world.sharing, 1 << 20).await;
            let sum: u64 = under_way.periods.borrow().iter().map(|(_, bytes)| bytes).sum();
            world.largest.set(world.largest.get().max(sum));
            world.device.carry_out(&world.env, 1 << 20).await;
            under_way.end(begun);
        }
    }

    /// Returns the longest of 100 small requests, in microseconds, beside a party with 64 requests of 1 MiB.
    fn longest_beside_greedy() -> (u64, u64) {
        let world = SimWorld::new(1, sim::Options::default());
        let run = |env: Env| async move {
            let (device, sharing) = (Device::default(), Sharing::default());
            let world = Rc::new(World {
                env: env.clone(),
                device,
                sharing,
                is_over: Cell::default(),
                largest: Cell::default(),
            });
            let (large, small) = (Rc::<UnderWay>::default(), UnderWay::default());
            for _ in 0..64 {
                env.spawn_detached(Box::pin(greedy(world.clone(), large.clone())));
            }
            env.sleep_us(10_000).await;
            let alone = world.largest.replace(0);
            let mut longest = 0;
            for n in 0..200 {
                let began_ns = env.now_ns();
                let begun = small.begin(&env, &world.sharing, 4096).await;
                world.device.carry_out(&env, 4096).await;
                small.end(begun);
                // What the party had under way before the other one came ends first.
                if n >= 100 {
                    longest = longest.max((env.now_ns() - began_ns) / 1000);
                }
            }
            world.is_over.set(true);
            (alone, longest)
        };
        world.run(run).expect("nothing cuts the power")
    }

    #[test]
    fn a_small_request_waits_for_a_bounded_part_of_its_neighbours() {
        let (alone, longest_us) = longest_beside_greedy();
        assert_eq!(alone, 64 << 20, "a party that is alone is not limited");
        assert!(longest_us <= 4 * 1049 + 5, "{longest_us} us");
    }

    #[test]
    fn a_party_of_another_core_counts_while_it_is_active() {
        let activity = Activity::new(3);
        let [first, second] = [0, 2].map(|core| {
            let sharing = Sharing::default();
            assert!(sharing.cores.set((activity.clone(), core)).is_ok());
            sharing
        });
        first.note(1, 5 * ACTIVE_NS);
        assert!(second.is_shared(5 * ACTIVE_NS + 1) && !first.is_shared(5 * ACTIVE_NS + 1));
        assert!(!second.is_shared(6 * ACTIVE_NS));
        first.note(1, 5 * ACTIVE_NS + NOTED_NS + 1);
        assert!(second.is_shared(6 * ACTIVE_NS));
    }

    #[test]
    fn small_requests_do_not_pass_a_large_one_of_their_party() {
        let world = SimWorld::new(3, sim::Options::default());
        let run = |env: Env| async move {
            let (device, sharing) = (Device::default(), Sharing::default());
            let (is_over, largest) = (Cell::default(), Cell::default());
            let world = Rc::new(World { env: env.clone(), device, sharing, is_over, largest });
            let party = Rc::<UnderWay>::default();
            for _ in 0..4 {
                env.spawn_detached(Box::pin(small_ones(world.clone(), party.clone())));
            }
            env.spawn_detached(Box::pin(small_ones(world.clone(), Rc::default())));
            env.sleep_us(10_000).await;
            let began_ns = env.now_ns();
            let begun = party.begin(&env, &world.sharing, SHARED_BYTES_MAX).await;
            party.end(begun);
            world.is_over.set(true);
            (env.now_ns() - began_ns) / 1000
        };
        let waited_us = world.run(run).expect("nothing cuts the power");
        assert!(waited_us < 10_000, "{waited_us} us, where those before it take 4 ms");
    }

    /// Requests of 512 KiB for at most a second, as soon as each may begin.
    async fn small_ones(world: Rc<World>, under_way: Rc<UnderWay>) {
        while !world.is_over.get() && world.env.now_ns() < 1_000_000_000 {
            let begun = under_way.begin(&world.env, &world.sharing, 512 << 10).await;
            world.device.carry_out(&world.env, 512 << 10).await;
            under_way.end(begun);
        }
    }

    #[test]
    fn a_request_that_waits_for_something_else_does_not_hold_back_the_others() {
        let world = SimWorld::new(2, sim::Options::default());
        let run = |env: Env| async move {
            let (sharing, large) = (Sharing::default(), UnderWay::default());
            let stuck: Vec<Begun> = {
                let mut all = Vec::new();
                for _ in 0..4 {
                    all.push(large.begin(&env, &sharing, 1 << 20).await);
                }
                all
            };
            let began_ns = env.now_ns();
            let (mut beginning, mut ticks) = (pin!(large.begin(&env, &sharing, 4096)), 0);
            sharing.note(1, env.now_ns());
            sharing.note(2, env.now_ns());
            let begun = loop {
                // The other party goes on.
                ticks += 1;
                sharing.note(1 + ticks % 2, env.now_ns());
                match select(beginning, pin!(env.sleep_us(10_000))).await {
                    futures_util::future::Either::Left((begun, _)) => break begun,
                    futures_util::future::Either::Right(((), rest)) => beginning = rest,
                }
            };
            let waited_us = (env.now_ns() - began_ns) / 1000;
            assert!((700_000..=1_300_000).contains(&waited_us), "{waited_us} us");
            stuck.into_iter().chain([begun]).for_each(|begun| large.end(begun));
            assert!(large.periods.borrow().iter().all(|(_, bytes)| *bytes == 0));
        };
        world.run(run).expect("nothing cuts the power");
    }
}
