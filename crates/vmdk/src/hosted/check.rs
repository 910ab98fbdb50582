//! Check of an open disk: every table, its copy, and each grain in one entry.
//!
//! Facts: reference/vmware-formats 2.3, "Errors to detect".

use blk::{ErrorKind, File, Result, SECTOR};

use super::table::entry_name;
use super::{Extent, Hosted};
use crate::check::{Finding, Findings, Severity};
use crate::grain_table::Table;

const REMEDY_COPY: &str = "open the VM in VMware once, which mends tables that differ; or take the file from a backup, or copy what can still be read";
/// Grains checked in one pass over the tables: a map of 2^27 bits is 16 MiB, for 8 TiB of a file with VMware's grains.
const WINDOW_GRAINS: u64 = 1 << 27;

/// Checks one extent by its file. Returns whether it was not closed, and the findings.
pub(crate) async fn check_file(file: File) -> Result<(bool, Vec<Finding>)> {
    let files = [file];
    let extent = Extent::open(&files, 0).await?;
    let mut findings = Findings::default();
    check_extent(&files[0], &extent, &mut findings).await?;
    Ok((extent.header.is_unclean, findings.into_vec()))
}

impl Hosted {
    /// Verifies each table, with its copy, and all of one file against one another.
    pub(crate) async fn cross_check(&self) -> Result<Vec<Finding>> {
        let mut findings = Findings::default();
        for extent in self.parts.iter().filter_map(|part| part.extent.as_ref()) {
            check_extent(&self.files[usize::from(extent.file)], extent, &mut findings).await?;
        }
        Ok(findings.into_vec())
    }
}

async fn check_extent(file: &File, extent: &Extent, findings: &mut Findings) -> Result<()> {
    let mut sound = Vec::new();
    for region in extent.directory.regions() {
        match extent.read_table(file, region).await {
            Ok(_) => sound.push(region),
            Err(error) if error.kind == ErrorKind::Damaged => {
                findings.add(Finding::of_error(&error, REMEDY_COPY));
            }
            Err(error) => return Err(error),
        }
    }
    // A grain that is cut counts.
    let grains = extent.file_bytes.div_ceil(extent.header.grain_sectors * SECTOR);
    for start in (0..grains).step_by(WINDOW_GRAINS as usize) {
        let mut owned = vec![0; (grains - start).min(WINDOW_GRAINS).div_ceil(64) as usize];
        for region in &sound {
            let Some(table) = extent.read_table(file, *region).await? else { continue };
            for (entry, grain) in doubled(&table, start, &mut owned) {
                let found = format!("sector {}, as another entry is", grain * extent.header.grain_sectors);
                let field = entry_name(*region, entry);
                let finding = Finding::new(Severity::Damage, file.name().into(), field, found);
                findings.add(finding.expected("each grain in one entry").remedy(REMEDY_COPY));
            }
        }
    }
    Ok(())
}

/// Sets the bits of a table's grains, from grain `start` on. Returns the entries, with their grains, whose bit was set.
fn doubled(table: &Table, start: u64, owned: &mut [u64]) -> Vec<(usize, u64)> {
    let mut doubled = Vec::new();
    let named = table.data_runs().flat_map(|(grain, run)| {
        (0..run.entries).map(move |index| (run.entry + index, grain + index as u64))
    });
    for (entry, grain) in named {
        let Some(at) = grain.checked_sub(start) else { continue };
        let Some(word) = owned.get_mut((at / 64) as usize) else { continue };
        if *word & (1 << (at % 64)) != 0 {
            doubled.push((entry, grain));
        }
        *word |= 1 << (at % 64);
    }
    doubled
}
