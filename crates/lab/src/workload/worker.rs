use std::ops::Range;

use blk::SECTOR;
use serde::{Deserialize, Serialize};

/// Most I/Os that one worker may have under way. IOmeter's and fio's largest useful depth is an NVMe queue of 1024
/// entries.
pub const OUTSTANDING_MAX: u32 = 1024;
/// Largest request that the NBD front end accepts, bytes.
pub const BLOCK_BYTES_MAX: u32 = 32 << 20;

/// Longest delay or interval, microseconds: a year, as for the steps of a protocol.
const INTERVAL_US_MAX: u64 = 366 * 86_400 * 1_000_000;

/// When a worker issues its next I/O.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Pacing {
    /// After a delay from the completion of an earlier I/O of its own, as in IOmeter.
    #[default]
    Closed,
    /// At fixed times, independently of completions. An I/O that cannot be issued in time waits, and its latency counts
    /// from when it was due. fio does this with a rate and an ignored think time.
    Open { interval_us: u64 },
}

/// Another line of an access specification, with its share of the worker's I/Os.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// Share of the worker's I/Os.
    pub percent: u8,
    pub block_bytes: u32,
    pub read_percent: u8,
    pub random_percent: u8,
}

/// One thread of load on one disk: IOmeter's worker, fio's job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    pub name: String,
    /// Index among the subject's disks, from 0.
    #[serde(default)]
    pub disk: u32,
    pub block_bytes: u32,
    /// Share of reads, decided for each I/O; the rest are writes.
    pub read_percent: u8,
    /// Share of random places, decided for each run of I/Os. The others begin where the previously issued I/O ended.
    pub random_percent: u8,
    /// Consecutive I/Os from each random place, as with fio's `randread:8`.
    #[serde(default = "one")]
    pub sequential_run: u32,
    /// Delay before each burst, while I/Os complete.
    #[serde(default)]
    pub delay_us: u64,
    /// I/Os issued without a delay between them.
    #[serde(default = "one")]
    pub burst: u32,
    /// Most I/Os under way.
    #[serde(default = "one")]
    pub outstanding: u32,
    /// Alignment of I/Os. 0: one sector, as in IOmeter.
    #[serde(default)]
    pub align_bytes: u32,
    /// Begin of the worker's part of the disk. IOmeter: starting sector.
    #[serde(default)]
    pub first_byte: u64,
    /// Length of the worker's part. 0: until the end of the disk. IOmeter: maximum disk size.
    #[serde(default)]
    pub working_set_bytes: u64,
    #[serde(default)]
    pub pacing: Pacing,
    /// Interval between flushes of the disk while the load runs, as the journal of a guest's file system sends them.
    /// 0: none.
    #[serde(default)]
    pub flush_interval_us: u64,
    /// Other sizes and ratios among its I/Os; the fields above apply to the rest of the 100 percent.
    #[serde(default)]
    pub mix: Vec<Access>,
}

fn one() -> u32 {
    1
}

impl Worker {
    /// Returns a worker with random I/O on the whole first disk, one at a time.
    pub fn random(name: &str, block_bytes: u32, read_percent: u8) -> Worker {
        Worker {
            name: name.to_string(),
            disk: 0,
            block_bytes,
            read_percent,
            random_percent: 100,
            sequential_run: 1,
            delay_us: 0,
            burst: 1,
            outstanding: 1,
            align_bytes: 0,
            first_byte: 0,
            working_set_bytes: 0,
            pacing: Pacing::Closed,
            flush_interval_us: 0,
            mix: Vec::new(),
        }
    }

    /// Returns a worker with random I/O, each at a multiple of its size.
    pub fn aligned(name: &str, block_bytes: u32, read_percent: u8, outstanding: u32) -> Worker {
        Worker { outstanding, align_bytes: block_bytes, ..Worker::random(name, block_bytes, read_percent) }
    }

    /// Returns the bytes that the worker reads and writes on a disk of that size.
    pub fn range(&self, disk_bytes: u64) -> Range<u64> {
        let end = match self.working_set_bytes {
            0 => disk_bytes / SECTOR * SECTOR,
            bytes => self.first_byte.saturating_add(bytes),
        };
        self.first_byte..end
    }

    /// Returns the distance between the places of random I/Os, bytes.
    pub fn step_bytes(&self) -> u64 {
        match self.align_bytes {
            0 => SECTOR,
            bytes => u64::from(bytes),
        }
    }

    /// Returns the size of its largest I/O.
    pub fn largest_bytes(&self) -> u32 {
        self.mix.iter().map(|access| access.block_bytes).fold(self.block_bytes, u32::max)
    }

    pub(super) fn check(&self, disk_bytes: u64) -> Result<(), String> {
        self.check_access()?;
        let within = |name: &str, value: u32, most: u32| match (1..=most).contains(&value) {
            true => Ok(()),
            false => Err(format!("{name} = {value}: 1 to {most} are possible")),
        };
        within("outstanding", self.outstanding, OUTSTANDING_MAX)?;
        within("burst", self.burst, u32::MAX)?;
        within("sequential_run", self.sequential_run, u32::MAX)?;
        if !self.step_bytes().is_multiple_of(SECTOR) {
            return Err(format!("align_bytes = {}: not a multiple of {SECTOR}", self.align_bytes));
        }
        let interval_us = match self.pacing {
            Pacing::Closed => 0,
            Pacing::Open { interval_us } => interval_us,
        };
        let times = [
            ("delay_us", self.delay_us),
            ("pacing: interval_us", interval_us),
            ("flush_interval_us", self.flush_interval_us),
        ];
        if let Some((name, us)) = times.iter().find(|(_, us)| *us > INTERVAL_US_MAX) {
            return Err(format!("{name} = {us}: at most {INTERVAL_US_MAX} are possible"));
        }
        if self.pacing == (Pacing::Open { interval_us: 0 }) {
            return Err("pacing: an interval of 0 us is no pace; leave it out for as fast as possible".into());
        }
        self.check_range(disk_bytes)
    }

    fn check_access(&self) -> Result<(), String> {
        let own = Access {
            percent: 100,
            block_bytes: self.block_bytes,
            read_percent: self.read_percent,
            random_percent: self.random_percent,
        };
        for access in self.mix.iter().chain([&own]) {
            let Access { percent, block_bytes, read_percent, random_percent } = *access;
            if !(1..=BLOCK_BYTES_MAX).contains(&block_bytes) || !u64::from(block_bytes).is_multiple_of(SECTOR)
            {
                return Err(format!(
                    "block_bytes = {block_bytes}: multiples of {SECTOR} until {BLOCK_BYTES_MAX} are possible"
                ));
            }
            if let Some(percent) = [percent, read_percent, random_percent].iter().find(|p| **p > 100) {
                return Err(format!("{percent} percent: 0 to 100 are possible"));
            }
        }
        match self.mix.iter().map(|access| u32::from(access.percent)).sum::<u32>() {
            0..=100 => Ok(()),
            sum => Err(format!("mix: its shares are {sum} percent together, at most 100")),
        }
    }

    fn check_range(&self, disk_bytes: u64) -> Result<(), String> {
        let range = self.range(disk_bytes);
        if !range.start.is_multiple_of(SECTOR) || !range.end.is_multiple_of(SECTOR) {
            return Err(format!("bytes {}..{}: not multiples of {SECTOR}", range.start, range.end));
        }
        if range.end > disk_bytes {
            return Err(format!("works until byte {}, its disk has {disk_bytes}", range.end));
        }
        let largest = u64::from(self.largest_bytes());
        let len = range.end.saturating_sub(range.start.next_multiple_of(self.step_bytes()));
        if len < largest {
            return Err(format!("works on {len} bytes, and has I/Os of {largest}"));
        }
        Ok(())
    }
}
