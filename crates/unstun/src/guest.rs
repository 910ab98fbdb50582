//! Guests whose file systems are frozen while a snapshot is taken: through QEMU's guest agent, libvirt, or the
//! administrator's commands.
//!
//! All of it waits for programs outside the daemon. It is therefore done on threads of its own, with a limit on each wait.

mod agent;
mod commands;
mod fault;
mod freeze;
#[cfg(test)]
mod freeze_tests;
mod record;

use std::path::{Path, PathBuf};
use std::time::Instant;

use api::GuestAccess;
use api::name::VmName;

use agent::Agent;
use commands::Commands;
use fault::NotFrozen;
pub(crate) use freeze::{Freeze, FreezeError, Frozen, FrozenGuest, freeze, thaw_left, thaw_recorded};
pub(crate) use record::{Record, all as all_records};

/// Folder of the commands that freeze and thaw guests.
pub(crate) const GUESTS_DIR: &str = "/etc/unstun/guests";

/// A guest that can be told to freeze and to thaw. Numbers of file systems are None where the access does not say.
enum Guest {
    Agent(Agent),
    Commands(Commands),
}

impl Guest {
    /// Reaches the guest, and fails if its agent does not answer. Nothing is frozen by that.
    fn reach(access: &GuestAccess, vm: &VmName, guests_dir: &Path, until: Instant) -> Result<Guest, String> {
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
        }
    }

    /// Thaws the file systems. Returns how many were frozen until then.
    fn thaw(&mut self, until: Instant) -> Result<Option<u64>, String> {
        match self {
            Guest::Agent(agent) => agent.thaw(until),
            Guest::Commands(commands) => commands.thaw(until),
        }
    }
}
