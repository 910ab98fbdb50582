//! A device without memory: the duration of an operation, and the number that it serves concurrently.

use super::server::earliest;
use crate::kind::OpKind;
use crate::rng::Rng;

/// Service time of one operation: base + size + a uniform draw from `0..=jitter_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    pub base_ns: u64,
    pub per_kib_ns: u64,
    pub jitter_ns: u64,
}

/// Parameters of a device without memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    pub read: Cost,
    pub write: Cost,
    /// Duration of Flush and SyncDir.
    pub flush: Cost,
    /// Duration of operations on names, sizes, space and locks.
    pub names: Cost,
    /// Operations served concurrently; further ones wait in order of submission.
    pub lanes: u32,
}

/// Maximum number of lanes; the earliest free one is searched linearly.
const LANES_MAX: u32 = 256;

impl Device {
    /// Returns a device with a jitter far above its base times, so that completions occur in any order, for crash
    /// tests.
    pub fn scrambled() -> Device {
        let cost = |base_ns, jitter_ns| Cost { base_ns, per_kib_ns: 100, jitter_ns };
        Device {
            read: cost(2_000, 100_000),
            write: cost(2_000, 100_000),
            flush: cost(20_000, 200_000),
            names: cost(1_000, 20_000),
            lanes: 32,
        }
    }

    /// Returns a device with the same time for every operation of a kind, in order, for tests of the order itself.
    pub fn steady(latency_ns: u64) -> Device {
        let cost = Cost { base_ns: latency_ns, per_kib_ns: 0, jitter_ns: 0 };
        Device { read: cost, write: cost, flush: cost, names: cost, lanes: 32 }
    }

    fn cost(&self, kind: OpKind) -> Cost {
        match kind {
            OpKind::Read => self.read,
            OpKind::Write => self.write,
            OpKind::Flush | OpKind::SyncDir => self.flush,
            _ => self.names,
        }
    }
}

/// The device in operation.
pub(crate) struct Lanes {
    device: Device,
    busy_until_ns: Vec<u64>,
}

impl Lanes {
    pub(crate) fn new(device: Device) -> Lanes {
        let lanes = device.lanes;
        assert!((1..=LANES_MAX).contains(&lanes), "{lanes} lanes, 1 to {LANES_MAX} can be simulated");
        Lanes { device, busy_until_ns: vec![0; lanes as usize] }
    }

    /// Returns when an operation submitted now will be done. `len` counts only for operations that move data.
    pub(crate) fn finish_at_ns(&mut self, now_ns: u64, kind: OpKind, len: u64, rng: &mut Rng) -> u64 {
        let cost = self.device.cost(kind);
        let kib = if matches!(kind, OpKind::Read | OpKind::Write) { len.div_ceil(1024) } else { 0 };
        let service_ns = cost.base_ns + cost.per_kib_ns * kib + rng.between(0, cost.jitter_ns);
        let lane = earliest(&self.busy_until_ns, now_ns);
        let done = self.busy_until_ns[lane].max(now_ns) + service_ns;
        self.busy_until_ns[lane] = done;
        done
    }

    /// Forgets all operations after a loss of power.
    pub(crate) fn reset(&mut self) {
        self.busy_until_ns.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_device_queues() {
        let mut rng = Rng::new(0);
        let mut lanes = Lanes::new(Device { lanes: 2, ..Device::steady(10) });
        let done: Vec<u64> = (0..5).map(|_| lanes.finish_at_ns(0, OpKind::Write, 4096, &mut rng)).collect();
        assert_eq!(done, [10, 10, 20, 20, 30]);
    }

    #[test]
    fn a_scrambled_device_overtakes() {
        let mut rng = Rng::new(0);
        let mut lanes = Lanes::new(Device::scrambled());
        let done: Vec<u64> = (0..8).map(|_| lanes.finish_at_ns(0, OpKind::Write, 4096, &mut rng)).collect();
        assert!(!done.is_sorted());
    }
}
