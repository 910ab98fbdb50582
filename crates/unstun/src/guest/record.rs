//! Records of guests that are held for a snapshot: a file for each in the datastore's own folder, from before the guest's
//! file systems are frozen, or the guest stands still, until the guest has said that it goes on. After a crash of the daemon
//! they say whom to release.

use std::fs::{self, DirBuilder, DirEntry, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use api::GuestAccess;
use api::name::VmName;
use blk::dir::OWN_FOLDER;
use serde::{Deserialize, Serialize};

const FOLDER: &str = "frozen";
/// Prefix of a file that is not complete yet. No VM's name begins with it.
const NEW: &str = ".";
/// Maximum size of a record in bytes: two names and a path, escaped.
const RECORD_BYTES_MAX: u64 = 4096;

/// Content of the file, whose name is that of the VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub vm: VmName,
    #[serde(rename = "access")]
    pub held: Held,
}

/// What holds a guest, and how it is released.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Held {
    /// Its file systems are frozen.
    Frozen(GuestAccess),
    /// It stands still.
    Stopped {
        /// Socket of QEMU's monitor.
        monitor: PathBuf,
        /// Whether QEMU was told to pause it: to QEMU it would be a guest that a person has paused.
        paused: bool,
    },
}

const STOPPED: &str = "qmp:";
const PAUSED: &str = "qmp-paused:";

impl TryFrom<String> for Held {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix(STOPPED) {
            Ok(Held::Stopped { monitor: path.into(), paused: false })
        } else if let Some(path) = text.strip_prefix(PAUSED) {
            Ok(Held::Stopped { monitor: path.into(), paused: true })
        } else {
            text.parse().map(Held::Frozen)
        }
    }
}

impl From<Held> for String {
    fn from(held: Held) -> String {
        match held {
            Held::Frozen(access) => access.to_string(),
            Held::Stopped { monitor, paused } => {
                format!("{}{}", if paused { PAUSED } else { STOPPED }, monitor.display())
            }
        }
    }
}

impl Held {
    /// Sentences for a guest that goes on and for one that may not, and what a person does then.
    pub(super) fn sentences(&self) -> [&'static str; 3] {
        match self {
            Held::Frozen(_) => [
                "the file systems of the guest are thawed",
                "the file systems of the guest may be frozen",
                "run `fsfreeze -u` in the guest, or start its agent and run `unstun thaw`; if it runs, \
                 `unstun thaw --forget VM` removes the record",
            ],
            Held::Stopped { .. } => [
                "the guest runs on",
                "the guest may stand still",
                "run `unstun thaw`, or enter `cont` in QEMU's monitor; if it runs, `unstun thaw --forget VM` removes the \
                 record",
            ],
        }
    }
}

fn folder(datastore: &Path) -> PathBuf {
    datastore.join(OWN_FOLDER).join(FOLDER)
}

impl Record {
    /// Writes the record. Durable when the call returns, so that it outlives a crash of the host too: a guest of another
    /// host may be frozen through a command.
    pub(super) fn write(&self, datastore: &Path) -> Result<(), String> {
        let write = || {
            let folder = folder(datastore);
            match DirBuilder::new().mode(0o700).create(&folder) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
            let path = folder.join(self.vm.as_str());
            let new = folder.join(format!("{NEW}{}", self.vm));
            let mut file = File::create(&new)?;
            file.write_all(&serde_json::to_vec(self).expect("a record is JSON"))?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&folder)?.sync_all()
        };
        write().map_err(|e: std::io::Error| {
            format!("recording that the guest is held, in {}: {e}", folder(datastore).display())
        })
    }

    /// Removes the record. One that stays is harmless: a guest that is not frozen is thawed once more.
    pub(super) fn remove(&self, datastore: &Path) {
        let _ = forget(datastore, &self.vm);
    }
}

/// Removes the record of a VM, whose guest is not held, as is known otherwise.
pub(crate) fn forget(datastore: &Path, vm: &VmName) -> std::io::Result<()> {
    fs::remove_file(folder(datastore).join(vm.as_str()))
}

/// Returns the records of a datastore. A file that is none, or not the one of its VM, is left out: a crash before the freeze
/// may have cut it off.
pub(crate) fn all(datastore: &Path) -> Vec<Record> {
    let Ok(entries) = fs::read_dir(folder(datastore)) else { return Vec::new() };
    let read = |entry: DirEntry| -> Option<Record> {
        // Opening a pipe would block.
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let mut text = Vec::new();
        is_file
            .then(|| File::open(entry.path()).ok())??
            .take(RECORD_BYTES_MAX)
            .read_to_end(&mut text)
            .ok()?;
        let record: Record = serde_json::from_slice(&text).ok()?;
        (entry.file_name() == record.vm.as_str()).then_some(record)
    };
    entries.flatten().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_there_until_it_is_removed() {
        let datastore = tempfile::tempdir().unwrap();
        let root = datastore.path();
        let held = |vm: &str| match vm {
            "db" => Held::Stopped { monitor: "/run/q.sock".into(), paused: false },
            "mail" => Held::Stopped { monitor: "/run/q.sock".into(), paused: true },
            _ => Held::Frozen("unix:/run/a.sock".parse().unwrap()),
        };
        let record = |vm: &str| Record { vm: vm.parse().unwrap(), held: held(vm) };
        assert_eq!(all(root), []);
        assert!(record("web").write(root).unwrap_err().contains("is held"), "without an own folder");
        fs::create_dir(root.join(OWN_FOLDER)).unwrap();
        record("web").write(root).unwrap();
        record("web").write(root).unwrap();
        record("db").write(root).unwrap();
        record("mail").write(root).unwrap();
        fs::write(folder(root).join("torn"), "{\"vm\":").unwrap();
        fs::write(folder(root).join(".new"), serde_json::to_vec(&record("new")).unwrap()).unwrap();
        // A name that is none, and a record under the name of another VM.
        fs::write(folder(root).join("x"), r#"{"vm":"../../x","access":"unix:/run/a.sock"}"#).unwrap();
        fs::write(folder(root).join("y"), serde_json::to_vec(&record("web")).unwrap()).unwrap();
        fs::create_dir(folder(root).join("z")).unwrap();
        let mut found = all(root);
        found.sort_by(|a, b| a.vm.cmp(&b.vm));
        assert_eq!(found, [record("db"), record("mail"), record("web")]);
        found.iter().for_each(|record| record.remove(root));
        assert_eq!(all(root), []);
    }
}
