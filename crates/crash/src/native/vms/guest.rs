//! Guests of the VMs: they write, read, zero and flush the disks of running VMs, and check every answer.

use std::rc::Rc;

use blk::SECTOR;
use blk::volume::ZeroMode;
use sim::Rng;

use super::harness::{Running, VmHarness};
use crate::requests::{Request, Target};
use crate::run::draw_share;

/// Longest request, in sectors.
const SECTORS_MAX: u64 = 24;

pub(super) struct Guest {
    pub harness: Rc<VmHarness>,
    pub rng: Rng,
}

impl Guest {
    pub(super) async fn run(mut self, operations: u64) -> Result<(), String> {
        for _ in 0..operations {
            let Some(vm) = self.pick() else {
                self.harness.inner.env.sleep_us(200).await;
                continue;
            };
            let _request = vm.gate.enter().await;
            let numbers: Vec<u32> = vm.attached.borrow().keys().copied().collect();
            let Some(number) = self.rng.pick(&numbers).copied() else { continue };
            self.request(&vm, number).await.map_err(|e| format!("VM {} disk{number}: {e}", vm.name))?;
        }
        Ok(())
    }

    fn pick(&mut self) -> Option<Rc<Running>> {
        let running = self.harness.running.borrow();
        let open: Vec<_> = running.values().filter(|vm| !vm.gate.is_stopped()).collect();
        self.rng.pick(&open).map(|vm| (*vm).clone())
    }

    async fn request(&mut self, vm: &Running, number: u32) -> Result<(), String> {
        let volume = vm.attached.borrow()[&number].0.clone();
        let model = self.harness.model.borrow().vms[&vm.name].models[&number].clone();
        let sectors = volume.info().size_bytes / SECTOR;
        let first = self.rng.below(sectors);
        let count = self.rng.between(1, SECTORS_MAX).min(sectors - first);
        let zero = Request::Zero(ZeroMode::default());
        let kinds = [Request::Write, zero, Request::Flush, Request::Read];
        let request = kinds[draw_share(&mut self.rng, &[4, 1, 1, 2])];
        if !Target::plain(volume, model, first, count).carry_out(request).await? {
            self.harness.world.mark("a write found no space");
        }
        Ok(())
    }
}
