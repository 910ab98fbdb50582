//! Flushes that fail while guests work. A kernel reports such a failure once; later flushes then prove nothing.

use blk::{Env, Errno};
use sim::{Action, Fault, OpKind, Rng, SimWorld};

/// Task number of the draws that decide what fails; they change nothing else in a plan.
pub const TROUBLE_TASK: u64 = 1 << 34;

/// The failing flush of a boot is among its next flushes, at most this many.
const FLUSHES_MAX: u64 = 60;

/// One of this many boots that are cut short ends only with its process, and the machine stays up.
const KILLED_EVERY: u64 = 3;

/// The failing flushes of one boot.
#[derive(Clone)]
pub struct Trouble {
    world: SimWorld,
    failed_before: u64,
}

impl Trouble {
    /// Returns the state in which nothing fails.
    pub fn none(world: &SimWorld) -> Trouble {
        Trouble { world: world.clone(), failed_before: failed(world) }
    }

    /// Makes one of the next flushes fail.
    pub fn begin(world: &SimWorld, mut rng: Rng) -> Trouble {
        let errno = [Errno::EIO, Errno::ENOSPC, Errno::EDQUOT][rng.below(3) as usize];
        let nth = 1 + rng.below(FLUSHES_MAX);
        world.add_fault(Fault::nth(nth, Action::Fail(errno)).of(OpKind::Flush));
        Trouble::none(world)
    }

    pub fn has_struck(&self) -> bool {
        failed(&self.world) > self.failed_before
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
        killed && !self.has_struck()
    }
}

fn failed(world: &SimWorld) -> u64 {
    world.count(OpKind::Flush).failed
}

fn is_about_content(cause: &str) -> bool {
    [" shows ", " changed", "panic"].iter().any(|word| cause.contains(word))
}
