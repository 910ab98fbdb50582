//! One run of a campaign: its world, plan and model, and the boots that power cuts end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::Env;
use blk::exec::JoinHandle;
use sim::{Rng, SimWorld};

use crate::campaign::{Outcome, caught};
use crate::watch;

/// The two parts of a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootPhase {
    /// Opening what is tested, and reading everything.
    Recovery,
    /// Guests and user.
    Work,
}

pub struct Run<P, M> {
    pub world: SimWorld,
    pub plan: Rc<P>,
    pub model: Rc<RefCell<M>>,
    pub guests_core: Rc<GuestsCore>,
}

/// The core of the guests, if it is another than the store's.
#[derive(Default)]
pub struct GuestsCore {
    /// Boots have two cores.
    pub is_second: Cell<bool>,
    /// The second core of the present boot.
    pub env: RefCell<Option<Env>>,
}

impl<P, M> Clone for Run<P, M> {
    fn clone(&self) -> Run<P, M> {
        Run {
            world: self.world.clone(),
            plan: self.plan.clone(),
            model: self.model.clone(),
            guests_core: self.guests_core.clone(),
        }
    }
}

impl<P: 'static, M: 'static> Run<P, M> {
    pub fn new(seed: u64, options: &sim::Options, plan: P, model: M) -> Run<P, M> {
        let world = SimWorld::new(seed, watch::options(options));
        Run { world, plan: Rc::new(plan), model: Rc::new(RefCell::new(model)), guests_core: Rc::default() }
    }

    /// Boots the machine once and runs `work`. Returns None if the power was cut.
    pub fn boot<T: 'static>(&self, work: impl AsyncFnOnce(Env, Run<P, M>) -> T + 'static) -> Option<T> {
        // Removes what the boot before did not reach.
        self.world.set_capacity(None);
        self.world.clear_faults();
        let run = self.clone();
        let ended = match self.guests_core.is_second.get() {
            false => self.world.run(|env| async move { work(env, run).await }),
            true => self.world.run_cores(2, |mut envs| {
                run.guests_core.env.replace(envs.pop());
                async move { work(envs.remove(0), run).await }
            }),
        };
        self.guests_core.env.take();
        if ended.is_none() {
            watch::print_end(&self.world, "POWER CUT");
        }
        ended
    }

    /// Boots like `boot`, for work that must not be cut.
    pub fn prepare<T: 'static>(&self, work: impl AsyncFnOnce(Env, Run<P, M>) -> T + 'static) -> T {
        self.boot(work).expect("no power cut is scheduled")
    }

    /// Plays the boots one after the other. `boot` returns None if the power was cut.
    pub fn play(
        &self,
        boots: u64,
        mut boot: impl FnMut(u64) -> Option<Result<(), String>>,
    ) -> Result<Outcome, String> {
        let mut cuts = 0;
        for number in 0..boots {
            match boot(number) {
                Some(Ok(())) => {}
                Some(Err(e)) => {
                    watch::print_end(&self.world, "ERROR");
                    return Err(format!("boot {number}: {e}"));
                }
                None => cuts += 1,
            }
        }
        Ok(Outcome::of(&self.world, cuts))
    }
}

/// Plays the run of a seed. An error is a broken promise, with the seed and the command to replay it.
pub(crate) fn replayed<T>(seed: u64, play: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    caught(play).map_err(|e| format!("seed {seed}: {e}\n  replay: make crash CRASH_SEED={seed}"))
}

/// Returns the generator of one task in one boot.
pub(crate) fn rng_of(seed: u64, boot: u64, task: u64) -> Rng {
    Rng::new(
        seed ^ (boot + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
            ^ (task + 1).wrapping_mul(0xD1B5_4A32_D192_ED03),
    )
}

/// Draws an index: each has its share of the sum.
pub(crate) fn draw_share(rng: &mut Rng, shares: &[u64]) -> usize {
    let mut at = rng.below(shares.iter().sum());
    let hit = shares.iter().position(|share| {
        let hit = at < *share;
        at = at.saturating_sub(*share);
        hit
    });
    hit.expect("within the sum")
}

/// Waits for all tasks, and returns the first error among their results.
pub(crate) async fn all_joined(tasks: Vec<JoinHandle<Result<(), String>>>) -> Result<(), String> {
    let mut result = Ok(());
    for task in tasks {
        result = result.and(task.join().await);
    }
    result
}
