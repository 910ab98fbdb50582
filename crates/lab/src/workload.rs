//! Load in the terms of IOmeter and fio: who reads and writes what, where, how fast.
//!
//! A workload is a function of its seed. The same description and the same code drive volumes of the simulated world and
//! real ones: what is loaded is a `Volume`, time is `Env`.

mod driver;
mod generator;
mod pace;
mod stamps;
mod target;
mod worker;

pub use driver::Driver;
pub use generator::{Generator, Io};
pub use stamps::Stamps;
pub use worker::{Access, BLOCK_BYTES_MAX, OUTSTANDING_MAX, Pacing, Worker};

use serde::{Deserialize, Serialize};

/// What runs on the disks of one VM at the same time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// None: an idle VM.
    #[serde(default)]
    pub workers: Vec<Worker>,
    /// Every sector written carries a stamp, and every sector read is compared with what it may show. The disks begin
    /// as zeros.
    #[serde(default)]
    pub verify: bool,
    /// Sectors written repeat 32 bytes, which a simulated world keeps in a sixteenth of the memory. Else their bytes are
    /// random, for storage that compresses. Verified sectors always repeat.
    #[serde(default)]
    pub repeating: bool,
}

impl Workload {
    /// Whether it can run on disks of these sizes (bytes); else what is wrong, by worker and field.
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
