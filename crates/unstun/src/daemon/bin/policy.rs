//! Policy that decides what the bin keeps, for how long, and when a datastore is short of space.

use blk::reactor::Space;

pub(super) const HOUR_US: i64 = 3_600_000_000;
/// Free space in bytes below which an operation without space may use that of the bin. A store grows by groups of 128
/// MiB.
const SHORT_BYTES: u64 = 256 << 20;
/// The same limit in percent of the total space.
const SHORT_PERCENT: u64 = 5;

/// Policy that decides what the bin keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BinPolicy {
    /// Hours for which an entry is kept. With 0 nothing is kept.
    pub hours: u32,
    /// Percentage of each datastore that must be free. With no more than that free, nothing is kept.
    pub free_percent: u32,
}

impl Default for BinPolicy {
    fn default() -> Self {
        BinPolicy { hours: 24, free_percent: 10 }
    }
}

impl BinPolicy {
    /// Returns the time up to which an entry is kept.
    pub(crate) fn kept_until_unix_us(self, removed_unix_us: i64) -> i64 {
        removed_unix_us.saturating_add(i64::from(self.hours).saturating_mul(HOUR_US))
    }

    pub(crate) fn leaves(self, space: Space) -> bool {
        is_above(space, u64::from(self.free_percent))
    }

    /// Returns whether so little is free that a lack of space can be due to this datastore.
    pub(crate) fn is_short(self, space: Space) -> bool {
        let percent = u64::from(self.free_percent).max(SHORT_PERCENT);
        !is_above(space, percent) || space.free_bytes < SHORT_BYTES
    }
}

fn is_above(space: Space, percent: u64) -> bool {
    u128::from(space.free_bytes) * 100 > u128::from(space.total_bytes) * u128::from(percent)
}
