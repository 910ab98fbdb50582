//! The time by which ages are judged, for removals: the clock's, except that a clock that was set ahead counts only after it
//! has kept its new time for a day. A wrong clock is corrected before that, and removes nothing.

use std::cell::Cell;

use jiff::SignedDuration;
use tracing::warn;

/// Difference against the time since boot, between two looks, above which a clock was set and has not only been corrected.
const SET_MIN_US: i64 = 5 * 60_000_000;
/// Time for which a clock that was set ahead must have kept its new time.
const TRUSTED_AFTER_US: i64 = 24 * 3600 * 1_000_000;

/// A clock that was set ahead.
#[derive(Debug, Clone, Copy)]
struct SetAhead {
    /// Time since boot at which it was found.
    since_us: i64,
    /// What the clock shows, less the time since boot.
    offset_us: i64,
}

/// The clock of a daemon. A start trusts the clock that it finds.
pub(super) struct AgeClock {
    /// What the trusted clock shows, less the time since boot.
    offset_us: Cell<i64>,
    set_ahead: Cell<Option<SetAhead>>,
}

impl AgeClock {
    pub(super) fn new(unix_us: i64, boot_us: i64) -> AgeClock {
        AgeClock { offset_us: Cell::new(unix_us.saturating_sub(boot_us)), set_ahead: Cell::new(None) }
    }

    /// Returns the time by which ages are judged, given what the clock shows and the time since boot, in microseconds. It is
    /// called every few seconds.
    pub(super) fn now_us(&self, unix_us: i64, boot_us: i64) -> i64 {
        let offset_us = unix_us.saturating_sub(boot_us);
        if offset_us.saturating_sub(self.offset_us.get()) <= SET_MIN_US {
            return self.trust(offset_us, unix_us);
        }
        let known = self
            .set_ahead
            .get()
            .filter(|known| offset_us.saturating_sub(known.offset_us).abs() <= SET_MIN_US);
        let since_us = known.map_or(boot_us, |known| known.since_us);
        if boot_us - since_us >= TRUSTED_AFTER_US {
            return self.trust(offset_us, unix_us);
        }
        if known.is_none() {
            let by = SignedDuration::from_micros(offset_us - self.offset_us.get());
            warn!("the clock was set ahead by {by:#}; for a day nothing is removed for an age that it gives");
        }
        self.set_ahead.set(Some(SetAhead { since_us, offset_us }));
        boot_us.saturating_add(self.offset_us.get())
    }

    fn trust(&self, offset_us: i64, unix_us: i64) -> i64 {
        self.offset_us.set(offset_us);
        self.set_ahead.set(None);
        unix_us
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR_US: i64 = 3600 * 1_000_000;
    const EPOCH_US: i64 = 1_790_000_000_000_000;

    /// Returns the trusted time, less the time since boot, as the clock is set by `ahead_us` at `hour`.
    fn ahead_us(clock: &AgeClock, hour: i64, ahead_us: i64) -> i64 {
        let boot_us = hour * HOUR_US;
        clock.now_us(EPOCH_US + boot_us + ahead_us, boot_us) - EPOCH_US - boot_us
    }

    #[test]
    fn a_clock_that_was_set_ahead_counts_after_a_day() {
        let clock = AgeClock::new(EPOCH_US, 0);
        let week_us = 168 * HOUR_US;
        assert_eq!(ahead_us(&clock, 1, 60_000_000), 60_000_000, "a correction");
        for hour in 2..26 {
            assert_eq!(ahead_us(&clock, hour, week_us), 60_000_000, "hour {hour}");
        }
        assert_eq!(ahead_us(&clock, 26, week_us), week_us);
        assert_eq!(ahead_us(&clock, 27, 0), 0, "set back");
    }

    #[test]
    fn each_time_that_it_is_set_ahead_counts_on_its_own() {
        let clock = AgeClock::new(EPOCH_US, 0);
        for hour in 1..20 {
            assert_eq!(ahead_us(&clock, hour, HOUR_US), 0);
        }
        for hour in 20..44 {
            assert_eq!(ahead_us(&clock, hour, 5000 * HOUR_US), 0, "hour {hour}");
        }
        assert_eq!(ahead_us(&clock, 44, 5000 * HOUR_US), 5000 * HOUR_US);
        // One that is set back in part begins anew, and so does one that was corrected and is set ahead later.
        assert_eq!(ahead_us(&clock, 45, 9000 * HOUR_US), 5000 * HOUR_US);
        assert_eq!(ahead_us(&clock, 68, 6000 * HOUR_US), 5000 * HOUR_US);
        assert_eq!(ahead_us(&clock, 70, 6000 * HOUR_US), 5000 * HOUR_US);
        assert_eq!(ahead_us(&clock, 71, 0), 0);
        assert_eq!(ahead_us(&clock, 72, HOUR_US), 0);
    }

    proptest! {
        #[test]
        fn it_is_never_ahead_of_the_clock(looks in prop::collection::vec((0_i64..10, -5000_i64..5000), 1..50)) {
            let clock = AgeClock::new(EPOCH_US, 0);
            let mut hour = 0;
            for (hours, ahead) in looks {
                hour += hours;
                let found = ahead_us(&clock, hour, ahead * HOUR_US);
                prop_assert!(found <= ahead * HOUR_US);
            }
        }
    }
}
