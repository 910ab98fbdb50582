//! Memory of the daemon's native stores: one cache of map pages, and a part for each open store.

use std::rc::Rc;

use blk::budget::{Budget, Charge};
use engine::native::{MapCache, PENDING_RUN_BYTES, StoreOptions};

use crate::memory::Memory;

/// Most memory of one store beside the cache: 32 MiB of bitmaps, and twice 256 Ki redirects of 64 bytes.
const PART_BYTES_MAX: u64 = 64 << 20;
/// Least memory of one store: the bitmaps of 65 groups (8 GiB of space that is in use), and twice 8 Ki redirects.
const PART_BYTES_MIN: u64 = 2 << 20;

/// Memory that the native stores of a daemon share.
#[derive(Clone)]
pub(crate) struct StoreMemory {
    map_cache: MapCache,
    map_cache_bytes: usize,
    parts: Rc<Budget>,
}

/// The memory of one open store.
pub(crate) struct StorePart {
    pub map_cache: MapCache,
    pub options: StoreOptions,
    /// None: the part is not one of those that are counted.
    _charge: Option<Charge>,
}

impl StoreMemory {
    /// Divides the part of `memory` that native stores have. `map_cache_bytes`: cap of the cache of all stores.
    pub(crate) fn new(memory: Memory, map_cache_bytes: usize) -> StoreMemory {
        let parts = Budget::new(memory.store_parts_bytes());
        StoreMemory { map_cache: MapCache::new(map_cache_bytes), map_cache_bytes, parts }
    }

    /// Returns the cap of the cache that all stores share, bytes.
    pub(crate) fn map_cache_bytes(&self) -> usize {
        self.map_cache_bytes
    }

    /// Takes the memory of one store: half of what is free, so that further stores have some too. When nothing is left, a
    /// store takes the least part of what the daemon has for everything else: VMs that were served before must be served
    /// after any start.
    pub(crate) fn take(&self) -> StorePart {
        let bytes = (self.parts.free() / 2).clamp(PART_BYTES_MIN, PART_BYTES_MAX);
        let charge = self.parts.take(bytes);
        let half = (bytes / 2) as usize;
        let options = StoreOptions {
            bitmap_bytes: half,
            // There are at most twice this number.
            pending_runs_max: half / 2 / PENDING_RUN_BYTES,
            ..StoreOptions::default()
        };
        StorePart { map_cache: self.map_cache.clone(), options, _charge: charge }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_share_the_memory_and_none_is_refused() {
        let memory = StoreMemory::new(Memory::new(1 << 30).unwrap(), 64 << 20);
        let default = StoreOptions::default();
        let bitmap_mib = |part: &StorePart| part.options.bitmap_bytes >> 20;
        let mut parts: Vec<StorePart> = (0..9).map(|_| memory.take()).collect();
        assert_eq!(parts[0].options.bitmap_bytes, default.bitmap_bytes);
        assert_eq!(parts[0].options.pending_runs_max, default.pending_runs_max);
        assert_eq!(parts.iter().map(bitmap_mib).collect::<Vec<_>>(), [32, 16, 8, 4, 2, 1, 1, 1, 1]);
        assert_eq!(memory.parts.used(), memory.parts.total(), "the last ones are not counted");
        parts.remove(0);
        assert_eq!(memory.take().options.pending_runs_max, default.pending_runs_max / 2);
    }
}
