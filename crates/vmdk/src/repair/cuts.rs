//! Truncated deltas: clears the table entries that point past the end, if the user gives up their data. The lost ranges
//! of the disk are reported; they show the parent's data.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::{Buf, File, Result, SECTOR};

use super::{Action, Mend, PlanDraft, RepairOptions};
use crate::check::Inventory;
use crate::cowd::{
    Directory, HEADER_BYTES, Header, TABLE_BYTES, TABLE_SECTORS, TableBounds, decode_entries, encode_entries,
};
use crate::probe::Content;

/// Maximum number of sectors of one delta that a repair changes: with their copies 32 MiB.
const SECTORS_MAX: usize = 1 << 15;
/// Maximum number of ranges that a repair names; further ones are only counted.
const RANGES_SHOWN_MAX: usize = 20;

const SECTOR_BYTES: usize = SECTOR as usize;

/// One sector of a delta, before and after the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub before: Vec<u8>,
    pub after: Vec<u8>,
}

/// Changes of a truncated delta.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Changed sectors by byte offset. The header's, at 0, is written last.
    pub pieces: BTreeMap<u64, Piece>,
    /// Length of the file, which does not change.
    pub file_bytes: u64,
    pub capacity_sectors: u64,
    pub is_unclean: bool,
}

/// Result of the examination of a delta.
enum Outcome {
    /// The file has everything that its tables name, as far as this module checks.
    Whole,
    Cut(CutDelta),
    /// The delta is truncated, and is not repaired for this reason.
    Unrepairable(String),
}

/// A truncated delta, and what its disk loses.
struct CutDelta {
    cut: Cut,
    /// Lost ranges in bytes of the disk, in order; none adjacent to the next.
    lost: Vec<Range<u64>>,
    /// Number of lost tables. It is unknown which of their grains were written.
    tables_lost: usize,
}

/// Plans the repair of each truncated VMFSsparse delta of the folder.
pub(super) async fn mend(inventory: &Inventory<'_>, terms: &RepairOptions, draft: &mut PlanDraft) {
    let deltas = inventory.contents.iter().filter(|(_, content)| **content == Content::VmfsSparse);
    for (name, _) in deltas {
        if inventory.cut_of(name).is_some() || draft.whole.contains(name) {
            continue;
        }
        match find(inventory, name).await {
            // The check reports its other faults.
            Ok(Outcome::Whole) | Err(_) => _ = draft.whole.insert(name.clone()),
            Ok(Outcome::Cut(found)) if terms.cut_deltas => add(name, found, draft),
            Ok(Outcome::Unrepairable(reason)) => draft.refuse_file(inventory.path(name), reason),
            Ok(Outcome::Cut(found)) => {
                let lost = summary(&found);
                let reason = format!(
                    "it was cut; best copy it again. --cut-deltas gives up what is lost for good, {lost}, which then show \
                     the older data of its parent"
                );
                draft.refuse_file(inventory.path(name), reason);
            }
        }
        inventory.dir.env().next_turn().await;
    }
}

fn add(name: &str, found: CutDelta, draft: &mut PlanDraft) {
    let ranges = found.lost.iter().take(RANGES_SHOWN_MAX);
    let mut lines: Vec<String> =
        ranges.map(|range| format!("lost: bytes {} to {}", range.start, range.end)).collect();
    let more = found.lost.len().saturating_sub(RANGES_SHOWN_MAX);
    lines.extend((more > 0).then(|| format!("lost: {more} more ranges")));
    draft.changes.cut.insert(name.into(), Rc::new(found.cut.clone()));
    draft.touched.insert(name.into());
    draft.mends.push(Mend {
        file: name.into(),
        action: Action::Cut,
        lines,
        reason: format!(
            "its tables name grains past its end; all that lie before it are kept, and {}",
            summary(&found)
        ),
        caution: Some(
            "those ranges show the older data of the parent from now on, so that the disk is of no one time: repair its file \
             systems on a copy, and take what matters from a backup"
                .into(),
        ),
    });
}

/// Returns a text such as `3 ranges of the disk are lost, 196608 bytes at most`.
fn summary(found: &CutDelta) -> String {
    let bytes: u64 = found.lost.iter().map(|range| range.end - range.start).sum();
    let plural = if found.lost.len() == 1 { "range of the disk is" } else { "ranges of the disk are" };
    let tables = match found.tables_lost {
        0 => String::new(),
        1 => {
            " (a table is lost: the ranges that it mapped and those that it did not cannot be distinguished)"
                .to_owned()
        }
        tables => {
            format!(
                " ({tables} tables are lost: the ranges that they mapped and those that they did not cannot be distinguished)"
            )
        }
    };
    format!("{} {plural} lost, {bytes} bytes{tables}", found.lost.len())
}

async fn read(file: &File, offset: u64, len: usize) -> Result<Buf> {
    let (buf, result) = file.read(offset, Buf::alloc(len)).await;
    result.map(|()| buf)
}

/// Examines a delta.
///
/// # Errors
/// `Damaged` if it has another fault, so that nothing in it is reliable.
async fn find(inventory: &Inventory<'_>, name: &str) -> Result<Outcome> {
    let file = inventory.dir.open(name, OpenMode::Read).await?;
    let file_bytes = file.size().await?;
    let head = read(&file, 0, HEADER_BYTES.min(usize::try_from(file_bytes).unwrap_or(usize::MAX))).await?;
    let header = Header::decode_of_any_length(file.name(), &head, file_bytes)?;
    let metadata_bytes = u64::from(header.first_data_sector()) * SECTOR;
    if file_bytes < metadata_bytes {
        let cause = "it was cut inside of its directory, so that nothing in it can be found any more; take it from a backup";
        return Ok(Outcome::Unrepairable(cause.into()));
    }
    // A header that was closed shows how much there should be.
    if !header.is_unclean() && u64::from(header.free_sector()) * SECTOR <= file_bytes {
        return Ok(Outcome::Whole);
    }
    let mut search = Search::new(&file, &header, file_bytes).await?;
    search.look_at_tables().await?;
    Ok(search.finish())
}

/// A walk over the tables of one delta.
struct Search<'a> {
    file: &'a File,
    header: &'a Header,
    file_bytes: u64,
    directory_bytes: Vec<u8>,
    directory: Directory,
    pieces: BTreeMap<u64, Piece>,
    lost: Vec<Range<u64>>,
    tables_lost: usize,
}

impl<'a> Search<'a> {
    async fn new(file: &'a File, header: &'a Header, file_bytes: u64) -> Result<Self> {
        let offset = u64::from(header.directory_sector()) * SECTOR;
        let directory_bytes = read(file, offset, header.directory_bytes()).await?.to_vec();
        let mut search = Self {
            file,
            header,
            file_bytes,
            directory_bytes,
            directory: Directory::empty(header.directory_entries() as u32),
            pieces: BTreeMap::new(),
            lost: Vec::new(),
            tables_lost: 0,
        };
        search.drop_lost_tables()?;
        Ok(search)
    }

    fn is_inside(&self, sector: u32, sectors: u32) -> bool {
        (u64::from(sector) + u64::from(sectors)) * SECTOR <= self.file_bytes
    }

    /// Clears the entries of the directory whose tables are cut off. The rest must be sound.
    fn drop_lost_tables(&mut self) -> Result<()> {
        let mut entries = decode_entries(&self.directory_bytes);
        let before = self.directory_bytes.clone();
        for (region, entry) in entries.iter_mut().enumerate().take(self.header.directory_entries()) {
            if *entry != 0 && !self.is_inside(*entry, TABLE_SECTORS) {
                *entry = 0;
                // At most 2^20 regions.
                self.lose_grains(region as u32, 0..self.header.grains_in(region as u32));
                self.tables_lost += 1;
            }
        }
        encode_entries(&entries, &mut self.directory_bytes);
        self.directory =
            Directory::decode(self.file.name(), self.header, &self.directory_bytes, self.file_bytes)?;
        let offset = u64::from(self.header.directory_sector()) * SECTOR;
        let after = self.directory_bytes.clone();
        self.change(offset, &before, &after);
        Ok(())
    }

    async fn look_at_tables(&mut self) -> Result<()> {
        let tables: Vec<(u32, u32)> = self.directory.tables().collect();
        for (region, sector) in tables {
            let offset = u64::from(sector) * SECTOR;
            let before = read(self.file, offset, TABLE_BYTES).await?.to_vec();
            let mut entries = decode_entries(&before);
            let kept = self.drop_lost_grains(region, &mut entries);
            let bounds = TableBounds {
                file: self.file.name(),
                header: self.header,
                directory: &self.directory,
                file_bytes: self.file_bytes,
                free_sector: None,
            };
            bounds.check(region, &entries)?;
            if !kept {
                let mut after = before.clone();
                encode_entries(&entries, &mut after);
                self.change(offset, &before, &after);
            }
        }
        Ok(())
    }

    /// Clears the entries of a table whose grains are cut off. Returns true if there were none.
    fn drop_lost_grains(&mut self, region: u32, entries: &mut [u32]) -> bool {
        let grain = self.header.grain_sectors();
        let grains = self.header.grains_in(region);
        let cut: Vec<usize> = (0..grains)
            .filter(|&entry| entries[entry] != 0 && !self.is_inside(entries[entry], grain))
            .collect();
        for &entry in &cut {
            entries[entry] = 0;
            self.lose_grains(region, entry..entry + 1);
        }
        cut.is_empty()
    }

    fn lose_grains(&mut self, region: u32, grains: Range<usize>) {
        let grain_bytes = u64::from(self.header.grain_sectors()) * SECTOR;
        let base = u64::from(region) * self.header.region_bytes();
        let disk_bytes = u64::from(self.header.capacity_sectors()) * SECTOR;
        let start = base + grains.start as u64 * grain_bytes;
        let end = (base + grains.end as u64 * grain_bytes).min(disk_bytes);
        self.lost.push(start..end);
    }

    /// Records the sectors in which two contents of one place differ, up to one above the limit.
    fn change(&mut self, offset: u64, before: &[u8], after: &[u8]) {
        let sectors = before.chunks(SECTOR_BYTES).zip(after.chunks(SECTOR_BYTES)).enumerate();
        for (at, (before, after)) in sectors.filter(|(_, (before, after))| before != after) {
            if self.pieces.len() > SECTORS_MAX {
                return;
            }
            let piece = Piece { before: before.to_vec(), after: after.to_vec() };
            self.pieces.insert(offset + (at * SECTOR_BYTES) as u64, piece);
        }
    }

    fn finish(mut self) -> Outcome {
        let end = u32::try_from(self.file_bytes / SECTOR).unwrap_or(u32::MAX);
        if !self.header.is_unclean() && self.header.free_sector() > end {
            let before = self.header.bytes().to_vec();
            let mut header = self.header.clone();
            header.set_free_sector(end);
            let after = header.bytes().to_vec();
            self.change(0, &before, &after);
        }
        if self.pieces.is_empty() {
            return Outcome::Whole;
        }
        if self.pieces.len() > SECTORS_MAX {
            let cause = format!(
                "it was cut so early that more than {SECTORS_MAX} sectors of its tables would change"
            );
            return Outcome::Unrepairable(format!("{cause}; take it from a backup"));
        }
        self.lost.sort_unstable_by_key(|range| range.start);
        let mut lost: Vec<Range<u64>> = Vec::new();
        for range in self.lost {
            match lost.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => lost.push(range),
            }
        }
        let cut = Cut {
            pieces: self.pieces,
            file_bytes: self.file_bytes,
            capacity_sectors: u64::from(self.header.capacity_sectors()),
            is_unclean: self.header.is_unclean(),
        };
        Outcome::Cut(CutDelta { cut, lost, tables_lost: self.tables_lost })
    }
}
