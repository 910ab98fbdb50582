use serde::{Deserialize, Serialize};

use crate::run::{Beat, Stun};

/// A ping once a second, as in the published experiments. A VM answers while it runs. It answers a beat that arrives
/// during a stun when the stun is over; the beat is lost if that takes longer than the limit. Slow disks do not stop a
/// VM from answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Heartbeat {
    pub interval_us: u64,
    /// Time of the first beat. Pings and stuns were not aligned, so counts should be averaged over several values.
    pub first_us: u64,
    /// 0: each beat that arrives while the VM is stopped is lost.
    pub limit_us: u64,
    /// Time after a long stun until the VM answers again.
    pub recovery_us: u64,
    /// Length from which a stun is long.
    pub long_stun_us: u64,
}

impl Default for Heartbeat {
    fn default() -> Heartbeat {
        Heartbeat {
            interval_us: 1_000_000,
            first_us: 0,
            limit_us: 0,
            recovery_us: 0,
            long_stun_us: 1_000_000,
        }
    }
}

impl Heartbeat {
    /// Returns the beats of a run of that length. Stuns may be in any order.
    pub fn beats(&self, end_us: u64, stuns: &[Stun]) -> Vec<Beat> {
        let mut windows: Vec<(u64, u64)> = stuns.iter().map(|stun| self.silence(stun)).collect();
        windows.sort_unstable();
        let mut next = 0;
        // The window with the latest end decides, of all that have begun.
        let mut silent_until_us = 0;
        let mut beats = Vec::new();
        let mut at_us = self.first_us;
        while at_us < end_us {
            while let Some((_, end)) = windows.get(next).filter(|(begin, _)| *begin <= at_us) {
                silent_until_us = silent_until_us.max(*end);
                next += 1;
            }
            let lost = silent_until_us > at_us.saturating_add(self.limit_us);
            beats.push(Beat { at_us, lost });
            at_us = at_us.saturating_add(self.interval_us.max(1));
        }
        beats
    }

    /// Returns the begin and end of the time in which the VM does not answer because of this stun.
    fn silence(&self, stun: &Stun) -> (u64, u64) {
        let recovery_us = if stun.stun_us >= self.long_stun_us { self.recovery_us } else { 0 };
        (stun.at_us, stun.at_us.saturating_add(stun.stun_us).saturating_add(recovery_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stun(at_us: u64, stun_us: u64) -> Stun {
        Stun { at_us, stun_us, disk: None, cause: "test".into() }
    }

    fn lost(heartbeat: Heartbeat, stuns: &[Stun]) -> Vec<u64> {
        let beats = heartbeat.beats(10_000_000, stuns);
        assert_eq!(beats.len(), 10);
        beats.iter().filter(|beat| beat.lost).map(|beat| beat.at_us / 1_000_000).collect()
    }

    #[test]
    fn a_beat_within_a_stun_is_lost_and_its_ends_are_not_within() {
        let beats = Heartbeat::default();
        assert_eq!(lost(beats, &[stun(1_500_000, 1_960_925)]), [2, 3]);
        assert_eq!(lost(beats, &[stun(2_100_000, 649_684)]), [] as [u64; 0]);
        assert_eq!(lost(beats, &[stun(2_000_000, 1_000_000)]), [2]);
    }

    #[test]
    fn a_limit_lets_short_waits_pass() {
        let beats = Heartbeat { limit_us: 500_000, ..Heartbeat::default() };
        assert_eq!(lost(beats, &[stun(1_500_000, 1_960_925)]), [2]);
    }

    #[test]
    fn only_a_long_stun_needs_recovery_and_a_short_one_inside_does_not_end_it() {
        let beats = Heartbeat { recovery_us: 300_000, ..Heartbeat::default() };
        assert_eq!(lost(beats, &[stun(2_700_000, 1_100_000)]), [3, 4]);
        assert_eq!(lost(beats, &[stun(2_850_000, 900_000)]), [3]);
        assert_eq!(lost(beats, &[stun(3_100_000, 10), stun(2_700_000, 3_500_000)]), [3, 4, 5, 6]);
    }
}
