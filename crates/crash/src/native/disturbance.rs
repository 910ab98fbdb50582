//! Jobs beside guests: the user cancels some of them, and the power is cut during some.

use std::rc::Rc;

use engine::Job;
use sim::Rng;

use super::harness::Harness;
use super::plan::soon;

/// How often a kind of job is disturbed.
pub(super) struct Disturbance {
    /// Longest time before a cancel.
    pub pause_us_max: u64,
    /// One job of this many is cancelled, and one is cut.
    pub cancelled_every: u64,
    pub cut_every: u64,
    /// Label of a cut.
    pub cut_label: &'static str,
}

impl Harness {
    /// Carries out the work of a job, which may be cancelled or cut.
    pub(super) async fn disturbed<T>(
        &self,
        job: &Rc<Job>,
        of: &Disturbance,
        rng: &mut Rng,
        work: impl Future<Output = T>,
    ) -> T {
        if rng.below(of.cancelled_every) == 0 {
            let (env, job, us) = (self.env.clone(), job.clone(), rng.below(of.pause_us_max));
            self.env.spawn_detached(Box::pin(async move {
                env.sleep_us(us).await;
                drop(job.cancel());
            }));
        }
        if self.plan.may_cut(self.boot) && rng.below(of.cut_every) == 0 {
            self.world.cut_at(soon(rng));
        }
        self.model.borrow_mut().doing.insert(of.cut_label);
        let done = work.await;
        self.model.borrow_mut().doing.remove(of.cut_label);
        done
    }
}
