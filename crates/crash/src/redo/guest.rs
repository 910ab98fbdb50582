//! A guest: writes, reads, flushes, zeroes and discards at random, every answer checked.

use std::cell::RefCell;
use std::rc::Rc;

use blk::volume::{Volume, ZeroMode};
use blk::{Buf, SECTOR};
use engine::{Disk, Vm};
use sim::Rng;

use super::model::Model;
use super::plan::Plan;
use crate::request_gate::RequestGate;
use crate::trouble::Trouble;
use crate::watch::{tell, tell_range};

pub struct Guest {
    pub vm: Rc<Vm>,
    /// The disk that serves this request; a revert replaces it.
    pub disk: Rc<Disk>,
    pub gate: Rc<RequestGate>,
    /// Index of the disk and of its model.
    pub index: usize,
    pub model: Rc<RefCell<Model>>,
    pub rng: Rng,
    pub trouble: Trouble,
}

impl Guest {
    pub async fn run(mut self, plan: &Plan) -> Result<(), String> {
        let mix = plan.mix;
        let total = mix.write + mix.read + mix.flush + mix.zero + mix.discard;
        for _ in 0..plan.operations {
            let _request = self.gate.enter().await;
            self.disk = self.vm.disks()[self.index].clone();
            let (first, count) = self.range(plan);
            let mut at = self.rng.below(total);
            let mut falls = |share: u64| {
                let hit = at < share;
                at = at.wrapping_sub(share);
                hit
            };
            let done = if falls(mix.write) {
                self.write(first, count).await
            } else if falls(mix.read) {
                self.read(first, count).await
            } else if falls(mix.flush) {
                self.flush().await
            } else if falls(mix.zero) {
                self.zero(first, count).await
            } else {
                self.discard(first, count).await
            };
            self.trouble.excuse(done)?;
        }
        Ok(())
    }

    fn range(&mut self, plan: &Plan) -> (u64, u64) {
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
        (first, count)
    }

    /// Writes a range. A full datastore may fail the write (policy `error`); the range then shows the old or the new
    /// data.
    async fn write(&mut self, first: u64, count: u64) -> Result<(), String> {
        let open = self.model.borrow_mut().models[self.index].begin(first, count);
        let data = Buf::copy_of(&self.model.borrow().models[self.index].data(&open)).freeze();
        tell_range(self.index, first, count, || format!("write {} begins", open.sequence));
        let result = self.disk.clone().write(first * SECTOR, data).await;
        tell_range(self.index, first, count, || format!("write {} ends {result:?}", open.sequence));
        match result {
            Ok(()) => self.model.borrow_mut().models[self.index].end(&open),
            Err(e) if e.is_no_space() => {}
            Err(e) => return Err(format!("write of {count} sectors at {first}: {e}")),
        }
        Ok(())
    }

    async fn zero(&mut self, first: u64, count: u64) -> Result<(), String> {
        let open = self.model.borrow_mut().models[self.index].begin_zero(first, count, false);
        let range = first * SECTOR..(first + count) * SECTOR;
        tell_range(self.index, first, count, || "zeroing begins".into());
        let result = self.disk.clone().write_zeroes(range, ZeroMode::default()).await;
        tell_range(self.index, first, count, || format!("zeroing ends {result:?}"));
        match result {
            Ok(()) => self.model.borrow_mut().models[self.index].end(&open),
            Err(e) if e.is_no_space() => {}
            Err(e) => return Err(format!("zeroing {count} sectors at {first}: {e}")),
        }
        Ok(())
    }

    async fn discard(&mut self, first: u64, count: u64) -> Result<(), String> {
        let open = self.model.borrow_mut().models[self.index].begin_zero(first, count, true);
        tell_range(self.index, first, count, || "discarded".into());
        let result = self.disk.clone().discard(first * SECTOR..(first + count) * SECTOR).await;
        self.model.borrow_mut().models[self.index].end(&open);
        result.map_err(|e| format!("discard of {count} sectors at {first}: {e}"))
    }

    async fn read(&mut self, first: u64, count: u64) -> Result<(), String> {
        let began = self.model.borrow_mut().models[self.index].now();
        let buf = Buf::alloc((count * SECTOR) as usize);
        let (buf, result) = self.disk.clone().read(first * SECTOR, buf).await;
        result.map_err(|e| format!("read of {count} sectors at {first}: {e}"))?;
        let checked = self.model.borrow().models[self.index].check_read(first, &buf, began);
        if let Err(e) = &checked {
            tell(|| format!("  read {first}+{count} from tick {began}: {e}"));
        }
        checked
    }

    async fn flush(&mut self) -> Result<(), String> {
        let began = self.model.borrow_mut().models[self.index].flush_begins();
        self.disk.clone().flush().await.map_err(|e| format!("flush: {e}"))?;
        tell(|| format!("  disk {} flushed (from tick {began})", self.index));
        self.model.borrow_mut().models[self.index].flushed(began);
        Ok(())
    }
}
