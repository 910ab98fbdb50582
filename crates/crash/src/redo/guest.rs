//! A guest: writes, reads, flushes, zeroes and discards at random, every answer checked.

use std::rc::Rc;

use blk::SECTOR;
use engine::Disk;
use sim::Rng;

use super::harness::Harness;
use crate::requests::{Request, Target};

pub(super) struct Guest {
    pub harness: Rc<Harness>,
    /// Index of the disk and of its model.
    pub index: usize,
    /// The disk of the last request, as a client of it holds the disk; a revert replaces it.
    pub disk: Rc<Disk>,
    pub rng: Rng,
}

impl Guest {
    pub(super) async fn run(mut self) -> Result<(), String> {
        let harness = self.harness.clone();
        for _ in 0..harness.plan.operations {
            let _request = harness.gate.enter().await;
            let target = self.target();
            let request = harness.plan.mix.request(&mut self.rng);
            let done = match target.carry_out(request).await {
                Ok(false) if request == Request::Discard => Err("a discard found no space".into()),
                done => done.map(drop),
            };
            harness.faults.excuse(done)?;
        }
        Ok(())
    }

    fn target(&mut self) -> Target {
        self.disk = self.harness.vm.disks()[self.index].clone();
        let plan = &self.harness.plan;
        let model = self.harness.model.borrow().models[self.index].clone();
        let sectors = self.disk.size_bytes() / SECTOR;
        let span = sectors.min(plan.hot_sectors);
        // Half of the accesses go to the hot part, which straddles a region's end if the disk has two regions.
        let base = if self.rng.coin() {
            sectors.saturating_sub(span).min(4096 - 8)
        } else {
            self.rng.below(sectors - span + 1)
        };
        let first = (base + self.rng.below(span)).min(sectors - 1);
        let count = self.rng.between(1, plan.write_sectors_max).min(sectors - first);
        Target::plain(self.disk.clone(), model, first, count)
    }
}
