//! What the snapshots of a VM cost: its load before, with, while committing and after each, by the record.

use std::collections::VecDeque;

use api::name::VmName;
use api::{Latency, Load, SnapshotCost, Store, VmCost};
use jiff::Timestamp;

use super::activity::{mean_us, quantile_us};
use super::lives::Life;
use super::series::AROUND_S;
use super::spans::{Span, Sum};

/// Maximum number of snapshots of one answer, the last ones.
const SNAPSHOTS_MAX: usize = 500;
/// Spans of a snapshot's cost.
const PHASES: usize = 4;

/// Returns the latency of requests of which the slowest took `longest_us`.
#[allow(clippy::cast_precision_loss)]
fn latency(counts: &[u64], longest_us: u64) -> Option<Latency> {
    let at_most = |us: f64| us.min(longest_us as f64);
    Some(Latency {
        mean_us: at_most(mean_us(counts)?),
        median_us: at_most(quantile_us(counts, 0.5)?),
        p99_us: at_most(quantile_us(counts, 0.99)?),
    })
}

/// Returns the load of a span. `store` is that of a native VM's store, whose files are not the VM's.
#[allow(clippy::cast_precision_loss)]
pub(super) fn load(sum: &Sum, store: Option<&Sum>) -> Load {
    let seconds = sum.seconds as f64;
    if sum.seconds == 0 {
        return Load::default();
    }
    let rate = |count: u64| count as f64 / seconds;
    let (of, host) = (&sum.activity, &store.unwrap_or(sum).activity);
    let host_seconds = store.map_or(seconds, |store| store.seconds.max(1) as f64);
    let host_rate = |count: u64| count as f64 / host_seconds;
    Load {
        observed_s: sum.seconds.unsigned_abs(),
        reads_s: rate(of.reads.count),
        writes_s: rate(of.writes.count),
        flushes_s: rate(of.flushes),
        read_bytes_s: rate(of.reads.bytes),
        written_bytes_s: rate(of.writes.bytes),
        host_reads_s: host_rate(host.reads.host_count),
        host_writes_s: host_rate(host.writes.host_count),
        host_read_bytes_s: host_rate(host.reads.host_bytes),
        host_written_bytes_s: host_rate(host.writes.host_bytes),
        latency: latency(&of.latencies(), of.longest_us),
        read_latency: latency(&of.reads.latencies.map(u64::from), of.longest_us),
        write_latency: latency(&of.writes.latencies.map(u64::from), of.longest_us),
        longest_us: of.longest_us,
        layers: of.layers,
    }
}

/// Returns the spans before the take, until the commit, of the commit, and after the end.
fn phases(life: &Life, now: i64) -> [Span; PHASES] {
    let second = |time: Option<Timestamp>| time.map(Timestamp::as_second);
    let (taken, began, ended) = (second(life.taken), second(life.commit_began), second(life.ended));
    let gone = began.or(ended).unwrap_or(now);
    let before = taken.map_or(0..0, |taken| taken - AROUND_S..taken);
    let with = taken.map_or(0..0, |taken| taken..gone.max(taken));
    let committing = began.map_or(0..0, |began| began..ended.unwrap_or(now).max(began));
    let after = ended.map_or(0..0, |ended| ended..(ended + AROUND_S).min(now.max(ended)));
    [before, with, committing, after]
}

/// What is known of a VM beside its record.
pub(super) struct Known {
    pub vm: VmName,
    pub store: Store,
    pub lives: Vec<Life>,
    /// Costs of snapshots that ended earlier.
    pub ended: Vec<SnapshotCost>,
}

/// Sums of the spans, of the VM and of a native VM's store.
pub(super) type Sums<'a> = dyn FnMut(&[Span]) -> std::io::Result<(Vec<Sum>, Option<Vec<Sum>>)> + 'a;

/// Returns the cost of each life.
///
/// # Errors
/// Those of `sums`.
pub(super) fn of_lives(lives: &[Life], now: i64, sums: &mut Sums<'_>) -> std::io::Result<Vec<SnapshotCost>> {
    let spans: Vec<Span> = lives.iter().flat_map(|life| phases(life, now)).collect();
    let mut loads = loads(&spans, sums)?;
    let cost = |life: &Life| {
        let mut next = || loads.pop_front().unwrap_or_default();
        let (before, with, committing, after) = (next(), next(), next(), next());
        SnapshotCost {
            name: life.name.clone(),
            taken: life.taken,
            commit_began: life.commit_began,
            ended: life.ended,
            end: life.end,
            take_stun_us: life.take_stun_us,
            commit_stun_us: life.commit_stun_us,
            bytes_moved: life.bytes_moved,
            before,
            with,
            committing,
            after,
        }
    };
    Ok(lives.iter().map(cost).collect())
}

fn loads(spans: &[Span], sums: &mut Sums<'_>) -> std::io::Result<VecDeque<Load>> {
    let (vm, store) = sums(spans)?;
    let load = |(at, sum)| load(sum, store.as_ref().and_then(|store| store.get(at)));
    Ok(vm.iter().enumerate().map(load).collect())
}

/// Returns whether two costs are of the same snapshot.
pub(super) fn is_same(cost: &SnapshotCost, life: &Life) -> bool {
    cost.name == life.name && cost.taken == life.taken && (life.taken.is_some() || cost.ended == life.ended)
}

/// Returns the costs of a VM between two seconds.
///
/// # Errors
/// Those of `sums`.
pub(super) fn of_vm(known: Known, span: &Span, now: i64, sums: &mut Sums<'_>) -> std::io::Result<VmCost> {
    let Known { vm, store, mut lives, mut ended } = known;
    lives.retain(|life| !ended.iter().any(|cost| is_same(cost, life)));
    lives.drain(..lives.len().saturating_sub(SNAPSHOTS_MAX));
    let second = |time: Option<Timestamp>, other: i64| time.map_or(other, Timestamp::as_second);
    let is_within =
        |taken, ended| second(taken, i64::MIN) < span.end && second(ended, i64::MAX) >= span.start;
    lives.retain(|life| is_within(life.taken, life.ended));
    ended.retain(|cost| is_within(cost.taken, cost.ended));
    ended.extend(of_lives(&lives, now, sums)?);
    ended.sort_by_key(|cost| cost.taken);
    let all = ended;

    let within = |span: &Span, from: i64, until: i64| from.max(span.start)..until.min(span.end);
    let committing: Vec<Span> = all
        .iter()
        .filter_map(|cost| Some((cost.commit_began?.as_second(), second(cost.ended, now))))
        .map(|(from, until)| within(span, from, until))
        .collect();
    let there: Vec<Span> = all
        .iter()
        .map(|cost| {
            within(span, second(cost.taken, span.start), second(cost.commit_began.or(cost.ended), now))
        })
        .collect();
    let committing = union(committing);
    let with = without(&union(there), &committing);
    let free = without(&without(std::slice::from_ref(span), &with), &committing);
    let mut total = |spans: &Vec<Span>| -> std::io::Result<Load> {
        let (vm, store) = sums(spans)?;
        let add = |all: &[Sum]| {
            let mut total = Sum::default();
            all.iter().for_each(|sum| total.add(sum));
            total
        };
        Ok(load(&add(&vm), store.as_deref().map(add).as_ref()))
    };
    let (without, with, committing) = (total(&free)?, total(&with)?, total(&committing)?);

    let is_in = |time: Option<Timestamp>| time.is_some_and(|time| span.contains(&time.as_second()));
    let takes: Vec<u64> = all.iter().filter(|c| is_in(c.taken)).map(|c| c.take_stun_us).collect();
    let mut commits: Vec<_> = all
        .iter()
        .filter(|cost| cost.commit_began.is_some() && is_in(cost.ended))
        .map(|cost| (cost.ended, cost.commit_stun_us, cost.bytes_moved))
        .collect();
    // Snapshots that were committed together.
    commits.sort_unstable();
    commits.dedup();
    let stuns = || takes.iter().copied().chain(commits.iter().map(|(_, stun_us, _)| *stun_us));
    Ok(VmCost {
        since: Timestamp::from_second(span.start).unwrap_or(Timestamp::UNIX_EPOCH),
        until: Timestamp::from_second(span.end).unwrap_or(Timestamp::UNIX_EPOCH),
        takes: takes.len() as u64,
        commits: commits.len() as u64,
        bytes_moved: commits.iter().map(|(_, _, bytes)| bytes).sum(),
        stun_us: stuns().sum(),
        longest_stun_us: stuns().max().unwrap_or(0),
        vm,
        store,
        without,
        with,
        committing,
        snapshots: all,
    })
}

/// Returns the same times as spans that are sorted and apart.
fn union(mut spans: Vec<Span>) -> Vec<Span> {
    spans.retain(|span| span.start < span.end);
    spans.sort_by_key(|span| span.start);
    spans.dedup_by(|next, before| {
        let joins = next.start <= before.end;
        before.end = if joins { before.end.max(next.end) } else { before.end };
        joins
    });
    spans
}

/// Returns the times of `spans` that are not in `others`. Both are sorted and apart.
fn without(spans: &[Span], others: &[Span]) -> Vec<Span> {
    let mut left = Vec::new();
    for span in spans {
        let mut from = span.start;
        for other in others.iter().filter(|other| other.end > span.start && other.start < span.end) {
            left.push(from..other.start);
            from = from.max(other.end);
        }
        left.push(from..span.end);
    }
    left.retain(|span: &Span| span.start < span.end);
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::activity::Activity;

    #[test]
    fn times_are_joined_and_cut() {
        assert_eq!(union(vec![5..9, 1..3, 2..4, 9..10, 7..7]), [1..4, 5..10]);
        assert_eq!(without(&[0..10, 20..30], &[2..3, 8..25]), [0..2, 3..8, 25..30]);
        assert!(without(&[0..10, 20..30], &[0..15, 15..40]).is_empty());
    }

    fn life(name: &str, taken: i64, began: Option<i64>, ended: Option<i64>) -> Life {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        Life {
            name: name.to_owned(),
            taken: Some(at(taken)),
            take_stun_us: 100,
            commit_began: began.map(at),
            ended: ended.map(at),
            end: ended.map(|_| api::Operation::Commit),
            commit_stun_us: 50,
            bytes_moved: 4096,
        }
    }

    /// A guest whose flushes of a second are its number, and that is always observed.
    fn observed(spans: &[Span]) -> std::io::Result<(Vec<Sum>, Option<Vec<Sum>>)> {
        let sum = |span: &Span| {
            let seconds = (span.end - span.start).max(0);
            let activity =
                Activity { flushes: span.clone().map(|s| s.unsigned_abs()).sum(), ..Activity::default() };
            Sum { seconds, activity }
        };
        Ok((spans.iter().map(sum).collect(), None))
    }

    #[test]
    fn each_phase_of_a_snapshot_has_its_load() {
        let lives = [life("a", 10_000, Some(11_000), Some(11_100)), life("b", 11_050, None, None)];
        let costs = of_lives(&lives, 12_000, &mut observed).unwrap();
        let seconds = |cost: &SnapshotCost| {
            [cost.before, cost.with, cost.committing, cost.after].map(|load| load.observed_s)
        };
        assert_eq!([seconds(&costs[0]), seconds(&costs[1])], [[600, 1000, 100, 600], [600, 950, 0, 0]]);
        assert_eq!(costs[0].before.flushes_s, (9400..10_000).sum::<u64>() as f64 / 600.0);
    }

    #[test]
    fn the_time_of_a_vm_is_divided_into_three_parts() {
        let old = of_lives(&[life("old", 100, Some(200), Some(300))], 12_000, &mut observed).unwrap();
        let known = Known {
            vm: "web".parse().unwrap(),
            store: Store::Redo,
            lives: vec![
                life("old", 100, Some(200), Some(300)),
                life("a", 1000, Some(2000), Some(2100)),
                life("b", 1500, Some(2000), Some(2100)),
                life("c", 2050, None, None),
            ],
            ended: old,
        };
        let cost = of_vm(known, &(0..3000), 3000, &mut observed).unwrap();
        let seconds = [cost.without, cost.with, cost.committing].map(|load| load.observed_s);
        assert_eq!(seconds, [100 + 700, 100 + 1000 + 900, 100 + 100]);
        assert_eq!((cost.takes, cost.commits, cost.bytes_moved), (4, 2, 8192));
        assert_eq!((cost.stun_us, cost.longest_stun_us), (500, 100));
        assert_eq!(
            cost.snapshots.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(),
            ["old", "a", "b", "c"]
        );
    }
}
