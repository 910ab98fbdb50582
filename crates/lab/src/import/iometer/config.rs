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
#[derive(Debug)]
struct Spec {
    access: Access,
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

/// Reads a configuration. Workers without a specification of their own get, in turn, the one with their name, or the
/// first.
pub(crate) fn read(lines: &mut Lines<'_>, skips: &mut Skips) -> Workload {
    let mut config = Config::default();
    let mut title = String::new();
    while let Some((number, line)) = lines.next() {
        if let Some(words) = line.strip_prefix('\'') {
            title = words.trim().to_owned();
        } else if !line.trim().is_empty() && config.take(&title, line.trim()).is_none() {
            skips.at(number, format!("not understood: {:?}", text(line)));
        }
    }
    config.into_workload(skips)
}

impl Config {
    /// Reads one line of data; None where it makes no sense. Lines below other titles are of no use.
    fn take(&mut self, title: &str, line: &str) -> Option<()> {
        let first = || line.split(',').next().unwrap_or_default().trim().to_owned();
        match title {
            "Worker" if self.workers.len() < WORKERS_MAX => {
                let name = text(line);
                self.workers.push(Found { name, is_disk: true, outstanding: 1, ..Found::default() });
            }
            "Worker" => return None,
            t if t.starts_with("Access specification name") => self.begin_spec(line),
            t if t.starts_with("size,% of size") => {
                let spec = spec(line)?;
                let lines = self.specs.entry(self.spec.clone()).or_default();
                (lines.len() < ACCESS_LINES_MAX).then(|| lines.push(spec))?;
            }
            t if t.starts_with("Worker type") => {
                self.workers.last_mut()?.is_disk = first().eq_ignore_ascii_case("DISK");
            }
            t if t.starts_with("Number of outstanding IOs") => {
                self.workers.last_mut()?.outstanding = first().parse().ok()?;
            }
            t if t.starts_with("Disk maximum size") => {
                let mut numbers = line.split(',').map(|n| n.trim().parse().ok());
                let worker = self.workers.last_mut()?;
                (worker.sectors, worker.first_sector) = (numbers.next()??, numbers.next()??);
            }
            t if t.starts_with("Target assignments") || t.starts_with("Target type") => {}
            t if t.starts_with("Target") => self.workers.last_mut()?.targets += 1,
            t if t.starts_with("Assigned access spec") => {
                let assigned = &mut self.workers.last_mut()?.assigned;
                (assigned.len() < ACCESS_LINES_MAX).then(|| assigned.push(text(line)))?;
            }
            _ => {}
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
    let access = Access {
        percent: percentage(percent)?,
        block_bytes: u32::try_from(size).ok()?,
        read_percent: percentage(reads)?,
        random_percent: percentage(random)?,
    };
    let (burst, align) = (u32::try_from(burst).ok()?.max(1), u32::try_from(align).ok()?);
    Some(Spec { access, delay_ms, burst, align })
}

/// Converts a worker. The line with the largest share is the worker's own; the others are its mix.
fn worker(found: &Found, name: &str, specs: &[Spec], skips: &mut Skips) -> Option<Worker> {
    let (own, main) = specs.iter().enumerate().rev().max_by_key(|(_, spec)| spec.access.percent)?;
    let others = specs.iter().enumerate().filter(|(n, spec)| *n != own && spec.access.percent > 0);
    let mix = others.map(|(_, spec)| spec.access.clone()).collect();
    if found.outstanding > OUTSTANDING_MAX {
        skips.file(format!(
            "worker {}: {} outstanding I/Os, {OUTSTANDING_MAX} taken",
            found.name, found.outstanding
        ));
    }
    if found.targets > 1 {
        skips.file(format!("worker {}: {} targets, one taken", found.name, found.targets));
    }
    let name = if found.name == name { name } else { &format!("{} ({name})", found.name) };
    Some(Worker {
        random_percent: main.access.random_percent,
        delay_us: main.delay_ms.saturating_mul(1_000),
        burst: main.burst,
        outstanding: found.outstanding.clamp(1, OUTSTANDING_MAX),
        align_bytes: main.align,
        first_byte: found.first_sector.saturating_mul(SECTOR),
        working_set_bytes: found.sectors.saturating_mul(SECTOR),
        mix,
        ..Worker::random(name, main.access.block_bytes, main.access.read_percent)
    })
}
