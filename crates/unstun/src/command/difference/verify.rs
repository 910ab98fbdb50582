//! Reads two snapshots of a disk, and compares their content with the ranges that are said to differ.

use api::error::{Error, ErrorKind, Result};
use api::listen::NbdListen;
use api::name::SnapshotRef;
use api::{Differences, DifferencesVerified, Disk, DiskRange, Snapshot};

use crate::command::exported_snapshot::SnapshotId;
use crate::command::pieces::{PIECE_BYTES, Pieces, read_from};

/// Unit in which contents are compared.
const SECTOR: usize = 512;

/// # Errors
/// `Damaged`: something outside of the ranges differs.
pub(super) fn run(
    disk: &Disk,
    (from, to): (&SnapshotRef, &SnapshotRef),
    snapshots: &[Snapshot],
    found: &Differences,
) -> Result<DifferencesVerified> {
    let (mut older, mut newer) =
        (Content::open(disk, from, snapshots, found)?, Content::open(disk, to, snapshots, found)?);
    let mut verified = DifferencesVerified::default();
    let mut offset = 0;
    while offset < found.size_bytes {
        let bytes = PIECE_BYTES.min(found.size_bytes - offset);
        compare(offset, &older.next(bytes)?, &newer.next(bytes)?, &found.ranges, &mut verified).map_err(
            |at| {
                let place = format!("VM {}: disk{} at byte {at}", found.vm, disk.number);
                let cause = format!("{from} and {to} differ, and the comparison does not say so");
                Error::new(ErrorKind::Damaged, format!("{place}: {cause}"))
            },
        )?;
        offset += bytes;
    }
    Ok(verified)
}

/// Compares a piece of two states. Fails with the offset of a sector that differs outside of the ranges.
fn compare(
    offset: u64,
    older: &[u8],
    newer: &[u8],
    ranges: &[DiskRange],
    verified: &mut DifferencesVerified,
) -> Result<(), u64> {
    for (n, (one, other)) in older.chunks(SECTOR).zip(newer.chunks(SECTOR)).enumerate() {
        let at = offset + (n * SECTOR) as u64;
        let before = ranges.partition_point(|range| range.start_bytes <= at);
        let last = before.checked_sub(1).map(|last| ranges[last]);
        let is_reported = last.is_some_and(|range| at < range.start_bytes + range.length_bytes);
        match (one == other, is_reported) {
            (true, true) => verified.equal_bytes += one.len() as u64,
            (true, false) => verified.same_bytes += one.len() as u64,
            (false, true) => {}
            (false, false) => return Err(at),
        }
    }
    Ok(())
}

/// The content of a snapshot, from its begin to its end.
struct Content {
    pieces: Pieces,
    offset: u64,
}

impl Content {
    fn open(disk: &Disk, of: &SnapshotRef, snapshots: &[Snapshot], found: &Differences) -> Result<Content> {
        let known = snapshots.iter().find(|one| of.as_str() == one.name || of.as_str() == one.id);
        let known =
            known.ok_or_else(|| Error::not_found(format!("VM {}: no snapshot {of} any more", found.vm)))?;
        let (listen, _) = NbdListen::parse_uri(&disk.nbd_uri).map_err(Error::failed)?;
        let uri = listen.uri(&format!("{}/disk{}@{}", found.vm, disk.number, known.name));
        let snapshot = SnapshotId { name: known.name.clone(), id: Some(known.id.clone()) };
        let pieces = read_from(&uri, &snapshot, 0)?;
        Ok(Content { pieces, offset: 0 })
    }

    /// Returns the next piece. A disk that was smaller reads as zeros past its end.
    fn next(&mut self, bytes: u64) -> Result<Vec<u8>> {
        let mut content = vec![0; bytes as usize];
        if self.offset < self.pieces.size_bytes {
            let piece = self.pieces.next()?;
            if let Some(data) = piece.data {
                let length = data.len().min(content.len());
                content[..length].copy_from_slice(&data[..length]);
            }
        }
        self.offset += bytes;
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_that_is_not_reported_is_found() {
        let older = vec![0; 4 * SECTOR];
        let mut newer = older.clone();
        newer[2 * SECTOR + 5] = 1;
        let range = |first: u64, count: u64| DiskRange {
            start_bytes: 4096 + first * SECTOR as u64,
            length_bytes: count * SECTOR as u64,
        };
        let look = |ranges: &[DiskRange]| {
            let mut verified = DifferencesVerified::default();
            compare(4096, &older, &newer, ranges, &mut verified).map(|()| verified)
        };
        let sectors = |same: u64, equal: u64| DifferencesVerified {
            same_bytes: same * SECTOR as u64,
            equal_bytes: equal * SECTOR as u64,
        };
        assert_eq!(look(&[range(2, 1)]), Ok(sectors(3, 0)));
        assert_eq!(look(&[range(0, 1), range(2, 2)]), Ok(sectors(1, 2)));
        for missing in [&[][..], &[range(0, 2)], &[range(3, 1)]] {
            assert_eq!(look(missing), Err(4096 + 2 * SECTOR as u64), "{missing:?}");
        }
    }
}
