//! Options of a world.

use crate::device::{Device, Storage};
use crate::rng::Ratio;

/// How written bytes are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContentMode {
    /// Writes are visible at the completion or before. Until they are flushed, a power cut may lose or tear them.
    #[default]
    Durable,
    /// Writes take effect at the completion, and permanently. Only the present content is kept, repeated bytes once.
    /// Power cuts are not possible.
    Applied,
    /// Content is not kept: files have sizes and space, and read as zeros. For subjects of which only times matter.
    Absent,
}

/// Options of a world, which do not change. Faults are scheduled on the world itself.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device, if there is no `storage`.
    pub device: Device,
    /// Devices with positions, queues and caches.
    pub storage: Option<Storage>,
    pub content: ContentMode,
    /// Required alignment of transfers, as with O_DIRECT: a power of two from 512 to 65536 bytes.
    pub logical_block: u32,
    /// Required alignment of memory addresses in bytes.
    pub memory_align: u32,
    /// Longest transfer in bytes; longer ones fail with EINVAL.
    pub max_io: u32,
    /// Space of the file system, rounded down to pages of 4 KiB; None means 1 PiB.
    pub capacity_bytes: Option<u64>,
    /// Share of power cuts after which unsynced changes of names survive as any subset that keeps the order of changes
    /// to one name, instead of as a prefix.
    pub directory_subsets: Ratio,
    /// If true, a folder that is opened by its path has to exist, as on a real machine. Otherwise it is created
    /// durably.
    pub roots_must_exist: bool,
    /// Share of power cuts that leave sectors unreadable whose write was under way.
    pub unreadable_sectors: Ratio,
    /// Files use a page cache, as on a file system without direct I/O: data that a failed flush loses can still be read
    /// for a while.
    pub page_cache: bool,
    /// Files answer persistent reservations, as devices of a SAN do.
    pub reservations: bool,
    /// Number of events that are kept for messages; 0 keeps none.
    pub trace_events: usize,
    /// Submissions and completions after which a run counts as endless, and panics. 100 million take about a minute.
    pub events_max: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            device: Device::scrambled(),
            storage: None,
            content: ContentMode::Durable,
            logical_block: 512,
            memory_align: 512,
            max_io: 64 << 20,
            capacity_bytes: None,
            directory_subsets: Ratio::new(1, 4),
            roots_must_exist: false,
            unreadable_sectors: Ratio::NEVER,
            page_cache: false,
            reservations: false,
            trace_events: 0,
            events_max: 100_000_000,
        }
    }
}
