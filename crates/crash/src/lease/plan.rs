//! What is drawn for a run.

use engine::Defects;
use engine::native::{LeaseTimes, StoreOptions};
use sim::{Cost, Device, Rng};

pub(super) const MS_NS: u64 = 1_000_000;

/// Parameters that are drawn once for a run.
pub(super) struct Plan {
    pub seed: u64,
    pub rounds: usize,
    /// The longest random delay that is added to an operation.
    pub jitter_ns: u64,
    pub cut_after_ns: Option<u64>,
    /// The device is reserved, and holds writes back.
    pub reserves: bool,
    pub defects: Defects,
}

impl Plan {
    pub(super) fn draw(seed: u64, defects: Defects) -> Plan {
        let mut rng = Rng::new(seed ^ 0x1ea5e);
        Plan {
            seed,
            rounds: rng.between(1, 3) as usize,
            jitter_ns: *rng.pick(&[MS_NS / 10, MS_NS, 4 * MS_NS]).expect("three"),
            cut_after_ns: (rng.below(4) == 0).then(|| rng.between(100, 1500) * MS_NS),
            reserves: rng.coin(),
            defects,
        }
    }

    /// Returns the protocol's terms with a fiftieth of its times, so that a run ends soon.
    pub(super) fn terms(&self) -> LeaseTimes {
        LeaseTimes {
            heartbeat_us: 40_000,
            expiry_us: 200_000,
            io_max_us: 60_000,
            claim_us: 15_000,
            settle_us: 25_000,
            margin_us: 10_000,
            defects: self.defects,
        }
    }

    pub(super) fn store(&self) -> StoreOptions {
        StoreOptions {
            pending_runs_max: 128,
            reserve_blocks: 64,
            flush_us: 50_000,
            ..StoreOptions::default()
        }
    }

    pub(super) fn device(&self) -> Device {
        let cost = Cost { base_ns: 2_000, per_kib_ns: 10, jitter_ns: self.jitter_ns };
        Device { read: cost, write: cost, flush: cost, ..Device::scrambled() }
    }
}
