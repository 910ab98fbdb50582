//! Plan of a run, drawn from its seed: sizes, shares and cuts. Each seed draws its own mix, and omits some features
//! completely.

use engine::{Defect, Defects, FoldOptions, Options, SpacePolicy};
use sim::{Cut, Device, OpKind, Phase, Ratio, Rng, SimWorld};

use blk::SECTOR;

use crate::flush_faults::FAULT_TASK;
use crate::requests::Mix;
use crate::run::{BootPhase, rng_of};

/// Distinguishes the draw of SEsparse from those of the seed itself.
const SESPARSE: u64 = 0x5e5a_0001;

/// Seeds with this bit exercise the tree: small disks, few writes, and many clones, branches and binned states.
pub(super) const TREE_SEEDS: u64 = 1 << 32;

pub(super) struct Plan {
    pub seed: u64,
    pub world: sim::Options,
    pub engine: Options,
    /// Growth step of a delta, bytes.
    pub growth_bytes: u64,
    /// Deltas have grains of one sector up to two to the power of this, in sectors.
    pub grain_bits: u64,
    pub disks: Vec<u64>,
    /// The VM is imported from a folder with data and a snapshot.
    pub imported: bool,
    /// One more disk, whose writes a reset drops.
    pub nonpersistent_bytes: Option<u64>,
    pub boots: u64,
    pub guests_per_disk: u64,
    pub operations: u64,
    pub control_steps: u64,
    /// The user looks at every snapshot as soon as its take has returned, not only at some.
    pub looks_at_once: bool,
    /// Longest write, sectors.
    pub write_sectors_max: u64,
    /// Size of the hot part of a disk, in sectors, where writes often meet.
    pub hot_sectors: u64,
    pub mix: Mix,
    /// Share of commits among control steps.
    pub commits: Ratio,
    /// Share of reverts and discards among control steps.
    pub moves: Ratio,
    /// Share of clones among the other control steps.
    pub clones: Ratio,
    /// Most clones at the same time: every boot reads each of them whole.
    pub clones_max: usize,
    /// Some takes make SEsparse deltas, and so do later ones on them.
    pub takes_sesparse: bool,
    pub limited_space: bool,
    /// A flush fails in some of the boots.
    pub failing_flushes: bool,
}

impl Plan {
    pub(super) fn draw(seed: u64, defects: Defects) -> Plan {
        let mut rng = Rng::new(seed);
        let disks =
            (0..rng.between(1, 3)).map(|_| rng.between(1, 7) * (512 << 10) + rng.below(2) * 37 * SECTOR);
        let disks: Vec<u64> = disks.collect();
        let limited_space = rng.below(6) == 0;
        let mut faults = Rng::new(seed ^ FAULT_TASK);
        let world = sim::Options {
            device: Device::scrambled(),
            page_cache: faults.below(3) == 0,
            logical_block: if rng.below(4) == 0 { 4096 } else { 512 },
            ..sim::Options::default()
        };
        let fold = FoldOptions {
            piece_bytes: [4 << 10, 16 << 10, 64 << 10][rng.below(3) as usize],
            batch_regions: rng.between(1, 3) as usize,
            depth: rng.between(1, 4) as usize,
            yield_factor: rng.below(3),
            // No guest here pauses for 200 ms, so that value keeps the pieces of a commit under way one at a time.
            near_us: [0, 0, 200_000][rng.below(3) as usize],
        };
        let planted = defects != Defects::default();
        let engine = Options {
            map_cap_bytes: if rng.coin() { 1 << 20 } else { 1500 },
            // Half of the seeds have room for a few tables only, so that first writes meet flushes that the guest did
            // not request. Those would hide planted defects, which must show in the guest's own flushes.
            unwritten_cap_bytes: if seed.is_multiple_of(2) && !planted { 64 << 10 } else { 24 << 20 },
            space_policy: if rng.coin() { SpacePolicy::Wait } else { SpacePolicy::Error },
            space_retry_us: 500,
            reserve_bytes: 5 << 20,
            fold,
            defects,
        };
        // Searches for defects of the copy stay on one branch, where guests and commits meet most often.
        let of_tree = seed & TREE_SEEDS != 0;
        let plain = planted && !of_tree && !defects.has(Defect::SkipAcrossBranches);
        let imported = rng.below(5) == 0 && !plain;
        let plan = Plan {
            seed,
            world,
            engine,
            growth_bytes: rng.between(1, 4) * (64 << 10),
            takes_sesparse: Rng::new(seed ^ SESPARSE).below(3) == 0,
            // Half of the seeds have the grain that this product writes; the others have grains that imported deltas
            // may have.
            grain_bits: [0, 0, 0, 3, 7, 11][rng.below(6) as usize],
            imported,
            // A revert to the imported state would remove a disk that was added later.
            nonpersistent_bytes: (!imported && !plain && rng.below(4) == 0).then_some(300 << 10),
            boots: rng.between(3, 6),
            guests_per_disk: if plain { 4 } else { rng.between(1, 4) },
            operations: rng.between(20, 120),
            control_steps: if plain { 8 } else { rng.between(2, 10) },
            looks_at_once: plain || rng.coin(),
            write_sectors_max: [1, 8, 16, 64][rng.below(4) as usize],
            hot_sectors: [16, 64, 512, 8192][rng.below(4) as usize],
            mix: Mix::draw(&mut rng, 1),
            // Half of the seeds stay on one branch: there commits and guests meet more often.
            moves: Ratio::new(if plain || rng.coin() { 0 } else { rng.between(1, 3) }, 8),
            clones: Ratio::new(if !plain && rng.below(3) == 0 { 2 } else { 0 }, 8),
            commits: Ratio::new(rng.between(2, 6), 8),
            clones_max: 2,
            limited_space,
            failing_flushes: faults.coin() && faults.coin(),
            disks,
        };
        if of_tree { plan.about_the_tree(&mut rng) } else { plan }
    }

    fn about_the_tree(self, rng: &mut Rng) -> Plan {
        let size = |bytes: &u64| *bytes % (256 << 10) / SECTOR * SECTOR + (64 << 10);
        Plan {
            disks: self.disks.iter().take(2).map(size).collect(),
            nonpersistent_bytes: self.nonpersistent_bytes.map(|_| 64 << 10),
            guests_per_disk: 1,
            operations: rng.between(5, 30),
            control_steps: rng.between(8, 24),
            write_sectors_max: 8,
            hot_sectors: 64,
            moves: Ratio::new(rng.between(2, 4), 8),
            clones: Ratio::new(rng.between(1, 4), 8),
            clones_max: 4,
            commits: Ratio::new(rng.between(1, 4), 8),
            ..self
        }
    }

    /// Returns the grain of the next deltas, in sectors.
    pub(super) fn grain(&self, rng: &mut Rng) -> u32 {
        1 << rng.between(0, self.grain_bits)
    }

    pub(super) fn rng(&self, boot: u64, task: u64) -> Rng {
        rng_of(self.seed, boot, task)
    }

    /// Schedules the boot's cut if it falls `during` this phase. It falls at any event, or at a step that matters.
    pub(super) fn arm(&self, world: &SimWorld, boot: u64, during: BootPhase) {
        world.cancel_cut();
        if boot + 1 == self.boots {
            return;
        }
        let mut rng = self.rng(boot, 1 << 32);
        let phase = [Phase::Submitted, Phase::Completing, Phase::Completed][rng.below(3) as usize];
        let kinds = [OpKind::Flush, OpKind::Rename, OpKind::SyncDir, OpKind::Create, OpKind::Unlink];
        let (chosen, cut) = match rng.below(10) {
            0..=3 => (BootPhase::Work, Cut::Event(1 + rng.below(6000))),
            4 | 5 => (BootPhase::Recovery, Cut::Event(1 + rng.below(1200))),
            6 | 7 => (BootPhase::Work, Cut::Event(1 + rng.below(600))),
            _ => {
                let kind = kinds[rng.below(5) as usize];
                let nth = 1 + rng.below(if kind == OpKind::Flush { 120 } else { 12 });
                (BootPhase::Work, Cut::Kind { kind, nth, phase })
            }
        };
        if chosen == during {
            world.cut_at(cut);
        }
    }
}
