//! The daemon's memory: how `up --memory` is divided.
//!
//! Each part is held by its owner, which waits or gives way at its limit:
//!
//! | part | of 1 GiB | held by |
//! |---|---|---|
//! | clients: 64 KiB each, and their requests | 512 MiB, a half | `export`: connections are refused, requests wait and are cut |
//! | resolved maps of redo disks | 96 MiB, 3/32 | `engine`: the coldest regions are built again |
//! | grain tables | 72 MiB | `vmdk`: 48 MiB of clean ones, `engine`: 24 MiB that wait to be written |
//! | map pages of a native store | 64 MiB | `--map-cache`, for each datastore |
//! | free I/O buffers | 32 MiB | `blk` |
//! | the rest: code, catalogues, bitmaps, layers, verbs | 248 MiB | nobody: what VMs and snapshots there are |

use crate::units;

/// What the daemon may take in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory(u64);

/// With half of it for clients, and less for maps, the fixed parts still fit.
const BYTES_MIN: u64 = 512 << 20;
/// Beyond it the numbers are a mistake.
const BYTES_MAX: u64 = 1 << 40;
/// Descriptors for disks and everything else, beside one for each connection.
const DESCRIPTORS_KEPT: u64 = 1024;
/// More connections than that have no disks to be for.
const CONNECTIONS_MAX: u64 = 65_536;

impl Memory {
    /// # Errors
    /// What was expected.
    pub fn new(bytes: u64) -> Result<Memory, String> {
        if !(BYTES_MIN..=BYTES_MAX).contains(&bytes) {
            return Err(format!("{} to {}", units::format_bytes(BYTES_MIN), units::format_bytes(BYTES_MAX)));
        }
        Ok(Memory(bytes))
    }

    /// Of all connections and their requests.
    pub fn clients_bytes(self) -> u64 {
        self.0 / 2
    }

    /// Of the resolved maps of all redo disks.
    pub fn maps_bytes(self) -> usize {
        usize::try_from(self.0 / 32 * 3).expect("at most 1 TiB")
    }

    /// As many connections as there is memory for, where the process may have `descriptors`.
    pub fn connections_max(self, descriptors: u64) -> usize {
        let promised = self.clients_bytes() / 2 / export::nbd::memory::CONNECTION_BYTES;
        let open = descriptors.saturating_sub(DESCRIPTORS_KEPT).max(descriptors / 2);
        promised.min(open).min(CONNECTIONS_MAX) as usize
    }
}

/// Raises the process's limit on descriptors as far as it may, and returns it.
pub fn raise_descriptors() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // What it may have is told by the limit that is in force afterwards.
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
        assert_eq!((memory.connections_max(1 << 20), memory.connections_max(4096)), (4096, 3072));
        assert_eq!(memory.connections_max(1024), 512);
    }

    #[test]
    fn the_least_still_has_room_for_the_fixed_parts() {
        let memory = Memory::new(BYTES_MIN).unwrap();
        let fixed = (72 + 64 + 32) << 20;
        assert!(memory.clients_bytes() + memory.maps_bytes() as u64 + fixed < BYTES_MIN);
        assert!(Memory::new(BYTES_MIN - 1).is_err() && Memory::new(u64::MAX).is_err());
    }
}
