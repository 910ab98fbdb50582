//! Records of a datastore's bin: one file for each removed VM that is kept.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;

use api::Store;
use api::name::VmName;
use blk::dir::TEMPORARY_SUFFIX;
use blk::sync::TaskMutex;
use blk::{Dir, Error, ErrorKind, Result};

/// Folder in the datastore's `.unstun` folder: one file for each entry, named by its ID.
pub(super) const BIN_NAME: &str = "bin";
/// Suffix of the folder of a VM in the bin. The name begins with the VM's name and the entry's ID.
pub(super) const FOLDER_SUFFIX: &str = ".unstun-bin";
/// Maximum size of a record in bytes: words, numbers, two names and a path of the kernel's greatest length.
const RECORD_BYTES_MAX: u64 = 8 << 10;
/// Text in place of an unknown value.
const UNKNOWN: &str = "-";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BinState {
    /// The VM is being put into the bin. Recovery finishes that.
    Coming,
    Kept,
    /// The VM is being restored under this name. Recovery finishes that.
    Restoring(VmName),
    /// The VM is being removed permanently. Recovery finishes that.
    Removing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BinRecord {
    pub state: BinState,
    pub vm: VmName,
    /// ID of the VM; None if it is unknown.
    pub id: Option<u128>,
    pub store: Store,
    pub removed_unix_us: i64,
    /// Bytes that the VM's removal frees; None if they were unknown.
    pub bytes: Option<u64>,
    /// Path of a home outside the datastore. Such a home stays where it is.
    pub path: Option<PathBuf>,
}

impl BinRecord {
    /// Returns the name of the entry's folder, if the folder is in the datastore.
    pub(crate) fn folder(&self, entry: &str) -> String {
        format!("{}.{entry}{FOLDER_SUFFIX}", self.vm)
    }

    /// Returns whether the entry is kept, or an error has stopped its removal.
    pub(crate) fn may_go(&self) -> bool {
        matches!(self.state, BinState::Kept | BinState::Removing)
    }

    fn to_text(&self) -> String {
        let (word, to) = match &self.state {
            BinState::Coming => ("coming", None),
            BinState::Kept => ("kept", None),
            BinState::Restoring(to) => ("restoring", Some(to)),
            BinState::Removing => ("removing", None),
        };
        let id = self.id.map_or(UNKNOWN.to_owned(), |id| format!("{id:032x}"));
        let bytes = self.bytes.map_or(UNKNOWN.to_owned(), |bytes| bytes.to_string());
        let mut text = format!(
            "state {word}\nvm {}\nid {id}\nstore {}\nremoved {}\nbytes {bytes}\n",
            self.vm,
            self.store.as_str(),
            self.removed_unix_us
        );
        text.extend(to.map(|to| format!("to {to}\n")));
        text.extend(self.path.as_ref().map(|path| format!("home {}\n", path.display())));
        text
    }

    fn parse(place: &str, text: &str) -> Result<BinRecord> {
        let wrong = |key: &str, found: &str, expected: &str| {
            Error::damaged(place, format!("{key}: found {found:?}, expected {expected}"))
        };
        let fields: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once(' ')).collect();
        let field = |key: &str| fields.get(key).copied().unwrap_or_default();
        let name =
            |key: &str| field(key).parse::<VmName>().map_err(|_| wrong(key, field(key), "a VM's name"));
        let state = match field("state") {
            "coming" => BinState::Coming,
            "kept" => BinState::Kept,
            "restoring" => BinState::Restoring(name("to")?),
            "removing" => BinState::Removing,
            other => return Err(wrong("state", other, "coming, kept, restoring or removing")),
        };
        let id = match field("id") {
            UNKNOWN => None,
            id => Some(
                u128::from_str_radix(id, 16).map_err(|_| wrong("id", id, "32 hexadecimal digits or -"))?,
            ),
        };
        let store = match field("store") {
            "native" => Store::Native,
            "redo" => Store::Redo,
            other => return Err(wrong("store", other, "native or redo")),
        };
        let bytes = match field("bytes") {
            UNKNOWN => None,
            bytes => Some(bytes.parse().map_err(|_| wrong("bytes", bytes, "a number or -"))?),
        };
        let removed = field("removed");
        let removed_unix_us = removed.parse().map_err(|_| wrong("removed", removed, "microseconds"))?;
        let path = fields.get("home").map(PathBuf::from);
        if let Some(path) = path.as_ref().filter(|path| !path.is_absolute()) {
            return Err(wrong("home", &path.to_string_lossy(), "an absolute path"));
        }
        Ok(BinRecord { state, vm: name("vm")?, id, store, removed_unix_us, bytes, path })
    }
}

/// Returns the VM's name and the entry's ID from the name of a folder of the bin; None for other folders.
pub(crate) fn parse_folder(name: &str) -> Option<(VmName, String)> {
    let (vm, entry) = name.strip_suffix(FOLDER_SUFFIX)?.rsplit_once('.')?;
    let is_id = entry.len() == 16 && entry.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    Some((vm.parse().ok().filter(|_| is_id)?, entry.to_owned()))
}

/// Records of one datastore's bin.
pub(crate) struct BinRecords {
    own: Dir,
    /// Folder of the records; None before the first entry, because a full datastore has no space for a folder.
    dir: RefCell<Option<Dir>>,
    all: RefCell<BTreeMap<String, BinRecord>>,
    /// Errors of files that are no valid records. The files stay, and the errors are reported.
    pub damaged: Vec<Error>,
    /// Entries that are being put in, removed or restored at the moment.
    busy: RefCell<BTreeSet<String>>,
    /// Entries whose failed removal was reported.
    reported: RefCell<BTreeSet<String>>,
    /// Lock of an eviction of several entries, which checks the free space between them.
    pub evicting: TaskMutex,
    /// Whether evictions are being checked for at the moment.
    pub is_checked: Cell<bool>,
    /// Number of entries that this process has removed permanently.
    pub evicted: Cell<u64>,
}

/// Exclusive access to an entry until this is dropped.
pub(crate) struct Busy {
    records: Rc<BinRecords>,
    entry: String,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.records.busy.borrow_mut().remove(&self.entry);
    }
}

impl BinRecords {
    pub(crate) async fn read(own: &Dir) -> Result<BinRecords> {
        let dir = match own.open_dir(BIN_NAME, false).await {
            Err(e) if e.kind == ErrorKind::NotFound => None,
            dir => Some(dir?),
        };
        let names = match &dir {
            Some(dir) => dir.list().await?,
            None => Vec::new(),
        };
        let (mut all, mut damaged) = (BTreeMap::new(), Vec::new());
        for (name, dir) in names.into_iter().zip(dir.iter().cycle()) {
            if name.ends_with(TEMPORARY_SUFFIX) {
                dir.unlink_if_present(&name).await?;
                continue;
            }
            let read = async {
                let text = dir.read_file(&name, RECORD_BYTES_MAX).await?;
                BinRecord::parse(&dir.path_of(&name), &String::from_utf8_lossy(&text))
            };
            match read.await {
                Ok(record) => drop(all.insert(name, record)),
                // The other entries are served. The VM of this entry is still on disk.
                Err(e) => damaged.push(e),
            }
        }
        let (busy, reported) = (RefCell::default(), RefCell::default());
        let (evicting, evicted) = (TaskMutex::default(), Cell::new(0));
        let (own, dir) = (own.clone(), RefCell::new(dir));
        Ok(BinRecords {
            own,
            dir,
            all: RefCell::new(all),
            damaged,
            busy,
            reported,
            evicting,
            is_checked: Cell::new(false),
            evicted,
        })
    }

    /// Returns exclusive access to an entry; None while another operation has it.
    pub(crate) fn begin(self: &Rc<Self>, entry: &str) -> Option<Busy> {
        let is_free = self.busy.borrow_mut().insert(entry.to_owned());
        is_free.then(|| Busy { records: self.clone(), entry: entry.to_owned() })
    }

    pub(crate) fn is_busy(&self, entry: &str) -> bool {
        self.busy.borrow().contains(entry)
    }

    /// Returns true once per entry, so that its failed removal is reported once.
    pub(crate) fn is_news(&self, entry: &str) -> bool {
        self.reported.borrow_mut().insert(entry.to_owned())
    }

    /// Returns whether a VM of this name is being put into the bin.
    pub(crate) fn is_coming(&self, name: &str) -> bool {
        let all = self.all.borrow();
        all.values().any(|record| record.state == BinState::Coming && record.vm.as_str() == name)
    }

    pub(crate) fn get(&self, entry: &str) -> Option<BinRecord> {
        self.all.borrow().get(entry).cloned()
    }

    /// Returns all entries, the oldest first.
    pub(crate) fn all(&self) -> Vec<(String, BinRecord)> {
        let all = self.all.borrow();
        let mut all: Vec<_> = all.iter().map(|(entry, record)| (entry.clone(), record.clone())).collect();
        all.sort_by_key(|(_, record)| record.removed_unix_us);
        all
    }

    /// Stores a record durably. After an error either the old or the new record may be on disk.
    pub(crate) async fn put(&self, entry: &str, record: BinRecord) -> Result<()> {
        let dir = self.dir().await?;
        let staged = dir.stage_file(entry, record.to_text().as_bytes()).await?;
        self.all.borrow_mut().insert(entry.to_owned(), record);
        dir.put_in_place(entry, staged).await?;
        dir.sync().await
    }

    async fn dir(&self) -> Result<Dir> {
        let known = self.dir.borrow().clone();
        if let Some(dir) = known {
            return Ok(dir);
        }
        let dir = self.own.open_dir(BIN_NAME, true).await?;
        self.own.sync().await?;
        *self.dir.borrow_mut() = Some(dir.clone());
        Ok(dir)
    }

    /// Removes a record durably.
    pub(crate) async fn remove(&self, entry: &str) -> Result<()> {
        if self.get(entry).is_none() {
            return Ok(());
        }
        let dir = self.dir().await?;
        dir.unlink_if_present(entry).await?;
        self.all.borrow_mut().remove(entry);
        dir.sync().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> BinRecord {
        BinRecord {
            state: BinState::Kept,
            vm: "web.v2".parse().unwrap(),
            id: Some(7 << 100),
            store: Store::Native,
            removed_unix_us: 1_795_000_000_000_000,
            bytes: Some(4096),
            path: None,
        }
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        let to = BinState::Restoring("web3".parse().unwrap());
        for state in [BinState::Coming, BinState::Kept, to, BinState::Removing] {
            for (id, bytes) in [(None, None), (Some(1), Some(0))] {
                for path in [None, Some(PathBuf::from("/srv/my web"))] {
                    let record = BinRecord { state: state.clone(), id, bytes, path, ..record() };
                    assert_eq!(BinRecord::parse("x", &record.to_text()).unwrap(), record);
                }
            }
        }
    }

    #[test]
    fn what_is_no_record_is_damaged_and_names_the_field() {
        let good = record().to_text();
        for (from, to) in [
            ("state kept", "state gone"),
            ("state kept", "state restoring"),
            ("vm web.v2", "vm ../web"),
            ("id 0", "id x"),
            ("store native", "store qcow2"),
            ("removed 1", "removed x1"),
            ("bytes 4", "bytes -4"),
            ("bytes 4096", "bytes 4096\nhome srv"),
        ] {
            let text = good.replace(from, to);
            assert_ne!(text, good, "{from}");
            assert_eq!(BinRecord::parse("x", &text).unwrap_err().kind, blk::ErrorKind::Damaged, "{text}");
        }
        assert_eq!(BinRecord::parse("x", "").unwrap_err().kind, blk::ErrorKind::Damaged);
    }

    #[test]
    fn a_folder_says_whose_it_was() {
        let folder = record().folder("0123456789abcdef");
        let (vm, entry) = parse_folder(&folder).unwrap();
        assert_eq!((vm.as_str(), entry.as_str()), ("web.v2", "0123456789abcdef"));
        for name in ["web", "web.unstun-bin", "web.0123.unstun-bin", ".0123456789abcdef.unstun-bin"] {
            assert_eq!(parse_folder(name), None, "{name}");
        }
    }
}
