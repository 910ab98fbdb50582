//! IOmeter's configuration (.icf): workers and their access specifications, as a workload.
//!
//! A title line begins with a quote and names the fields of the following lines; data lines begin with a tab. Titles
//! are matched by their first words, because 1.1 adds columns after those of 2006.

use std::collections::BTreeMap;

use super::super::{Lines, Skips, text};
use crate::workload::{Access, OUTSTANDING_MAX, Worker, Workload};

/// Most workers and lines of specifications kept; IOmeter's own window holds far fewer.
const WORKERS_MAX: usize = 4_096;
const ACCESS_LINES_MAX: usize = 100;
const SECTOR: u64 = 512;

/// `size,% of size,% reads,% random,delay,burst,align,reply`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spec {
    size: u32,
    percent: u8,
    reads: u8,
    random: u8,
    delay_ms: u64,
    burst: u32,
    align: u32,
}

#[derive(Debug, Default)]
struct Found {
    name: String,
    is_disk: bool,
    outstanding: u32,
    sectors: u64,
    first_sector: u64,
    assigned: Vec<String>,
    targets: u32,
}

#[derive(Default)]
struct Config {
    specs: BTreeMap<String, Vec<Spec>>,
    /// Specifications that every new worker gets.
    defaults: Vec<String>,
    spec: String,
    workers: Vec<Found>,
}

/// The kind of data that a title announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Title {
    Other,
    SpecName,
    SpecLine,
    Worker,
    WorkerType,
    Outstanding,
    Size,
    Target,
    Assigned,
}

fn title(line: &str) -> Title {
    let titles = [
        ("Access specification name", Title::SpecName),
        ("size,% of size", Title::SpecLine),
        ("Worker type", Title::WorkerType),
        ("Number of outstanding IOs", Title::Outstanding),
        ("Disk maximum size", Title::Size),
        ("Target assignments", Title::Other),
        ("Target type", Title::Other),
        ("Target", Title::Target),
        ("Assigned access specs", Title::Assigned),
        ("Assigned access specifications", Title::Assigned),
    ];
    if line == "Worker" {
        return Title::Worker;
    }
    titles.into_iter().find(|(words, _)| line.starts_with(words)).map_or(Title::Other, |(_, title)| title)
}

/// Reads a configuration. Workers without a specification of their own get, in turn, the one with their name, or the
/// first.
pub(crate) fn read(lines: &mut Lines<'_>, skips: &mut Skips) -> Workload {
    let mut config = Config::default();
    let mut now = Title::Other;
    let mut number = 0;
    while let Some(line) = lines.next() {
        number += 1;
        if let Some(words) = line.strip_prefix('\'') {
            now = title(words.trim());
        } else if !line.trim().is_empty() && config.take(now, line.trim()).is_none() {
            skips.at(number, format!("not understood: {:?}", text(line)));
        }
    }
    config.into_workload(skips)
}

impl Config {
    /// Reads one line of data; None where it makes no sense.
    fn take(&mut self, title: Title, line: &str) -> Option<()> {
        let first = || line.split(',').next().unwrap_or_default().trim().to_owned();
        match title {
            Title::Other => {}
            Title::SpecName => self.begin_spec(line),
            Title::SpecLine => {
                let spec = spec(line)?;
                let lines = self.specs.entry(self.spec.clone()).or_default();
                (lines.len() < ACCESS_LINES_MAX).then(|| lines.push(spec))?;
            }
            Title::Worker => {
                (self.workers.len() < WORKERS_MAX).then(|| {
                    self.workers.push(Found {
                        name: text(line),
                        is_disk: true,
                        outstanding: 1,
                        ..Found::default()
                    });
                })?;
            }
            Title::WorkerType => self.workers.last_mut()?.is_disk = first().eq_ignore_ascii_case("DISK"),
            Title::Outstanding => self.workers.last_mut()?.outstanding = first().parse().ok()?,
            Title::Size => {
                let mut numbers = line.split(',').map(|n| n.trim().parse().ok());
                let worker = self.workers.last_mut()?;
                (worker.sectors, worker.first_sector) = (numbers.next()??, numbers.next()??);
            }
            Title::Target => self.workers.last_mut()?.targets += 1,
            Title::Assigned => {
                let assigned = &mut self.workers.last_mut()?.assigned;
                (assigned.len() < ACCESS_LINES_MAX).then(|| assigned.push(text(line)))?;
            }
        }
        Some(())
    }

    fn begin_spec(&mut self, line: &str) {
        let (name, assignment) = line.rsplit_once(',').unwrap_or((line, "NONE"));
        self.spec = text(name);
        if matches!(assignment.trim().to_ascii_uppercase().as_str(), "ALL" | "DISK") {
            self.defaults.push(self.spec.clone());
        }
    }

    fn into_workload(self, skips: &mut Skips) -> Workload {
        let mut workload = Workload::default();
        for found in &self.workers {
            if !found.is_disk {
                skips.file(format!("worker {}: not of disks", found.name));
                continue;
            }
            match self.spec_of(found) {
                Some((name, specs)) => workload.workers.extend(worker(found, name, specs, skips)),
                None => skips.file(format!("worker {}: there is no access specification for it", found.name)),
            }
        }
        workload
    }

    fn spec_of<'a>(&'a self, found: &'a Found) -> Option<(&'a str, &'a [Spec])> {
        let by_name = |name: &String| self.specs.get_key_value(name);
        let assigned = found.assigned.iter().find_map(by_name);
        let same = || self.specs.iter().find(|(name, _)| name.eq_ignore_ascii_case(&found.name));
        let default = || self.defaults.iter().find_map(by_name);
        let (name, specs) = assigned.or_else(same).or_else(default).or_else(|| self.specs.iter().next())?;
        Some((name, specs))
    }
}

fn spec(line: &str) -> Option<Spec> {
    let numbers: Vec<u64> = line.split(',').map(|n| n.trim().parse().ok()).collect::<Option<_>>()?;
    let [size, percent, reads, random, delay_ms, burst, align, ..] = numbers[..] else { return None };
    let percentage = |n: u64| u8::try_from(n).ok().filter(|n| *n <= 100);
    Some(Spec {
        size: u32::try_from(size).ok()?,
        percent: percentage(percent)?,
        reads: percentage(reads)?,
        random: percentage(random)?,
        delay_ms,
        burst: u32::try_from(burst).ok()?.max(1),
        align: u32::try_from(align).ok()?,
    })
}

/// Converts a worker. The line with the largest share is the worker's own; the others are its mix.
fn worker(found: &Found, name: &str, specs: &[Spec], skips: &mut Skips) -> Option<Worker> {
    let (own, main) = specs.iter().enumerate().rev().max_by_key(|(_, spec)| spec.percent)?;
    let others = specs.iter().enumerate().filter(|(n, spec)| *n != own && spec.percent > 0);
    let mix = others.map(|(_, spec)| Access {
        percent: spec.percent,
        block_bytes: spec.size,
        read_percent: spec.reads,
        random_percent: spec.random,
    });
    if found.outstanding > OUTSTANDING_MAX {
        skips.file(format!(
            "worker {}: {} outstanding I/Os, {OUTSTANDING_MAX} taken",
            found.name, found.outstanding
        ));
    }
    if found.targets > 1 {
        skips.file(format!("worker {}: {} targets, one taken", found.name, found.targets));
    }
    Some(Worker {
        name: if found.name == name { found.name.clone() } else { format!("{} ({name})", found.name) },
        disk: 0,
        block_bytes: main.size,
        read_percent: main.reads,
        random_percent: main.random,
        sequential_run: 1,
        delay_us: main.delay_ms.saturating_mul(1_000),
        burst: main.burst,
        outstanding: found.outstanding.clamp(1, OUTSTANDING_MAX),
        align_bytes: main.align,
        first_byte: found.first_sector.saturating_mul(SECTOR),
        working_set_bytes: found.sectors.saturating_mul(SECTOR),
        pacing: Default::default(),
        flush_interval_us: 0,
        mix: mix.collect(),
    })
}
