//! What kind of world a test wants.

use crate::device::Device;
use crate::rng::Ratio;

/// Fixed for the life of a world. Faults are scheduled on the world itself.
#[derive(Debug, Clone)]
pub struct Options {
    pub device: Device,
    /// Alignment demanded of transfers, as with O_DIRECT: 512 or 4096 bytes.
    pub logical_block: u32,
    /// Alignment demanded of memory addresses, bytes.
    pub memory_align: u32,
    /// Longer transfers fail with EINVAL. Bytes.
    pub max_io: u32,
    /// Space of the file system; none is 1 PiB. In 4 KiB pages, rounded down.
    pub capacity_bytes: Option<u64>,
    /// Share of power cuts after which unsynced changes to names survive as any subset that keeps the order of changes
    /// to one name, instead of as a prefix.
    pub directory_subsets: Ratio,
    /// The last events are kept for reading; 0 keeps none.
    pub trace_events: usize,
    /// Submissions and completions after which a run is called endless and panics. 100 million take about a minute.
    pub events_max: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            device: Device::scrambled(),
            logical_block: 512,
            memory_align: 512,
            max_io: 64 << 20,
            capacity_bytes: None,
            directory_subsets: Ratio::new(1, 4),
            trace_events: 0,
            events_max: 100_000_000,
        }
    }
}
