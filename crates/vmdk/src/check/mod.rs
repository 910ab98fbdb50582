//! The check of a folder of VMware's files. It finds all faults and writes nothing.
//!
//! The faults are the rows of reference/vmware-formats 1.8, 3.4, 4.9 and 8. No fault hides another: an unreadable file
//! is a finding, and the check continues. Nothing outside the folder is opened. Nothing is locked, so a running VM may
//! change files during the check.

mod chain;
mod extents;
mod finding;
mod inventory;
mod orphans;
mod snapshots;

use std::collections::BTreeSet;

use blk::{Dir, Error, Result};

pub(crate) use chain::ancestry;
pub(crate) use extents::capacity_of;
pub(crate) use finding::{Faults, Findings};
pub use finding::{Finding, Severity};
pub(crate) use inventory::{Inventory, Place, Planned};
pub(crate) use orphans::{TEXT_LIKELY_BYTES_MAX, descriptor_of};
pub(crate) use snapshots::Vm;

use crate::probe::Content;
use crate::text::shown;

/// What a check examines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// Every file of a VM.
    Folder,
    /// One file of the folder: a descriptor with the chain below it, an extent, or a VM by its .vmx or .vmsd.
    File(&'a str),
}

/// Result of a check: the faults, worst first, and within one severity by file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// All faults; empty if everything is sound.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns whether nothing is lost, wrong or unreadable.
    pub fn is_sound(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity != Severity::Damage)
    }
}

/// Checks `what` in `dir`. Fails only if the folder itself cannot be listed, or has no file of that name.
pub async fn check(dir: &Dir, what: Target<'_>) -> Result<Report> {
    check_planned(dir, what, &Planned::default()).await
}

/// Checks like [`check`], in the state after `planned` is carried out.
pub(crate) async fn check_planned(dir: &Dir, what: Target<'_>, planned: &Planned) -> Result<Report> {
    let mut out = Faults::default();
    let inventory = Inventory::read(dir, planned, &mut out).await?;
    match what {
        Target::Folder => check_folder(&inventory, &mut out).await,
        Target::File(name) => check_file(&inventory, name, &mut out).await?,
    }
    Ok(Report { findings: out.into_vec() })
}

async fn check_folder(inventory: &Inventory<'_>, out: &mut Faults) {
    let all: BTreeSet<&str> = inventory.links.keys().map(String::as_str).collect();
    check_links(inventory, &all, out).await;
    orphans::check(inventory, out).await;
    snapshots::check(inventory, out).await;
    inventory.check_leftovers(out).await;
}

async fn check_links(inventory: &Inventory<'_>, names: &BTreeSet<&str>, out: &mut Faults) {
    chain::check(inventory, names, out).await;
    for name in names {
        extents::check_link(inventory, name, &inventory.links[*name], out).await;
    }
}

async fn check_file(inventory: &Inventory<'_>, name: &str, out: &mut Faults) -> Result<()> {
    if !inventory.names.contains(name) {
        return Err(Error::not_found(inventory.path(name), "no such file"));
    }
    let lower = name.to_ascii_lowercase();
    if lower.ends_with(".vmx") || lower.ends_with(".vmsd") {
        check_folder(inventory, out).await;
        return Ok(());
    }
    let named: BTreeSet<&str> = if inventory.links.contains_key(name) {
        chain::ancestry(inventory, name).into_iter().collect()
    } else {
        inventory.who_names(name).iter().map(String::as_str).collect()
    };
    check_links(inventory, &named, out).await;
    if named.is_empty() {
        extents::check_alone(inventory, name, out).await;
    }
    // Faults of other texts that were read are omitted, unless the texts belong to this chain.
    let mut concerned: BTreeSet<String> = named.iter().map(|link| inventory.path(link)).collect();
    let extents = named.iter().flat_map(|link| inventory.links[*link].extents());
    concerned.extend(extents.filter_map(|extent| match inventory.locate(&extent.file) {
        Place::Here(file) => Some(inventory.path(&file)),
        Place::Missing | Place::Outside => None,
    }));
    concerned.insert(inventory.path(name));
    out.retain(|finding| concerned.contains(&finding.file));
    Ok(())
}

/// Formats names for a finding.
pub(crate) fn quoted(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let mut names = names.into_iter();
    let first: Vec<String> = names.by_ref().take(NAMES_QUOTED_MAX).map(|name| shown(name.as_ref())).collect();
    let first = first.join(", ");
    match names.count() {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Maximum number of names in one list, so that a line stays readable, and a folder with many similar links does not
/// make a report of quadratic length.
const NAMES_QUOTED_MAX: usize = 20;

/// Returns the extent type in a descriptor that belongs to a content.
pub(crate) fn keyword_of(content: Content) -> Option<&'static str> {
    match content {
        Content::VmfsSparse => Some("VMFSSPARSE"),
        Content::SeSparse => Some("SESPARSE"),
        Content::HostedSparse | Content::StreamOptimized => Some("SPARSE"),
        Content::Descriptor | Content::Other => None,
    }
}

#[cfg(test)]
pub(crate) mod tests;
