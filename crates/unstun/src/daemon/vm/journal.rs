//! Event file, so that events outlive the daemon: one JSON object per line in `.unstun/events` of the VM's home.
//!
//! One thread per folder of homes writes the files, because neither the core nor another datastore may wait for a file
//! system. A line lost in a crash costs a report, never data: no code reads this file to decide anything.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use api::Event;
use blk::dir::OWN_FOLDER;
use rustix::fs::{FileType, Mode, OFlags};
use tokio::sync::oneshot;
use tracing::warn;

/// Name of the event file in a home's `.unstun` folder.
pub(crate) const EVENTS_NAME: &str = "events";
/// Maximum number of events kept in memory and read back at a start. Older lines stay in the file.
pub(crate) const EVENTS_MAX: usize = 1000;
/// Maximum number of bytes read. Of a longer file, the end is read: 1000 events of twelve disks are about 1.5 MB.
const READ_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of an event; numbers count up from 1. A line with a larger number was not written by the daemon. The
/// bound leaves room for the next number.
const EVENT_NUMBER_MAX: u64 = 1 << 52;

/// Work of a writer thread.
enum Work {
    /// Path of a home, and a line for its event file.
    Line(PathBuf, String),
    /// All lines before this one are on file.
    Reached(oneshot::Sender<()>),
}

#[derive(Default)]
pub(crate) struct Journal {
    /// Writer threads, by the folder that contains the homes.
    threads: RefCell<BTreeMap<PathBuf, Sender<Work>>>,
    forgets: bool,
}

impl Journal {
    /// Creates a journal that drops its events.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Journal {
        Journal { forgets: true, ..Journal::default() }
    }

    pub(crate) fn append(&self, home: &Path, event: &Event) {
        let Ok(mut line) = serde_json::to_string(event) else { return };
        line.push('\n');
        if self.forgets {
            return;
        }
        let folder = home.parent().unwrap_or(home).to_path_buf();
        let mut threads = self.threads.borrow_mut();
        let lines = threads.entry(folder).or_insert_with(start);
        // If the thread could not be started, the line is dropped.
        let _ = lines.send(Work::Line(home.to_path_buf(), line));
    }

    /// Waits until the events of a home so far are written.
    pub(crate) async fn written(&self, home: &Path) {
        let thread = self.threads.borrow().get(home.parent().unwrap_or(home)).cloned();
        let Some(thread) = thread else { return };
        let (tell, reached) = oneshot::channel();
        if thread.send(Work::Reached(tell)).is_ok() {
            // A thread that has ended writes nothing more.
            let _ = reached.await;
        }
    }
}

fn start() -> Sender<Work> {
    let (lines, inbox) = channel();
    if let Err(e) = std::thread::Builder::new().name("events".into()).spawn(|| work_off(inbox)) {
        warn!("starting a thread for events: {e}; they are not recorded");
    }
    lines
}

fn work_off(inbox: Receiver<Work>) {
    for work in inbox {
        match work {
            Work::Line(home, line) => {
                if let Err(e) = append(&home, &line) {
                    let home = home.display();
                    warn!("{home}/{OWN_FOLDER}/{EVENTS_NAME}: an event was not recorded: {e}");
                }
            }
            Work::Reached(tell) => {
                let _ = tell.send(());
            }
        }
    }
}

/// Opens the event file of a home. Follows no link in the home, waits for no pipe, and opens only regular files: the
/// folder may come from an untrusted source.
fn open(home: &Path, flags: OFlags) -> std::io::Result<File> {
    let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let home = rustix::fs::open(home, folder, Mode::empty())?;
    let own = rustix::fs::openat(home, OWN_FOLDER, folder | OFlags::NOFOLLOW, Mode::empty())?;
    let careful = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(own, EVENTS_NAME, flags | careful, Mode::RUSR | Mode::WUSR)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(File::from(file)),
        found => Err(std::io::Error::other(format!("it is a {found:?}, expected a regular file"))),
    }
}

fn append(home: &Path, line: &str) -> std::io::Result<()> {
    let mut file = open(home, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)?;
    match rustix::fs::fstat(&file)?.st_nlink {
        1 => file.write_all(line.as_bytes()),
        // The other name can be that of a file outside, which the owner of the home has chosen.
        names => Err(std::io::Error::other(format!("it has {names} names, expected one"))),
    }
}

/// Returns the last events on file. Lines that do not parse (a torn end) are skipped.
pub(crate) fn read(home: &Path) -> Vec<Event> {
    use std::io::{Read, Seek, SeekFrom};
    let mut bytes = Vec::new();
    let Ok(mut file) = open(home, OFlags::RDONLY) else { return Vec::new() };
    let from = file.metadata().map_or(0, |m| m.len().saturating_sub(READ_BYTES_MAX));
    if file.seek(SeekFrom::Start(from)).is_err() || file.take(READ_BYTES_MAX).read_to_end(&mut bytes).is_err()
    {
        return Vec::new();
    }
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Vec<Event> {
    let text = String::from_utf8_lossy(bytes);
    let read = |line: &str| serde_json::from_str(line).ok().filter(|e: &Event| e.id <= EVENT_NUMBER_MAX);
    let mut events: Vec<Event> = text.lines().filter_map(read).collect();
    let surplus = events.len().saturating_sub(EVENTS_MAX);
    events.drain(..surplus);
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"id":7,"time":"2026-01-01T00:00:00Z","vm":"web","operation":"take","snapshot":null,"stun_us":1,"disks":[],"message":null}"#;

    #[test]
    fn numbers_that_leave_no_room_for_the_next_are_passed_over() {
        let last = LINE.replace(":7,", &format!(":{},", u64::MAX));
        let near = LINE.replace(":7,", &format!(":{EVENT_NUMBER_MAX},"));
        let found = parse(format!("{LINE}\n{last}\n{near}\n{{\"id\":").as_bytes());
        assert_eq!(found.iter().map(|e| e.id).collect::<Vec<_>>(), [7, EVENT_NUMBER_MAX]);
    }

    #[test]
    fn events_are_in_a_regular_file_and_behind_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let (home, outside) = (folder.path().join("web"), folder.path().join("outside"));
        let events = home.join(OWN_FOLDER).join(EVENTS_NAME);
        std::fs::create_dir_all(home.join(OWN_FOLDER)).unwrap();
        append(&home, &format!("{LINE}\n")).unwrap();
        assert_eq!(read(&home).len(), 1);

        std::fs::rename(&events, &outside).unwrap();
        std::os::unix::fs::symlink(&outside, &events).unwrap();
        append(&home, LINE).unwrap_err();
        assert!(read(&home).is_empty());
        std::fs::remove_file(&events).unwrap();
        std::fs::hard_link(&outside, &events).unwrap();
        append(&home, LINE).unwrap_err();
        assert_eq!(read(&home).len(), 1);
        std::fs::remove_file(&events).unwrap();
        // Opening a pipe would block.
        rustix::fs::mknodat(rustix::fs::CWD, &events, FileType::Fifo, Mode::RWXU, 0).unwrap();
        append(&home, LINE).unwrap_err();
        assert!(read(&home).is_empty());

        std::fs::rename(home.join(OWN_FOLDER), folder.path().join("own")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("own"), home.join(OWN_FOLDER)).unwrap();
        append(&home, LINE).unwrap_err();
    }
}
