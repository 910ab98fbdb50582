//! Division of the daemon's memory (`up --memory`).
//!
//! The owner of each part enforces its limit; it waits or frees memory there:
//!
//! | part | of 1 GiB | held by |
//! |---|---|---|
//! | clients: 64 KiB each, and their requests | 512 MiB, a half | `export`: connections are refused, requests wait and are cut |
//! | resolved maps of redo disks | 96 MiB, 3/32 | `engine`: the coldest regions are built again |
//! | grain tables | 72 MiB | `vmdk`: 48 MiB of clean ones, `engine`: 24 MiB that wait to be written |
//! | map pages of all native stores | 64 MiB, 1/16; or `--map-cache` | `engine`: the coldest pages are read again |
//! | grants of native disks on other cores | none; with several cores 32 MiB, 1/32, of the map pages' part | `engine`: the oldest ones are given up |
//! | bitmaps and unmerged redirects of native stores | 128 MiB, 1/8 | `datastore/store_memory.rs`: parts of 2 to 64 MiB; behind the seventh store 2 MiB each, of the rest |
//! | free I/O buffers | 32 MiB | `blk` |
//! | the rest: code, catalogues, layers, verbs | 120 MiB | no limit: depends on the VMs and snapshots |
//!
//! With `up --cores N`, each core has the N-th part of what clients, redo disks' maps, grain tables and free buffers may
//! take together: 2 cores with 1 GiB have 256, 48, 36 and 16 MiB each. Native stores are on one core, undivided. The other
//! cores have grants of their disks instead of map pages: with several cores both have a half of the sixteenth.

use std::thread::available_parallelism;

use api::units;

/// Maximum memory of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory(u64);

/// Minimum: with half of it for clients, and less for maps, the fixed parts still fit.
const BYTES_MIN: u64 = 512 << 20;
/// Maximum; a larger number is a mistake.
const BYTES_MAX: u64 = 1 << 40;
/// Parts whose size does not depend on the memory: grain tables and free I/O buffers.
const FIXED_BYTES: u64 = (72 + 32) << 20;
/// Least memory of the rest that a larger cache of map pages must leave.
const REST_BYTES_MIN: u64 = 16 << 20;
/// Minimum size of the map cache. The path to a leaf is at most five pages of 4 KiB, so a thousand concurrent requests
/// on cold disks fit.
pub(crate) const MAP_CACHE_BYTES_MIN: u64 = 16 << 20;
/// Maximum number of cores. With the least memory, each has 16 MiB for its clients then.
pub(crate) const CORES_MAX: usize = 16;
/// Least memory of each core if the user names no number of cores: 64 MiB of it are for clients, so that the requests of a
/// few that have 64 of 1 MiB under way do not wait for each other.
const CORE_BYTES_MIN: u64 = 128 << 20;
/// Descriptors other than those of a datastore's files, folders and locks: 256 logs in the host's memory, which the cores
/// divide (`blk/uring/memory.rs:OPEN_MAX`), the API's clients, the rings of up to 16 cores and the threads' own.
const DESCRIPTORS_OWN: u64 = 320;
/// Maximum number of descriptors reserved for takes, commits and closing: a revert of 8 disks along chains of 127
/// layers.
const DESCRIPTORS_RESERVED_MAX: u64 = 1024;
/// Maximum number of connections; no host has disks for more.
const CONNECTIONS_MAX: u64 = 65_536;

impl Memory {
    /// # Errors
    /// The error says what was expected.
    pub fn new(bytes: u64) -> Result<Memory, String> {
        if !(BYTES_MIN..=BYTES_MAX).contains(&bytes) {
            return Err(format!("{} to {}", units::format_bytes(BYTES_MIN), units::format_bytes(BYTES_MAX)));
        }
        Ok(Memory(bytes))
    }

    /// Returns the memory of all connections and their requests, bytes.
    pub fn clients_bytes(self) -> u64 {
        self.0 / 2
    }

    /// Returns the memory of the resolved maps of all redo disks, bytes.
    pub fn maps_bytes(self) -> usize {
        usize::try_from(self.0 / 32 * 3).expect("at most 1 TiB")
    }

    /// Returns the memory for the bitmaps and the unmerged redirects of all native stores, bytes.
    pub fn store_parts_bytes(self) -> u64 {
        self.0 / 8
    }

    /// Returns how many cores run VMs if the user names no number: those of the machine, as far as there is memory.
    pub fn cores(self) -> usize {
        let present = available_parallelism().map_or(1, std::num::NonZero::get);
        let with_memory = usize::try_from(self.0 / CORE_BYTES_MIN).expect("at most 1 TiB");
        present.min(with_memory).min(CORES_MAX)
    }

    /// Returns the cap of the cache of map pages: `wanted`, or the default.
    ///
    /// # Errors
    /// The error says what is possible.
    pub fn map_cache_bytes(self, wanted: Option<usize>, cores: usize) -> Result<usize, String> {
        let grants = self.all_grant_bytes(cores);
        let max = usize::try_from(self.undivided_bytes() - grants).expect("at most 1 TiB");
        let default = usize::try_from(self.0 / 16 - grants).expect("at most 1 TiB").min(max);
        let bytes = wanted.unwrap_or(default);
        if bytes > max {
            let [bytes, max, all] = [bytes as u64, max as u64, self.0].map(units::format_bytes);
            return Err(format!(
                "--map-cache: found {bytes}, expected at most {max} with --memory {all}; a larger --memory allows more"
            ));
        }
        Ok(bytes)
    }

    /// Returns what the parts of a fixed share leave to map pages and grants, bytes.
    fn undivided_bytes(self) -> u64 {
        let others = self.clients_bytes() + self.maps_bytes() as u64 + self.store_parts_bytes() + FIXED_BYTES;
        self.0 - others - REST_BYTES_MIN
    }

    /// Returns what grants of native disks on all cores beside the stores' may take, bytes.
    fn all_grant_bytes(self, cores: usize) -> u64 {
        let most = self.undivided_bytes() - MAP_CACHE_BYTES_MIN;
        if cores > 1 { (self.0 / 32).min(most) } else { 0 }
    }

    /// Returns what the grants of one of these cores may take, bytes.
    pub(crate) fn grant_bytes(self, cores: usize) -> usize {
        usize::try_from(self.all_grant_bytes(cores)).expect("at most 1 TiB") / (cores - 1).max(1)
    }

    /// Lets this core's thread keep its part of the caches that `cores` share: tables and free buffers.
    pub(crate) fn share_caches(self, cores: usize) {
        vmdk::delta::keep_tables(vmdk::delta::TABLES_CACHED_MAX / cores);
        blk::buf::keep_free(blk::buf::POOL_BYTES_MAX / cores);
    }

    /// Returns the number of connections for which there is memory, at most `descriptors`.
    fn connections_max(self, descriptors: u64) -> u64 {
        let promised = self.clients_bytes() / 2 / export::memory::CONNECTION_BYTES;
        promised.min(descriptors).min(CONNECTIONS_MAX)
    }
}

/// Descriptors of the process, and their division:
///
/// | part | of 524,288 (the unit's) | of 1024 |
/// |---|---|---|
/// | the process's own | 320 | 320 |
/// | connections: as memory allows (4096 with 1 GiB), at most half of the rest | 4096 | 352 |
/// | vhost-user connections, up to 28 each: an eighth of the rest | 65,496 | 88 |
/// | reserve: an eighth of the rest, at most 1024; takes and reverts leave half of it to commits, closing and removing | 1024 | 88 |
/// | what is served: layers, folders, locks, and a socket for each disk | 453,352 | 176 |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptors {
    pub limit: u64,
    pub connections: u64,
    pub vhost_user: u64,
    pub reserve: u64,
}

impl Descriptors {
    pub(crate) fn new(limit: u64, memory: Memory) -> Descriptors {
        let rest = limit.saturating_sub(DESCRIPTORS_OWN);
        let connections = memory.connections_max(rest / 2);
        let reserve = (rest / 8).min(DESCRIPTORS_RESERVED_MAX);
        Descriptors { limit, connections, vhost_user: rest / 8, reserve }
    }

    /// Returns the maximum number of descriptors of files, folders and locks if `kept` of them must stay free.
    pub(crate) fn files_max(self, kept: u64) -> u64 {
        self.limit.saturating_sub(DESCRIPTORS_OWN + self.connections + self.vhost_user + kept)
    }
}

/// Raises the process's soft limit on descriptors to its hard limit, and returns the limit.
pub(crate) fn raise_descriptors() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // A failure needs no handling: the limit in force afterwards is returned.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gibibyte_is_divided_as_the_table_says() {
        let memory = Memory::new(1 << 30).unwrap();
        assert_eq!((memory.clients_bytes() >> 20, memory.maps_bytes() >> 20), (512, 96));
        assert_eq!(
            (memory.store_parts_bytes() >> 20, memory.map_cache_bytes(None, 1).unwrap() >> 20),
            (128, 64)
        );
        let divided = |limit| {
            let parts = Descriptors::new(limit, memory);
            (parts.connections, parts.reserve, parts.files_max(parts.reserve))
        };
        assert_eq!(divided(1 << 20), (4096, 1024, (1 << 20) - 320 - 4096 - 131_032 - 1024));
        assert_eq!(divided(524_288), (4096, 1024, 453_352));
        assert_eq!(divided(65_536), (4096, 1024, 51_944));
        assert_eq!(divided(1024), (352, 88, 176));
        assert_eq!(divided(100), (0, 0, 0));
    }

    #[test]
    fn the_least_still_has_room_for_the_fixed_parts() {
        let memory = Memory::new(BYTES_MIN).unwrap();
        assert_eq!(memory.map_cache_bytes(None, 1).unwrap() >> 20, 24);
        assert_eq!(memory.map_cache_bytes(Some(16 << 20), 1).unwrap() >> 20, 16);
        let refused = memory.map_cache_bytes(Some(25 << 20), 1).unwrap_err();
        assert!(refused.contains("found 25 MiB, expected at most 24 MiB with --memory 512 MiB"), "{refused}");
        assert_eq!((memory.map_cache_bytes(None, 2).unwrap() >> 20, memory.grant_bytes(2) >> 20), (16, 8));
        assert_eq!((memory.grant_bytes(1), memory.grant_bytes(5) >> 20), (0, 2));
        assert!(memory.cores() <= 4, "each has 128 MiB");
        assert!(Memory::new(BYTES_MIN - 1).is_err() && Memory::new(u64::MAX).is_err());
    }
}
