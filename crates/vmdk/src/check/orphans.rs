//! Check for files of disks to which no descriptor refers.

use std::collections::BTreeSet;

use blk::reactor::OpenMode;
use blk::{Result, SECTOR};

use super::extents::{capacity_of, check_alone};
use super::finding::{Faults, Finding, Severity};
use super::inventory::{Inventory, Place};
use super::keyword_of;
use crate::descriptor::Descriptor;
use crate::probe::Content;
use crate::text::{TEXT_BYTES_MAX, shown};

/// Endings of extents' names before `.vmdk`; the descriptor's name precedes them.
const ENDINGS: [&str; 3] = ["-flat", "-delta", "-sesparse"];

/// Size up to which an unreadable file may be a damaged descriptor. ESXi's flat files and deltas are larger.
pub(crate) const TEXT_LIKELY_BYTES_MAX: u64 = 16 << 10;

pub(super) async fn check(inventory: &Inventory<'_>, out: &mut Faults) {
    let paths = inventory.links.values().filter_map(Descriptor::change_track_path);
    let tracked = paths.filter_map(|path| match inventory.locate(path) {
        Place::Here(name) => Some(name),
        Place::Missing | Place::Outside => None,
    });
    let tracked: BTreeSet<String> = tracked.collect();
    for (name, content) in &inventory.contents {
        let tracking = tracked.contains(name);
        if tracking || *content == Content::Descriptor || !inventory.who_names(name).is_empty() {
            continue;
        }
        if let Err(error) = check_unnamed(inventory, name, *content, out).await {
            out.push(Finding::of_error(&error, "see that the file can be read"));
        }
    }
}

async fn check_unnamed(
    inventory: &Inventory<'_>,
    name: &str,
    content: Content,
    out: &mut Faults,
) -> Result<()> {
    match content {
        Content::VmfsSparse | Content::SeSparse => {
            check_alone(inventory, name, out).await;
            // A header that cannot be read has been reported.
            let capacity = capacity_of(inventory, name, content).await.ok();
            out.push(lost_descriptor(inventory, name, &remedy_for_delta(name, content, capacity)));
        }
        Content::HostedSparse | Content::StreamOptimized => check_alone(inventory, name, out).await,
        Content::Descriptor => {}
        Content::Other => check_plain(inventory, name, out).await?,
    }
    Ok(())
}

async fn check_plain(inventory: &Inventory<'_>, name: &str, out: &mut Faults) -> Result<()> {
    let file = inventory.dir.open(name, OpenMode::Read).await?;
    let size = file.size().await?;
    let lower = name.to_ascii_lowercase();
    if lower.ends_with("-ctk.vmdk") {
        out.push(
            unnamed(inventory, name, Severity::Note)
                .expected("one that a changeTrackPath names")
                .remedy("remove it; the next backup is a full one"),
        );
    } else if lower.ends_with("-flat.vmdk") {
        out.push(lost_descriptor(inventory, name, &remedy_for_flat(inventory, name, size)));
    } else if size <= TEXT_LIKELY_BYTES_MAX {
        let bytes = file.read_all(TEXT_BYTES_MAX as u64).await?;
        if let Err(error) = Descriptor::parse(file.name(), &bytes) {
            let remedy = "take the file from a backup, or write it anew after a sibling's";
            out.push(Finding::of_error(&error, remedy));
        }
    } else {
        out.push(
            unnamed(inventory, name, Severity::Warning)
                .expected("one that a descriptor names")
                .remedy("find out whose it is before it is removed"),
        );
    }
    Ok(())
}

fn unnamed(inventory: &Inventory<'_>, name: &str, severity: Severity) -> Finding {
    Finding::new(severity, inventory.path(name), "the file", "named by nothing here")
}

/// Returns `web.vmdk` for `web-flat.vmdk` and `web-delta.vmdk`; None for other names.
pub(crate) fn descriptor_of(extent: &str) -> Option<String> {
    let stem = extent.len().checked_sub(".vmdk".len()).and_then(|at| extent.get(..at))?;
    let name = ENDINGS.iter().find_map(|ending| stem.strip_suffix(ending))?;
    Some(format!("{name}.vmdk"))
}

fn lost_descriptor(inventory: &Inventory<'_>, extent: &str, remedy: &str) -> Finding {
    let descriptor = descriptor_of(extent).map_or("a descriptor".into(), |name| shown(&name));
    Finding::new(Severity::Damage, inventory.path(extent), "its descriptor", "missing")
        .expected(format!("{descriptor}, with this file in an extent line"))
        .remedy(remedy)
}

fn remedy_for_delta(extent: &str, content: Content, capacity_sectors: Option<u64>) -> String {
    let capacity = capacity_sectors.map_or("SECTORS".into(), |sectors| sectors.to_string());
    let keyword = keyword_of(content).unwrap_or("VMFSSPARSE");
    let create_type = if content == Content::SeSparse { "seSparse" } else { "vmfsSparse" };
    format!(
        "write it anew: version=1, a CID of its own, the link it was made on as parentFileNameHint and that link's CID as \
         parentCID, createType=\"{create_type}\", RW {capacity} {keyword} \"{extent}\""
    )
}

/// Returns the remedy for a flat extent. A remaining child contains the CID of its parent.
fn remedy_for_flat(inventory: &Inventory<'_>, extent: &str, bytes: u64) -> String {
    let cid = descriptor_of(extent).and_then(|name| inventory.expected_cid(&name)).unwrap_or(0xffff_fffe);
    format!(
        "write it anew: version=1, CID={cid:08x}, parentCID=ffffffff, createType=\"vmfs\", RW {} VMFS \"{extent}\"",
        bytes / SECTOR
    )
}
