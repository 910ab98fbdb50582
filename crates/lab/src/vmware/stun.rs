//! Stopping the VM: new guest I/O waits, I/O under way ends, files are closed and reopened.

use std::future::Future;

use blk::Result;
use blk::reactor::OpenMode;

use super::disk::Disk;
use super::spec::{FileOperation, Touched};
use super::vm::Vm;
use crate::run::Stun;

/// Files of one link: a descriptor and an extent.
const FILES_PER_LINK: u64 = 2;

/// File operations while the VM is stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FileSteps {
    closes: u64,
    opens: u64,
    creations: u64,
}

impl FileSteps {
    /// Counts closing the links of a chain that was open and opening those of the next one.
    pub(super) fn reopening(closed_links: u64, opened_links: u64) -> FileSteps {
        let (closes, opens) = (closed_links * FILES_PER_LINK, opened_links * FILES_PER_LINK);
        FileSteps { closes, opens, creations: 0 }
    }

    /// Adds the creation of a delta's descriptor. The extent is not counted: it is created for real.
    pub(super) fn with_descriptor(self) -> FileSteps {
        FileSteps { creations: self.creations + 1, ..self }
    }

    fn count(self) -> u64 {
        self.closes + self.opens + self.creations
    }
}

impl Vm {
    /// Does `work` while the VM is stopped. The VM resumes whatever the result.
    pub(super) async fn stunned<T>(&self, cause: String, work: impl Future<Output = Result<T>>) -> Result<T> {
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

    /// Closes and reopens the other disks' files, where a step of one disk's commit touches all disks.
    pub(super) async fn reopen_others(&self, disk: &Disk) -> Result<()> {
        if self.spec.stun.touched == Touched::OneDisk {
            return Ok(());
        }
        let others = self.disks.iter().filter(|other| other.index != disk.index);
        for other in others {
            self.file_steps(FileSteps::reopening(links_of(other), links_of(other))).await?;
        }
        Ok(())
    }

    pub(super) async fn file_steps(&self, steps: FileSteps) -> Result<()> {
        match self.spec.stun.file_operation {
            FileOperation::DeclaredUs(us) => self.pass_us(steps.count() * us).await,
            FileOperation::Calls { close_us, open_us, create_us } => {
                let FileSteps { closes, opens, creations } = steps;
                self.pass_us(closes * close_us + opens * open_us + creations * create_us).await;
            }
            FileOperation::OfDirectory => {
                for _ in 0..steps.count() {
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

/// Returns the number of files in a disk's chain.
pub(super) fn links_of(disk: &Disk) -> u64 {
    1 + disk.chain().deltas.len() as u64
}
