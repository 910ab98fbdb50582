//! How long a commit will take, and what the guest will see of it, by the VM's own commits and by its load at each hour.

use std::time::Duration;

use api::{CommitExpectation, CommitForecast, Load, Operation, SnapshotCost};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// Minimum number of bytes of a commit that says something about the next one.
const BYTES_MIN: u64 = 16 << 20;
/// Number of commits, those at the most similar load, of which the median is taken.
const NEAREST: usize = 5;
/// Part of the time now below which another hour is worth waiting for.
const WORTH_PART: f64 = 0.75;
const HOURS_OF_DAY: usize = 24;

/// A commit that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Past {
    /// Requests of the guest per second meanwhile.
    guest_s: f64,
    bytes_s: f64,
    /// The guest's latency meanwhile, divided by that with the snapshot before.
    p99_ratio: Option<f64>,
}

/// Load of a VM at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Usual {
    guest_s: f64,
    p99_us: Option<f64>,
}

/// Returns what to expect of a commit that moves `bytes`: now, by the last minutes `now_loads`, and at the quietest hour of the
/// day, by the hours of the last days, the first of which began at `hours_from`. None before the VM's first commit.
pub(super) fn forecast(
    bytes: u64,
    costs: &[SnapshotCost],
    now: Timestamp,
    now_loads: &[Load],
    hours: (Timestamp, &[Load]),
    zone: &TimeZone,
) -> Option<CommitForecast> {
    let past: Vec<Past> = costs.iter().filter_map(past).collect();
    if past.is_empty() || bytes == 0 {
        return None;
    }
    let at_present = expect(bytes, &past, now, &mean(now_loads.iter()));
    let other = quietest(hours, zone)
        .map(|(hour, usual)| expect(bytes, &past, next(hour, now, zone), &usual))
        .filter(|quiet| quiet.seconds as f64 <= at_present.seconds as f64 * WORTH_PART);
    Some(CommitForecast { now: at_present, quietest: other })
}

fn past(cost: &SnapshotCost) -> Option<Past> {
    let took = Duration::try_from(cost.ended?.duration_since(cost.commit_began?)).ok()?;
    if cost.bytes_moved < BYTES_MIN || cost.end != Some(Operation::Commit) || took.is_zero() {
        return None;
    }
    let ratio = cost.committing.p99_us().zip(cost.with.p99_us());
    Some(Past {
        guest_s: cost.committing.guest_s(),
        bytes_s: cost.bytes_moved as f64 / took.as_secs_f64(),
        p99_ratio: ratio.filter(|(_, before)| *before > 0.0).map(|(during, before)| during / before),
    })
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn expect(bytes: u64, past: &[Past], at: Timestamp, usual: &Usual) -> CommitExpectation {
    let mut nearest = past.to_vec();
    // Loads differ by factors, and may be zero.
    let distance = |of: &Past| ((of.guest_s + 1.0) / (usual.guest_s + 1.0)).ln().abs();
    nearest.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
    nearest.truncate(NEAREST);
    let bytes_s = median(nearest.iter().map(|of| of.bytes_s)).unwrap_or(1.0).max(1.0);
    let ratio = median(nearest.iter().filter_map(|of| of.p99_ratio));
    CommitExpectation {
        at,
        seconds: (bytes as f64 / bytes_s).ceil() as u64,
        guest_s: usual.guest_s,
        p99_us: usual.p99_us,
        committing_p99_us: usual.p99_us.zip(ratio).map(|(p99_us, ratio)| p99_us * ratio),
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Returns the mean rate, and the median of the latencies.
fn mean<'a>(loads: impl Iterator<Item = &'a Load>) -> Usual {
    let observed: Vec<&Load> = loads.filter(|load| load.observed_s > 0).collect();
    let seconds: f64 = observed.iter().map(|load| load.observed_s as f64).sum();
    let requests: f64 = observed.iter().map(|load| load.guest_s() * load.observed_s as f64).sum();
    Usual {
        guest_s: if seconds > 0.0 { requests / seconds } else { 0.0 },
        p99_us: median(observed.iter().filter_map(|load| load.p99_us())),
    }
}

/// Returns the hour of the day with the lowest load; None if not all hours were observed.
fn quietest((from, loads): (Timestamp, &[Load]), zone: &TimeZone) -> Option<(i8, Usual)> {
    let mut of_hours: [Vec<&Load>; HOURS_OF_DAY] = Default::default();
    for (at, load) in loads.iter().enumerate().filter(|(_, load)| load.observed_s > 0) {
        let begin = from.checked_add(SignedDuration::from_hours(at as i64)).ok()?;
        of_hours[usize::try_from(zone.to_datetime(begin).hour()).ok()?].push(load);
    }
    if of_hours.iter().any(Vec::is_empty) {
        return None;
    }
    let usual = of_hours.iter().map(|loads| mean(loads.iter().copied()));
    let quietest = usual.enumerate().min_by(|(_, a), (_, b)| a.guest_s.total_cmp(&b.guest_s))?;
    Some((i8::try_from(quietest.0).ok()?, quietest.1))
}

/// Returns the next time at which that hour of the day begins.
fn next(hour: i8, now: Timestamp, zone: &TimeZone) -> Timestamp {
    let local = now.to_zoned(zone.clone());
    let today = local.with().hour(hour).minute(0).second(0).subsec_nanosecond(0).build();
    let next =
        today.and_then(|at| if at > local { Ok(at) } else { at.checked_add(jiff::Span::new().days(1)) });
    next.map_or(now, |at| at.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Latency;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn load(reads_s: f64, p99_us: f64) -> Load {
        let latency = Some(Latency { mean_us: p99_us, median_us: p99_us, p99_us });
        Load { observed_s: 3600, reads_s, latency, ..Load::default() }
    }

    /// A commit of 100 s.
    fn commit(guest_s: f64, bytes_moved: u64) -> SnapshotCost {
        SnapshotCost {
            name: "a".to_owned(),
            taken: None,
            commit_began: Some(at("2026-11-20T00:00:00Z")),
            ended: Some(at("2026-11-20T00:01:40Z")),
            end: Some(Operation::Commit),
            take_stun_us: 0,
            commit_stun_us: 0,
            bytes_moved,
            before: Load::default(),
            with: load(guest_s, 2000.0),
            committing: load(guest_s, 3000.0),
            after: Load::default(),
        }
    }

    #[test]
    fn commits_at_a_similar_load_say_how_long_the_next_one_takes() {
        // 10 MiB/s under load, 40 MiB/s at night.
        let mut costs: Vec<_> = (0..5).map(|_| commit(1000.0, 1000 << 20)).collect();
        costs.extend((0..5).map(|_| commit(10.0, 4000 << 20)));
        costs.push(commit(1000.0, 4096));
        let hours: Vec<Load> =
            (0..7 * 24).map(|hour| load(if hour % 24 == 3 { 5.0 } else { 900.0 }, 1500.0)).collect();
        let (now, from) = (at("2026-11-27T14:30:00Z"), at("2026-11-20T00:00:00Z"));
        let forecast = |hours: &[Load]| {
            forecast(6000 << 20, &costs, now, &[load(1100.0, 2100.0)], (from, hours), &TimeZone::UTC).unwrap()
        };
        let found = forecast(&hours);
        assert_eq!((found.now.seconds, found.now.at, found.now.guest_s), (600, now, 1100.0));
        assert_eq!((found.now.p99_us, found.now.committing_p99_us), (Some(2100.0), Some(3150.0)));
        let quiet = found.quietest.unwrap();
        assert_eq!((quiet.seconds, quiet.at), (150, at("2026-11-28T03:00:00Z")));
        // A day that was not observed whole says nothing about the best hour.
        assert_eq!(forecast(&hours[..20]).quietest, None);
    }

    #[test]
    fn without_a_commit_of_its_own_nothing_is_expected() {
        let none = forecast(
            1 << 30,
            &[commit(1.0, 5)],
            at("2026-11-27T14:30:00Z"),
            &[],
            (at("2026-11-20T00:00:00Z"), &[]),
            &TimeZone::UTC,
        );
        assert_eq!(none, None);
        let idle = forecast(
            1 << 30,
            &[commit(0.0, 1 << 30)],
            at("2026-11-27T14:30:00Z"),
            &[],
            (at("2026-11-20T00:00:00Z"), &[]),
            &TimeZone::UTC,
        );
        assert_eq!(idle.unwrap().now.seconds, 100);
    }
}
