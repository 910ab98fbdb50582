//! The export that is pulled: its name, the snapshot that it is, and the snapshot with which it is compared.

use api::error::{Error, ErrorKind, Result};
use blk::Env;
use export::nbd_client::{Address, NbdVolume, Negotiated, connect_to};

use crate::command::exported_snapshot::{SNAPSHOT_MARK, SnapshotId, context_of, id_in, of_disk};

/// Between the name of a disk and the number of its generation in an export's name.
const GENERATION_MARK: &str = ".g";

/// A connection to the export, and what is known of it.
pub(super) struct Source {
    negotiated: Negotiated,
    export: String,
    snapshot: Option<SnapshotId>,
    base: Option<SnapshotId>,
}

impl Source {
    /// Connects to the export of `uri`, or to that of its disk's snapshot `until`, for a comparison with the snapshot `since`.
    pub(super) fn connect(uri: &str, since: Option<&str>, until: Option<&str>) -> Result<Source> {
        let mut address = Address::parse(uri)?;
        let (export, named) = match address.export.split_once(SNAPSHOT_MARK) {
            Some((export, snapshot)) => (export.to_owned(), Some(snapshot.to_owned())),
            None => (without_generation(&address.export).to_owned(), None),
        };
        if named.is_some() && until.is_some() {
            return Err(Error::invalid(format!("{uri}: it names a snapshot already; leave out --until")));
        }
        let wanted = until.map(str::to_owned).or(named);
        if since.is_some() && since == wanted.as_deref() {
            let name = since.unwrap_or_default();
            return Err(Error::invalid(format!("--since and the snapshot to pull are both {name:?}")));
        }
        if let Some(snapshot) = &wanted {
            address.export = format!("{export}{SNAPSHOT_MARK}{snapshot}");
        }
        let context = since.map(context_of);
        let negotiated = connect_to(&address, context.as_deref())?;
        let snapshot = wanted.map(|name| SnapshotId { id: id_in(&negotiated), name });
        let base = since.map(|since| base(&negotiated, &address, &export, since)).transpose()?;
        Ok(Source { negotiated, export, snapshot, base })
    }

    /// Returns the name of the disk's export, without a snapshot or a generation.
    pub(super) fn export(&self) -> &str {
        &self.export
    }

    /// Returns the snapshot that is pulled; None for a running disk.
    pub(super) fn snapshot(&self) -> Option<&SnapshotId> {
        self.snapshot.as_ref()
    }

    /// Returns the snapshot whose differences are pulled; None if everything is.
    pub(super) fn base(&self) -> Option<&SnapshotId> {
        self.base.as_ref()
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.negotiated.export().size_bytes
    }

    /// Returns the volume, and the metadata context of the comparison.
    pub(super) fn serve(self, env: &Env) -> Result<(std::rc::Rc<NbdVolume>, Option<String>)> {
        let context = self.base.map(|base| context_of(&base.name));
        Ok((self.negotiated.serve(env)?, context))
    }
}

fn without_generation(export: &str) -> &str {
    match export.rsplit_once(GENERATION_MARK) {
        Some((disk, number)) if number.bytes().all(|digit| digit.is_ascii_digit()) => disk,
        _ => export,
    }
}

/// Returns the snapshot `since`, with the ID that its own export names. It is read after the comparison was agreed on, so
/// that a snapshot which replaces it meanwhile has another ID.
fn base(negotiated: &Negotiated, address: &Address, export: &str, since: &str) -> Result<SnapshotId> {
    let missing = |cause: &str| {
        Error::not_found(format!(
            "{export} cannot be compared with its snapshot {since:?}: {cause}; pull all of it, without --since and with --force"
        ))
    };
    if !negotiated.export().has_context(&context_of(since)) {
        return Err(missing("the server does not know it, or cannot compare"));
    }
    match of_disk(address, export, since).map_err(Error::from) {
        Err(error) if error.kind == ErrorKind::NotFound => Err(missing("it was removed")),
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_no_part_of_a_disks_name() {
        for (export, disk) in
            [("web/disk0.g5", "web/disk0"), ("web/disk0", "web/disk0"), ("a.good/x", "a.good/x")]
        {
            assert_eq!(without_generation(export), disk);
        }
    }

    #[test]
    fn arguments_that_contradict_each_other_are_refused_before_a_connection() {
        let refused = |uri, since, until| Source::connect(uri, since, until).err().unwrap();
        let uri = "nbd+unix:///web/disk0@b?socket=/nowhere";
        assert_eq!(refused(uri, None, Some("c")).kind, ErrorKind::Invalid);
        assert_eq!(refused(uri, Some("b"), None).kind, ErrorKind::Invalid);
        assert_eq!(refused(uri, None, None).kind, ErrorKind::Failed);
        assert_eq!(refused("nbds://x/y", None, None).kind, ErrorKind::Unsupported);
    }
}
