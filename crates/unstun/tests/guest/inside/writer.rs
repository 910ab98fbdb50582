//! One write and one fdatasync every 10 ms on a disk, the gaps between them, and the check that the disk kept them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::Result;
use crate::random::Random;
use crate::wire::Gap;

const PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
const BLOCK: u64 = 4096;
/// Number of blocks: 8 MiB of every disk. They are overwritten often enough that deltas hold most of them, and few
/// enough to be read back soon.
const BLOCKS: u64 = 2048;

pub(super) struct Writer {
    disk: String,
    meter: Arc<Meter>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<std::result::Result<Written, String>>,
}

/// Counters of one disk; times are since its writer's start.
struct Meter {
    began: Instant,
    last_us: AtomicU64,
    longest_us: AtomicU64,
    writes: AtomicU64,
}

impl Meter {
    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    fn done(&self) {
        let now = self.now_us();
        self.longest_us.fetch_max(now - self.last_us.swap(now, Relaxed), Relaxed);
        self.writes.fetch_add(1, Relaxed);
    }
}

/// Content that a writer's blocks must show.
struct Written {
    file: File,
    seed: u64,
    /// For each block, the number of its last write; 0 is none.
    last: Vec<u64>,
}

impl Writer {
    /// Starts a writer. `number` distinguishes the disks' contents.
    pub(super) fn start(disk: &str, number: u64, path: &Path) -> Result<Writer> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let meter = Arc::new(Meter {
            began: Instant::now(),
            last_us: AtomicU64::new(0),
            longest_us: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        });
        let stop = Arc::new(AtomicBool::new(false));
        let written = Written { file, seed: number << 48, last: vec![0; BLOCKS as usize] };
        let (metered, stopped) = (Arc::clone(&meter), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            written.run(&metered, &stopped).map_err(|error| format!("a write failed: {error}"))
        });
        Ok(Writer { disk: disk.to_owned(), meter, stop, thread })
    }

    /// Returns the longest gap since the last call, including the current one.
    pub(super) fn gap(&self) -> Gap {
        let meter = &self.meter;
        let longest_us = meter.longest_us.swap(0, Relaxed);
        let open_us = meter.now_us().saturating_sub(meter.last_us.load(Relaxed));
        let writes = meter.writes.swap(0, Relaxed);
        Gap { disk: self.disk.clone(), longest_us: longest_us.max(open_us), writes }
    }
}

impl Written {
    fn run(mut self, meter: &Meter, stop: &AtomicBool) -> std::io::Result<Written> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::empty())?;
        let every = Itimerspec { it_interval: PERIOD, it_value: PERIOD };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &every)?;
        let mut random = Random(self.seed);
        let mut number = 0;
        while !stop.load(Relaxed) {
            // If the disk took longer than a period, the read returns at once.
            rustix::io::read(&timer, &mut [0; 8])?;
            number += 1;
            let block = random.below(BLOCKS);
            self.file.write_all_at(&self.content(block, number), block * BLOCK)?;
            self.file.sync_data()?;
            meter.done();
            self.last[block as usize] = number;
        }
        Ok(self)
    }

    /// Returns two words in every 16 bytes, which identify the write, the block and the disk.
    fn content(&self, block: u64, number: u64) -> Vec<u8> {
        let place = (self.seed | block).to_le_bytes();
        [place, number.to_le_bytes()].concat().repeat(BLOCK as usize / 16)
    }

    fn verify(&self) -> std::result::Result<u64, String> {
        let mut found = vec![0; BLOCK as usize];
        let mut verified = 0;
        for (block, number) in (0..).zip(&self.last).filter(|(_, number)| **number != 0) {
            self.file.read_exact_at(&mut found, block * BLOCK).map_err(|e| format!("block {block}: {e}"))?;
            if found != self.content(block, *number) {
                return Err(format!("block {block} does not show write {number}: {:02x?}", &found[..16]));
            }
            verified += 1;
        }
        Ok(verified)
    }
}

/// Returns the number of blocks, over all disks, that are as they were last written. They are read from the disks, not
/// from the guest's memory.
pub(super) fn stop_and_verify(writers: Vec<Writer>) -> Result<u64> {
    writers.iter().for_each(|writer| writer.stop.store(true, Relaxed));
    let mut ended = Vec::new();
    for writer in writers {
        let written = writer.thread.join().map_err(|_| "a writer panicked")?;
        ended.push((writer.disk.clone(), written.map_err(|error| format!("{}: {error}", writer.disk))?));
    }
    // All data are on the disks, so the kernel may drop its cache.
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    let mut verified = 0;
    for (disk, written) in ended {
        verified += written.verify().map_err(|error| format!("{disk}: {error}"))?;
    }
    Ok(verified)
}
