//! The record beside a pulled file, `FILE.unstun`: what the file holds, or that it is being written.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use api::error::{Error, Result};
use serde::{Deserialize, Serialize};

use super::fault::failed;
use super::source::Source;
use crate::command::exported_snapshot::SnapshotId;

const VERSION: u32 = 1;
/// Only the owner of the file may change what is said of it.
const MODE: u32 = 0o600;

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum State {
    /// The content of the record's snapshot.
    #[serde(rename = "whole")]
    Whole,
    /// A part of it.
    #[serde(rename = "copying")]
    Copying,
    /// The content of `since`, parts of which are replaced already.
    #[serde(rename = "updating")]
    Updating { since: SnapshotId },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    /// Name of the disk's export.
    export: String,
    /// Size of what the file holds; of `since` during an update.
    size_bytes: u64,
    /// None for a running disk, whose content has no name.
    snapshot: Option<SnapshotId>,
    state: State,
}

impl Record {
    pub(super) fn new(source: &Source, state: State, size_bytes: u64) -> Record {
        let (export, snapshot) = (source.export().to_owned(), source.snapshot().cloned());
        Record { version: VERSION, export, size_bytes, snapshot, state }
    }

    /// Returns the record of the same file when everything is written.
    pub(super) fn whole(&self, size_bytes: u64) -> Record {
        Record { size_bytes, state: State::Whole, ..self.clone() }
    }

    /// Returns whether the file has an incomplete copy of the disk.
    pub(super) fn is_interrupted_copy_of(&self, export: &str) -> bool {
        self.export == export && self.state == State::Copying
    }

    /// Checks that the increment of `source` applies to the file. Returns the size of its base in bytes.
    pub(super) fn base_of(&self, source: &Source, file: &Path) -> Result<u64> {
        let wanted = source.base().map_or("", |base| &base.name);
        let refused = |holds: String, advice: &str| {
            let (file, export) = (file.display(), source.export());
            Err(Error::refused(format!(
                "{file} {holds}, and the changes since {export}@{wanted} are to be applied; {advice}"
            )))
        };
        let again = "pull all of it, without --since and with --force";
        if self.export != source.export() {
            return refused(format!("is a copy of {}", self.export), again);
        }
        let is_base = |snapshot: &SnapshotId| source.base().is_some_and(|base| base.is(snapshot));
        match (&self.state, &self.snapshot) {
            (State::Copying, _) => {
                refused("is an incomplete copy".to_owned(), "repeat the pull that began it")
            }
            (State::Whole, None) => refused("holds the running disk, which is no base".to_owned(), again),
            (State::Whole, Some(held)) if is_base(held) => Ok(self.size_bytes),
            (State::Whole, Some(held)) if held.name == wanted => {
                refused(format!("holds another snapshot of the name {wanted}, which was removed"), again)
            }
            (State::Whole, Some(held)) => {
                let held = &held.name;
                refused(format!("holds {}@{held}", self.export), &format!("use --since {held}"))
            }
            (State::Updating { since }, until) => match (until, source.snapshot()) {
                // All that differs from the base is written again.
                (Some(until), Some(now)) if is_base(since) && until.is(now) => Ok(self.size_bytes),
                (Some(until), _) => {
                    let (since, until) = (&since.name, &until.name);
                    refused(
                        format!("is on the way from {since} to {until}"),
                        &format!("repeat that with --since {since} and --until {until}, or {again}"),
                    )
                }
                // What has changed back meanwhile would not be written again.
                (None, _) => refused("is on the way to the running disk".to_owned(), again),
            },
        }
    }

    /// Reads the record of `file`. None if there is none.
    pub(super) fn read(file: &Path) -> Result<Option<Record>> {
        let path = beside(file, ".unstun");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&path, &error)),
        };
        let record: Record = serde_json::from_str(&text).map_err(|e| {
            let path = path.display();
            Error::refused(format!("{path} is no record of a pull ({e}); move it away"))
        })?;
        match record.version {
            VERSION => Ok(Some(record)),
            other => Err(Error::refused(format!(
                "{}: version {other} of a record, expected {VERSION}; a newer unstun wrote it",
                path.display()
            ))),
        }
    }

    /// Replaces the record of `file`, durably.
    pub(super) fn write(&self, file: &Path) -> Result<()> {
        let (path, new) = (beside(file, ".unstun"), beside(file, ".unstun.new"));
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::failed(format!("JSON: {e}")))?;
        let written = || {
            let mut record = File::options().write(true).create(true).truncate(true).mode(MODE).open(&new)?;
            writeln!(record, "{text}")?;
            record.sync_all()?;
            fs::rename(&new, &path)?;
            sync_folder(&path)
        };
        written().map_err(|e| failed(&path, &e))
    }
}

/// Makes the names in the folder of `path` durable.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(state: State) -> Record {
        let snapshot = Some(SnapshotId { name: "b".into(), id: Some("2".into()) });
        Record { version: VERSION, export: "web/disk0".into(), size_bytes: 4096, snapshot, state }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disk0.raw");
        assert_eq!(Record::read(&file).unwrap(), None);
        let since = SnapshotId { name: "a".into(), id: None };
        for state in [State::Copying, State::Updating { since }, State::Whole] {
            record(state.clone()).write(&file).unwrap();
            assert_eq!(Record::read(&file).unwrap(), Some(record(state)));
        }
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["disk0.raw.unstun"]);
    }

    #[test]
    fn another_file_in_the_place_of_a_record_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x");
        fs::write(folder.path().join("x.unstun"), "hello").unwrap();
        assert!(Record::read(&file).unwrap_err().message.contains("no record of a pull"));
        let newer = Record { version: 2, ..record(State::Whole) };
        newer.write(&file).unwrap();
        assert!(Record::read(&file).unwrap_err().message.contains("newer"));
    }

    #[test]
    fn only_an_interrupted_copy_of_the_same_disk_is_replaced() {
        assert!(record(State::Copying).is_interrupted_copy_of("web/disk0"));
        assert!(!record(State::Copying).is_interrupted_copy_of("web/disk1"));
        assert!(!record(State::Whole).is_interrupted_copy_of("web/disk0"));
    }
}
