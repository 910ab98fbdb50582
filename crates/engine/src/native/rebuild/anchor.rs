//! The last valid checkpoint of a damaged store, and its journal.

use blk::{Error, ErrorKind, File, Result};

use super::super::journal::{Replayed, named_checkpoints, replay};
use super::super::replayed_records::ReplayedRecords;
use super::super::superblock::{Slots, Superblock};
use super::copy::Found;

/// The last valid checkpoint.
pub(super) struct Anchor {
    pub superblock: Superblock,
    /// No superblock can be read: this one is the copy in a head page of the catalogue.
    pub from_head: bool,
}

/// The journal behind the last valid checkpoint.
pub(super) enum Records {
    Known(ReplayedRecords),
    /// Records may be missing, so it is unknown what was changed.
    Unknown(Error),
}

/// Reads the superblocks. None if neither can be read, and a catalogue has to say.
pub(super) async fn by_superblock(source: &File) -> Result<Option<Anchor>> {
    let slots = match Superblock::read(source).await {
        Ok(slots) => slots,
        Err(e) if matches!(e.kind, ErrorKind::Damaged | ErrorKind::Invalid | ErrorKind::Io) => {
            return Ok(None);
        }
        Err(e) => return Err(e),
    };
    let Slots { newest, other, .. } = slots;
    check(&newest, source)?;
    if let Some(other) = other {
        // A newer one may have been in the other slot, and space of this one used again since.
        let geometry = newest.geometry();
        let named = named_checkpoints(source, &geometry).await?;
        if named.unreadable || named.newest().is_some_and(|checkpoint| checkpoint > newest.checkpoint) {
            let cause = format!(
                "{}; the journal does not show that the other one is the newest, so nothing of it can be trusted",
                other.cause
            );
            return Err(Error::damaged(other.place, cause));
        }
    }
    Ok(Some(Anchor { superblock: newest, from_head: false }))
}

fn check(superblock: &Superblock, source: &File) -> Result<()> {
    match superblock.is_rebuildable() {
        true => Ok(()),
        false => Err(Error::unsupported(
            source.name(),
            "the store was made without incompatible feature bit 2, so its map pages do not name their nodes; it cannot be \
             rebuilt",
        )),
    }
}

/// Finds the newest checkpoint that became valid among the head pages of catalogues. A batch of the journal proves that,
/// if it is of the opening that wrote the checkpoint and names this or a later one.
pub(super) async fn by_heads(source: &File, found: &Found) -> Result<Anchor> {
    let mut heads = found.heads.clone();
    heads.sort_by_key(|head| std::cmp::Reverse((head.epoch, head.checkpoint)));
    for head in heads {
        if check(&head, source).is_err() || head.check_limits().is_err() {
            continue;
        }
        let named = named_checkpoints(source, &head.geometry()).await?;
        if named.proves(head.epoch, head.checkpoint) {
            return Ok(Anchor { superblock: pair(&head, found), from_head: true });
        }
    }
    Err(Error::damaged(
        source.name(),
        "no superblock can be read, and no page of a catalogue that is known to be valid: nothing can be rebuilt with \
         certainty",
    ))
}

/// Returns the superblock with both copies of its head page, as far as they are there.
fn pair(head: &Superblock, found: &Found) -> Superblock {
    let is_other = |other: &&Superblock| {
        other.catalogue.addr != head.catalogue.addr
            && other.catalogue.checksum == head.catalogue.checksum
            && (other.store_id, other.epoch, other.checkpoint) == (head.store_id, head.epoch, head.checkpoint)
    };
    let second =
        found.heads.iter().find(is_other).map_or(head.second_catalogue, |other| other.catalogue.addr);
    Superblock { second_catalogue: second, ..*head }
}

/// Reads the journal behind the checkpoint.
pub(super) async fn records(source: &File, anchor: &Anchor) -> Result<Records> {
    let geometry = anchor.superblock.geometry();
    let mut begin = anchor.superblock.begin();
    if anchor.from_head {
        // Openings since then have greater numbers, and no superblock of them is left.
        begin.checkpoint = u64::MAX;
    }
    let found: Replayed = match replay(source, &geometry, begin).await {
        Ok(found) => found,
        Err(e) if e.kind == ErrorKind::Damaged || e.kind == ErrorKind::Io => return Ok(Records::Unknown(e)),
        Err(e) => return Err(e),
    };
    if let Some(lost) = found.lost {
        return Ok(Records::Unknown(lost));
    }
    ReplayedRecords::read(source, found, &[]).await.map(Records::Known)
}
