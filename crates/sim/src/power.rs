//! The end of a boot: a loss of power, or the end of the process alone.

use blk::reactor::Op;

use crate::machine::{Machine, Power, Work};
use crate::rng::Ratio;
use crate::survival::Survival;

impl Machine {
    /// Decides what remains on the medium after a cut, and prepares it for the next boot.
    pub(crate) fn lose_power(&mut self) {
        let survival = Survival::draw(&mut self.rng, &self.options);
        self.finish_under_way(survival.kept, false);
        self.fs.cut(&survival, &mut self.rng);
        self.memory.clear();
        self.cuts += 1;
        self.faults.disarm();
        self.start_over();
    }

    /// Ends the process; the medium continues. All submitted operations take effect.
    pub(crate) fn kill(&mut self) {
        self.finish_under_way(Ratio::ALWAYS, true);
        self.fs.drop_handles();
        if self.power == Power::Off {
            self.faults.disarm();
        }
        self.start_over();
    }

    /// Decides for each operation under way whether it has happened, in any order. Visible writes are decided together
    /// with the unflushed ones, unless the medium keeps its power.
    fn finish_under_way(&mut self, happened: Ratio, exposed_too: bool) {
        let mut under_way: Vec<u32> = (0..self.slots.len() as u32).collect();
        self.rng.shuffle(&mut under_way);
        for id in under_way {
            let pending = match &self.slots[id as usize].work {
                Work::Waiting(Op::Read { .. } | Op::Timer { .. }) => false,
                Work::Waiting(_) => self.rng.chance(happened),
                Work::Exposed { .. } => exposed_too,
                _ => false,
            };
            if pending {
                self.finish(id);
            }
        }
    }

    fn start_over(&mut self) {
        self.slots.clear();
        self.free.clear();
        self.due.clear();
        self.opens.clear();
        self.media.reset();
        self.idle_turns = 0;
        self.boot += 1;
        self.power = Power::On;
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.slots.is_empty() && self.opens.is_empty()
    }
}
