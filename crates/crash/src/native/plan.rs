//! Plan of a run, drawn from its seed: sizes, limits, shares and cuts.

use engine::native::space::Growth;
use engine::native::{DiskOptions, NewStore, StoreOptions};
use engine::{Defects, SpacePolicy};
use sim::{Cut, Device, OpKind, Phase, Ratio, Rng, SimWorld};

use super::windows::Windows;
use crate::requests::Mix;
use crate::run::{BootPhase, Run, rng_of};

/// Pages of the smallest journal.
const JOURNAL_PAGES: u64 = engine::native::journal::JOURNAL_PAGES_MIN;
/// Fewest blocks behind the journal on a device, which cannot grow.
const FIXED_BLOCKS: u64 = 1200;

/// One seed in this many takes checkpoints all the time, and another one takes snapshots all the time.
const EAGER_EVERY: u64 = 5;
/// Exponent of the longest delay of an aimed cut: it falls within at most 1, 2, 4 ... 256 events. A checkpoint has some
/// hundred events, including those of its guests.
const AIMED_BITS_MAX: u64 = 8;
/// Task number of the draws for media; they change nothing else in a plan.
const MEDIA_TASK: u64 = 1 << 33;
/// One seed in this many has disks over sources. It has no divisor in common with those above.
const OVER_SOURCES_EVERY: u64 = 3;
/// Task number of the draws for sources.
pub(super) const SOURCES_TASK: u64 = 1 << 34;
/// Task number of the draws for defragmentations.
pub(super) const DEFRAGMENT_TASK: u64 = 1 << 35;
/// Seed of the random values in the scripted plan.
const SCRIPTED_SEED: u64 = 4;

/// Shares of a user's steps, in parts of their sum.
#[derive(Debug, Clone, Copy)]
pub struct Steps {
    pub take: u64,
    pub remove: u64,
    pub revert: u64,
    pub branch: u64,
    pub checkpoint: u64,
    pub grow: u64,
    pub look: u64,
    pub hold: u64,
    pub check: u64,
}

/// File or device under the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    File,
    /// A file whose file system is full for a while.
    CrowdedFile,
    /// A block device with this many blocks behind the journal.
    Device(u64),
}

/// Operations in which most power cuts fall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    Anything,
    Checkpoints,
    /// Takes; each snapshot is also looked at twice as soon as it is sealed.
    Takes,
}

pub struct Plan {
    pub seed: u64,
    pub world: sim::Options,
    pub layout: NewStore,
    pub options: StoreOptions,
    pub growth: Growth,
    pub terms: DiskOptions,
    pub medium: Medium,
    /// Sequence number at which the journal begins: some journals then reach their ring's end.
    pub journal_from: u64,
    pub disks: Vec<Windows>,
    pub boots: u64,
    /// The power is cut again soon after each recovery.
    pub restless: bool,
    pub guests: u64,
    pub operations: u64,
    pub user_steps: u64,
    /// Longest write, sectors.
    pub write_sectors_max: u64,
    /// Guests write whole blocks only.
    pub whole_blocks: bool,
    /// Size of the hot part of a disk, in sectors, where writes often meet.
    pub hot_sectors: u64,
    pub mix: Mix,
    pub steps: Steps,
    /// Most snapshots at the same time: every boot reads each of them whole.
    pub snapshots_max: usize,
    /// Most machines at the same time, the first included.
    pub machines_max: usize,
    /// The newest superblock is unreadable at some of the boots.
    pub loses_superblocks: bool,
    /// A flush fails in some of the boots.
    pub failing_flushes: bool,
    /// The first disk of a machine may be over a source.
    pub over_sources: bool,
    /// Running disks are defragmented.
    pub defragments: bool,
    /// The power is cut in boots other than the last.
    pub cuts: bool,
    pub aim: Aim,
}

impl Plan {
    /// Returns a run of this plan in a new world.
    pub fn run<M: Default + 'static>(self) -> Run<Plan, M> {
        Run::new(self.seed, &self.world.clone(), self, M::default())
    }

    pub fn draw(seed: u64, defects: Defects) -> Plan {
        let plan = Plan::draw_any(seed, defects);
        match seed % EAGER_EVERY {
            0 => plan.checkpointing(),
            1 => plan.taking(),
            _ => plan,
        }
    }

    /// Returns the plan on media that cannot read everything after a cut, and on which flushes may fail.
    pub fn on_bad_media(self) -> Plan {
        let mut rng = self.rng(0, MEDIA_TASK);
        let unreadable_sectors = Ratio::new([0, 0, 2, 3][rng.below(4) as usize], 4);
        let (loses_superblocks, page_cache, failing_flushes) =
            (rng.below(3) == 0, rng.below(3) == 0, rng.below(3) == 0);
        let world = sim::Options { unreadable_sectors, page_cache, ..self.world };
        Plan { world, loses_superblocks, failing_flushes, ..self }
    }

    /// Returns the plan with disks over sources, in some runs.
    pub fn with_sources(self) -> Plan {
        Plan { over_sources: self.seed.is_multiple_of(OVER_SOURCES_EVERY), ..self }
    }

    /// Returns the plan with defragmentations of running disks.
    pub fn with_defragmentation(self) -> Plan {
        Plan { defragments: true, ..self }
    }

    pub fn loses_superblock(&self, boot: u64) -> bool {
        self.loses_superblocks && self.rng(boot, MEDIA_TASK).coin()
    }

    /// Returns the plan with checkpoints all the time, each right after a flush, and no other flushes. Few blocks are
    /// written again and again, so that blocks are overwritten while a checkpoint merges them.
    fn checkpointing(mut self) -> Plan {
        (self.options.pending_runs_max, self.options.flush_us) = (4, 1_000_000);
        self.steps.checkpoint = 20;
        (self.mix.write, self.mix.flush) = (12, 0);
        (self.guests, self.user_steps, self.aim) = (self.guests.max(4), 14, Aim::Checkpoints);
        self.in_few_blocks(32)
    }

    /// Returns the plan with takes all the time. Few blocks are soon overwritten in place, so that such a write is
    /// under way at every take.
    fn taking(mut self) -> Plan {
        self.options.flush_us = 300;
        (self.steps.take, self.steps.remove) = (20, 8);
        (self.mix.write, self.mix.flush) = (12, 4);
        (self.guests, self.user_steps, self.aim) = (8, 14, Aim::Takes);
        self.operations = self.operations.max(60);
        self.in_few_blocks(64)
    }

    fn in_few_blocks(self, hot_sectors_max: u64) -> Plan {
        Plan {
            hot_sectors: self.hot_sectors.min(hot_sectors_max),
            write_sectors_max: self.write_sectors_max.min(16),
            ..self
        }
    }

    fn draw_any(seed: u64, defects: Defects) -> Plan {
        let mut rng = Rng::new(seed);
        let medium = match rng.below(8) {
            0 => Medium::CrowdedFile,
            1 => Medium::Device(FIXED_BLOCKS + rng.below(600)),
            _ => Medium::File,
        };
        let restless = rng.below(4) == 0;
        let waits = rng.coin() && !matches!(medium, Medium::Device(_));
        let world = sim::Options {
            device: Device::scrambled(),
            logical_block: if rng.below(4) == 0 { 4096 } else { 512 },
            ..sim::Options::default()
        };
        let journal_pages = JOURNAL_PAGES + rng.below(40);
        Plan {
            seed,
            world,
            layout: NewStore {
                journal_pages,
                group_blocks: [64, 96, 200, 512][rng.below(4) as usize],
                sector_masks: seed % 4 != 3,
                rebuildable: seed % 8 != 6,
            },
            options: draw_options(&mut rng, defects),
            growth: Growth {
                ahead_blocks: [4, 32, 128][rng.below(3) as usize],
                chunk_blocks: [2, 16, 64][rng.below(3) as usize],
            },
            terms: DiskOptions {
                policy: if waits { SpacePolicy::Wait } else { SpacePolicy::Error },
                space_retry_us: 500,
            },
            medium,
            journal_from: if rng.coin() { journal_pages - rng.between(1, 60) } else { 0 },
            disks: (0..rng.between(1, 3)).map(|_| Windows::draw(&mut rng)).collect(),
            boots: if restless { rng.between(6, 14) } else { rng.between(3, 7) },
            restless,
            guests: rng.between(1, 8),
            operations: rng.between(10, 80),
            user_steps: rng.between(2, 14),
            write_sectors_max: [1, 8, 16, 128][rng.below(4) as usize],
            whole_blocks: rng.below(4) == 0,
            hot_sectors: [8, 64, 256, 8192][rng.below(4) as usize],
            mix: Mix::draw(&mut rng, 0),
            steps: draw_steps(&mut rng),
            snapshots_max: rng.between(1, 8) as usize,
            machines_max: 3,
            loses_superblocks: false,
            failing_flushes: false,
            over_sources: false,
            defragments: false,
            cuts: true,
            aim: Aim::Anything,
        }
    }

    /// Draws a tree of many states, without power cuts.
    pub fn tree(seed: u64) -> Plan {
        let mut plan = Plan::draw(seed, Defects::default());
        (plan.steps.take, plan.steps.remove, plan.steps.revert, plan.steps.branch) = (12, 3, 2, 3);
        (plan.boots, plan.guests, plan.operations, plan.user_steps) = (3, 2, 150, 200);
        (plan.snapshots_max, plan.machines_max) = (64, 6);
        Plan { medium: Medium::File, cuts: false, aim: Aim::Anything, ..plan }
    }

    /// Returns the plan for operations one by one: one disk of three leaves, and small limits.
    pub fn scripted() -> Plan {
        let mut plan = Plan::draw(SCRIPTED_SEED, Defects::default());
        plan.options = StoreOptions {
            map_cache_bytes: 64 << 10,
            pending_runs_max: 64,
            flush_us: 1_000_000,
            flush_bytes: 64 << 20,
            reclaim_pages: 2,
            ..plan.options
        };
        plan.layout.group_blocks = 96;
        plan.growth = Growth { ahead_blocks: 32, chunk_blocks: 16 };
        plan.terms = DiskOptions { policy: SpacePolicy::Error, space_retry_us: 500 };
        (plan.snapshots_max, plan.machines_max) = (64, 8);
        let (world, disks) = (sim::Options::default(), vec![Windows::scripted()]);
        Plan { world, disks, medium: Medium::File, cuts: false, aim: Aim::Anything, ..plan }
    }

    pub fn rng(&self, boot: u64, task: u64) -> Rng {
        rng_of(self.seed, boot, task)
    }

    pub fn may_cut(&self, boot: u64) -> bool {
        self.cuts && boot + 1 < self.boots
    }

    /// Schedules the boot's cut if it falls `during` this phase.
    pub fn arm(&self, world: &SimWorld, boot: u64, during: BootPhase) {
        if during == BootPhase::Work {
            world.cancel_cut();
        }
        if !self.may_cut(boot) {
            return;
        }
        let mut rng = self.rng(boot, 1 << 32);
        let phase = [Phase::Submitted, Phase::Completing, Phase::Completed][rng.below(3) as usize];
        let scale = 1 << if self.restless { rng.between(3, 9) } else { rng.between(5, 13) };
        let (chosen, cut) = match rng.below(10) {
            0..=5 => (BootPhase::Work, Cut::Event(1 + rng.below(scale))),
            6 => (BootPhase::Recovery, Cut::Event(1 + rng.below(80))),
            7 => (BootPhase::Recovery, Cut::Event(1 + rng.below(1000))),
            _ => {
                let nth = 1 + rng.below(60);
                (BootPhase::Work, Cut::Kind { kind: OpKind::Flush, nth, phase })
            }
        };
        if chosen == during {
            world.cut_at(cut);
        }
    }
}

/// Returns a cut soon after the call, in the operation that begins then.
pub(super) fn soon(rng: &mut Rng) -> Cut {
    let events = 1 << rng.below(AIMED_BITS_MAX + 1);
    Cut::Event(1 + rng.below(events))
}

fn draw_options(rng: &mut Rng, defects: Defects) -> StoreOptions {
    StoreOptions {
        map_cache_bytes: [16 << 10, 64 << 10, 1 << 20][rng.below(3) as usize],
        bitmap_bytes: 32 << 20,
        pending_runs_max: [4, 24, 100, 2000][rng.below(4) as usize],
        pending_depth_max: rng.between(1, 8) as usize,
        flush_us: [300, 3000, 1_000_000][rng.below(3) as usize],
        flush_bytes: [16 << 10, 256 << 10, 64 << 20][rng.below(3) as usize],
        reserve_blocks: rng.between(16, 48),
        reclaim_pages: [1, 2, 8, 64][rng.below(4) as usize],
        reclaim_rest: rng.below(3),
        handed_out_blocks: 4,
        defects,
    }
}

fn draw_steps(rng: &mut Rng) -> Steps {
    Steps {
        take: rng.between(2, 8),
        remove: rng.between(1, 6),
        revert: rng.below(3),
        branch: rng.below(3),
        checkpoint: rng.below(4),
        grow: rng.below(2),
        look: rng.below(3),
        hold: rng.below(2),
        check: rng.below(2),
    }
}
