//! What differs among the stacks that copy before they write.

/// A stack of this kind.
#[derive(Debug, Clone, Copy)]
pub(in crate::peers) struct Store {
    pub chunk_bytes: u64,
    /// The table of what was copied is on disk, and a write waits for its entry.
    pub table: bool,
    /// Records of the volume manager, each durable, before guest I/O is held back and meanwhile.
    pub records: bool,
}

impl Store {
    /// Returns the store with chunks of another size, if one is given.
    pub(in crate::peers) fn with(self, chunk_bytes: Option<u64>) -> Store {
        Store { chunk_bytes: chunk_bytes.unwrap_or(self.chunk_bytes), ..self }
    }
}

/// LVM: 4 KiB is the default of `lvcreate --chunksize` (lvcreate(8)). The kernel's own default is 16 KiB
/// (`drivers/md/dm-snap-persistent.c`), which LVM overrides.
pub(in crate::peers) const LVM: Store = Store { chunk_bytes: 4096, table: true, records: true };
/// QEMU: the least unit of a copy (`block/block-copy.c`, BLOCK_COPY_CLUSTER_SIZE_DEFAULT).
pub(in crate::peers) const FLEECING: Store = Store { chunk_bytes: 64 << 10, table: false, records: false };
