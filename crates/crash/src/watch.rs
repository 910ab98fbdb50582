//! `CRASH_WATCH=DISK:SECTOR` tells the story of one sector while a seed is replayed.

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

/// Says what happened to everything.
pub fn tell(what: impl FnOnce() -> String) {
    if watched().is_some() {
        eprintln!("{}", what());
    }
}

/// Says what happened to a range, if the watched sector is in it.
pub fn tell_range(disk: usize, first: u64, count: u64, what: impl FnOnce() -> String) {
    if watched().is_some_and(|(d, s)| d == disk && (first..first + count).contains(&s)) {
        eprintln!("  disk {disk} {first}+{count}: {}", what());
    }
}

/// Names of the layers of each disk.
pub fn chains(vm: &Rc<Vm>) -> Vec<Vec<String>> {
    let names = |disk: &Rc<Disk>| disk.chain().links.iter().map(|l| l.layer.name().to_string()).collect();
    vm.disks().iter().map(names).collect()
}
