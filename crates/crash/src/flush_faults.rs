//! Flushes that fail while guests work. A kernel reports such a failure once; later flushes then prove nothing.

use std::cell::Cell;

use blk::{Env, Errno};
use sim::{Action, Fault, OpKind, Rng, SimWorld};

/// Task number of the draws that decide what fails; they change nothing else in a plan.
pub(crate) const FAULT_TASK: u64 = 1 << 34;

/// Maximum number of flushes at the start of a boot among which the failing one is.
const FLUSHES_MAX: u64 = 60;

/// One interrupted boot in this many ends only its process, while the machine continues.
const KILLED_EVERY: u64 = 3;

/// The failing flushes of one boot.
pub struct FlushFaults {
    world: SimWorld,
    failed_before: Cell<u64>,
}

impl FlushFaults {
    /// Returns the state in which nothing fails.
    pub fn none(world: &SimWorld) -> FlushFaults {
        FlushFaults { world: world.clone(), failed_before: Cell::new(failed(world)) }
    }

    /// Begins the work of a boot. If a flush may fail, makes one of the next flushes fail in half of the boots.
    pub fn begin(&self, mut rng: Rng, may_fail: bool) {
        self.failed_before.set(failed(&self.world));
        if may_fail && rng.coin() {
            let errno = [Errno::EIO, Errno::ENOSPC, Errno::EDQUOT][rng.below(3) as usize];
            let nth = 1 + rng.below(FLUSHES_MAX);
            self.world.add_fault(Fault::nth(nth, Action::Fail(errno)).of(OpKind::Flush));
        }
    }

    pub fn has_struck(&self) -> bool {
        failed(&self.world) > self.failed_before.get()
    }

    /// Excuses an error after a failed flush, which may refuse anything. An error about content is not excused.
    pub fn excuse(&self, result: Result<(), String>) -> Result<(), String> {
        match result {
            Err(e) if self.has_struck() && !is_about_content(&e) => Ok(()),
            other => other,
        }
    }

    /// Ends the boot here if a flush has failed. `end` then cuts the power, or ends only the process.
    pub async fn end_boot(&self, env: &Env) {
        if self.has_struck() {
            self.world.mark("a flush failed");
            self.world.switch_off();
            env.sleep_us(1).await;
        }
    }

    /// Excuses an error, and ends the boot after it: the next one finds what was left undone.
    pub async fn survive(&self, env: &Env, result: Result<(), String>) -> Result<(), String> {
        if result.is_err() {
            self.excuse(result)?;
            self.end_boot(env).await;
        }
        Ok(())
    }

    /// Ends a boot that did not end by itself: cuts the power, or ends only the process. Returns whether the next boot
    /// must show everything that was acknowledged to guests.
    pub fn end(&self, mut rng: Rng) -> bool {
        let killed = match self.has_struck() {
            true => rng.coin(),
            false => rng.below(KILLED_EVERY) == 0,
        };
        match killed {
            true => self.world.kill(),
            false => self.world.power_cut(),
        }
        let all_there = killed && !self.has_struck();
        if all_there {
            self.world.mark("only the process ended");
        }
        all_there
    }
}

/// Leaves little space for a while: guests wait or fail. `begins_us` and `lasts_us` are the bounds of the draws of when
/// that begins and how long it lasts.
pub(crate) fn fill_up(env: &Env, world: &SimWorld, mut rng: Rng, begins_us: u64, lasts_us: (u64, u64)) {
    let (clock, world) = (env.clone(), world.clone());
    env.spawn_detached(Box::pin(async move {
        clock.sleep_us(rng.below(begins_us)).await;
        world.set_capacity(Some(world.used_bytes() + rng.below(64) * (16 << 10)));
        world.mark("datastore full");
        clock.sleep_us(lasts_us.0 + rng.below(lasts_us.1)).await;
        world.set_capacity(None);
    }));
}

fn failed(world: &SimWorld) -> u64 {
    world.count(OpKind::Flush).failed
}

fn is_about_content(cause: &str) -> bool {
    [" shows ", " changed", "panic"].iter().any(|word| cause.contains(word))
}
