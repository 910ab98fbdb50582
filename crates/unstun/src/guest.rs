//! Guests that are held while a snapshot is taken. Their file systems are frozen, through QEMU's guest agent, libvirt, or the
//! administrator's commands; or they stand still while the rest of their memory is saved, through QEMU's monitor.
//!
//! All of it waits for programs outside the daemon. It is therefore done on threads of its own, with a limit on each wait.

mod agent;
mod commands;
mod fault;
mod freeze;
#[cfg(test)]
mod freeze_tests;
mod held;
mod lines;
mod memory;
mod memory_file;
#[cfg(test)]
mod memory_tests;
mod migration;
mod monitor;
mod record;
mod resize;

use std::path::{Path, PathBuf};
use std::time::Instant;

use api::GuestAccess;
use api::name::VmName;

use agent::Agent;
use commands::Commands;
use fault::NotFrozen;
pub(crate) use freeze::{Freeze, Frozen, freeze};
pub(crate) use held::{HeldGuest, NotHeld, thaw_left, thaw_recorded};
pub(crate) use memory::{DiskClient, SaveMemory, StoppedGuest};
pub(crate) use memory_file::{MemoryFile, MemoryFiles, SavedDisk, header_of, stream_to};
use monitor::Monitor;
pub(crate) use record::{Held, Record, all as all_records, forget};
pub(crate) use resize::Resize;

/// Folder of the commands that freeze and thaw guests.
pub(crate) const GUESTS_DIR: &str = "/etc/unstun/guests";

/// A guest that can be told to freeze and to thaw. Numbers of file systems are None where the access does not say.
enum Guest {
    Agent(Agent),
    Commands(Commands),
    /// Whether QEMU was told to pause the guest.
    Monitor(Monitor, bool),
}

impl Guest {
    /// Reaches the guest, and fails if its agent does not answer. Nothing is frozen by that.
    fn reach(held: &Held, vm: &VmName, guests_dir: &Path, until: Instant) -> Result<Guest, String> {
        let access = match held {
            Held::Frozen(access) => access,
            Held::Stopped { monitor, paused } => {
                return Monitor::connect(monitor, until).map(|monitor| Guest::Monitor(monitor, *paused));
            }
        };
        match access {
            GuestAccess::Agent(path) => Agent::connect(path, until).map(Guest::Agent),
            GuestAccess::Libvirt(domain) => Ok(Guest::Commands(Commands::of_libvirt(domain))),
            GuestAccess::Command(name) => {
                let path: PathBuf = guests_dir.join(format!("{name}.toml"));
                Commands::read(&path, vm.as_str()).map(Guest::Commands)
            }
        }
    }

    fn freeze(&mut self, until: Instant) -> Result<Option<u64>, NotFrozen> {
        match self {
            Guest::Agent(agent) => agent.freeze(until),
            Guest::Commands(commands) => commands.freeze(until),
            Guest::Monitor(..) => {
                let cause = "a monitor freezes no file systems".to_owned();
                Err(NotFrozen { cause, may_be: false })
            }
        }
    }

    /// Releases the guest. Returns how many file systems were frozen until then.
    fn thaw(&mut self, until: Instant) -> Result<Option<u64>, String> {
        match self {
            Guest::Agent(agent) => agent.thaw(until),
            Guest::Commands(commands) => commands.thaw(until),
            Guest::Monitor(monitor, paused) => migration::release(monitor, *paused, until).map(|()| None),
        }
    }
}
