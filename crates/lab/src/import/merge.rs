//! Merges files of one occasion into one record: samples of esxtop, stuns of vmware.log, and lost pings. They are
//! merged if their clocks show that they overlap. fio's logs of one job are parts of the same intervals.

use std::collections::BTreeMap;

use super::{EVENTS_MAX, text};
use crate::report::extent;
use crate::run::{Beat, Mark, Record, Sample, Spread, Stun};

/// Merges each record of events alone into every record of samples whose time it overlaps; without one it stays
/// separate. The order is that of the samples, then that of the events.
pub fn merge(records: Vec<Record>) -> Vec<Record> {
    let (mut sampled, events): (Vec<_>, Vec<_>) =
        joined_logs(records).into_iter().partition(|r| !has_events_alone(r));
    let mut alone: Vec<Record> = Vec::new();
    for event in events {
        let mut met = false;
        for record in sampled.iter_mut().filter(|record| meets(record, &event)) {
            add_events(record, &event);
            met = true;
        }
        if met {
            continue;
        }
        match alone.iter_mut().find(|record| meets(record, &event)) {
            Some(record) => add_events(record, &event),
            None => alone.push(event),
        }
    }
    sampled.extend(alone);
    sampled
}

fn has_events_alone(record: &Record) -> bool {
    record.samples.is_empty() && !(record.beats.is_empty() && record.stuns.is_empty())
}

/// Returns begin and end in calendar time; None where the begin is unknown.
fn calendar(record: &Record) -> Option<(i64, i64)> {
    let (begin, end) = extent(record);
    let at = |us| record.began_unix_us.checked_add_unsigned(us);
    Some((at(begin)?, at(end)?)).filter(|_| record.began_unix_us != 0)
}

fn meets(one: &Record, other: &Record) -> bool {
    calendar(one).zip(calendar(other)).is_some_and(|(a, b)| a.0 <= b.1 && b.0 <= a.1)
}

/// Adds the events of another record. Events from before the record's begin are left out.
fn add_events(record: &mut Record, event: &Record) {
    let apart = event.began_unix_us.saturating_sub(record.began_unix_us);
    let shifted = |us: u64| us.checked_add_signed(apart);
    let space = |len: usize| EVENTS_MAX.saturating_sub(len);
    let stuns = event.stuns.iter().filter_map(|s| Some(Stun { at_us: shifted(s.at_us)?, ..s.clone() }));
    record.stuns.extend(stuns.take(space(record.stuns.len())));
    let beats = event.beats.iter().filter_map(|b| Some(Beat { at_us: shifted(b.at_us)?, ..*b }));
    record.beats.extend(beats.take(space(record.beats.len())));
    let marks = event.marks.iter().filter_map(|m| Some(Mark { at_us: shifted(m.at_us)?, ..m.clone() }));
    record.marks.extend(marks.take(space(record.marks.len())));
    record.stuns.sort_by_key(|stun| stun.at_us);
    record.beats.sort_by_key(|beat| beat.at_us);
    record.marks.sort_by_key(|mark| mark.at_us);
    describe(record, event);
}

fn describe(record: &mut Record, other: &Record) {
    record.source = format!("{}, {}", record.source, text(&other.experiment));
    record.command = format!("{} {}", record.command, text(&other.experiment));
    record.rows.extend(other.rows.iter().cloned());
    record.notes.extend(other.notes.iter().map(|note| format!("{}: {note}", text(&other.experiment))));
}

/// Joins the logs of one job, such as `job_iops.1.log` and `job_clat.1.log`.
fn joined_logs(records: Vec<Record>) -> Vec<Record> {
    let mut jobs: BTreeMap<String, usize> = BTreeMap::new();
    let mut out: Vec<Record> = Vec::new();
    for record in records {
        let job = super::fio::log::job(&record.experiment).filter(|_| record.title == super::fio::log::TITLE);
        match job.as_ref().and_then(|job| jobs.get(job)) {
            Some(place) => join_samples(&mut out[*place], record),
            None => {
                jobs.extend(job.map(|job| (job, out.len())));
                out.push(record);
            }
        }
    }
    out
}

fn join_samples(record: &mut Record, other: Record) {
    describe(record, &other);
    let samples = std::mem::take(&mut record.samples);
    let mut by_time: BTreeMap<u64, Sample> = samples.into_iter().map(|s| (s.at_us, s)).collect();
    for sample in other.samples {
        let has_space = by_time.len() < super::SAMPLES_MAX;
        match by_time.get_mut(&sample.at_us) {
            Some(there) => join(there, &sample),
            None if has_space => _ = by_time.insert(sample.at_us, sample),
            None => {}
        }
    }
    record.samples = by_time.into_values().collect();
}

/// Joins two samples of one interval. Each log has some of the fields, so the larger value of each field is kept.
fn join(there: &mut Sample, other: &Sample) {
    let count = |a: &mut u64, b: u64| *a = (*a).max(b);
    count(&mut there.reads, other.reads);
    count(&mut there.writes, other.writes);
    count(&mut there.read_bytes, other.read_bytes);
    count(&mut there.written_bytes, other.written_bytes);
    let spread = |a: &mut Spread, b: &Spread| {
        if a.mean_us < b.mean_us {
            *a = *b;
        }
    };
    spread(&mut there.read_latency, &other.read_latency);
    spread(&mut there.write_latency, &other.write_latency);
}

#[cfg(test)]
mod tests {
    use super::super::base;
    use super::*;

    fn record(name: &str, began_s: i64) -> Record {
        Record { began_unix_us: began_s * 1_000_000, ..base::record(name, "t") }
    }

    fn sample(at_s: u64) -> Sample {
        Sample { at_us: at_s * 1_000_000, interval_us: 1_000_000, reads: 1, ..Sample::default() }
    }

    #[test]
    fn events_go_to_the_samples_of_their_time() {
        let mut esxtop = record("esxtop.csv", 1_000);
        esxtop.samples = (0..100).map(sample).collect();
        let mut log = record("vmware.log", 1_050);
        log.stuns.push(Stun { at_us: 1_000_000, stun_us: 5, disk: None, cause: "c".into() });
        let mut pings = record("ping.txt", 990);
        pings.beats = (0..30).map(|n| Beat { at_us: n * 1_000_000, lost: n == 12 }).collect();
        let later = Record { began_unix_us: 9_000_000_000, ..log.clone() };
        let merged = merge(vec![log.clone(), esxtop, pings, later]);
        assert_eq!(merged.len(), 2, "one of another day stays alone");
        let one = &merged[0];
        assert_eq!(one.stuns[0].at_us, 51_000_000);
        assert_eq!((one.beats.len(), one.beats[2]), (20, Beat { at_us: 2_000_000, lost: true }));
        assert!(one.source.contains("esxtop.csv") && one.source.contains("vmware.log"));
    }

    #[test]
    fn logs_of_one_job_are_one_record() {
        let read = |name: &str, text: &str| {
            super::super::import(name, &mut text.as_bytes(), &Default::default()).unwrap().records.remove(0)
        };
        let iops = read("dir/job_iops.1.log", "1000, 510, 0, 0, 0\n");
        let latency = read("dir/job_clat.1.log", "1000, 700000, 0, 0, 0\n2000, 100, 1, 0, 0\n");
        let other = read("dir/else_iops.1.log", "1000, 7, 0, 0, 0\n");
        let merged = merge(vec![iops, other, latency]);
        assert_eq!(merged.len(), 2);
        let samples = &merged[0].samples;
        assert_eq!((samples.len(), samples[0].reads, samples[0].read_latency.mean_us), (2, 510, 700.0));
    }
}
