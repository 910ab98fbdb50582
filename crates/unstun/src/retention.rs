//! Retention: which snapshots, or backups, rules keep. Pure functions of the times of the snapshots.

use std::cmp::Reverse;

use api::Retention;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// Returns for each snapshot, given the time of its take, whether a rule keeps it. The rules count periods that have a
/// snapshot, and not the time up to now, so that a clock that jumps ahead removes nothing. A snapshot of a time to come, which
/// a clock leaves that was ahead and went back, is kept and takes no place of the others. Periods are those of `zone`. Ages
/// are judged by a time of their own, `for_ages`, and what is of a time after that one is of a time to come, too.
pub(crate) fn kept(
    taken: &[Timestamp],
    keep: &Retention,
    zone: &TimeZone,
    now: Timestamp,
    for_ages: Timestamp,
) -> Vec<bool> {
    let mut kept: Vec<bool> =
        taken.iter().map(|&taken| keep.all || is_young(taken, keep, for_ages)).collect();
    let mut newest_first: Vec<usize> =
        (0..taken.len()).filter(|&at| taken[at] <= now.min(for_ages)).collect();
    newest_first.sort_by_key(|&at| Reverse((taken[at], at)));
    for (rule, count) in keep.rules() {
        let mut periods = 0;
        let mut before = None;
        for &at in &newest_first {
            let period = period(rule, taken[at], at, zone);
            if before == Some(period) {
                continue;
            }
            if periods == count {
                break;
            }
            (before, periods) = (Some(period), periods + 1);
            kept[at] = true;
        }
    }
    kept
}

/// Returns whether a snapshot is too young to be removed. One of a time to come is: the clock has gone back.
fn is_young(taken: Timestamp, keep: &Retention, now: Timestamp) -> bool {
    let min_age = SignedDuration::from_secs(i64::try_from(keep.min_age_s).unwrap_or(i64::MAX));
    now.duration_since(taken) < min_age
}

/// Returns a number for the period of a rule in which a time is; each snapshot is a period of the rule `last`.
fn period(rule: &str, taken: Timestamp, at: usize, zone: &TimeZone) -> (i64, i64) {
    let local = zone.to_datetime(taken);
    let date = local.date();
    let day = (i64::from(date.year()), i64::from(date.day_of_year()));
    match rule {
        // An hour of the clock that comes twice is two periods.
        "hourly" => {
            (zone.to_offset(taken).seconds().into(), (day.0 * 1000 + day.1) * 100 + i64::from(local.hour()))
        }
        "daily" => day,
        "weekly" => {
            let week = date.iso_week_date();
            (week.year().into(), week.week().into())
        }
        "monthly" => (date.year().into(), date.month().into()),
        "yearly" => (date.year().into(), 0),
        _ => (0, i64::try_from(at).unwrap_or(i64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: &str = "2026-11-26T12:00:00Z";

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Returns which of the times are kept.
    fn kept_times<'a>(times: &[&'a str], keep: Retention) -> Vec<&'a str> {
        let taken: Vec<_> = times.iter().map(|time| at(time)).collect();
        let kept = kept(&taken, &keep, &TimeZone::UTC, at(NOW), at(NOW));
        times.iter().zip(kept).filter(|(_, kept)| *kept).map(|(time, _)| *time).collect()
    }

    #[test]
    fn a_rule_keeps_the_last_of_each_period_that_has_one() {
        let times = [
            "2025-12-31T23:00:00Z",
            "2026-10-31T01:00:00Z",
            "2026-11-20T10:00:00Z",
            "2026-11-25T10:00:00Z",
            "2026-11-25T23:30:00Z",
            "2026-11-26T10:10:00Z",
            "2026-11-26T10:50:00Z",
            "2026-11-26T11:00:00Z",
        ];
        let none = Retention::default();
        assert_eq!(kept_times(&times, Retention { last: 2, ..none }), times[6..]);
        assert_eq!(kept_times(&times, Retention { hourly: 2, ..none }), times[6..]);
        assert_eq!(kept_times(&times, Retention { daily: 3, ..none }), [times[2], times[4], times[7]]);
        assert_eq!(kept_times(&times, Retention { weekly: 2, ..none }), [times[2], times[7]]);
        assert_eq!(
            kept_times(&times, Retention { monthly: 2, yearly: 2, ..none }),
            [times[0], times[1], times[7]]
        );
        assert_eq!(kept_times(&times, Retention { last: 1, min_age_s: 7200, ..none }), times[5..]);
        assert_eq!(kept_times(&times, Retention { all: true, ..none }), times);
    }

    #[test]
    fn snapshots_of_a_time_to_come_take_no_place_of_the_others() {
        let times = ["2026-11-25T10:00:00Z", "2026-11-26T10:00:00Z", "2027-01-01T10:00:00Z"];
        assert_eq!(kept_times(&times, Retention { last: 1, ..Retention::default() }), times[1..]);
        assert_eq!(kept_times(&times, Retention { daily: 1, ..Retention::default() }), times[1..]);
    }

    #[test]
    fn what_is_less_than_a_second_ahead_is_of_a_time_to_come_too() {
        let times = ["2026-11-26T11:00:00Z", "2026-11-26T12:00:00.5Z"];
        assert_eq!(kept_times(&times, Retention { last: 1, ..Retention::default() }), times);
        // The clock was set ahead by an hour, and ages are judged by the former time.
        let taken = times.map(at);
        let (keep, now) = (Retention { last: 1, ..Retention::default() }, at("2026-11-26T13:00:00Z"));
        assert_eq!(kept(&taken, &keep, &TimeZone::UTC, now, at(NOW)), [true, true]);
    }

    #[test]
    fn periods_are_those_of_the_zone() {
        let taken = [at("2026-11-25T22:30:00Z"), at("2026-11-25T23:30:00Z")];
        let keep = Retention { daily: 2, ..Retention::default() };
        assert_eq!(kept(&taken, &keep, &TimeZone::UTC, at(NOW), at(NOW)), [false, true]);
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        assert_eq!(kept(&taken, &keep, &berlin, at(NOW), at(NOW)), [true, true]);
        // The hour from two to three comes twice.
        let taken = [at("2026-10-25T00:30:00Z"), at("2026-10-25T01:30:00Z")];
        let keep = Retention { hourly: 2, ..Retention::default() };
        assert_eq!(kept(&taken, &keep, &berlin, at(NOW), at(NOW)), [true, true]);
    }

    proptest! {
        #[test]
        fn the_newest_is_kept_and_a_jump_of_the_clock_removes_nothing(
            minutes in prop::collection::vec(0_i64..600_000, 1..60),
            counts in prop::array::uniform6(0_u32..5),
            jump_hours in 0_i64..20_000,
        ) {
            let [last, hourly, daily, weekly, monthly, yearly] = counts;
            let keep = Retention { last, hourly, daily, weekly, monthly, yearly, ..Retention::default() };
            let taken: Vec<_> = minutes.iter().map(|&n| at(NOW) - SignedDuration::from_mins(n)).collect();
            let found = kept(&taken, &keep, &TimeZone::UTC, at(NOW), at(NOW));
            let newest = (0..taken.len()).max_by_key(|&n| (taken[n], n)).unwrap();
            prop_assert_eq!(found[newest], counts.iter().any(|&count| count > 0));
            let limit = counts.iter().sum::<u32>() as usize;
            prop_assert!(found.iter().filter(|kept| **kept).count() <= limit);
            let later = at(NOW) + SignedDuration::from_hours(jump_hours);
            prop_assert_eq!(&kept(&taken, &keep, &TimeZone::UTC, later, later), &found);
            // What is removed once makes no other snapshot leave.
            let left: Vec<_> = taken.iter().zip(&found).filter(|(_, kept)| **kept).map(|(t, _)| *t).collect();
            prop_assert!(kept(&left, &keep, &TimeZone::UTC, at(NOW), at(NOW)).iter().all(|kept| *kept));
        }
    }
}
