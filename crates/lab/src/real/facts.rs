//! Facts about the machine of a run, as far as they explain figures.

use std::path::Path;

use blk::{Errno, Result};

use crate::run::Fact;

/// Returns facts about this machine and about the file system under `folder`. Facts that cannot be determined are left
/// out.
pub fn facts(folder: &Path) -> Vec<Fact> {
    let system = rustix::system::uname();
    let processors = std::thread::available_parallelism().map(|n| n.to_string()).ok();
    let known = [
        (
            "kernel",
            Some(format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy())),
        ),
        ("processor", field("/proc/cpuinfo", "model name")),
        ("processors", processors),
        ("memory", field("/proc/meminfo", "MemTotal")),
        ("file system", mount_of(folder)),
    ];
    let fact = |(name, value): (&str, Option<String>)| Some(Fact { name: name.into(), value: value? });
    known.into_iter().filter_map(fact).collect()
}

/// Returns the bytes that this user may still write under `folder`, which exists.
pub fn free_bytes(folder: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(folder);
    let found =
        found.map_err(|e| Errno::from(e).at(folder.display().to_string(), "querying its free space"))?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// Returns type and source of the longest mount point above the folder (proc(5): device, mount point, type).
fn mount_of(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let lines = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?, words.next()?, words.next()?))
    });
    let under = lines.filter(|(_, point, _)| folder.starts_with(point));
    // Of two mounts on one point the later one is visible.
    let (source, _, kind) = under.max_by_key(|(_, point, _)| point.len())?;
    Some(format!("{kind} on {source}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_of_a_linux_machine_are_found() {
        let facts = facts(Path::new("/"));
        let names: Vec<_> = facts.iter().map(|fact| fact.name.as_str()).collect();
        assert!(
            ["kernel", "processors", "memory", "file system"].iter().all(|name| names.contains(name)),
            "{facts:?}"
        );
    }
}
