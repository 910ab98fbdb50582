//! Records of guests whose file systems are frozen: a file for each in the datastore's own folder, from before the freeze
//! until the guest has said that they are thawed. After a crash of the daemon they say whom to thaw.

use std::fs::{self, DirBuilder, DirEntry, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use api::GuestAccess;
use blk::dir::OWN_FOLDER;
use serde::{Deserialize, Serialize};

const FOLDER: &str = "frozen";
/// Prefix of a file that is not complete yet. No VM's name begins with it.
const NEW: &str = ".";

/// Content of the file, whose name is that of the VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub vm: String,
    pub access: GuestAccess,
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
            let path = folder.join(&self.vm);
            let new = folder.join(format!("{NEW}{}", self.vm));
            let mut file = File::create(&new)?;
            file.write_all(&serde_json::to_vec(self).expect("a record is JSON"))?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&folder)?.sync_all()
        };
        write().map_err(|e: std::io::Error| {
            format!("recording that the guest is frozen, in {}: {e}", folder(datastore).display())
        })
    }

    /// Removes the record. One that stays is harmless: a guest that is not frozen is thawed once more.
    pub(super) fn remove(&self, datastore: &Path) {
        let _ = fs::remove_file(folder(datastore).join(&self.vm));
    }
}

/// Returns the records of a datastore. A file that is none is left out: a crash before the freeze may have cut it off.
pub(crate) fn all(datastore: &Path) -> Vec<Record> {
    let Ok(entries) = fs::read_dir(folder(datastore)) else { return Vec::new() };
    let is_whole = |entry: &DirEntry| !entry.file_name().to_string_lossy().starts_with(NEW);
    let read =
        |entry: DirEntry| -> Option<Record> { serde_json::from_slice(&fs::read(entry.path()).ok()?).ok() };
    entries.flatten().filter(is_whole).filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_there_until_it_is_removed() {
        let datastore = tempfile::tempdir().unwrap();
        let root = datastore.path();
        let record = |vm: &str| Record { vm: vm.to_owned(), access: "unix:/run/a.sock".parse().unwrap() };
        assert_eq!(all(root), []);
        assert!(record("web").write(root).unwrap_err().contains("frozen"), "without an own folder");
        fs::create_dir(root.join(OWN_FOLDER)).unwrap();
        record("web").write(root).unwrap();
        record("web").write(root).unwrap();
        record("db").write(root).unwrap();
        fs::write(folder(root).join("torn"), "{\"vm\":").unwrap();
        fs::write(folder(root).join(".mail"), serde_json::to_vec(&record("mail")).unwrap()).unwrap();
        let mut found = all(root);
        found.sort_by(|a, b| a.vm.cmp(&b.vm));
        assert_eq!(found, [record("db"), record("web")]);
        found.iter().for_each(|record| record.remove(root));
        assert_eq!(all(root), []);
    }
}
