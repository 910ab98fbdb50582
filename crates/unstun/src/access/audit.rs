//! The audit: who asked for which change, from where, and with which outcome.
//!
//! The file `.unstun/audit` of the main datastore has one JSON object per line; lines are only appended. One thread writes
//! it, because no answer may wait for a file system. Each entry is a line of the log too, and so of the journal, or else of the system's log (`syslog.rs`). A line
//! lost in a crash costs a report, never data: no code reads the file to decide anything.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use api::AuditEntry;
use api::error::{Error, Result};
use tracing::{info, warn};

use super::syslog::Syslog;

const FILE_NAME: &str = "audit";
/// The file before the present one.
const EARLIER_NAME: &str = "audit.1";
/// A file of this size is renamed to `audit.1`, and a new one is begun: about 200,000 entries.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of bytes of a request's body in an entry.
const REQUEST_BYTES_MAX: usize = 2 << 10;
/// Maximum number of entries of one answer.
pub(crate) const ENTRIES_MAX: usize = 10_000;

pub(crate) struct Audit {
    folder: PathBuf,
    syslog: Option<Syslog>,
    /// None where the thread could not be started.
    lines: Option<Sender<String>>,
}

impl Audit {
    /// Creates the audit in the datastore's own folder.
    pub(crate) fn start(folder: &Path, syslog: Option<Syslog>) -> Audit {
        let (lines, inbox) = channel();
        let of = folder.to_path_buf();
        let thread = std::thread::Builder::new().name("audit".into()).spawn(move || work_off(&of, &inbox));
        if let Err(e) = &thread {
            warn!("starting a thread for the audit: {e}; it is only logged");
        }
        Audit { folder: folder.to_path_buf(), syslog, lines: thread.is_ok().then_some(lines) }
    }

    pub(crate) fn record(&self, entry: &AuditEntry) {
        let outcome = match &entry.error {
            None => entry.status.to_string(),
            Some(error) => format!("{}: {error}", entry.status),
        };
        let AuditEntry { who, from, operation, path, .. } = entry;
        let text = format!("{who} from {from}: {operation} ({path}): {outcome}");
        info!("{text}");
        if let Some(syslog) = &self.syslog {
            syslog.send(&text);
        }
        let Ok(mut line) = serde_json::to_string(entry) else { return };
        line.push('\n');
        if let Some(lines) = &self.lines {
            let _ = lines.send(line);
        }
    }

    /// Returns the last entries on file, the oldest first. It reads files, and may block.
    pub(crate) fn last(&self, count: usize) -> Result<Vec<AuditEntry>> {
        let mut last = VecDeque::new();
        for name in [EARLIER_NAME, FILE_NAME] {
            let path = self.folder.join(name);
            match File::open(&path) {
                Ok(file) => keep_last(BufReader::new(file), count, &mut last),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
                Err(e) => Err(e),
            }
            .map_err(|e| Error::failed(format!("{}: {e}", path.display())))?;
        }
        Ok(last.into())
    }
}

/// Adds the entries of a file, and drops the oldest of more than `count`. A line that does not parse (a torn end) is
/// passed over.
fn keep_last(file: impl BufRead, count: usize, last: &mut VecDeque<AuditEntry>) -> std::io::Result<()> {
    for line in file.split(b'\n') {
        let Ok(entry) = serde_json::from_slice(&line?) else { continue };
        last.push_back(entry);
        if last.len() > count {
            last.pop_front();
        }
    }
    Ok(())
}

fn work_off(folder: &Path, inbox: &Receiver<String>) {
    for line in inbox {
        if let Err(e) = append(folder, &line) {
            warn!("{}: an entry of the audit is only in this log: {e}", folder.join(FILE_NAME).display());
        }
    }
}

fn append(folder: &Path, line: &str) -> std::io::Result<()> {
    let path = folder.join(FILE_NAME);
    let open = || OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path);
    let mut file = open()?;
    if file.metadata()?.len() >= FILE_BYTES_MAX {
        std::fs::rename(&path, folder.join(EARLIER_NAME))?;
        file = open()?;
    }
    if is_torn(&file)? {
        file.write_all(b"\n")?;
    }
    file.write_all(line.as_bytes())
}

/// Returns whether the last line has no end, because a crash or a full disk cut it off.
fn is_torn(file: &File) -> std::io::Result<bool> {
    let Some(last) = file.metadata()?.len().checked_sub(1) else { return Ok(false) };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte != *b"\n")
}

/// Returns a body as the audit shows it.
pub(crate) fn shown_body(bytes: &[u8]) -> Option<serde_json::Value> {
    (bytes.len() <= REQUEST_BYTES_MAX).then(|| serde_json::from_slice(bytes).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u16) -> AuditEntry {
        AuditEntry {
            time: jiff::Timestamp::UNIX_EPOCH,
            who: "token ci".to_owned(),
            role: Some(api::Role::Operator),
            from: "127.0.0.1".to_owned(),
            operation: "snapshot take".to_owned(),
            path: "/vms/web/snapshots".to_owned(),
            vm: Some("web".to_owned()),
            request: shown_body(br#"{"name":"s"}"#),
            status: n,
            error: None,
        }
    }

    #[test]
    fn the_last_entries_are_read_across_both_files_and_a_torn_line_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let line = |n| format!("{}\n", serde_json::to_string(&entry(n)).unwrap());
        (1..4).for_each(|n| append(folder.path(), &line(n)).unwrap());
        std::fs::rename(folder.path().join(FILE_NAME), folder.path().join(EARLIER_NAME)).unwrap();
        append(folder.path(), &line(4)).unwrap();
        append(folder.path(), &line(5)[..40]).unwrap();
        append(folder.path(), &line(6)).unwrap();
        let audit = Audit { folder: folder.path().to_path_buf(), syslog: None, lines: None };
        let last = |count| audit.last(count).unwrap().iter().map(|entry| entry.status).collect::<Vec<_>>();
        assert_eq!((last(2), last(100)), (vec![4, 6], vec![1, 2, 3, 4, 6]));
    }

    #[test]
    fn a_body_is_shown_if_it_is_short_json() {
        assert!(shown_body(b"{}").is_some());
        assert!(shown_body(b"not").is_none());
        assert!(shown_body(format!("\"{}\"", "x".repeat(REQUEST_BYTES_MAX)).as_bytes()).is_none());
    }
}
