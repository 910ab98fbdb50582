//! What survives one power cut. Drawn for each cut, so that mild and total losses both occur.

use crate::options::Options;
use crate::rng::{Ratio, Rng};

/// Which content of the medium is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// The content that the running system sees.
    Current,
    /// The content after a cut that loses everything unflushed.
    Durable,
}

/// Parameters of one power cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Survival {
    /// Share of unflushed operations that reached the medium, wholly or in part.
    pub kept: Ratio,
    /// Share of those that reached it in part.
    pub torn: Ratio,
    /// Unsynced changes of names survive as an order-keeping subset instead of as a prefix.
    pub name_subsets: bool,
    /// Sectors whose write was under way become unreadable, in units of this many bytes.
    pub unreadable_bytes: Option<u64>,
}

impl Survival {
    pub(crate) fn draw(rng: &mut Rng, options: &Options) -> Survival {
        // One cut in eight loses everything unflushed, and one in eight loses nothing.
        let kept = match rng.below(8) {
            0 => Ratio::NEVER,
            1 => Ratio::ALWAYS,
            _ => Ratio::new(rng.between(1, 7), 8),
        };
        let torn = Ratio::new(rng.below(5), 8);
        let name_subsets = rng.chance(options.directory_subsets);
        // No draw in worlds without unreadable sectors, so that their events do not change.
        let unreadable = options.unreadable_sectors != Ratio::NEVER && rng.chance(options.unreadable_sectors);
        let unreadable_bytes = unreadable.then_some(u64::from(options.logical_block));
        Survival { kept, torn, name_subsets, unreadable_bytes }
    }

    pub(crate) fn fate(&self, rng: &mut Rng) -> Fate {
        match rng.chance(self.kept) {
            false => Fate::Lost,
            true if rng.chance(self.torn) => Fate::Torn,
            true => Fate::Whole,
        }
    }

    /// Returns how many of `count` ordered changes survive, if a prefix does.
    pub(crate) fn prefix(&self, rng: &mut Rng, count: usize) -> usize {
        match self.kept {
            Ratio::NEVER => 0,
            Ratio::ALWAYS => count,
            _ => rng.below(count as u64 + 1) as usize,
        }
    }
}

/// Outcome of one unflushed write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    /// Each of its sectors survives with some probability.
    Torn,
    Whole,
}

impl Fate {
    /// Selects the sectors of one page that survive from a mask of them.
    pub(crate) fn spare(self, sectors: u8, rng: &mut Rng) -> u8 {
        match self {
            Fate::Lost => 0,
            Fate::Whole => sectors,
            Fate::Torn => sectors & rng.u64() as u8,
        }
    }
}
