//! Statistics of vCenter as PowerCLI writes them (`Get-Stat | Export-Csv`): one line for each value of each counter.

use std::collections::{BTreeMap, BTreeSet};

use super::fields::Fields;
use super::number::{self, Ambiguous};
use super::{Lines, SAMPLES_MAX, SERIES_MAX, Selection, Skips, base, text};
use crate::run::{Fact, Record, Sample, Spread};

const COLUMNS: [&str; 6] = ["Entity", "MetricId", "Timestamp", "Value", "IntervalSecs", "Instance"];
const ENTITY: usize = 0;
const METRIC: usize = 1;
const TIME: usize = 2;
const VALUE: usize = 3;
const INTERVAL: usize = 4;
const INSTANCE: usize = 5;
/// Longest interval of a statistic: a day, that of vCenter's past year.
const INTERVAL_S_MAX: f64 = 86_400.0;

/// Groups of counters of the same I/O, the finest first. They are alternatives, and not added.
const GROUPS: [&str; 3] = ["virtualdisk", "datastore", "disk"];

/// What a counter gives: an index into the values of an interval, and the factor to I/Os or bytes a second, or to
/// microseconds. `None` as a factor is a count within the interval.
const COUNTERS: [(&str, usize, Option<f64>); 8] = [
    ("numberreadaveraged.average", READS, Some(1.0)),
    ("numberwriteaveraged.average", WRITES, Some(1.0)),
    ("numberread.summation", READS, None),
    ("numberwrite.summation", WRITES, None),
    ("read.average", READ_BYTES, Some(1024.0)),
    ("write.average", WRITE_BYTES, Some(1024.0)),
    ("totalreadlatency.average", READ_LATENCY, Some(1e3)),
    ("totalwritelatency.average", WRITE_LATENCY, Some(1e3)),
];
const READS: usize = 0;
const WRITES: usize = 1;
const READ_BYTES: usize = 2;
const WRITE_BYTES: usize = 3;
const READ_LATENCY: usize = 4;
const WRITE_LATENCY: usize = 5;

/// Rates and latencies of one disk in one interval.
type Values = [f64; 6];

/// End of an interval in both orders of a date, its length, and the disk; empty for all disks of the VM together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    month_first: Option<i64>,
    day_first: Option<i64>,
    interval_us: u64,
    instance: String,
}

/// The values of a VM in one group of counters.
type Group = BTreeMap<Key, Values>;

pub(super) fn is_header(line: &str) -> bool {
    ["MetricId", "Entity", "IntervalSecs"].iter().all(|name| line.contains(name))
}

pub(super) fn read(
    name: &str,
    lines: &mut Lines<'_>,
    selection: &Selection,
    skips: &mut Skips,
) -> Vec<Record> {
    let mut fields = Fields::default();
    let mut places = None;
    let mut vms: BTreeMap<String, BTreeMap<usize, Group>> = BTreeMap::new();
    let mut kept = 0;
    while let Some((number, line)) = lines.next() {
        let separator = if line.contains(';') { b';' } else { b',' };
        match &places {
            // Windows' shell writes the type of the objects first.
            None if is_header(line) => {
                fields.split(line, separator);
                places = Some(COLUMNS.map(|name| fields.iter().position(|field| field == name)));
            }
            None => {}
            Some(places) if !line.trim().is_empty() => {
                fields.split(line, separator);
                let get = |column: usize| places[column].map_or("", |place| fields.get(place));
                if !is_selected(&get, selection) {
                    continue;
                }
                match value(&get) {
                    None => skips.at(number, format!("no statistic of a disk: {:?}", text(line))),
                    _ if kept >= SAMPLES_MAX => skips.at(number, "there are too many values"),
                    Some(_) if vms.len() >= SERIES_MAX && !vms.contains_key(get(ENTITY)) => {
                        skips.at(
                            number,
                            format!("a VM beyond the first {SERIES_MAX}; --vm PART selects others"),
                        );
                    }
                    Some((group, key, role, value)) => {
                        kept += 1;
                        let groups = vms.entry(text(get(ENTITY))).or_default();
                        groups.entry(group).or_default().entry(key).or_default()[role] = value;
                    }
                }
            }
            Some(_) => {}
        }
    }
    vms.into_iter().map(|(vm, groups)| record(name, &vm, groups, skips)).collect()
}

fn is_selected<'a>(get: &impl Fn(usize) -> &'a str, selection: &Selection) -> bool {
    let Selection { vm, disk, counter } = selection;
    [(vm, ENTITY), (disk, INSTANCE), (counter, METRIC)].iter().all(|(part, column)| {
        part.as_ref().is_none_or(|part| get(*column).to_lowercase().contains(&part.to_lowercase()))
    })
}

/// Returns the group, the interval and disk, the role and the value of a line. None for other counters, and without a
/// time or a number.
fn value<'a>(get: &impl Fn(usize) -> &'a str) -> Option<(usize, Key, usize, f64)> {
    let metric = get(METRIC).to_lowercase();
    let (group, counter) = metric.split_once('.')?;
    let group = GROUPS.iter().position(|name| *name == group)?;
    let (_, role, factor) = *COUNTERS.iter().find(|(name, ..)| *name == counter)?;
    let seconds = number::parse(get(INTERVAL)).filter(|s| (1.0..=INTERVAL_S_MAX).contains(s))?;
    let value = number::parse(get(VALUE)).filter(|value| *value >= 0.0)?;
    let Ambiguous { month_first, day_first } = number::date_time(get(TIME));
    let key =
        Key { month_first, day_first, interval_us: (seconds * 1e6) as u64, instance: text(get(INSTANCE)) };
    (month_first.is_some() || day_first.is_some())
        .then(|| (group, key, role, value * factor.unwrap_or(1.0 / seconds)))
}

fn record(name: &str, vm: &str, groups: BTreeMap<usize, Group>, skips: &mut Skips) -> Record {
    let mut record = base::record(name, "Statistics of vCenter");
    record.subject = vm.into();
    record.machine.push(base::vm(vm));
    let others: Vec<&str> = groups.keys().skip(1).map(|group| GROUPS[*group]).collect();
    if !others.is_empty() {
        skips.file(format!("{vm}: counters of {}, which have the same I/O", others.join(", ")));
    }
    let (group, mut values) = groups.into_iter().next().unwrap_or_default();
    let disks: BTreeSet<String> = values.keys().map(|key| key.instance.clone()).collect();
    // A value without a disk is that of all disks together.
    values.retain(|key, _| disks.len() == 1 || !key.instance.is_empty());
    record
        .machine
        .push(Fact { name: "disks".into(), value: disks.into_iter().collect::<Vec<_>>().join(", ") });
    let is_day_first = values.keys().any(|key| key.month_first.is_none());
    let mut samples: BTreeMap<i64, (u64, Vec<Values>)> = BTreeMap::new();
    for (key, values) in values {
        let Some(end) = (if is_day_first { key.day_first } else { key.month_first }) else { continue };
        let begin = end.saturating_sub_unsigned(key.interval_us);
        samples.entry(begin).or_insert((key.interval_us, Vec::new())).1.push(values);
    }
    record.began_unix_us = samples.keys().next().copied().unwrap_or(0);
    let began = record.began_unix_us;
    let of = |(begin, (interval_us, disks)): (i64, (u64, Vec<Values>))| {
        sample(begin.abs_diff(began), interval_us, &disks)
    };
    record.samples = samples.into_iter().map(of).collect();
    record.notes.push(format!("Counters of {}: means of their interval.", GROUPS[group]));
    record.notes.push("Times are read as UTC; vCenter's client writes them in its own time zone.".into());
    record
}

/// Returns the disks of a VM as one interval. Latencies are weighted by their I/Os.
fn sample(at_us: u64, interval_us: u64, disks: &[Values]) -> Sample {
    let sum = |role: usize| disks.iter().map(|values| values[role]).sum::<f64>();
    let count = |role: usize| base::count(sum(role), interval_us);
    let mean = |latency: usize, ios: usize| {
        let total: f64 = disks.iter().map(|values| values[latency] * values[ios]).sum();
        let known = disks.iter().map(|values| values[latency]).fold(0.0, f64::max);
        let mean_us = if sum(ios) > 0.0 { total / sum(ios) } else { known };
        Spread { mean_us, ..Spread::default() }
    };
    Sample {
        at_us,
        interval_us,
        reads: count(READS),
        writes: count(WRITES),
        read_bytes: count(READ_BYTES),
        written_bytes: count(WRITE_BYTES),
        read_latency: mean(READ_LATENCY, READS),
        write_latency: mean(WRITE_LATENCY, WRITES),
        ..Sample::default()
    }
}
