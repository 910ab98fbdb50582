//! A guest: writes, reads, flushes, zeroes and discards at random on all machines, every answer checked.

use std::rc::Rc;

use blk::volume::ZeroMode;
use engine::native::NativeDisk;
use sim::Rng;

use super::harness::{Harness, RunningMachine};
use super::windows::SECTORS_PER_BLOCK;
use crate::requests::{Request, Target};

pub(super) struct Guest {
    pub harness: Rc<Harness>,
    pub rng: Rng,
}

/// Range of a machine's disk that one request goes to.
pub struct GuestRange {
    pub target: Target,
    machine: u64,
    disk: Rc<NativeDisk>,
}

impl Guest {
    pub(super) async fn run(mut self) -> Result<(), String> {
        for _ in 0..self.harness.plan.operations {
            let Some(machine) = self.pick_machine() else {
                self.harness.env.sleep_us(200).await;
                continue;
            };
            let _request = machine.gate.enter().await;
            let place = self.place(&machine);
            let request = self.harness.plan.mix.request(&mut self.rng);
            let done = self.carry_out(&place, request).await;
            self.harness.faults.excuse(done)?;
        }
        Ok(())
    }

    /// Picks a machine that is not stopped.
    fn pick_machine(&mut self) -> Option<Rc<RunningMachine>> {
        let running = self.harness.running.borrow();
        let open: Vec<_> = running.values().filter(|machine| !machine.gate.is_stopped()).collect();
        self.rng.pick(&open).map(|machine| (*machine).clone())
    }

    fn place(&mut self, machine: &RunningMachine) -> GuestRange {
        let plan = &self.harness.plan;
        let index = self.rng.below(machine.disks.borrow().len() as u64) as usize;
        let sectors = self.harness.model.borrow_mut().disk(machine.number, index).windows.sectors();
        let span = sectors.min(plan.hot_sectors);
        let base = if self.rng.coin() { 0 } else { self.rng.below(sectors - span + 1) };
        let mut first = base + self.rng.below(span);
        let mut count = self.rng.between(1, plan.write_sectors_max);
        if plan.whole_blocks {
            first -= first % SECTORS_PER_BLOCK;
            count = count.next_multiple_of(SECTORS_PER_BLOCK);
        }
        self.harness.place_at(machine, index, first, count)
    }

    pub(super) async fn carry_out(&mut self, place: &GuestRange, request: Request) -> Result<(), String> {
        let request = match request {
            Request::Zero(mode) => Request::Zero(ZeroMode { no_hole: self.rng.below(3) == 0, ..mode }),
            other => other,
        };
        let stats = &place.disk.stats;
        let (redirects, partial, extended) =
            (stats.first_writes.get(), stats.partial_blocks.get(), stats.extended_blocks.get());
        let done = place.target.carry_out(request).await;
        if request == Request::Write {
            let in_place = place.disk.stats.first_writes.get() == redirects;
            self.harness.mark(if in_place { "in place" } else { "redirected" });
            if stats.partial_blocks.get() != partial {
                self.harness.mark("redirected in part");
            }
            if stats.extended_blocks.get() != extended {
                self.harness.mark("a block got further sectors");
            }
        }
        if done == Ok(false) {
            self.harness.mark("a write found no space");
        }
        done.map(drop).map_err(|e| format!("machine {} {}: {e}", place.machine, place.disk.name))
    }
}

impl Harness {
    /// Returns the place of `count` sectors at the model's sector `first`, or fewer at the window's end.
    pub fn place_at(&self, machine: &RunningMachine, index: usize, first: u64, count: u64) -> GuestRange {
        let mut model = self.model.borrow_mut();
        let known = model.disk(machine.number, index);
        let (offset, room) = known.windows.on_disk(first);
        let disk = machine.disks.borrow()[index].clone();
        let (volume, model, count) = (self.volume(&disk), known.model.clone(), count.min(room));
        GuestRange { target: Target { volume, model, first, count, offset }, machine: machine.number, disk }
    }
}
