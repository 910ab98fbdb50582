//! A redo VM and its disks: what `Machine` and `RunningDisk` need beside the operations.

use std::rc::Rc;

use blk::file::FileCounters;
use blk::{Error, Local, Result};

use super::disk::Disk;
use super::space::SpaceHold;
use super::vm::Vm;
use crate::job::Job;
use crate::machine::RunningDisk;
use crate::operations::DefragmentRequest;
use crate::stats::{DiskStats, LayerCounters};

impl RunningDisk for Disk {
    fn layer_count(&self) -> usize {
        self.chain.borrow().links.len()
    }

    fn stats(&self) -> &DiskStats {
        &self.stats
    }

    fn device_counters(&self) -> FileCounters {
        Disk::device_counters(self)
    }

    fn layer_counters(&self) -> Vec<LayerCounters> {
        Disk::layer_counters(self)
    }

    /// Returns the growth of the top: a flat base is allocated already unless it is thin; a delta may grow to the size
    /// of its disk.
    fn worst_growth_bytes(&self) -> Local<'_, Result<u64>> {
        let chain = self.chain();
        Box::pin(async move {
            let top = &chain.top().layer;
            let mut held_bytes = 0;
            match top.shape().flat {
                // A base may be thin.
                true => {
                    for file in top.files() {
                        held_bytes += file.allocated_bytes().await?;
                    }
                }
                false => held_bytes = top.usage().held_bytes,
            }
            Ok(self.size_bytes().saturating_sub(held_bytes))
        })
    }
}

impl Vm {
    /// Returns the sum over all disks.
    pub(crate) fn device_counters(&self) -> FileCounters {
        let mut sum = FileCounters::default();
        self.disks().iter().for_each(|disk| sum += disk.device_counters());
        sum
    }

    /// Refuses: the file system decides where the blocks of files are.
    pub(crate) async fn defragment(self: &Rc<Self>, _: DefragmentRequest) -> Result<Rc<Job>> {
        let cause = "its disks are files, whose layout is the file system's";
        let remedy =
            "commit its snapshots to shorten the chains, or move the VM with `vm move --store native`";
        Err(Error::refused(&self.name, format!("cannot defragment the VM: {cause}; {remedy}")))
    }

    pub(crate) async fn average_run_bytes(&self, number: u32) -> Result<Option<u64>> {
        self.disk(number).map(|_| None)
    }

    pub(crate) async fn hold_writes(&self) -> SpaceHold {
        SpaceHold::over(&self.disks()).await
    }
}
