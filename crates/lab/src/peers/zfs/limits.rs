//! The numbers of the model, and their sources.

/// Source: OpenZFS zfsprops(7), volblocksize, since 2.2.
pub(super) const BLOCK_BYTES: u64 = 16 << 10;
/// Space of the pool, in disks.
pub(super) const SPACE: u64 = 2;
/// Length of a block of pointers, and of a pointer. Source: OpenZFS `include/sys/dnode.h` and `include/sys/spa.h`.
pub(super) const POINTERS_BYTES: u64 = 128 << 10;
pub(super) const POINTER_BYTES: u64 = 128;
/// Copies of a block of pointers. Source: OpenZFS zfsprops(7), redundant_metadata=all.
pub(super) const POINTER_COPIES: u64 = 2;
/// Blocks that end a transaction group: the volume's dnode, the object set, the meta object set, the uberblock.
pub(super) const END_BLOCKS: u64 = 4;
/// Longest time of a transaction group. Source: OpenZFS zfs(4), zfs_txg_timeout.
pub(super) const GROUP_S: u64 = 5;
/// Data that is not yet written, at most. Source: OpenZFS zfs(4), zfs_dirty_data_max: a tenth of the memory, here of 4
/// GiB.
pub(super) const DIRTY_BYTES_MAX: u64 = 400 << 20;
/// Share of that from which a group ends, percent. Source: OpenZFS zfs(4), zfs_dirty_data_sync_percent.
pub(super) const SYNC_PERCENT: u64 = 20;
/// Share from which writes are delayed, percent, and the delay. Source: OpenZFS zfs(4), zfs_delay_min_dirty_percent and
/// zfs_delay_scale.
pub(super) const DELAY_PERCENT: u64 = 60;
pub(super) const DELAY_SCALE_NS: u64 = 500_000;
/// Longest delay of a write. Source: OpenZFS `module/zfs/dsl_pool.c`, zfs_delay_max_ns.
pub(super) const DELAY_MAX_NS: u64 = 100_000_000;
/// Writes of a group under way. Source: OpenZFS zfs(4), zfs_vdev_async_write_max_active.
pub(super) const GROUP_WRITES: usize = 10;
/// Longest write of blocks in a row. Source: OpenZFS zfs(4), zfs_vdev_aggregation_limit_non_rotating.
pub(super) const JOINED_BYTES: u64 = 128 << 10;
/// Writes up to this length are in the intent log themselves. Source: OpenZFS zfs(4), zvol_immediate_write_sz.
pub(super) const IN_LOG_BYTES: u64 = 32 << 10;
/// Longest block of the intent log. Source: OpenZFS zfs(4), zil_maxblocksize.
pub(super) const LOG_BLOCK_BYTES: u64 = 128 << 10;
/// Transaction groups before freed space is used again. Source: OpenZFS `include/sys/txg.h`, TXG_DEFER_SIZE.
pub(super) const DEFERRED_GROUPS: usize = 2;
/// Processor time of an I/O that is served from memory, microseconds.
pub(super) const CALL_US: u64 = 10;
