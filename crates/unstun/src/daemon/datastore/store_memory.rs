//! Memory of the daemon's native stores: one cache of map pages, and a part for each open store.

use std::rc::Rc;

use api::units::format_bytes;
use blk::budget::{Budget, Charge};
use blk::{Error, Result};
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
    _charge: Charge,
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

    /// Takes the memory of one store: half of what is free, so that further stores can open too.
    ///
    /// # Errors
    /// `Refused` when the open stores have all of it. `place`: the store's path.
    pub(crate) fn take(&self, place: &str) -> Result<StorePart> {
        let bytes = (self.parts.free() / 2).clamp(PART_BYTES_MIN, PART_BYTES_MAX);
        let Some(charge) = self.parts.take(bytes) else {
            let (all, least) = (format_bytes(self.parts.total()), format_bytes(PART_BYTES_MIN));
            let cause = format!(
                "the other native stores of this daemon have all of their {all} of memory, and this one needs {least}; \
                 start the daemon with more (`unstun up --memory 2G`), or remove a datastore"
            );
            return Err(Error::refused(place, cause));
        };
        let half = (bytes / 2) as usize;
        let options = StoreOptions {
            bitmap_bytes: half,
            // There are at most twice this number.
            pending_runs_max: half / 2 / PENDING_RUN_BYTES,
            ..StoreOptions::default()
        };
        Ok(StorePart { map_cache: self.map_cache.clone(), options, _charge: charge })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_take_parts_until_the_memory_is_used_up_and_return_them() {
        let memory = StoreMemory::new(Memory::new(1 << 30).unwrap(), 64 << 20);
        let first = memory.take("a").unwrap();
        let default = StoreOptions::default();
        assert_eq!(first.options.bitmap_bytes, default.bitmap_bytes);
        assert_eq!(first.options.pending_runs_max, default.pending_runs_max);
        let mut parts = vec![first];
        let refused = loop {
            match memory.take("b") {
                Ok(part) => parts.push(part),
                Err(e) => break e,
            }
            assert!(memory.parts.used() <= memory.parts.total());
        };
        assert_eq!(parts.len(), 7);
        assert!(refused.to_string().contains("128 MiB of memory, and this one needs 2 MiB"), "{refused}");
        parts.remove(0);
        assert_eq!(memory.take("b").unwrap().options.pending_runs_max, default.pending_runs_max / 2);
    }
}
