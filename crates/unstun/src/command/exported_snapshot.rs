//! Snapshots as exports name them: `VM/diskN@SNAPSHOT`, with the snapshot's ID in the description.

use export::nbd::proto::QEMU_BITMAP;
use export::nbd_client::{Address, Negotiated, connect_to};
use serde::{Deserialize, Serialize};

/// Between the name of a disk and the snapshot, in an export's name.
pub(super) const SNAPSHOT_MARK: char = '@';
/// Before the ID of a snapshot in its export's description.
const ID_MARK: &str = ", ID ";

/// A snapshot as its export names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotId {
    pub name: String,
    /// Distinguishes it from a later snapshot of the same name. None if the server is another program.
    pub id: Option<String>,
}

impl SnapshotId {
    /// Returns whether both are the same snapshot, which may have been renamed meanwhile.
    pub(super) fn is(&self, other: &SnapshotId) -> bool {
        match (&self.id, &other.id) {
            (Some(id), Some(other)) => id == other,
            _ => self.name == other.name,
        }
    }
}

/// Returns the metadata context of a comparison with a snapshot.
pub(super) fn context_of(snapshot: &str) -> String {
    format!("{QEMU_BITMAP}{snapshot}")
}

/// Returns the ID of the snapshot that an export is.
pub(super) fn id_in(negotiated: &Negotiated) -> Option<String> {
    negotiated.export().description.rsplit_once(ID_MARK).map(|(_, id)| id.to_owned())
}

/// Returns the snapshot `name` of the disk whose export is `disk`, with the ID that its own export names. A caller that
/// compares with it connects for the comparison first: a snapshot that replaces it meanwhile has another ID then.
pub(super) fn of_disk(address: &Address, disk: &str, name: &str) -> blk::Result<SnapshotId> {
    let address = Address { export: format!("{disk}{SNAPSHOT_MARK}{name}"), ..address.clone() };
    Ok(SnapshotId { name: name.to_owned(), id: id_in(&connect_to(&address, None)?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_known_by_its_id_or_else_by_its_name() {
        let one = |name: &str, id: Option<&str>| SnapshotId { name: name.into(), id: id.map(str::to_owned) };
        assert!(one("a", Some("1")).is(&one("renamed", Some("1"))));
        assert!(!one("a", Some("1")).is(&one("a", Some("2"))));
        assert!(one("a", None).is(&one("a", Some("2"))) && !one("a", None).is(&one("b", None)));
    }
}
