//! What kind of world a test wants.

use crate::device::{Device, Storage};
use crate::rng::Ratio;

/// What becomes of the bytes that are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContentMode {
    /// Visible when the operation completes or before, and lost or torn by a power cut until flushed.
    #[default]
    Durable,
    /// Take effect at the completion, and stay. Only the present content is kept, repetitions once. No power can be cut.
    Applied,
    /// Not kept: files have sizes and space, and read as zeros. For subjects that need times alone.
    Absent,
}

/// Fixed for the life of a world. Faults are scheduled on the world itself.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device of all files if there is no `storage`.
    pub device: Device,
    /// Devices with positions, queues and caches.
    pub storage: Option<Storage>,
    pub content: ContentMode,
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
    /// Whether a folder that is opened by its path has to exist, as on a real machine; else it is made, durably.
    pub roots_must_exist: bool,
    /// Share of power cuts that leave some sectors unreadable whose write was under way.
    pub unreadable_sectors: Ratio,
    /// Files go through a page cache, as where a file system does no direct I/O: what a failed flush loses is still read
    /// for a while.
    pub page_cache: bool,
    /// The last events are kept for reading; 0 keeps none.
    pub trace_events: usize,
    /// Submissions and completions after which a run is called endless and panics. 100 million take about a minute.
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
            trace_events: 0,
            events_max: 100_000_000,
        }
    }
}
