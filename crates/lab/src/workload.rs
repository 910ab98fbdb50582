//! Load in the terms of IOmeter and fio: the size, mix, place and pace of reads and writes.
//!
//! A workload is a function of its seed. The same description and the same code drive volumes of the simulated world
//! and real ones: the target is a `Volume`, and time comes from `Env`.

mod driver;
mod generator;
mod pace;
mod stamps;
mod target;
mod worker;

pub use driver::Driver;
pub use worker::{Access, BLOCK_BYTES_MAX, OUTSTANDING_MAX, Pacing, Worker};

use serde::{Deserialize, Serialize};

/// The workers that run on the disks of one VM at the same time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    /// None: an idle VM.
    pub workers: Vec<Worker>,
    /// Every sector written carries a stamp, and every sector read is checked against the stamps it may show. The disks
    /// must begin as zeros.
    pub verify: bool,
    /// Written sectors repeat 32 bytes, which a simulated world keeps in a sixteenth of the memory. Otherwise their
    /// bytes are random, for storage that compresses. Verified sectors always repeat.
    pub repeating: bool,
}

impl Workload {
    /// Checks that the workload can run on disks of these sizes (bytes). An error names worker and field.
    pub fn check(&self, disk_bytes: &[u64]) -> Result<(), String> {
        for worker in &self.workers {
            let checked = match disk_bytes.get(worker.disk as usize) {
                Some(bytes) => worker.check(*bytes),
                None => Err(format!("disk = {}: there are {} disks, from 0", worker.disk, disk_bytes.len())),
            };
            checked.map_err(|e| format!("worker {:?}: {e}", worker.name))?;
        }
        Ok(())
    }
}
