//! Log, in the host's memory, of table entries that are not in the file yet, so that a crash of the process loses no
//! acknowledged write.
//!
//! A log is kept while the header is marked "unclean", under a number in the header. Its parts have a head of 24 bytes
//! (number of the part, inode of the file, time of the start), then entries of 24 bytes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::Env;
use blk::memory::{Memory, MemoryLog};
use blk::reactor::Limits;

use super::entry::{ENTRY_BYTES, Entry};
use super::format::LogName;
use crate::cowd::Directory;

const HEAD_BYTES: usize = 24;

/// Maximum time between a write's time stamp in the file and its record: the duration of the write, and the lag of a
/// file system's clock. A file that was last written earlier is an old copy of the log's file.
const STAMP_SLACK_US: i64 = 60_000_000;

/// Log of one open delta.
pub(super) struct Log {
    env: Env,
    memory: Option<Rc<dyn Memory>>,
    inode: u64,
    log: RefCell<Option<MemoryLog>>,
    /// Number of parts begun so far.
    parts: Cell<u64>,
}

fn name(id: u64) -> String {
    format!("redo-{id:016x}")
}

impl Log {
    /// Creates a log, which records nothing before `begin`.
    pub(super) fn new(env: &Env, limits: Limits) -> Log {
        Log {
            env: env.clone(),
            memory: env.memory(),
            inode: limits.inode,
            log: RefCell::default(),
            parts: Cell::new(0),
        }
    }

    /// Returns the entries that an earlier process left for an unclean delta, in order. None if entries may be missing,
    /// or if the file is not the log's file but a copy of an earlier state.
    pub(super) fn read(env: &Env, log: LogName, directory: &Directory, limits: Limits) -> Option<Vec<Entry>> {
        let memory = env.memory()?;
        let mut parts = MemoryLog::read(&*memory, &name(log.0))?;
        let word = |part: &[u8], n: usize| {
            part.get(n * 8..n * 8 + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight")))
        };
        parts.sort_by_key(|part| word(part, 0));
        let mut entries = Vec::new();
        for part in parts.iter().filter(|part| !part.is_empty()) {
            let begun_us = word(part, 2) as i64;
            if word(part, 1) != limits.inode || limits.modified_us < begun_us.saturating_sub(STAMP_SLACK_US) {
                return None;
            }
            // A killed process may have written its last entry in part; it had not acknowledged that request.
            for bytes in part.get(HEAD_BYTES..)?.chunks_exact(ENTRY_BYTES) {
                entries.push(Entry::decode(bytes, directory)?);
            }
        }
        Some(entries)
    }

    /// Begins an empty log. Returns its number and the host's boot, which the header must contain.
    pub(super) fn begin(&self) -> LogName {
        let Some(memory) = &self.memory else { return (0, 0) };
        let id = self.env.random() | 1;
        let log = MemoryLog::new(&name(id));
        log.begin(&**memory);
        self.log.replace(Some(log));
        (id, memory.boot())
    }

    pub(super) fn append(&self, entry: Entry) {
        let (Some(memory), Some(log)) = (&self.memory, &*self.log.borrow()) else { return };
        if !log.is_part_empty() {
            return log.append(&**memory, &entry.encode());
        }
        self.parts.update(|parts| parts + 1);
        let begun_us = match entry {
            Entry::Published { .. } => self.env.unix_us(),
            // Nothing was written to the file before it.
            Entry::Released { .. } => i64::MIN,
        };
        let head = [self.parts.get(), self.inode, begun_us as u64].map(u64::to_le_bytes);
        log.append(&**memory, &[&head.concat()[..], &entry.encode()].concat());
    }

    /// Notes that a flush has captured the tables.
    pub(super) fn switch(&self) {
        if let Some(log) = &*self.log.borrow() {
            log.switch();
        }
    }

    /// Notes the end of the flush that captured them last.
    pub(super) fn settle(&self) {
        if let (Some(memory), Some(log)) = (&self.memory, &*self.log.borrow()) {
            log.settle(&**memory);
        }
    }

    /// Removes the log, and stops recording.
    pub(super) fn end(&self) {
        if let (Some(memory), Some(log)) = (&self.memory, self.log.take()) {
            log.end(&**memory);
        }
    }

    /// Forgets the log of an earlier opening.
    pub(super) fn forget(&self, id: u64) {
        if let Some(memory) = &self.memory {
            MemoryLog::new(&name(id)).end(&**memory);
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.log.borrow().as_ref().map_or(0, MemoryLog::bytes)
    }
}
