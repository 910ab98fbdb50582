//! The space that a VM and its snapshots take, and what differs between two states of a disk.

use std::rc::Rc;

use api::error::Result;
use api::name::{SnapshotRef, VmName};
use api::units::{format_bytes, format_seconds, total};
use api::{Diff, Differences, DiskRange, Store, VmSpace};
use axum::extract::{Path, Query};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use super::page::vm_pages;
use super::request::{PageRequest, parse_vm};
use super::sent::invalid;
use crate::daemon::{Daemon, Subject};

/// Maximum number of differing ranges that the page shows. The command line prints all.
const RANGES_SHOWN: usize = 100;

/// Query of the page: a comparison of two states of a disk, if `from` is not empty.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
pub(super) struct Comparison {
    disk: u32,
    from: String,
    /// Empty for the running state.
    to: String,
}

pub(super) async fn show(
    Path(name): Path<String>,
    Query(comparison): Query<Comparison>,
    page: PageRequest,
) -> Response {
    let body = async {
        let vm = parse_vm(&name)?;
        page.permit("GET /vms/{vm}/space", Some(&vm))?;
        let (subject, asked) = (Subject::Vm(vm.clone()), vm.clone());
        let space = page.ask(subject, async move |daemon| daemon.vm_space(&asked).await).await?;
        let differences = match comparison.from.is_empty() {
            true => None,
            false => Some(compare(&page, &vm, &comparison).await?),
        };
        Ok(html! {
            (vm_pages(&vm, "/space"))
            (facts(&space))
            @if !space.snapshots.is_empty() {
                h2 { "Snapshots" }
                (snapshots(&space))
                h2 { "Differences between two states" }
                (comparison_form(&space, &comparison))
                @if let Some(differences) = &differences { (ranges(differences, &space)) }
            }
        })
    };
    page.answer(&format!("Space of VM {name}"), body).await
}

fn facts(space: &VmSpace) -> Markup {
    html! {
        dl {
            dt { "Size of its disks" } dd { (format_bytes(space.logical_bytes)) }
            dt { "Allocated" } dd { (format_bytes(space.allocated_bytes)) ", by it and its snapshots alone" }
            dt { "Shared" } dd { (format_bytes(space.shared_bytes)) ", with other VMs" }
            dt { "Datastore" } dd {
                (space.datastore) ": " (format_bytes(space.space.free_bytes)) " free; disks and deltas can grow by "
                (format_bytes(space.space.worst_growth_bytes))
                @if !space.space.is_enough() { ", " span.warn { "which does not fit" } }
                "; " (format_bytes(space.space.bin_bytes)) " in the bin"
            }
            @for disk in &space.disks {
                @if let Some(bytes) = disk.average_run_bytes {
                    dt { "disk" (disk.number) } dd { "reads " (format_bytes(bytes)) " in one run on average" }
                }
            }
        }
    }
}

fn snapshots(space: &VmSpace) -> Markup {
    let counted = match space.store {
        Store::Native => "Only here",
        Store::Redo => "In its deltas",
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label="Space of the snapshots" {
            table {
                thead { tr { th scope="col" { "Snapshot" } th.number scope="col" { "Age" } th.number scope="col" { (counted) } } }
                tbody {
                    @for snapshot in &space.snapshots {
                        tr {
                            th scope="row" { (snapshot.name) }
                            td.number { (format_seconds(snapshot.age_s)) }
                            td.number { (format_bytes(snapshot.delta_bytes)) }
                        }
                    }
                }
            }
        }
    }
}

fn comparison_form(space: &VmSpace, chosen: &Comparison) -> Markup {
    let options = |chosen: &str| {
        html! {
            @for one in &space.snapshots { option value=(one.id) selected[one.id == chosen] { (one.name) } }
        }
    };
    html! {
        form.row method="get" action=(format!("/vms/{}/space", space.vm)) {
            label { "Disk"
                select name="disk" {
                    @for disk in &space.disks {
                        option value=(disk.number) selected[disk.number == chosen.disk] { "disk" (disk.number) }
                    }
                }
            }
            label { "From" select name="from" { (options(&chosen.from)) } }
            label { "To" select name="to" { option value="" { "the running state" } (options(&chosen.to)) } }
            button.plain { "Compare" }
        }
    }
}

/// Returns the differences up to the number of ranges that the page shows.
async fn compare(page: &PageRequest, vm: &VmName, chosen: &Comparison) -> Result<Differences> {
    page.permit("/vms/{vm}/diff", Some(vm))?;
    let from: SnapshotRef = chosen.from.parse().map_err(invalid)?;
    let to =
        if chosen.to.is_empty() { None } else { Some(chosen.to.parse::<SnapshotRef>().map_err(invalid)?) };
    let (disk, subject, vm) = (chosen.disk, Subject::Vm(vm.clone()), vm.clone());
    let look = async move |daemon: Rc<Daemon>| {
        let request = Diff { disk, from, to, start_bytes: 0 };
        let mut all = daemon.snapshot_diff(&vm, request.clone()).await?;
        while all.end_bytes < all.size_bytes && all.ranges.len() < RANGES_SHOWN {
            let next =
                daemon.snapshot_diff(&vm, Diff { start_bytes: all.end_bytes, ..request.clone() }).await?;
            all.end_bytes = next.end_bytes;
            all.ranges.extend(next.ranges);
        }
        Ok(all)
    };
    page.ask(subject, look).await
}

fn ranges(found: &Differences, space: &VmSpace) -> Markup {
    let is_whole = found.end_bytes >= found.size_bytes;
    let bytes = format_bytes(total(found.ranges.iter().map(|range| range.length_bytes)));
    let name = |id: &str| {
        let name = space.snapshots.iter().find(|one| one.id == id).map_or(id, |one| &one.name);
        format!("snapshot {name}")
    };
    let (from, to) = (name(&found.from), found.to.as_deref().map_or("the running state".to_owned(), name));
    html! {
        p {
            (bytes) " differ in " (found.ranges.len()) " ranges of disk" (found.disk) " between " (from) " and " (to)
            @if !is_whole { ", in its first " (format_bytes(found.end_bytes)) }
            ". "
            @if !is_whole || found.ranges.len() > RANGES_SHOWN { code { "unstun snapshot diff" } " prints all." }
        }
        @if !found.ranges.is_empty() {
            div.scroll tabindex="0" role="region" aria-label="Differing ranges" {
                table {
                    thead { tr { th.number scope="col" { "Offset in bytes" } th.number scope="col" { "Length" } } }
                    tbody { @for range in found.ranges.iter().take(RANGES_SHOWN) { (range_row(range)) } }
                }
            }
        }
    }
}

fn range_row(range: &DiskRange) -> Markup {
    html! { tr { td.number { (range.start_bytes) } td.number { (format_bytes(range.length_bytes)) } } }
}
