//! A guest: writes, reads, flushes, zeroes and discards at random on all machines, every answer checked.

use std::rc::Rc;

use blk::volume::{Volume, ZeroMode};
use blk::{Buf, SECTOR};
use engine::native::NativeDisk;
use sim::Rng;

use super::harness::{Harness, RunningMachine};
use super::places::SECTORS_PER_BLOCK;
use crate::watch::{tell, tell_range};
use sim::oracle::OpenWrite;

pub struct Guest {
    pub harness: Rc<Harness>,
    pub rng: Rng,
}

/// Range of a disk that one request goes to.
pub struct Target {
    machine: u64,
    index: usize,
    disk: Rc<NativeDisk>,
    /// First sector of the range, as the model numbers sectors.
    first: u64,
    count: u64,
    /// Start of the range on the disk, in bytes.
    offset: u64,
}

impl Guest {
    pub async fn run(mut self) -> Result<(), String> {
        let mix = self.harness.plan.mix;
        let total = mix.write + mix.read + mix.flush + mix.zero + mix.discard;
        for _ in 0..self.harness.plan.operations {
            let Some(machine) = self.pick_machine() else {
                self.harness.env.sleep_us(200).await;
                continue;
            };
            let _request = machine.gate.enter().await;
            let target = self.target(&machine);
            let mut at = self.rng.below(total);
            let mut falls = |share: u64| {
                let hit = at < share;
                at = at.wrapping_sub(share);
                hit
            };
            let done = if falls(mix.write) {
                self.write(&target).await
            } else if falls(mix.read) {
                self.read(&target).await
            } else if falls(mix.flush) {
                self.flush(&target).await
            } else if falls(mix.zero) {
                self.zero(&target).await
            } else {
                self.discard(&target).await
            };
            self.harness.excuse(done)?;
        }
        Ok(())
    }

    /// Picks a machine that is not stopped.
    fn pick_machine(&mut self) -> Option<Rc<RunningMachine>> {
        let running = self.harness.running.borrow();
        let open: Vec<_> = running.values().filter(|machine| !machine.gate.is_stopped()).collect();
        self.rng.pick(&open).map(|machine| (*machine).clone())
    }

    fn target(&mut self, machine: &RunningMachine) -> Target {
        let plan = &self.harness.plan;
        let index = self.rng.below(machine.disks.borrow().len() as u64) as usize;
        let mut model = self.harness.model.borrow_mut();
        let places = &model.disk(machine.number, index).places;
        let sectors = places.sectors();
        let span = sectors.min(plan.hot_sectors);
        let base = if self.rng.coin() { 0 } else { self.rng.below(sectors - span + 1) };
        let mut first = base + self.rng.below(span);
        let mut count = self.rng.between(1, plan.write_sectors_max);
        if plan.whole_blocks {
            first -= first % SECTORS_PER_BLOCK;
            count = count.next_multiple_of(SECTORS_PER_BLOCK);
        }
        drop(model);
        self.target_at(machine, index, first, count)
    }

    /// Returns the target of `count` sectors at the model's sector `first`, or fewer at the window's end.
    pub fn target_at(&self, machine: &RunningMachine, index: usize, first: u64, count: u64) -> Target {
        let mut model = self.harness.model.borrow_mut();
        let (offset, room) = model.disk(machine.number, index).places.on_disk(first);
        let disk = machine.disks.borrow()[index].clone();
        Target { machine: machine.number, index, disk, first, count: count.min(room), offset }
    }

    fn begin(&self, target: &Target, zero: Option<bool>) -> OpenWrite {
        let mut model = self.harness.model.borrow_mut();
        let model = model.model(target.machine, target.index);
        match zero {
            None => model.begin(target.first, target.count),
            Some(optional) => model.begin_zero(target.first, target.count, optional),
        }
    }

    /// Notes the end of a write. A full store may refuse it (policy `error`); the range then shows the old or the new
    /// data.
    fn end(
        &self,
        target: &Target,
        open: &OpenWrite,
        what: &str,
        result: blk::Result<()>,
    ) -> Result<(), String> {
        target.tell(|| format!("{what} {} ends {result:?}", open.sequence));
        match result {
            Ok(()) => self.harness.model.borrow_mut().model(target.machine, target.index).end(open),
            Err(e) if e.is_no_space() => self.harness.mark("a write found no space"),
            Err(e) => return Err(format!("{what} of {}: {e}", target.place())),
        }
        Ok(())
    }

    pub async fn write(&mut self, target: &Target) -> Result<(), String> {
        let open = self.begin(target, None);
        let data = self.harness.model.borrow_mut().model(target.machine, target.index).data(&open);
        target.tell(|| format!("write {} begins", open.sequence));
        let redirects = target.disk.stats.first_writes.get();
        let result = target.disk.clone().write(target.offset, Buf::copy_of(&data).freeze()).await;
        match target.disk.stats.first_writes.get() == redirects {
            true => self.harness.mark("in place"),
            false => self.harness.mark("redirected"),
        }
        self.end(target, &open, "write", result)
    }

    pub async fn zero(&mut self, target: &Target) -> Result<(), String> {
        let open = self.begin(target, Some(false));
        target.tell(|| "zeroing begins".into());
        let mode = ZeroMode { no_hole: self.rng.below(3) == 0, ..ZeroMode::default() };
        let result = target.disk.clone().write_zeroes(target.range(), mode).await;
        self.end(target, &open, "zeroing", result)
    }

    pub async fn discard(&mut self, target: &Target) -> Result<(), String> {
        let open = self.begin(target, Some(true));
        target.tell(|| "discard begins".into());
        let result = target.disk.clone().discard(target.range()).await;
        self.end(target, &open, "discard", result)
    }

    pub async fn read(&mut self, target: &Target) -> Result<(), String> {
        let began = self.harness.model.borrow_mut().model(target.machine, target.index).now();
        let buf = Buf::alloc((target.count * SECTOR) as usize);
        let (buf, result) = target.disk.clone().read(target.offset, buf).await;
        result.map_err(|e| format!("read of {}: {e}", target.place()))?;
        let mut model = self.harness.model.borrow_mut();
        let checked = model.model(target.machine, target.index).check_read(target.first, &buf, began);
        checked.map_err(|e| format!("machine {}: {e}", target.machine))
    }

    pub async fn flush(&mut self, target: &Target) -> Result<(), String> {
        let began = self.harness.model.borrow_mut().model(target.machine, target.index).flush_begins();
        target.disk.clone().flush().await.map_err(|e| format!("flush: {e}"))?;
        tell(|| format!("  machine {} disk {} flushed (from tick {began})", target.machine, target.index));
        self.harness.model.borrow_mut().model(target.machine, target.index).flushed(began);
        Ok(())
    }
}

impl Target {
    fn range(&self) -> std::ops::Range<u64> {
        self.offset..self.offset + self.count * SECTOR
    }

    fn place(&self) -> String {
        format!("{} sectors at {} of {}", self.count, self.first, self.disk.name)
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        let (machine, node) = (self.machine, self.disk.node.id);
        tell_range(self.index, self.first, self.count, || {
            format!("machine {machine} node {node}: {}", what())
        });
    }
}
