//! Records of a datastore about its homes with files: the one home of each ID, and the homes that are being created or
//! removed.
//!
//! The records are outside the homes, so that a copied folder does not include them. For a native VM the store has the
//! same record.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use blk::dir::TEMPORARY_SUFFIX;
use blk::{Dir, Error, Result};

/// Folder in the datastore's `.unstun` folder: one file for each home, with the VM's name.
pub(crate) const RECORDS_NAME: &str = "vms";
/// Maximum size of a record in bytes: a word, an ID and a path of the kernel's greatest length.
const RECORD_BYTES_MAX: u64 = 8 << 10;
/// Text in place of an unknown ID.
const NO_ID: &str = "-";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HomeState {
    /// The home is being created. Recovery removes it with everything that was created for it.
    Making,
    /// The home is a VM.
    Whole,
    /// The VM is being removed. Recovery removes it with its disks.
    Removing,
    /// The VM is being removed without its files. Recovery removes the daemon's files from the home, and nothing else.
    Forgetting,
}

const WORDS: [(HomeState, &str); 4] = [
    (HomeState::Making, "making"),
    (HomeState::Whole, "whole"),
    (HomeState::Removing, "removing"),
    (HomeState::Forgetting, "forgetting"),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HomeRecord {
    pub state: HomeState,
    pub id: Option<u128>,
    /// Path of a home outside the datastore.
    pub path: Option<PathBuf>,
}

impl HomeRecord {
    fn to_line(&self) -> String {
        let word = WORDS.iter().find(|(state, _)| *state == self.state).map_or("", |(_, word)| word);
        let id = self.id.map_or(NO_ID.to_owned(), |id| format!("{id:032x}"));
        let path = self.path.as_ref().map_or(String::new(), |path| format!(" {}", path.display()));
        format!("{word} {id}{path}\n")
    }

    fn parse(place: &str, line: &str) -> Result<HomeRecord> {
        let wrong = || {
            let expected =
                "`making`, `whole`, `removing` or `forgetting`, an id or `-`, and perhaps an absolute path";
            Error::damaged(
                place,
                format!(
                    "found {line:?}, expected {expected}; without this file the home is opened as an unknown one"
                ),
            )
        };
        let mut parts = line.splitn(3, ' ');
        let word = parts.next().unwrap_or_default();
        let (state, _) = WORDS.iter().find(|(_, known)| *known == word).ok_or_else(wrong)?;
        let id = match parts.next().ok_or_else(wrong)? {
            NO_ID => None,
            id => Some(u128::from_str_radix(id, 16).map_err(|_| wrong())?),
        };
        let path = parts.next().map(PathBuf::from);
        if path.as_ref().is_some_and(|path| !path.is_absolute()) {
            return Err(wrong());
        }
        Ok(HomeRecord { state: *state, id, path })
    }
}

/// Records of one datastore.
pub(crate) struct HomeRecords {
    dir: Dir,
    all: RefCell<BTreeMap<String, HomeRecord>>,
}

impl HomeRecords {
    pub(crate) async fn read(own: &Dir) -> Result<HomeRecords> {
        let dir = own.open_dir(RECORDS_NAME, true).await?;
        own.sync().await?;
        let mut all = BTreeMap::new();
        for name in dir.list().await? {
            if name.ends_with(TEMPORARY_SUFFIX) {
                dir.unlink_if_present(&name).await?;
                continue;
            }
            let text = dir.read_file(&name, RECORD_BYTES_MAX).await?;
            let text = String::from_utf8_lossy(&text);
            let record = HomeRecord::parse(&dir.path_of(&name), text.trim_end_matches('\n'))?;
            all.insert(name, record);
        }
        Ok(HomeRecords { dir, all: RefCell::new(all) })
    }

    pub(crate) fn get(&self, name: &str) -> Option<HomeRecord> {
        self.all.borrow().get(name).cloned()
    }

    pub(crate) fn all(&self) -> Vec<(String, HomeRecord)> {
        self.all.borrow().iter().map(|(name, record)| (name.clone(), record.clone())).collect()
    }

    /// Stores a record durably. After an error the old record is on disk; if `get` returns the new one, either may be
    /// on disk.
    pub(crate) async fn put(&self, name: &str, record: HomeRecord) -> Result<()> {
        let staged = self.dir.stage_file(name, record.to_line().as_bytes()).await?;
        self.all.borrow_mut().insert(name.to_owned(), record);
        self.dir.put_in_place(name, staged).await?;
        self.dir.sync().await
    }

    /// Removes a record durably.
    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        if self.get(name).is_none() {
            return Ok(());
        }
        self.dir.unlink_if_present(name).await?;
        self.all.borrow_mut().remove(name);
        self.dir.sync().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_as_it_was_written() {
        for (state, _) in WORDS {
            for id in [None, Some(7 << 100)] {
                for path in [None, Some(PathBuf::from("/srv/my web"))] {
                    let record = HomeRecord { state, id, path };
                    assert_eq!(HomeRecord::parse("web", record.to_line().trim_end()).unwrap(), record);
                }
            }
        }
        for line in ["", "whole", "half -", "whole x", "whole - srv"] {
            assert_eq!(HomeRecord::parse("web", line).unwrap_err().kind, blk::ErrorKind::Damaged, "{line}");
        }
    }
}
