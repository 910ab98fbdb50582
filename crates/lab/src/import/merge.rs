//! Merges files of one occasion into one record: samples of esxtop, stuns of vmware.log, and lost pings. They are
//! merged if their clocks show that they overlap. fio's logs of one job are parts of the same intervals.
//!
//! Measurements of the same kind are never added: two files that overlap stay apart, with a message.

use std::collections::BTreeMap;

use super::base::{at_clock, same_name, vm_of};
use super::{EVENTS_MAX, text};
use crate::report::extent;
use crate::run::{Beat, Mark, Record, Sample, Spread, Stun};

/// The records, and what was not merged and why.
#[derive(Debug, Default)]
pub struct Merged {
    pub records: Vec<Record>,
    pub messages: Vec<String>,
}

/// Merges each record of events alone into the records of samples whose time it overlaps, if they are of the same VM;
/// without one it stays separate. The order is that of the samples, then that of the events.
pub fn merge(records: Vec<Record>) -> Merged {
    let (sampled, mut events): (Vec<_>, Vec<_>) =
        joined_logs(records).into_iter().partition(|r| !has_events_alone(r));
    let mut messages = overlaps(&sampled);
    let mut merged = Merged { records: sampled, messages: Vec::new() };
    let samples = merged.records.len();
    events.sort_by_key(|event| event.began_unix_us);
    for event in events {
        let (mut targets, said) = targets(&merged.records[..samples], &event);
        messages.extend(said);
        if targets.is_empty() {
            let alone = merged.records.iter().enumerate().skip(samples);
            targets = alone.filter(|(_, record)| meets(record, &event)).map(|(n, _)| n).take(1).collect();
        }
        let fits = |record: &Record| is_of_same_vm(record, &event) && !is_counted_twice(record, &event);
        let (fitting, others): (Vec<_>, Vec<_>) =
            targets.into_iter().partition(|n| fits(&merged.records[*n]));
        messages.extend(others.into_iter().map(|n| told_apart(&merged.records[n], &event)));
        fitting.iter().for_each(|n| add_events(&mut merged.records[*n], &event));
        if fitting.is_empty() {
            merged.records.push(event);
        }
    }
    for message in messages {
        if !merged.messages.contains(&message) {
            merged.messages.push(message);
        }
    }
    merged
}

fn has_events_alone(record: &Record) -> bool {
    record.samples.is_empty() && !(record.beats.is_empty() && record.stuns.is_empty())
}

/// Returns the records of samples that the event's file may belong to, by time; and a message where a file has several
/// VMs and the event does not name its own.
fn targets(sampled: &[Record], event: &Record) -> (Vec<usize>, Option<String>) {
    let met: Vec<usize> = (0..sampled.len()).filter(|n| meets(&sampled[*n], event)).collect();
    let of_file = |n: usize| met.iter().filter(move |m| sampled[**m].experiment == sampled[n].experiment);
    let names = |n: usize| vm_of(&sampled[n]).zip(vm_of(event)).is_some_and(|(a, b)| same_name(a, b));
    let (alone, shared): (Vec<usize>, Vec<usize>) = met.iter().partition(|n| of_file(**n).count() == 1);
    let named: Vec<usize> = shared.iter().copied().filter(|n| names(*n)).collect();
    let said = shared.first().filter(|_| named.is_empty()).map(|n| {
        let (ours, file, count) =
            (text(&event.experiment), text(&sampled[*n].experiment), of_file(*n).count());
        match vm_of(event) {
            Some(vm) => format!("{ours}: of VM {vm}, which is none of the {count} series of {file}"),
            None => {
                format!("{ours}: does not name its VM, and {file} has {count} series; --vm PART selects one")
            }
        }
    });
    (alone.into_iter().chain(named).collect(), said)
}

/// Returns whether the names of both VMs agree, or one of them is unknown.
fn is_of_same_vm(one: &Record, other: &Record) -> bool {
    vm_of(one).zip(vm_of(other)).is_none_or(|(a, b)| same_name(a, b))
}

/// Returns whether both have events of one kind at the same time.
fn is_counted_twice(record: &Record, event: &Record) -> bool {
    let stuns = |r: &Record| spread(r, r.stuns.iter().map(|s| (s.at_us, s.at_us.saturating_add(s.stun_us))));
    let beats = |r: &Record| spread(r, r.beats.iter().map(|b| (b.at_us, b.at_us)));
    let overlap =
        |a: Option<(i64, i64)>, b| a.zip(b).is_some_and(|(a, b): (_, (i64, i64))| a.0 < b.1 && b.0 < a.1);
    overlap(stuns(record), stuns(event)) || overlap(beats(record), beats(event))
}

/// Returns the first begin and the last end in calendar time.
fn spread(record: &Record, times: impl Iterator<Item = (u64, u64)>) -> Option<(i64, i64)> {
    let (begin, end) = times.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
    let at = |us| record.began_unix_us.checked_add_unsigned(us);
    Some((at(begin)?, at(end)?))
}

fn told_apart(record: &Record, event: &Record) -> String {
    let (ours, theirs) = (text(&event.experiment), text(&record.source));
    match vm_of(event).zip(vm_of(record)) {
        Some((a, b)) if !same_name(a, b) => {
            format!("{ours}: of VM {a}, so not merged with VM {b} ({theirs})")
        }
        _ => format!(
            "{ours}: overlaps in time with the same kind of events ({theirs}); both are shown, nothing is added"
        ),
    }
}

/// Returns a message for each pair of files that may have counted the same I/O at the same time.
fn overlaps(sampled: &[Record]) -> Vec<String> {
    let spans: Vec<_> = sampled.iter().map(|record| (record, calendar(record))).collect();
    let mut messages = Vec::new();
    for (n, (one, a)) in spans.iter().enumerate() {
        for (other, b) in &spans[n + 1..] {
            let common = a.zip(*b).map(|(a, b)| (a.0.max(b.0), a.1.min(b.1)));
            let Some((from, to)) = common.filter(|(from, to)| from < to) else { continue };
            if one.experiment == other.experiment || !is_of_same_vm(one, other) {
                continue;
            }
            let vm = vm_of(one).filter(|_| vm_of(other).is_some());
            let what = vm.map_or("may measure the same disk".into(), |vm| format!("both measure VM {vm}"));
            let (one, other) = (text(&one.experiment), text(&other.experiment));
            let (from, to) = (at_clock(from), at_clock(to));
            messages.push(format!(
                "{one} and {other} {what}, from {from} to {to}: each is a series of its own, nothing is added"
            ));
        }
    }
    messages
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
        let Merged { records: merged, messages } = merge(vec![log.clone(), esxtop, pings, later]);
        assert_eq!(merged.len(), 2, "one of another day stays alone");
        assert_eq!(messages, [""; 0]);
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
        let merged = merge(vec![iops, other, latency]).records;
        assert_eq!(merged.len(), 2);
        let samples = &merged[0].samples;
        assert_eq!((samples.len(), samples[0].reads, samples[0].read_latency.mean_us), (2, 510, 700.0));
    }

    fn of_vm(record: Record, vm: &str) -> Record {
        Record { machine: vec![base::vm(vm)], subject: vm.into(), ..record }
    }

    fn stun(name: &str, began_s: i64, at_s: &[u64]) -> Record {
        let stun = |s: &u64| Stun { at_us: s * 1_000_000, stun_us: 5, disk: None, cause: "c".into() };
        Record { stuns: at_s.iter().map(stun).collect(), ..record(name, began_s) }
    }

    fn samples(name: &str, began_s: i64) -> Record {
        Record { samples: (0..100).map(sample).collect(), ..record(name, began_s) }
    }

    /// Returns the stuns of each record, and all messages.
    fn stuns(records: Vec<Record>) -> (Vec<usize>, String) {
        let Merged { records, messages } = merge(records);
        (records.iter().map(|record| record.stuns.len()).collect(), messages.join("\n"))
    }

    #[test]
    fn stuns_go_to_their_own_vm() {
        let esxtop = |vm| of_vm(samples("esxtop.csv", 1_000), vm);
        let log = stun("vmware.log", 1_050, &[1]);
        let both = || vec![esxtop("SQL01 (104c07ff-3663-44fb-9d89-a563c801611c)"), esxtop("web")];
        let with = |log: Record| stuns(both().into_iter().chain([log]).collect());
        assert_eq!(with(of_vm(log.clone(), "sql01")), (vec![1, 0], String::new()));
        let (counts, said) = with(log.clone());
        assert_eq!(counts, [0, 0, 1]);
        assert!(said.contains("esxtop.csv has 2 series; --vm PART"), "{said}");
        let (counts, said) = with(of_vm(log.clone(), "db"));
        assert_eq!(counts, [0, 0, 1]);
        assert!(said.contains("of VM db, which is none of the 2 series"), "{said}");
        let (counts, said) = stuns(vec![esxtop("web"), of_vm(log, "db")]);
        assert_eq!(counts, [0, 1]);
        assert!(said.contains("of VM db, so not merged with VM web"), "{said}");
    }

    #[test]
    fn what_was_counted_twice_is_told_and_not_added() {
        let (counts, said) = stuns(vec![
            samples("esxtop.csv", 1_000),
            stun("vmware.log", 1_000, &[10, 20]),
            stun("copy.log", 1_000, &[10, 20]),
            stun("vmware-1.log", 1_000, &[2, 9]),
        ]);
        assert_eq!(counts, [4, 2], "a rotated log continues, a copy does not");
        assert!(said.starts_with("copy.log: overlaps in time") && !said.contains("vmware-1.log: "), "{said}");

        let merged =
            merge(vec![of_vm(samples("a.csv", 1_000), "web"), of_vm(samples("b.csv", 1_050), "WEB")]);
        assert_eq!(merged.records.len(), 2);
        let expected =
            "a.csv and b.csv both measure VM web, from 1970-01-01T00:17:30Z to 1970-01-01T00:18:20Z";
        assert!(merged.messages[0].starts_with(expected), "{:?}", merged.messages);
        let said = |a, b| merge(vec![a, b]).messages.join("");
        assert_eq!(said(of_vm(samples("a.csv", 1_000), "web"), of_vm(samples("b.csv", 1_000), "db")), "");
        assert_eq!(said(samples("a.csv", 1_000), samples("b.csv", 1_100)), "");
        assert!(said(samples("a.csv", 1_000), samples("b.csv", 1_099)).contains("may measure the same disk"));
    }
}
