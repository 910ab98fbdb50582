//! Log of guest requests that took long. The disks count them; no request waits for this.

use std::collections::BTreeMap;
use std::rc::Rc;

use engine::stats::SLOW_NS;
use tracing::warn;

use crate::daemon::running::running_vms::RunningVms;
use crate::log::LineLimit;

/// Interval in microseconds between two looks at the counters.
const LOOK_US: u64 = 10_000_000;
/// Maximum number of lines per look. A slow datastore slows the disks of all its VMs.
const LINES_MAX: u32 = 8;

/// VMs whose counters are read in one turn of the core, so that guests do not wait for it.
const VMS_PER_TURN: usize = 64;

/// Slow requests that disks have counted, by VM and place of the disk in it. Most disks have none, and no entry.
type Counts = BTreeMap<(String, usize), u64>;

impl RunningVms {
    /// Logs the disks whose guests had slow requests since the last look.
    pub(crate) async fn watch_slow(self: Rc<Self>) {
        let limit = LineLimit::new(LINES_MAX);
        let mut counts = Counts::new();
        loop {
            self.env.sleep_us(LOOK_US).await;
            let now = self.slow_counts().await;
            for ((vm, place), new) in increases(&counts, &now) {
                let Some(left_out) = limit.admit() else { continue };
                let (disk, limit_s) = (self.disk_name(vm, *place), SLOW_NS / 1_000_000_000);
                let look_s = LOOK_US / 1_000_000;
                warn!("{disk}: {new} requests of the last {look_s} s took {limit_s} s or longer{left_out}");
            }
            counts = now;
        }
    }

    fn disk_name(&self, vm: &str, place: usize) -> String {
        let disks = self.get(vm).map(|vm| vm.machine.state().disks).unwrap_or_default();
        disks.get(place).map_or_else(|| format!("VM {vm}"), |disk| format!("{vm}/disk{}", disk.number))
    }

    async fn slow_counts(&self) -> Counts {
        let mut counts = Counts::new();
        for (at, vm) in self.all().into_iter().enumerate() {
            if at % VMS_PER_TURN == 0 {
                self.env.next_turn().await;
            }
            for (place, disk) in vm.machine.disks().iter().enumerate() {
                let count = disk.stats().slow.get();
                if count > 0 {
                    counts.insert((vm.name.clone(), place), count);
                }
            }
        }
        counts
    }
}

/// Returns the disks whose count is higher than before. A disk that was opened again counts from 0.
fn increases<'a>(before: &'a Counts, now: &'a Counts) -> impl Iterator<Item = (&'a (String, usize), u64)> {
    now.iter().filter_map(|(disk, &count)| {
        let earlier = before.get(disk).copied().filter(|&earlier| earlier <= count).unwrap_or(0);
        (count > earlier).then_some((disk, count - earlier))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_since_the_last_look_is_logged() {
        let counts = |all: &[(usize, u64)]| -> Counts {
            all.iter().map(|&(disk, count)| (("web".to_owned(), disk), count)).collect()
        };
        let (before, now) =
            (counts(&[(0, 4), (1, 4), (2, 4), (4, 1)]), counts(&[(0, 4), (1, 7), (2, 1), (3, 2)]));
        let found: Vec<_> = increases(&before, &now).map(|((_, disk), new)| (*disk, new)).collect();
        assert_eq!(found, [(1, 3), (2, 1), (3, 2)]);
    }
}
