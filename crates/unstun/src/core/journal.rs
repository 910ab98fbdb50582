//! Events on file, so that they outlive the daemon: one JSON object a line in `.unstun/events` of the VM's home.
//!
//! Written by a thread of its own, because the core must not wait for a file system. A line lost in a crash costs a
//! report, never data: nothing reads this file to decide anything.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};

use crate::api::Event;
use crate::datastore::OWN_FOLDER;
use crate::error::{Error, Result};

/// Kept in memory, and read back at a start; older lines stay in the file.
pub const EVENTS_MAX: usize = 1000;
/// A longer file is read from its end: 1000 events of twelve disks are about 1.5 MB.
const READ_BYTES_MAX: u64 = 4 << 20;

pub struct Journal {
    lines: Sender<(PathBuf, String)>,
}

pub fn path_in(home: &Path) -> PathBuf {
    home.join(OWN_FOLDER).join("events")
}

impl Journal {
    pub fn start() -> Result<Journal> {
        let (lines, inbox) = channel::<(PathBuf, String)>();
        std::thread::Builder::new()
            .name("events".into())
            .spawn(move || {
                for (path, line) in inbox {
                    let file = OpenOptions::new().create(true).append(true).open(&path);
                    if let Err(e) = file.and_then(|mut f| f.write_all(line.as_bytes())) {
                        eprintln!("unstun: {}: an event was not recorded: {e}", path.display());
                    }
                }
            })
            .map_err(|e| Error::failed(format!("starting the events thread: {e}")))?;
        Ok(Journal { lines })
    }

    /// One that forgets.
    #[cfg(test)]
    pub fn nowhere() -> Journal {
        Journal { lines: channel().0 }
    }

    pub fn append(&self, home: &Path, event: &Event) {
        if let Ok(mut line) = serde_json::to_string(event) {
            line.push('\n');
            // The receiver lives as long as the process.
            let _ = self.lines.send((path_in(home), line));
        }
    }
}

/// The last events on file; lines that do not parse (a torn end) are passed over.
pub fn read(home: &Path) -> Vec<Event> {
    use std::io::{Read, Seek, SeekFrom};
    let mut bytes = Vec::new();
    let Ok(mut file) = std::fs::File::open(path_in(home)) else { return Vec::new() };
    let from = file.metadata().map_or(0, |m| m.len().saturating_sub(READ_BYTES_MAX));
    if file.seek(SeekFrom::Start(from)).is_err() || file.read_to_end(&mut bytes).is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let mut events: Vec<Event> = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    let surplus = events.len().saturating_sub(EVENTS_MAX);
    events.drain(..surplus);
    events
}
