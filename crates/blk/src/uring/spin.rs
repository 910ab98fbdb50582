//! A bounded spin before sleeping, used while the disk is busy and only if it increases throughput.
//!
//! A core that sleeps wakes late, finds many completions, and sends the device as many requests at once: client and
//! device then idle in turns, and watching the ring for a moment breaks that lockstep. But a spin also takes a CPU from
//! the client, or from the host's own disk emulation. One spin does not show which of the two weighs more. Short
//! windows with and without spinning are therefore compared by throughput, and the better choice is kept for a while.

use super::clock::now_ns;
use super::ring::Ring;

/// Longest watch of the ring before sleeping, in microseconds: about what falling asleep and waking up cost.
pub const SPIN_US: u64 = 50;
/// Transfers under way from which lockstep is possible; with one there is nothing to keep in step.
const IN_FLIGHT_MIN: u32 = 2;
/// Checks of the ring between two readings of the clock: about 0.5 us.
const LOOKS: u32 = 16;
/// Length of a window: some ten rounds of a deep queue on a disk with a latency of half a millisecond.
const WINDOW_NS: u64 = 8_000_000;
/// Fewest transfers with which a window is valid.
const WINDOW_TRANSFERS: u64 = 64;
/// Longest window. If it has not seen enough transfers by then, the disk is far slower than a spin is long (640 a
/// second), or the load has stopped.
const WINDOW_LIMIT_NS: u64 = 100_000_000;
/// Which windows of a trial spin. The order is symmetric, so that a changing load favours neither.
const TRIAL: [bool; 8] = [false, true, true, false, false, true, true, false];
/// How long a decision is kept. A trial takes 64 ms of these 2 s: if spinning cost a third of the throughput, half of
/// the trial would cost half a per cent.
const VERDICT_NS: u64 = 2_000_000_000;
/// Spinning must gain a sixteenth to be worth the CPU, which is more than windows vary.
const GAIN_DIVISOR: u128 = 16;

pub(super) struct Spin {
    phase: Phase,
    /// Start of the present window or decision, and the transfers completed by then.
    since_ns: u64,
    done_before: u64,
}

#[derive(Clone, Copy)]
enum Phase {
    /// A step of `TRIAL`, and the transfers and nanoseconds of the finished windows without and with spinning.
    Trial {
        step: usize,
        sums: [(u64, u64); 2],
    },
    Verdict {
        spin: bool,
    },
}

const NEW_TRIAL: Phase = Phase::Trial { step: 0, sums: [(0, 0); 2] };

impl Default for Spin {
    fn default() -> Spin {
        Spin { phase: Phase::Verdict { spin: false }, since_ns: 0, done_before: 0 }
    }
}

impl Spin {
    /// Returns whether to watch the ring before this sleep.
    pub(super) fn is_worth_it(&mut self, ring: &Ring) -> bool {
        if ring.transfers() < IN_FLIGHT_MIN {
            return false;
        }
        self.advance(now_ns(), ring.transfers_done());
        match self.phase {
            Phase::Trial { step, .. } => TRIAL[step],
            Phase::Verdict { spin } => spin,
        }
    }

    /// Ends the present window or decision if it is over at `now`.
    fn advance(&mut self, now: u64, done: u64) {
        let elapsed = now - self.since_ns;
        let transfers = done - self.done_before;
        let next = match self.phase {
            Phase::Verdict { .. } if elapsed >= VERDICT_NS => NEW_TRIAL,
            Phase::Trial { .. } if elapsed > WINDOW_LIMIT_NS => Phase::Verdict { spin: false },
            Phase::Trial { step, mut sums } if elapsed >= WINDOW_NS && transfers >= WINDOW_TRANSFERS => {
                let sum = &mut sums[usize::from(TRIAL[step])];
                *sum = (sum.0 + transfers, sum.1 + elapsed);
                match step + 1 < TRIAL.len() {
                    true => Phase::Trial { step: step + 1, sums },
                    false => Phase::Verdict { spin: pays(sums) },
                }
            }
            _ => return,
        };
        *self = Spin { phase: next, since_ns: now, done_before: done };
    }

    /// Watches the ring until an operation completes, for `SPIN_US` at most, and no longer than `limit_ns`. Returns
    /// true if one did.
    pub(super) fn run(ring: &mut Ring, limit_ns: Option<u64>) -> bool {
        const SPIN_NS: u64 = SPIN_US * 1000;
        ring.counters.spins += 1;
        let deadline = now_ns() + limit_ns.map_or(SPIN_NS, |l| l.min(SPIN_NS));
        while now_ns() < deadline {
            for _ in 0..LOOKS {
                if ring.has_news() {
                    ring.counters.spin_hits += 1;
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        false
    }
}

/// Compares the rates (transfers, ns) without and with spinning, cross-multiplied.
fn pays([without, with]: [(u64, u64); 2]) -> bool {
    let slow = u128::from(without.0) * u128::from(with.1);
    let fast = u128::from(with.0) * u128::from(without.1);
    fast > slow + slow / GAIN_DIVISOR
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `windows` waits, each a window apart, in a world where spinning changes the rate by `factor`.
    fn verdict_after(factor: f64) -> bool {
        let mut spin = Spin::default();
        let (mut now, mut done) = (VERDICT_NS, 0);
        spin.advance(now, done);
        for _ in 0..TRIAL.len() {
            let Phase::Trial { step, .. } = spin.phase else { panic!("still trying") };
            now += WINDOW_NS;
            done += if TRIAL[step] { (1000.0 * factor) as u64 } else { 1000 };
            spin.advance(now, done);
        }
        let Phase::Verdict { spin } = spin.phase else { panic!("eight windows are enough") };
        spin
    }

    #[test]
    fn polling_continues_only_if_it_lowers_the_latency() {
        assert!(verdict_after(1.2));
        assert!(!verdict_after(1.03));
        assert!(!verdict_after(0.6));
    }

    #[test]
    fn a_slow_disk_or_a_pause_ends_the_trial() {
        let mut spin = Spin::default();
        spin.advance(VERDICT_NS, 0);
        spin.advance(VERDICT_NS + WINDOW_NS, WINDOW_TRANSFERS - 1);
        assert!(matches!(spin.phase, Phase::Trial { step: 0, .. }), "too few to judge by");
        spin.advance(VERDICT_NS + WINDOW_LIMIT_NS + 1, WINDOW_TRANSFERS);
        assert!(matches!(spin.phase, Phase::Verdict { spin: false }));
    }
}
