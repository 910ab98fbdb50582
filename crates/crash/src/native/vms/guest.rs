//! Guests of the VMs: they write, read, zero and flush the disks of running VMs, and check every answer.

use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, SECTOR};
use sim::Rng;

use super::harness::{Running, VmHarness};
use sim::oracle::OpenWrite;

/// Longest request, in sectors.
const SECTORS_MAX: u64 = 24;

pub struct Guest {
    pub harness: Rc<VmHarness>,
    pub rng: Rng,
}

impl Guest {
    pub async fn run(mut self, operations: u64) -> Result<(), String> {
        for _ in 0..operations {
            let Some(vm) = self.pick() else {
                self.harness.env.sleep_us(200).await;
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

    pub async fn request(&mut self, vm: &Rc<Running>, number: u32) -> Result<(), String> {
        let volume = vm.attached.borrow()[&number].0.clone();
        let sectors = volume.info().size_bytes / SECTOR;
        let first = self.rng.below(sectors);
        let count = self.rng.between(1, SECTORS_MAX).min(sectors - first);
        match self.rng.below(8) {
            0..=3 => self.write(vm, number, volume, (first, count)).await,
            4 => self.zero(vm, number, volume, (first, count)).await,
            5 => self.flush(vm, number, volume).await,
            _ => self.read(vm, number, volume, (first, count)).await,
        }
    }

    async fn write(
        &mut self,
        vm: &Rc<Running>,
        number: u32,
        volume: Rc<dyn Volume>,
        (first, count): (u64, u64),
    ) -> Result<(), String> {
        let (open, data) = {
            let mut model = self.harness.model.borrow_mut();
            let model = model.model(&vm.name, number);
            let open = model.begin(first, count);
            let data = model.data(&open);
            (open, data)
        };
        let written = volume.write(first * SECTOR, Buf::copy_of(&data).freeze()).await;
        self.ended(vm, number, &open, written).map_err(|e| format!("write: {e}"))
    }

    async fn zero(
        &mut self,
        vm: &Rc<Running>,
        number: u32,
        volume: Rc<dyn Volume>,
        (first, count): (u64, u64),
    ) -> Result<(), String> {
        let open = self.harness.model.borrow_mut().model(&vm.name, number).begin_zero(first, count, false);
        let range = first * SECTOR..(first + count) * SECTOR;
        let zeroed = volume.write_zeroes(range, Default::default()).await;
        self.ended(vm, number, &open, zeroed).map_err(|e| format!("zeroing: {e}"))
    }

    /// Notes the end of a write. A write that found no space may be on the disk in part.
    fn ended(&self, vm: &Running, number: u32, open: &OpenWrite, done: blk::Result<()>) -> blk::Result<()> {
        match done {
            Ok(()) => self.harness.model.borrow_mut().model(&vm.name, number).end(open),
            Err(e) if e.is_no_space() => self.harness.world.mark("a write found no space"),
            Err(e) => return Err(e),
        }
        Ok(())
    }

    async fn read(
        &mut self,
        vm: &Rc<Running>,
        number: u32,
        volume: Rc<dyn Volume>,
        (first, count): (u64, u64),
    ) -> Result<(), String> {
        let began = self.harness.model.borrow_mut().model(&vm.name, number).now();
        let (buf, read) = volume.read(first * SECTOR, Buf::alloc((count * SECTOR) as usize)).await;
        read.map_err(|e| format!("read: {e}"))?;
        self.harness.model.borrow_mut().model(&vm.name, number).check_read(first, &buf, began)
    }

    pub async fn flush(&self, vm: &Rc<Running>, number: u32, volume: Rc<dyn Volume>) -> Result<(), String> {
        let began = self.harness.model.borrow_mut().model(&vm.name, number).flush_begins();
        volume.flush().await.map_err(|e| format!("flush: {e}"))?;
        self.harness.model.borrow_mut().model(&vm.name, number).flushed(began);
        Ok(())
    }
}
