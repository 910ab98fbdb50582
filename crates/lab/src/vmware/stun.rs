//! Stopping the VM: new guest I/O waits, what is under way ends, files are closed and opened again.

use std::future::Future;

use blk::Result;
use blk::reactor::OpenMode;

use super::disk::Disk;
use super::spec::{FileOperation, Touched};
use super::vm::Vm;
use crate::run::Stun;

/// A delta comes with a descriptor and a lock beside its extent.
pub const CREATE_OPERATIONS: u64 = 3;

impl Vm {
    /// Does `work` while the VM is stopped. The VM runs on whatever comes of it.
    pub async fn stunned<T>(&self, cause: String, work: impl Future<Output = Result<T>>) -> Result<T> {
        let begin_ns = self.env.now_ns();
        self.gate.close().await;
        self.pass_us(self.spec.stun.checkpoint_us).await;
        let result = work.await;
        self.gate.open();
        let stun_us = (self.env.now_ns() - begin_ns) / 1000;
        let stun = Stun { at_us: begin_ns / 1000, stun_us, disk: None, cause };
        self.state.borrow_mut().stuns.push(stun);
        result
    }

    /// Where a step of one disk's commit touches all disks: the others' files are closed and opened too.
    pub async fn reopen_others(&self, disk: &Disk) -> Result<()> {
        if self.spec.stun.touched == Touched::OneDisk {
            return Ok(());
        }
        let others = self.disks.iter().filter(|other| other.index != disk.index);
        self.file_operations(others.map(|other| 2 * links_of(other)).sum()).await
    }

    pub async fn file_operations(&self, count: u64) -> Result<()> {
        match self.spec.stun.file_operation {
            FileOperation::DeclaredUs(us) => self.pass_us(count * us).await,
            FileOperation::OfDirectory => {
                for _ in 0..count {
                    self.dir.open(&self.disks[0].file_name, OpenMode::Read).await?;
                }
            }
        }
        Ok(())
    }

    async fn pass_us(&self, us: u64) {
        if us > 0 {
            self.env.sleep_us(us).await;
        }
    }
}

/// Files of a disk's chain.
pub fn links_of(disk: &Disk) -> u64 {
    1 + disk.chain().deltas.len() as u64
}
