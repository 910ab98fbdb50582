//! Defragmentation of running disks while guests and the user work.

use std::rc::Rc;

use blk::ErrorKind;
use engine::Job;
use engine::job::DEFRAGMENT;
use engine::native::{DefragmentJob, DefragmentScope};
use sim::Rng;

use super::disturbance::Disturbance;
use super::harness::Harness;

/// Passes that are tried in one boot.
const PASSES: u64 = 4;
/// One pass of this many copies shared blocks too.
const SHARED_EVERY: u64 = 3;
const DISTURBANCE: Disturbance = Disturbance {
    pause_us_max: 3000,
    cancelled_every: 4,
    cut_every: 3,
    cut_label: "cut in a defragmentation",
};

impl Harness {
    pub(super) async fn defragment_some(self: Rc<Harness>, mut rng: Rng) -> Result<(), String> {
        for _ in 0..PASSES {
            self.env.sleep_us(rng.below(DISTURBANCE.pause_us_max)).await;
            let disks: Vec<_> = self.running_disks().into_iter().map(|(disk, _)| disk).collect();
            let Some(disk) = rng.pick(&disks) else { continue };
            let job = Job::new(self.env.clone(), 1, DEFRAGMENT, disk.name.clone());
            let scope = match rng.below(SHARED_EVERY) {
                0 => DefragmentScope::SharedToo,
                _ => DefragmentScope::Exclusive,
            };
            let work = disk.defragment(scope, DefragmentJob { job: &job, before: 0, after: 0 });
            match self.disturbed(&job, &DISTURBANCE, &mut rng, work).await {
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
