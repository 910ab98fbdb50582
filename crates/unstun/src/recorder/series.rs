//! The record of one VM or one store: four tiers on file, and what is not on file yet.

use std::collections::BTreeMap;
use std::path::Path;

use super::activity::Activity;
use super::encoding::Block;
use super::tier::{Spec, Tier};

const HOUR_S: i64 = 3600;
const DAY_S: i64 = 24 * HOUR_S;

/// Each second for an hour; each ten seconds for a day; each minute for a month. Together with `AROUND` they have 2 MiB of
/// each disk, 2 GiB of a thousand.
const TIERS: [Spec; 3] = [
    Spec { name: "1s", interval_s: 1, kept_s: HOUR_S, bytes: 256 << 10, block_slots: 10 },
    Spec { name: "10s", interval_s: 10, kept_s: DAY_S, bytes: 384 << 10, block_slots: 6 },
    Spec { name: "1min", interval_s: 60, kept_s: 31 * DAY_S, bytes: 1152 << 10, block_slots: 5 },
];
/// Each second for ten minutes before and after each operation.
const AROUND: Spec =
    Spec { name: "around", interval_s: 1, kept_s: 31 * DAY_S, bytes: 256 << 10, block_slots: 10 };
/// Time before and after an operation for which each second is kept.
pub(super) const AROUND_S: i64 = 600;
/// The longest interval of all tiers.
const LONGEST_S: i64 = TIERS[2].interval_s;
/// Blocks without a row are written less often by this factor.
const IDLE_FACTOR: u32 = 30;
/// Time between two looks up to which the second one has seen all of it: a look that comes late.
const LATE_S: i64 = 5;

/// What the disks of a series did in one interval.
pub(super) type Disks = BTreeMap<u32, Activity>;

/// An interval that was observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interval {
    /// Its begin in seconds since 1970.
    pub begin_s: i64,
    pub length_s: i64,
}

pub(super) struct Series {
    tiers: Vec<Filling>,
    around: Filling,
    /// Second until which `around` is filled.
    around_until: i64,
}

/// A tier, and what is not on file yet.
struct Filling {
    tier: Tier,
    /// The slot that is being filled, and what has happened in it.
    slot: Option<i64>,
    sums: Disks,
    block: Option<Block>,
}

impl Filling {
    fn new(spec: &'static Spec, folder: &Path) -> Filling {
        Filling { tier: Tier::new(spec, folder), slot: None, sums: Disks::new(), block: None }
    }

    fn add(&mut self, second: i64, disks: &[(u32, Activity)]) -> std::io::Result<()> {
        let spec = self.tier.spec;
        let slot = second.div_euclid(spec.interval_s);
        let written = if self.slot == Some(slot) { Ok(()) } else { self.begin_slot(slot) };
        for (number, activity) in disks {
            self.sums.entry(*number).or_default().add(activity);
        }
        written
    }

    fn begin_slot(&mut self, slot: i64) -> std::io::Result<()> {
        self.end_slot();
        let late = (LATE_S / self.tier.spec.interval_s).max(1);
        let end = self.block.as_ref().map_or(slot, |block| block.begin + i64::from(block.slots));
        let goes_on = (0..late).contains(&slot.saturating_sub(end));
        let written = if goes_on { self.write_if_due() } else { self.write() };
        self.slot = Some(slot);
        written
    }

    /// Adds the slot to the block.
    fn end_slot(&mut self) {
        if let Some(slot) = self.slot.take() {
            let disks = self.sums.iter().map(|(number, activity)| (*number, activity));
            self.block.get_or_insert_with(|| Block::new(slot)).add(slot, disks);
            self.sums.values_mut().for_each(|sum| *sum = Activity::default());
        }
    }

    fn write_if_due(&mut self) -> std::io::Result<()> {
        let slots = self.tier.spec.block_slots;
        let due = if self.block.as_ref().is_some_and(Block::is_idle) { slots * IDLE_FACTOR } else { slots };
        if self.block.as_ref().is_some_and(|block| block.slots >= due) { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> std::io::Result<()> {
        match self.block.take() {
            Some(block) => self.tier.append(&block, self.sums.len() as u64),
            None => Ok(()),
        }
    }

    /// Writes what is not on file yet.
    fn close(&mut self) -> std::io::Result<()> {
        self.end_slot();
        self.write()
    }

    /// Calls `found` with each slot between two times, without a row, and with each row in it.
    fn read(
        &self,
        from_s: i64,
        until_s: i64,
        found: &mut impl FnMut(Interval, Option<(u32, &Activity)>),
    ) -> std::io::Result<()> {
        let length_s = self.tier.spec.interval_s;
        let (from, until) =
            (from_s.div_euclid(length_s), until_s.saturating_add(length_s - 1).div_euclid(length_s));
        let mut of_block = |block: &Block| {
            let end = block.begin.saturating_add(i64::from(block.slots));
            let interval = |slot: i64| Interval { begin_s: slot.saturating_mul(length_s), length_s };
            (block.begin.max(from)..end.min(until)).for_each(|slot| found(interval(slot), None));
            block.rows(|slot, number, activity| {
                if (from..until).contains(&slot) {
                    found(interval(slot), Some((number, activity)));
                }
            });
        };
        self.tier.read(from, until, &mut of_block)?;
        let mut block = self.block.clone();
        if let Some(slot) = self.slot {
            let disks = self.sums.iter().map(|(number, activity)| (*number, activity));
            block.get_or_insert_with(|| Block::new(slot)).add(slot, disks);
        }
        block.iter().for_each(&mut of_block);
        Ok(())
    }
}

impl Series {
    pub(super) fn new(folder: &Path) -> Series {
        let tiers = TIERS.iter().map(|spec| Filling::new(spec, folder)).collect();
        Series { tiers, around: Filling::new(&AROUND, folder), around_until: i64::MIN }
    }

    /// Adds what the disks did in a second, since 1970.
    ///
    /// # Errors
    /// Those of the file system. Some of what was kept in memory is lost then.
    pub(super) fn add(&mut self, second: i64, disks: &[(u32, Activity)]) -> std::io::Result<()> {
        let mut written = Ok(());
        for tier in &mut self.tiers {
            written = written.and(tier.add(second, disks));
        }
        if second <= self.around_until {
            written = written.and(self.around.add(second, disks));
        }
        written
    }

    /// Keeps each second around an operation.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn keep_around(&mut self, second: i64) -> std::io::Result<()> {
        let was_filled = (second..=second + AROUND_S).contains(&self.around_until);
        self.around_until = second + AROUND_S;
        if was_filled {
            return Ok(());
        }
        let from = second - AROUND_S;
        let mut before: BTreeMap<i64, Disks> = BTreeMap::new();
        self.tiers[0].read(from, second + 1, &mut |interval, row| {
            let disks = before.entry(interval.begin_s).or_default();
            if let Some((number, activity)) = row {
                disks.entry(number).or_default().add(activity);
            }
        })?;
        // Some of it may be there from the operation before.
        self.around.read(from, second + 1, &mut |interval, _| drop(before.remove(&interval.begin_s)))?;
        for (second, disks) in before {
            let disks: Vec<_> = disks.into_iter().collect();
            self.around.add(second, &disks)?;
        }
        Ok(())
    }

    /// Writes what is not on file yet.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn close(&mut self) -> std::io::Result<()> {
        let mut closed = Ok(());
        for tier in self.tiers.iter_mut().chain([&mut self.around]) {
            closed = closed.and(tier.close());
        }
        closed
    }

    /// Calls `found` with each interval that was observed and begins between two times, and with each row in it. Each time is
    /// in one interval at most, the shortest that is kept.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn read(
        &self,
        from_s: i64,
        until_s: i64,
        mut found: impl FnMut(Interval, Option<(u32, &Activity)>),
    ) -> std::io::Result<()> {
        let mut covered = Covered::default();
        for tier in [&self.tiers[0], &self.around, &self.tiers[1], &self.tiers[2]] {
            let mut more = Covered::default();
            // A long interval that begins before the end may be covered by short ones after it.
            let (from, until) = (from_s.saturating_sub(LONGEST_S), until_s.saturating_add(LONGEST_S));
            tier.read(from, until, &mut |interval, row| {
                if covered.overlaps(interval) {
                    return;
                }
                if row.is_none() {
                    more.0.push((interval.begin_s, interval.begin_s + interval.length_s));
                }
                if (from_s..until_s).contains(&interval.begin_s) {
                    found(interval, row);
                }
            })?;
            covered.extend(more);
        }
        Ok(())
    }
}

/// Times that finer tiers have: begins and ends, sorted and apart.
#[derive(Default)]
struct Covered(Vec<(i64, i64)>);

impl Covered {
    fn overlaps(&self, interval: Interval) -> bool {
        let after = self.0.partition_point(|(begin, _)| *begin < interval.begin_s + interval.length_s);
        after > 0 && self.0[after - 1].1 > interval.begin_s
    }

    fn extend(&mut self, more: Covered) {
        self.0.extend(more.0);
        self.0.sort_unstable();
        self.0.dedup_by(|next, before| {
            let joins = next.0 <= before.1;
            before.1 = if joins { before.1.max(next.1) } else { before.1 };
            joins
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(flushes: u64) -> Activity {
        Activity { flushes, ..Activity::default() }
    }

    /// Returns the observed seconds between two times, and the flushes.
    fn sum(series: &Series, from_s: i64, until_s: i64) -> (i64, u64) {
        let (mut seconds, mut flushes) = (0, 0);
        let mut last = BTreeMap::new();
        series
            .read(from_s, until_s, |interval, row| match row {
                Some((_, activity)) => flushes += activity.flushes,
                None => {
                    seconds += interval.length_s;
                    assert_eq!(last.insert(interval.begin_s, interval.length_s), None, "{interval:?}");
                }
            })
            .unwrap();
        (seconds, flushes)
    }

    #[test]
    fn each_second_is_counted_once_whatever_tier_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut series = Series::new(folder.path());
        let begin = 1_800_000_000;
        for second in begin..begin + 3 * HOUR_S {
            series.add(second, &[(0, activity(1)), (1, activity(2))]).unwrap();
            if second == begin + HOUR_S {
                series.keep_around(second).unwrap();
            }
        }
        for _ in 0..2 {
            assert_eq!(sum(&series, begin, begin + 3 * HOUR_S), (3 * HOUR_S, 9 * 3600));
            assert_eq!(sum(&series, begin + 600, begin + 1200), (600, 1800));
            let last = begin + 3 * HOUR_S;
            assert_eq!(sum(&series, last - 7, last - 2), (5, 15));
            series.close().unwrap();
        }
        // A new process has the same.
        let series = Series::new(folder.path());
        assert_eq!(sum(&series, begin, begin + 3 * HOUR_S), (3 * HOUR_S, 9 * 3600));
    }

    #[test]
    fn two_times_beside_each_other_have_nothing_in_common() {
        let folder = tempfile::tempdir().unwrap();
        let mut series = Series::new(folder.path());
        let begin = 1_800_000_000;
        for second in begin + 7..begin + 200 {
            series.add(second, &[(0, activity(1))]).unwrap();
        }
        for middle in begin..begin + 200 {
            let (before, after) = (sum(&series, begin - 60, middle), sum(&series, middle, begin + 300));
            let seconds = (middle - begin - 7).max(0);
            assert_eq!(before, (seconds, seconds.unsigned_abs()), "{}", middle - begin);
            assert_eq!(before.0 + after.0, 193, "{}", middle - begin);
        }
    }

    #[test]
    fn the_seconds_around_an_operation_are_kept_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut series = Series::new(folder.path());
        let begin = 1_800_000_000;
        // Spans without a gap.
        let spans = |series: &Series| {
            let mut found: Vec<(i64, i64)> = Vec::new();
            series
                .around
                .read(begin, begin + DAY_S, &mut |interval, row| {
                    let second = interval.begin_s - begin;
                    match found.last_mut().filter(|(_, end)| *end == second) {
                        _ if row.is_some() => {}
                        Some((_, end)) => *end += 1,
                        None => found.push((second, second + 1)),
                    }
                })
                .unwrap();
            found
        };
        for second in begin..begin + 2000 {
            series.add(second, &[(0, activity(1))]).unwrap();
            if [700, 1000].contains(&(second - begin)) {
                series.keep_around(second).unwrap();
            }
        }
        assert_eq!(spans(&series), [(100, 1601)]);
        series.close().unwrap();
        let mut series = Series::new(folder.path());
        series.keep_around(begin + 1900).unwrap();
        assert_eq!(spans(&series), [(100, 1901)]);
    }

    /// A disk whose reads and writes have latencies from 60 us to 30 ms in each minute.
    #[test]
    fn a_disk_that_is_never_idle_stays_within_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let mut minutes = Filling::new(&TIERS[2], folder.path());
        let (begin, mut random) = (1_800_000_000, 1_u64);
        for minute in 0..31 * 24 * 60 {
            let mut next = |below: u64| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % below
            };
            let mut busy = Activity {
                layers: 3,
                longest_us: 20_000 + next(50_000),
                flushes: next(600),
                ..Activity::default()
            };
            for requests in [&mut busy.reads, &mut busy.writes] {
                for (at, count) in requests.latencies[5..36].iter_mut().enumerate() {
                    *count = next(30_000 / (at as u64 * at as u64 + 1) + 1) as u32;
                }
                requests.count = requests.latencies.iter().map(|&n| u64::from(n)).sum();
                (requests.bytes, requests.host_count) =
                    (requests.count * 4096 + 512 * next(900), requests.count + next(90));
                requests.host_bytes = requests.host_count * 4096;
            }
            minutes.add(begin + minute * 60, &[(0, busy)]).unwrap();
        }
        minutes.close().unwrap();
        let files =
            std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len());
        let bytes: u64 = files.sum();
        let mut kept = 0;
        minutes.read(begin, begin + 31 * DAY_S, &mut |_, row| kept += i64::from(row.is_none())).unwrap();
        println!("{bytes} bytes for {} days", kept / 24 / 60);
        assert!(bytes <= TIERS[2].bytes && kept > 7 * 24 * 60, "{bytes} bytes, {kept} minutes");
    }

    #[test]
    fn time_without_a_look_is_not_observed_and_an_idle_disk_is() {
        let folder = tempfile::tempdir().unwrap();
        let mut series = Series::new(folder.path());
        for second in (1000..1100).chain(5000..5100) {
            series.add(second, &[(0, activity(u64::from(second == 1050)))]).unwrap();
        }
        assert_eq!(sum(&series, 0, 10_000), (200, 1));
        // A look that comes late has seen the seconds before it.
        series.add(5103, &[(0, activity(5))]).unwrap();
        assert_eq!(sum(&series, 5000, 6000), (104, 5));
        // The clock goes back.
        series.add(1020, &[(0, activity(7))]).unwrap();
        assert_eq!(sum(&series, 5000, 6000), (104, 5));
    }
}
