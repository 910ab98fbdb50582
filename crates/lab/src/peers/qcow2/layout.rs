//! The shape of a qcow2 image.

/// Largest cache of L2 tables of an image by default, bytes. Source: QEMU `docs/qcow2-cache.txt`.
const L2_CACHE_BYTES_MAX: u64 = 32 << 20;
/// Part of an L2 table that is read and written at a time where the cache does not cover the disk. Source: as above.
pub(super) const SLICE_BYTES: u64 = 4096;
/// Bytes of a reference count: 16 bits. Source: QEMU `docs/interop/qcow2.txt`, refcount_order.
const REFCOUNT_BYTES: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::peers) struct Layout {
    pub cluster_bytes: u64,
    /// Parts of a cluster that are allocated one by one.
    pub subclusters: u64,
    /// Length of an entry of an L2 table.
    pub entry_bytes: u64,
    /// Largest cache of the disk's L2 tables (`l2-cache-size`).
    pub cache_max_bytes: u64,
}

impl Layout {
    /// The default of `qemu-img create`. Source: QEMU `docs/qcow2-cache.txt`.
    pub(in crate::peers) const STANDARD: Layout = Layout {
        cluster_bytes: 64 << 10,
        subclusters: 1,
        entry_bytes: 8,
        cache_max_bytes: L2_CACHE_BYTES_MAX,
    };
    /// Extended L2 entries have 32 subclusters and 16 bytes (QEMU `docs/interop/qcow2.txt`). With clusters of 128 KiB a
    /// subcluster is 4 KiB.
    pub(in crate::peers) const EXTENDED: Layout = Layout {
        cluster_bytes: 128 << 10,
        subclusters: 32,
        entry_bytes: 16,
        cache_max_bytes: L2_CACHE_BYTES_MAX,
    };

    /// Returns the smallest length that is allocated.
    pub(super) fn unit_bytes(self) -> u64 {
        self.cluster_bytes / self.subclusters
    }

    /// Returns the part of the disk under one L2 table, which is one cluster long.
    pub(super) fn table_span(self) -> u64 {
        self.cluster_bytes / self.entry_bytes * self.cluster_bytes
    }

    /// Returns the part of the file under one block of reference counts, in clusters.
    pub(super) fn refcount_span(self) -> u64 {
        self.cluster_bytes / REFCOUNT_BYTES
    }

    /// Returns the length of all L2 tables of a disk.
    fn tables_bytes(self, disk_bytes: u64) -> u64 {
        disk_bytes.div_ceil(self.cluster_bytes) * self.entry_bytes
    }

    /// Returns the size of the cache of a disk's L2 tables: never more than the tables take.
    pub(super) fn cache_bytes(self, disk_bytes: u64) -> u64 {
        self.tables_bytes(disk_bytes).next_multiple_of(self.cluster_bytes).min(self.cache_max_bytes)
    }

    /// Returns the length of an entry of the cache: a whole table where the cache covers the disk.
    pub(super) fn slice_bytes(self, disk_bytes: u64) -> u64 {
        if self.tables_bytes(disk_bytes) <= self.cache_max_bytes { self.cluster_bytes } else { SLICE_BYTES }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of QEMU's `docs/qcow2-cache.txt`: 1 MiB for 8 GiB, and 32 MiB for 256 GiB; twice as much for extended
    /// entries of the same clusters.
    #[test]
    fn a_cache_covers_what_the_document_says() {
        assert_eq!(Layout::STANDARD.cache_bytes(8 << 30), 1 << 20);
        assert_eq!(Layout::STANDARD.slice_bytes(256 << 30), 64 << 10);
        assert_eq!(Layout::STANDARD.slice_bytes((256 << 30) + 1), SLICE_BYTES);
        let extended = Layout { cluster_bytes: 64 << 10, ..Layout::EXTENDED };
        assert_eq!(extended.cache_bytes(8 << 30), 2 << 20);
        assert_eq!(Layout::EXTENDED.unit_bytes(), 4096);
        assert_eq!(Layout::STANDARD.table_span(), 512 << 20);
    }
}
