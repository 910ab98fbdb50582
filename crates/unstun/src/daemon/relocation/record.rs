//! The durable record of a move: one line in the `.unstun` folder of each home that takes part in it.

use std::path::{Path, PathBuf};

use api::Store;
use blk::dir::OWN_FOLDER;
use blk::{Dir, Env, Error, ErrorKind, Result};

use crate::daemon::vm::paths::open_path;

pub(crate) const RECORD_NAME: &str = "move";
/// The record for after the step, prepared beside the first one. The step renames it, and so needs no space.
const COMMITTED_NAME: &str = "move.committed";
/// Maximum size of a line in bytes: a word and a path of the kernel's greatest length.
const LINE_BYTES_MAX: u64 = 8 << 10;
const FORMS: &str =
    "`within native ID`, `within redo ID`, or `prepared`, `committed` or `target` and an absolute path";

/// The part of a home in a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MoveRecord {
    /// The VM stays in this home and moves to the other kind of store. The home's mark of native VMs decides which side
    /// is the VM. `id` is that of the VM in the store, on whichever side that is.
    Within { to: Store, id: u128 },
    /// Source of a move to another datastore, before its step: this home is the VM.
    Prepared { to: PathBuf },
    /// The same after the step: the target home is the VM.
    Committed { to: PathBuf },
    /// Target of a move from another datastore, until the move is completed. The source's record decides.
    Target { from: PathBuf },
}

impl MoveRecord {
    fn line(&self) -> String {
        match self {
            MoveRecord::Within { to, id } => format!("within {} {id:032x}\n", to.as_str()),
            MoveRecord::Prepared { to } => format!("prepared {}\n", to.display()),
            MoveRecord::Committed { to } => format!("committed {}\n", to.display()),
            MoveRecord::Target { from } => format!("target {}\n", from.display()),
        }
    }

    fn parse(place: &str, line: &str) -> Result<MoveRecord> {
        let (word, rest) = line.split_once(' ').unwrap_or_default();
        let path = || rest.starts_with('/').then(|| PathBuf::from(rest));
        let within = || {
            let (store, id) = rest.split_once(' ')?;
            let to = [Store::Native, Store::Redo].into_iter().find(|to| to.as_str() == store)?;
            Some(MoveRecord::Within { to, id: u128::from_str_radix(id, 16).ok()? })
        };
        let read = match word {
            "within" => within(),
            "prepared" => path().map(|to| MoveRecord::Prepared { to }),
            "committed" => path().map(|to| MoveRecord::Committed { to }),
            "target" => path().map(|from| MoveRecord::Target { from }),
            _ => None,
        };
        read.ok_or_else(|| Error::damaged(place, format!("found {line:?}, expected {FORMS}")))
    }

    /// Reads the record of a home. `None` means that the home takes part in no move.
    pub(crate) async fn read(env: &Env, home: &Path) -> Result<Option<MoveRecord>> {
        match own(env, home).await {
            Ok(own) => MoveRecord::read_in(&own).await,
            Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Like `read`, from the home's `.unstun` folder.
    pub(crate) async fn read_in(own: &Dir) -> Result<Option<MoveRecord>> {
        let bytes = match own.read_file(RECORD_NAME, LINE_BYTES_MAX).await {
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let line = String::from_utf8_lossy(&bytes);
        Self::parse(&own.path_of(RECORD_NAME), line.trim_end_matches('\n')).map(Some)
    }

    /// Durably writes the record into the `.unstun` folder `own`.
    pub(crate) async fn write(&self, own: &Dir) -> Result<()> {
        own.replace_file(RECORD_NAME, self.line().as_bytes()).await
    }
}

/// Opens the `.unstun` folder of a home.
pub(crate) async fn own(env: &Env, home: &Path) -> Result<Dir> {
    open_path(env, home).await?.open_dir(OWN_FOLDER, false).await
}

/// Durably records a move to another datastore, and prepares its step.
pub(crate) async fn prepare(own: &Dir, to: &Path) -> Result<()> {
    MoveRecord::Prepared { to: to.to_owned() }.write(own).await?;
    own.replace_file(COMMITTED_NAME, MoveRecord::Committed { to: to.to_owned() }.line().as_bytes()).await
}

/// Durably carries out the step that `prepare` has prepared.
pub(crate) async fn commit(own: &Dir) -> Result<()> {
    own.rename(COMMITTED_NAME, RECORD_NAME).await?;
    own.sync().await
}

/// Durably removes the record: the home takes part in no move any more.
pub(crate) async fn remove(own: &Dir) -> Result<()> {
    own.unlink_if_present(COMMITTED_NAME).await?;
    own.unlink_if_present(RECORD_NAME).await?;
    own.sync().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_one_line() {
        let records = [
            MoveRecord::Within { to: Store::Native, id: 7 },
            MoveRecord::Within { to: Store::Redo, id: u128::MAX },
            MoveRecord::Prepared { to: "/b/my web".into() },
            MoveRecord::Committed { to: "/b/web".into() },
            MoveRecord::Target { from: "/a/web".into() },
        ];
        for record in records {
            let line = record.line();
            assert_eq!(MoveRecord::parse("move", line.trim_end_matches('\n')).unwrap(), record);
        }
        for line in
            ["", "committed", "committed web", "gone /b/web", "within native x", "within qcow2 7", "target "]
        {
            assert_eq!(MoveRecord::parse("move", line).unwrap_err().kind, ErrorKind::Damaged, "{line}");
        }
    }
}
