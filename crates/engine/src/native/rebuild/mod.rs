//! A rebuild: a new store with all that is still known of a damaged one.
//!
//! The source's file is copied, holes left out. If one copy of each part of the catalogue is whole, it has the names and
//! the roots; otherwise the map pages have the roots. Then damaged pages and unreadable data become lost blocks in new map
//! pages, and bitmaps, catalogue and superblocks are written anew. What is not known with certainty is lost, never zeros
//! and never older content.

mod anchor;
mod copy;
mod finish;
mod in_use;
mod inputs;
mod journal;
mod map_pages;
mod nodes;
mod report;
#[cfg(test)]
mod stale_tests;
#[cfg(test)]
mod start_tests;
mod states;
#[cfg(test)]
mod tests;
mod trees;

use blk::{Env, Error, File, Result};

use self::anchor::{Anchor, Records};
use self::copy::Found;
use self::finish::Finish;
use self::inputs::Rebuild;
use self::map_pages::MapPages;
use self::nodes::NodeList;
use self::trees::{NewPages, Trees};
use super::catalogue::Catalogue;
use super::journal::has_partial_batch;
use super::layout::BLOCK;
use super::space::groups_within;
use crate::options::Defects;

pub use self::report::{RebuildReport, RebuiltNode};

/// So many groups, 7.9 TiB in a store as we make it, are always rebuilt. A file that should have more must have the given part.
const GROUPS_ALWAYS: u64 = 1 << 16;
const GROUPS_RATIO_MAX: u64 = 64;

/// Writes what can be read of the store in `source` to `target`, an empty file. The source is not changed. Durable when
/// this resolves.
///
/// # Errors
/// `Unsupported`: the store was made without the feature that a rebuild needs. `Damaged`: nothing can be rebuilt with
/// certainty. Errors of the media.
pub async fn rebuild(env: &Env, source: &File, target: &File, defects: Defects) -> Result<RebuildReport> {
    let by_superblock = anchor::by_superblock(source).await?;
    let store_id = by_superblock.as_ref().map(|anchor| anchor.superblock.store_id);
    let found = copy::copy(source, target, store_id).await?;
    let anchor = match by_superblock {
        Some(anchor) => anchor,
        None => anchor::by_heads(source, &found).await?,
    };
    let records = anchor::records(source, &anchor).await?;
    let mut report =
        RebuildReport { checkpoint: anchor.superblock.catalogue_checkpoint, ..RebuildReport::default() };
    note_damage(&anchor, &found, &records, &mut report);
    if let Records::Known(known) = &records
        && (anchor.ring.has_batch_behind(known.end.seq, known.epoch)
            || has_partial_batch(source, &anchor.superblock.geometry(), known.end.seq).await?)
    {
        report.notes.push(
            "The journal ends with a batch that is not whole. It was being written when the power went; if it was damaged \
             later, the writes in it are missing."
                .into(),
        );
    }
    let catalogue = match Catalogue::read(source, &anchor.superblock).await {
        Ok(catalogue) => NodeList::of_catalogue(catalogue, &anchor.superblock, source.name(), &mut report),
        Err(e) => Err(e),
    };
    let rebuild = Rebuild { env, target, anchor: &anchor, found: &found, defects };
    rebuild.run(catalogue, &records, &mut report).await?;
    Ok(report)
}

/// Refuses a file with a small part of the groups that it should have: the work is done for all of them.
fn refuse_too_short(file: &File, in_file: u64, groups: u64) -> Result<()> {
    match groups > GROUPS_ALWAYS && groups / GROUPS_RATIO_MAX > in_file {
        false => Ok(()),
        true => Err(Error::damaged(
            file.name(),
            format!("the file has {in_file} of {groups} groups: too little is left to rebuild"),
        )),
    }
}

fn note_damage(anchor: &Anchor, found: &Found, records: &Records, report: &mut RebuildReport) {
    if anchor.from_head {
        report.notes.push(
            "No superblock is known to be the last one; a page of the catalogue has its content.".into(),
        );
    }
    if !found.unreadable.is_empty() {
        report.notes.push(format!("{} blocks of the file cannot be read.", found.unreadable.len()));
    }
    let expected = anchor.superblock.geometry().group_start(anchor.superblock.groups);
    if found.blocks < expected {
        let missing = format_args!("{} of {expected} blocks", expected - found.blocks);
        report.notes.push(format!("The file was cut: {missing} are missing at its end."));
    }
    if let Records::Unknown(e) = records {
        report.notes.push(format!("The journal cannot be read, so all running disks are lost: {e}."));
    }
}

impl Rebuild<'_> {
    async fn run(
        &self,
        catalogue: Result<NodeList>,
        records: &Records,
        report: &mut RebuildReport,
    ) -> Result<()> {
        let superblock = self.anchor.superblock;
        let geometry = superblock.geometry();
        let in_file = groups_within(&geometry, self.found.blocks * BLOCK);
        refuse_too_short(self.target, in_file, superblock.groups)?;
        let groups = in_file.max(superblock.groups);
        let pages = NewPages::new(geometry, groups);
        let trees = Trees::new(self.env, self.target, superblock.store_id, self.found);
        report.has_catalogue = catalogue.is_ok();
        let (nodes, keeps_journal) = match catalogue {
            Ok(mut nodes) => {
                let keeps_journal = self.keeps_journal(records);
                nodes
                    .mend(self, &trees, &pages, if keeps_journal { None } else { Some(records) }, report)
                    .await?;
                (nodes, keeps_journal)
            }
            Err(e) => {
                report.notes.push(format!("The catalogue is lost, with all names: {e}."));
                let Records::Known(records) = records else {
                    return Err(Error::damaged(
                        self.target.name(),
                        "neither the catalogue nor the journal can be read: nothing can be rebuilt with certainty",
                    ));
                };
                let map_pages = MapPages { rebuild: self, trees: &trees, pages: &pages, records };
                (map_pages.nodes(report).await?, false)
            }
        };
        report.has_journal =
            keeps_journal || matches!(records, Records::Known(known) if known.records.is_empty());
        let finish = Finish { rebuild: self, list: &nodes, pages: &pages, trees: &trees, keeps_journal };
        finish.write(records, report).await
    }

    /// Returns whether the new store can have the journal as it is: an opening replays it.
    fn keeps_journal(&self, records: &Records) -> bool {
        let Records::Known(known) = records else { return false };
        !self.anchor.from_head && !known.has_unreadable(self.found)
    }
}
