//! Defragmentation of running disks while guests and the user work.

use std::rc::Rc;

use blk::ErrorKind;
use engine::Job;
use engine::job::DEFRAGMENT;
use engine::native::{DefragmentJob, DefragmentScope};
use sim::Rng;

use super::harness::Harness;
use super::plan::soon;

/// Passes that are tried in one boot, and the longest pause before each.
const PASSES: u64 = 4;
const PAUSE_US_MAX: u64 = 3000;
/// One pass of this many is cancelled, one is cut, and one copies shared blocks too.
const CANCELLED_EVERY: u64 = 4;
const CUT_EVERY: u64 = 3;
const SHARED_EVERY: u64 = 3;

const DEFRAGMENTING: &str = "cut in a defragmentation";

impl Harness {
    pub(super) async fn defragment_some(self: Rc<Harness>, mut rng: Rng) -> Result<(), String> {
        for _ in 0..PASSES {
            self.env.sleep_us(rng.below(PAUSE_US_MAX)).await;
            let disks: Vec<_> = self.running_disks().into_iter().map(|(disk, _)| disk).collect();
            let Some(disk) = rng.pick(&disks) else { continue };
            let job = Job::new(self.env.clone(), 1, DEFRAGMENT, disk.name.clone());
            let scope = match rng.below(SHARED_EVERY) {
                0 => DefragmentScope::SharedToo,
                _ => DefragmentScope::Exclusive,
            };
            if rng.below(CANCELLED_EVERY) == 0 {
                let (env, job, us) = (self.env.clone(), job.clone(), rng.below(PAUSE_US_MAX));
                self.env.spawn_detached(Box::pin(async move {
                    env.sleep_us(us).await;
                    drop(job.cancel());
                }));
            }
            if self.plan.may_cut(self.boot) && rng.below(CUT_EVERY) == 0 {
                self.world.cut_at(soon(&mut rng));
            }
            self.model.borrow_mut().doing.insert(DEFRAGMENTING);
            let part = DefragmentJob { job: &job, before: 0, after: 0 };
            let done = disk.defragment(scope, part).await;
            self.model.borrow_mut().doing.remove(DEFRAGMENTING);
            match done {
                Ok(done) if done.moved_bytes > 0 => self.mark("defragmented"),
                Ok(_) => {}
                Err(e) if e.is_no_space() => self.mark("a defragmentation found no space"),
                // The disk was replaced by a revert or removed, or the job was cancelled.
                Err(e) if matches!(e.kind, ErrorKind::Cancelled | ErrorKind::Refused) => {}
                Err(e) => self.faults.survive(&self.env, Err(format!("defragmenting: {e}"))).await?,
            }
            job.end(Ok(()));
        }
        Ok(())
    }
}
