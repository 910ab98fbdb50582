//! Files that are made, renamed and removed continuously, and the check of what must remain after a reset.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use super::Result;
use crate::random::Random;

/// Number of files that are kept; beyond it, the oldest is removed for each new one.
const KEPT: u64 = 48;
const SIZE_MAX: u64 = 64 << 10;

pub(super) struct Churn {
    durable: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<std::io::Result<()>>,
}

fn folder(place: &Path) -> PathBuf {
    place.join("churn")
}

fn content(number: u64) -> Vec<u8> {
    let mut random = Random(number);
    let length = random.below(SIZE_MAX);
    random.bytes(length)
}

impl Churn {
    pub(super) fn start(place: &Path) -> Churn {
        let (durable, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (place, acknowledged, stopped) = (place.to_owned(), Arc::clone(&durable), Arc::clone(&stop));
        let thread = std::thread::spawn(move || churn(&folder(&place), &acknowledged, &stopped));
        Churn { durable, stop, thread }
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Relaxed)
    }

    pub(super) fn stop(self) -> Result<()> {
        self.stop.store(true, Relaxed);
        Ok(self.thread.join().map_err(|_| "a churn panicked")??)
    }
}

fn churn(folder: &Path, durable: &AtomicU64, stop: &AtomicBool) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let names = File::open(folder)?;
    let mut number = 0;
    while !stop.load(Relaxed) {
        number += 1;
        let unnamed = folder.join("new");
        let mut file = File::create(&unnamed)?;
        file.write_all(&content(number))?;
        file.sync_all()?;
        fs::rename(&unnamed, folder.join(number.to_string()))?;
        if number > KEPT {
            fs::remove_file(folder.join((number - KEPT).to_string()))?;
        }
        names.sync_all()?;
        durable.store(number, Relaxed);
    }
    Ok(())
}

/// Checks that the files up to `last` are complete, except those that may have been removed, and returns their number.
pub(super) fn check(place: &Path, last: u64) -> Result<u64> {
    // The newest file is later than `last` if the reset came some steps after the host's request.
    let newest = fs::read_dir(folder(place))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok())
        .max()
        .ok_or("no file at all")?;
    if newest < last {
        return Err(format!("the newest file is {newest}, and {last} was flushed").into());
    }
    let mut found = 0;
    for number in newest.saturating_sub(KEPT) + 1..=last {
        let path = folder(place).join(number.to_string());
        let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        if bytes != content(number) {
            return Err(format!("{} was flushed and is not what was written", path.display()).into());
        }
        found += 1;
    }
    Ok(found)
}
