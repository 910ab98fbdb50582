//! The last valid checkpoint of a damaged store, and its journal.

use blk::{Error, ErrorKind, File, Result};

use super::super::journal::{Replayed, RingBatches, replay};
use super::super::layout::Geometry;
use super::super::recover::NewStore;
use super::super::replayed_records::ReplayedRecords;
use super::super::superblock::{Slots, Superblock};
use super::copy::Found;

/// The last valid checkpoint.
pub(super) struct Anchor {
    pub superblock: Superblock,
    /// No superblock is known to be the last one: this one is the copy in a head page of the catalogue.
    pub from_head: bool,
    /// All of its ring.
    pub ring: RingBatches,
}

/// Most stores whose journals are compared with the heads that were found: a file may have heads of earlier stores.
const STORES_MAX: usize = 16;

/// Pages of the ring that no guest writes to: those of the stores that this program makes.
const RING_PAGES: u64 = NewStore::DEFAULT.journal_pages;

/// The journal behind the last valid checkpoint.
pub(super) enum Records {
    Known(ReplayedRecords),
    /// Records may be missing, so it is unknown what was changed.
    Unknown(Error),
}

/// Reads the superblocks. None if neither is known to be the last one, and a catalogue has to say.
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
    let ring = RingBatches::read(source, &newest.geometry()).await?;
    // A newer one may have been written, and space of this one used again since.
    let is_stale = ring.newest_checkpoint > newest.checkpoint;
    let may_be_stale = other.is_some() && (ring.unreadable || !ring.ends_whole());
    match is_stale || may_be_stale {
        true => Ok(None),
        false => Ok(Some(Anchor { superblock: newest, from_head: false, ring })),
    }
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

/// Finds the last valid checkpoint among the head pages of catalogues: that which the batches of the journal name.
///
/// # Errors
/// `Damaged`: no head is known to be that of the last valid checkpoint.
pub(super) async fn by_heads(source: &File, found: &Found) -> Result<Anchor> {
    let unknown = |cause: &str| {
        let cause = format!(
            "no superblock is known to be the last one, and {cause}: nothing can be rebuilt with certainty"
        );
        Error::damaged(source.name(), cause)
    };
    let usable = |head: &&Superblock| check(head, source).is_ok() && head.check_limits().is_ok();
    let heads: Vec<Superblock> = found.heads.iter().filter(usable).copied().collect();
    let mut stores: Vec<Geometry> = heads.iter().map(Superblock::geometry).collect();
    stores.sort_by_key(|store| (store.store_id, store.journal_pages, store.group_blocks));
    stores.dedup();
    stores.truncate(STORES_MAX);
    let mut proven: Option<Anchor> = None;
    for store in stores {
        let Ok(ring) = RingBatches::read(source, &store).await else { continue };
        // A guest's data may have the head of another store at the address that the head names, and batches of it.
        if ring.first_end > RING_PAGES {
            continue;
        }
        let of_store = || heads.iter().filter(|head| head.geometry() == store);
        let Some(last) = of_store().find(|head| is_last(head, &ring)) else { continue };
        if ring.unreadable || !ring.ends_whole() {
            return Err(unknown("pages of the journal are lost that may name the last checkpoint"));
        }
        // Was it the one under way when the power went, or are the batches lost that name it?
        if let Some(next) =
            of_store().find(|head| head.checkpoint > last.checkpoint && head.epoch >= ring.epoch)
        {
            let (found, next) = (last.checkpoint, next.checkpoint);
            return Err(unknown(&format!(
                "the journal names checkpoint {found}, but a catalogue of checkpoint {next} is there too"
            )));
        }
        if proven.is_some() {
            return Err(unknown("catalogues of two stores may be the last one"));
        }
        proven = Some(Anchor { superblock: pair(last, found), from_head: true, ring });
    }
    proven.ok_or_else(|| unknown("no page of a catalogue that is known to be valid"))
}

/// Returns whether the newest batches name the checkpoint of a head, and none names a later one.
fn is_last(head: &Superblock, ring: &RingBatches) -> bool {
    match ring.catalogue_checkpoint {
        // Earlier programs did not write it. An opening has a number of its own, so only its opening's batches tell.
        0 => ring.epoch == head.epoch && ring.newest_checkpoint == head.checkpoint,
        last => head.checkpoint == last,
    }
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
    if !anchor.ring.is_end(found.end.seq) {
        let cause = format!(
            "the journal ends at page number {}, and the pages around are neither batches nor those of a new ring: they were \
             overwritten or erased",
            found.end.seq
        );
        return Ok(Records::Unknown(Error::damaged(source.name(), cause)));
    }
    ReplayedRecords::read(source, found, &[]).await.map(Records::Known)
}
