//! Flushes that fail while guests work. A kernel says so once; what a later flush answers is worth nothing.

use blk::{Env, Errno};
use sim::{Action, Fault, OpKind, Rng, SimWorld};

/// Draws of what fails: they change nothing else of a plan.
pub const TROUBLE_TASK: u64 = 1 << 34;

/// Flushes of a boot among which one fails.
const FLUSHES_MAX: u64 = 60;

/// Of so many boots that are cut short one ends with its process, and the machine stays up.
const KILLED_EVERY: u64 = 3;

/// The failing flushes of one boot.
#[derive(Clone)]
pub struct Trouble {
    world: SimWorld,
    failed_before: u64,
}

impl Trouble {
    /// Nothing fails.
    pub fn none(world: &SimWorld) -> Trouble {
        Trouble { world: world.clone(), failed_before: failed(world) }
    }

    /// One of the next flushes fails.
    pub fn begin(world: &SimWorld, mut rng: Rng) -> Trouble {
        let errno = [Errno::EIO, Errno::ENOSPC, Errno::EDQUOT][rng.below(3) as usize];
        let nth = 1 + rng.below(FLUSHES_MAX);
        world.add_fault(Fault::nth(nth, Action::Fail(errno)).of(OpKind::Flush));
        Trouble::none(world)
    }

    pub fn has_struck(&self) -> bool {
        failed(&self.world) > self.failed_before
    }

    /// After a failed flush anything may be refused. What is read must still be right.
    pub fn excuse(&self, result: Result<(), String>) -> Result<(), String> {
        match result {
            Err(e) if self.has_struck() && !is_about_content(&e) => Ok(()),
            other => other,
        }
    }

    /// Where a flush has failed the boot ends here: the machine is switched off, or only the process ends.
    pub async fn end_boot(&self, env: &Env) {
        if self.has_struck() {
            self.world.mark("a flush failed");
            self.world.switch_off();
            env.sleep_us(1).await;
        }
    }

    /// Ends a boot that did not end by itself: the power goes, or only the process ends. Answers whether everything that
    /// guests were answered must be there at the next boot.
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
