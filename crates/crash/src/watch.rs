//! Trace of one sector while a seed is replayed, chosen with `CRASH_WATCH=DISK:SECTOR`.

use std::rc::Rc;
use std::sync::OnceLock;

use engine::{Disk, Vm};

fn watched() -> Option<(usize, u64)> {
    static WATCHED: OnceLock<Option<(usize, u64)>> = OnceLock::new();
    *WATCHED.get_or_init(|| {
        let wanted = std::env::var("CRASH_WATCH").ok()?;
        let (disk, sector) = wanted.split_once(':')?;
        Some((disk.parse().ok()?, sector.parse().ok()?))
    })
}

/// Prints an event of the run, if a sector is watched.
pub(crate) fn print(what: impl FnOnce() -> String) {
    if watched().is_some() {
        eprintln!("{}", what());
    }
}

/// Prints an event of a range, if the watched sector is in it.
pub(crate) fn print_range(disk: usize, first: u64, count: u64, what: impl FnOnce() -> String) {
    if watched().is_some_and(|(d, s)| d == disk && (first..first + count).contains(&s)) {
        eprintln!("  disk {disk} {first}+{count}: {}", what());
    }
}

/// I/Os that are printed at the end of each boot of a watched run.
const EVENTS_SHOWN: usize = 3000;

/// Returns the options of a world; that of a watched run keeps its last I/Os.
pub(crate) fn options(options: &sim::Options) -> sim::Options {
    let kept = watched().map_or(options.trace_events, |_| EVENTS_SHOWN);
    sim::Options { trace_events: kept, ..options.clone() }
}

/// Prints the last I/Os of a watched run, and `what` ends it here.
pub(crate) fn print_end(world: &sim::SimWorld, what: &str) {
    print(|| {
        let events: Vec<String> =
            world.recent_events().iter().map(|event| format!("    {event}\n")).collect();
        format!("{}{what} {}", events.concat(), world.place_and_time())
    });
}

/// Returns the names of the layers of each disk.
pub(crate) fn chains(vm: &Rc<Vm>) -> Vec<Vec<String>> {
    let names = |disk: &Rc<Disk>| disk.chain().links.iter().map(|l| l.layer.name().to_string()).collect();
    vm.disks().iter().map(names).collect()
}
