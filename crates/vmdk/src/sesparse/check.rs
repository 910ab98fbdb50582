//! Cross-reference check of a delta: what single tables cannot show, and what only ESXi needs.
//!
//! Facts: reference/vmware-formats 4.5 and 4.9. Two facts are not settled there, so either form is sound here: the
//! order of bits inside a byte of the bitmap, and whether the back map counts tables by slot or by directory entry.

use blk::{Buf, Result, SECTOR};

use super::bits::Bits;
use super::records::BACK_IN_USE;
use super::table::entry_name;
use super::{ENTRY_BYTES, Entry, GRAIN_BYTES, GRAINS_PER_TABLE, SeSparse, TABLE_BYTES, decode_words, rotate};
use crate::check::{Finding, Findings, Severity};
use crate::grain_table::Table;
use crate::read::read_tables;

/// Grains checked in one pass over the tables: two maps of 2^27 bits are 32 MiB, for 512 GiB of file.
const WINDOW_GRAINS: u64 = 1 << 27;

/// The bitmap is read in pieces of 64 KiB.
const PIECE_GRAINS: u64 = 8 * (64 << 10);

/// The back map is read in pieces of this many entries, 32 KiB.
const BACK_PIECE: u64 = 4096;

const REMEDY_COPY: &str = "copy the disk as its guest sees it into a new one; ESXi may overwrite data here";
const REMEDY_LEAK: &str = "nothing is lost, and the space is freed when the snapshot is committed";

impl SeSparse {
    /// Verifies each table on its own and with the back map, then all tables against one another and the free bitmap.
    pub(crate) async fn cross_check(&self) -> Result<Vec<Finding>> {
        let mut findings = Findings::default();
        let back_map = self.usable_area("the back map", ENTRY_BYTES as u64 * 8, &mut findings);
        let bitmap = self.usable_area("the free bitmap", 1, &mut findings);
        let mut sound = Vec::new();
        for region in self.directory.regions() {
            let bytes = self.table_bytes(region).await?;
            match self.bounds().decode(region, &bytes) {
                Ok(table) => {
                    sound.push(region);
                    if back_map {
                        self.check_back_map(region, &table, &mut findings).await?;
                    }
                }
                Err(error) => findings.add(Finding::of_error(&error, REMEDY_COPY)),
            }
            self.check_ignored(region, &bytes, &mut findings);
        }
        let grains = self.grains_in_file();
        for start in (0..grains).step_by(WINDOW_GRAINS as usize) {
            let window = start..grains.min(start + WINDOW_GRAINS);
            self.check_window(window, &sound, bitmap, &mut findings).await?;
        }
        Ok(findings.into_vec())
    }

    fn finding(&self, severity: Severity, field: String, found: String, expected: String) -> Finding {
        let remedy = if severity == Severity::Damage { REMEDY_COPY } else { REMEDY_LEAK };
        Finding::new(severity, self.file().name().into(), field, found).expected(expected).remedy(remedy)
    }

    async fn table_bytes(&self, region: u32) -> Result<Buf> {
        let slot = self.directory.slot(region).expect("a region with a table");
        read_tables(self.file(), self.header.table_offset_bytes(slot), TABLE_BYTES).await
    }

    /// Returns the number of whole grains in the file, including a tail that ESXi left.
    fn grains_in_file(&self) -> u64 {
        let room = self.file_bytes.saturating_sub(self.header.grains.start_bytes()) / GRAIN_BYTES;
        room.min(self.header.grain_slots())
    }

    /// Returns whether an area that the guest's data does not need exists, with bits for every grain of the file.
    fn usable_area(&self, name: &str, bits: u64, findings: &mut Findings) -> bool {
        let area = if bits == 1 { self.header.bitmap } else { self.header.back_map };
        let needed = (self.grains_in_file() * bits).div_ceil(8 * SECTOR);
        let end = area.start.checked_add(area.sectors).filter(|end| *end <= self.file_bytes / SECTOR);
        if end.is_some() && area.sectors >= needed {
            return true;
        }
        let found = format!("{} sectors from {}", area.sectors, area.start);
        let expected = format!("at least {needed} sectors inside the file");
        let finding = self.finding(Severity::Warning, name.into(), found, expected);
        findings
            .add(finding.remedy("the guest's data can be read without it; ESXi needs it to reclaim space"));
        false
    }

    /// Checks values that readers ignore.
    fn check_ignored(&self, region: u32, bytes: &[u8], findings: &mut Findings) {
        let grains = self.header.grains_in(region);
        for (entry, value) in decode_words(bytes).enumerate().filter(|(_, value)| *value != 0) {
            let expected = match Entry::decode(value) {
                _ if entry >= grains => "0, as it is past the end of the disk",
                Entry::Zero(number) if number != 0 => "a zeroed grain without a number",
                _ => continue,
            };
            let found = format!("{value:#018x}");
            let warning = self.finding(Severity::Warning, entry_name(region, entry), found, expected.into());
            findings.add(warning.remedy("it is not read; nothing is lost"));
        }
    }

    /// Checks that every grain's entry in the back map points to the grain's entry in the table.
    async fn check_back_map(&self, region: u32, table: &Table, findings: &mut Findings) -> Result<()> {
        let slot = self.directory.slot(region).expect("a region with a table");
        let grains = table.data_runs().flat_map(|(grain, run)| {
            (0..run.entries).map(move |index| (grain + index as u64, run.entry + index))
        });
        let mut grains: Vec<(u64, usize)> = grains.collect();
        grains.sort_unstable();
        let mut piece: (u64, Vec<u64>) = (u64::MAX, Vec::new());
        for (grain, entry) in grains {
            if piece.0 != grain / BACK_PIECE {
                piece = (grain / BACK_PIECE, self.back_piece(grain / BACK_PIECE).await?);
            }
            let found = piece.1[(grain % BACK_PIECE) as usize];
            let back =
                |table: u32| BACK_IN_USE | rotate(u64::from(table) * GRAINS_PER_TABLE as u64 + entry as u64);
            if found != back(slot) && found != back(region) {
                let field = format!("the back map of grain {grain}");
                let expected = format!("{:#018x}, {}", back(slot), entry_name(region, entry));
                findings.add(self.finding(Severity::Damage, field, format!("{found:#018x}"), expected));
            }
        }
        Ok(())
    }

    async fn back_piece(&self, piece: u64) -> Result<Vec<u64>> {
        let entries = (self.grains_in_file() - piece * BACK_PIECE).min(BACK_PIECE);
        let offset = self.header.back_map.start_bytes() + piece * BACK_PIECE * ENTRY_BYTES as u64;
        let bytes = read_tables(self.file(), offset, entries as usize * ENTRY_BYTES).await?;
        Ok(decode_words(&bytes).collect())
    }

    async fn check_window(
        &self,
        window: std::ops::Range<u64>,
        tables: &[u32],
        bitmap: bool,
        findings: &mut Findings,
    ) -> Result<()> {
        let mut owned = Bits::new(&window);
        let mut reclaimable = Bits::new(&window);
        if tables.len() < self.directory.regions().count() {
            // The grains of a damaged table are unknown, so no grain can be called unused.
            reclaimable.fill();
        }
        for region in tables {
            let bytes = self.table_bytes(*region).await?;
            let entries = decode_words(&bytes).take(self.header.grains_in(*region));
            for (entry, value) in entries.enumerate() {
                match Entry::decode(value) {
                    Entry::Data(grain) if owned.set(grain) => {
                        let expected = "each grain in one entry of one table".into();
                        let field = entry_name(*region, entry);
                        let found = format!("grain {grain}, as another entry is");
                        findings.add(self.finding(Severity::Damage, field, found, expected));
                    }
                    Entry::Unmapped(grain) => _ = reclaimable.set(grain),
                    _ => {}
                }
            }
        }
        if bitmap {
            self.check_bitmap(window, &owned, &reclaimable, findings).await?;
        }
        Ok(())
    }

    /// Checks that the bitmap has a bit for every grain in use, and none for a grain that no table names. Grains to be
    /// reclaimed may have either.
    async fn check_bitmap(
        &self,
        window: std::ops::Range<u64>,
        owned: &Bits,
        reclaimable: &Bits,
        findings: &mut Findings,
    ) -> Result<()> {
        for start in window.clone().step_by(PIECE_GRAINS as usize) {
            let grains = (window.end - start).min(PIECE_GRAINS);
            let offset = self.header.bitmap.start_bytes() + start / 8;
            let bytes = read_tables(self.file(), offset, grains.div_ceil(8) as usize).await?;
            for (index, byte) in bytes.iter().enumerate() {
                let grain = start + index as u64 * 8;
                // The last byte may include grains that the file does not have.
                let counted = if window.end - grain < 8 { (1 << (window.end - grain)) - 1 } else { u8::MAX };
                let (must, may) = (owned.byte(grain), owned.byte(grain) | reclaimable.byte(grain));
                if let Some((severity, found, expected)) = bitmap_fault(*byte, must, may | !counted) {
                    let field = format!("the free bitmap of grains {grain} to {}", grain + 7);
                    findings.add(self.finding(severity, field, found, expected));
                }
            }
        }
        Ok(())
    }
}

/// Compares a byte. `must` are the grains in use, `may` those that may be marked, both with the lowest bit first.
fn bitmap_fault(byte: u8, must: u8, may: u8) -> Option<(Severity, String, String)> {
    let read = [byte, byte.reverse_bits()];
    if read.iter().any(|bits| must & !bits == 0 && bits & !may == 0) {
        return None;
    }
    let found = format!("{byte:#010b}");
    if read.iter().all(|bits| must & !bits != 0) {
        return Some((Severity::Damage, found, format!("{must:#010b}: a grain in use is marked free")));
    }
    Some((Severity::Warning, found, format!("{must:#010b}: a grain is marked in use that nothing names")))
}
