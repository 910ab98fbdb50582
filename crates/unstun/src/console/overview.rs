//! The overview: datastores, VMs, work under way.

use api::listen::escape;
use api::units::{format_bytes, format_rate, format_seconds};
use api::{Datastore, Job, Role, Status, VmCondition, VmSummary};
use maud::{Markup, html};
use serde::Deserialize;

use super::create;
use super::page::form_key;
use crate::access::sessions::Session;

/// What the user wants to see of the VMs.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Filter {
    /// Part of the name.
    pub q: String,
    pub sort: Sort,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Sort {
    #[default]
    Name,
    Snapshots,
    Size,
    Allocated,
}

/// Columns by which VMs can be sorted, with the words of the address.
const COLUMNS: [(&str, Sort, &str); 4] = [
    ("VM", Sort::Name, "name"),
    ("Snapshots", Sort::Snapshots, "snapshots"),
    ("Size", Sort::Size, "size"),
    ("Allocated", Sort::Allocated, "allocated"),
];

pub(super) fn overview(
    status: Option<&Status>,
    vms: &[VmSummary],
    jobs: &[Job],
    filter: &Filter,
    session: &Session,
) -> Markup {
    let open: Vec<&Job> = jobs.iter().filter(|job| job.state.is_open()).collect();
    html! {
        @if let Some(status) = status {
            @for full in &status.full {
                p.notice.fault role="alert" {
                    @let waiting: Vec<&str> = full.waiting.iter().map(|waiting| waiting.vm.as_str()).collect();
                    "Datastore " (full.datastore) " is full: guest writes wait (" (waiting.join(", ")) "). "
                    @if let Some(first) = full.freeable.first() {
                        "Committing snapshots frees most: begin with VM "
                        a href=(format!("/vms/{}", first.vm)) { (first.vm) } "."
                    }
                }
            }
            h2 { "Datastores" }
            (datastores(&status.datastores))
        }
        h2 { "VMs" }
        @if vms.is_empty() { (first_steps()) } @else { (vm_table(vms, filter)) }
        @if session.caller.role == Role::Admin && !session.caller.is_limited() { (create::form(session)) }
        h2 { "Work under way" }
        @if open.is_empty() { p.quiet { "Nothing is under way." } } @else { (job_table(&open, session)) }
    }
}

fn first_steps() -> Markup {
    html! {
        p { "There is no VM yet. Create one here or on the command line, or import a folder of VMware's:" }
        p { code { "unstun vm create web --disk 20G" } }
        p { code { "unstun vm import /path/to/folder" } }
        p { "Then " code { "unstun attach web" } " prints the lines for QEMU, libvirt and Proxmox." }
    }
}

fn datastores(all: &[Datastore]) -> Markup {
    let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), format_bytes);
    html! {
        div.scroll tabindex="0" role="region" aria-label="Datastores" {
            table {
                thead { tr {
                    th scope="col" { "Datastore" } th scope="col" { "State" } th.number scope="col" { "Free" }
                    th.number scope="col" { "Total" } th.number scope="col" { "Bin" } th.number scope="col" { "VMs" }
                    th scope="col" { "Path" }
                } }
                tbody {
                    @for one in all {
                        tr {
                            th scope="row" { (one.name) }
                            td { @match (&one.hung, &one.message) {
                                (Some(hung), _) => span.bad { "has not answered for " (hung.for_s) " s" },
                                (None, Some(message)) => span.bad { (message) },
                                (None, None) => span.good { "served" },
                            } }
                            td.number { (bytes(one.free_bytes)) }
                            td.number { (bytes(one.total_bytes)) }
                            td.number { (bytes(one.bin_bytes)) }
                            td.number { (one.vms.unwrap_or(0)) }
                            td { code { (one.path.display()) } }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the VMs that the filter admits, in its order.
fn selected<'a>(vms: &'a [VmSummary], filter: &Filter) -> Vec<&'a VmSummary> {
    let mut all: Vec<&VmSummary> = vms.iter().filter(|vm| vm.name.as_str().contains(&filter.q)).collect();
    // The names are sorted already, and the order of equal ones stays.
    match filter.sort {
        Sort::Name => {}
        Sort::Snapshots => all.sort_by_key(|vm| std::cmp::Reverse(vm.snapshots)),
        Sort::Size => all.sort_by_key(|vm| std::cmp::Reverse(vm.size_bytes)),
        Sort::Allocated => all.sort_by_key(|vm| std::cmp::Reverse(vm.allocated_bytes)),
    }
    all
}

fn vm_table(vms: &[VmSummary], filter: &Filter) -> Markup {
    let shown = selected(vms, filter);
    html! {
        form.row method="get" action="/" {
            label { "Part of the name" input type="search" name="q" value=(filter.q); }
            button.plain { "Filter" }
            span.quiet { (shown.len()) " of " (vms.len()) " VMs" }
        }
        div.scroll tabindex="0" role="region" aria-label="VMs" {
            table {
                thead { tr {
                    @for (title, sort, word) in COLUMNS {
                        @let order = if sort == Sort::Name { "ascending" } else { "descending" };
                        th.number[sort != Sort::Name] scope="col" aria-sort=[(sort == filter.sort).then_some(order)] {
                            a href=(format!("/?sort={word}&q={}", escape(&filter.q))) { (title) }
                        }
                    }
                    th.number scope="col" { "Clients" } th scope="col" { "Store" } th scope="col" { "Datastore" }
                    th scope="col" { "State" }
                } }
                tbody { @for vm in shown { (vm_row(vm)) } }
            }
        }
    }
}

fn vm_row(vm: &VmSummary) -> Markup {
    let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), format_bytes);
    html! {
        tr {
            th scope="row" {
                @if vm.condition == VmCondition::Open { a href=(format!("/vms/{}", vm.name)) { (vm.name) } }
                @else { (vm.name) }
            }
            td.number { (vm.snapshots.map_or("-".to_owned(), |n| n.to_string())) }
            td.number { (bytes(vm.size_bytes)) }
            td.number { (bytes(vm.allocated_bytes)) }
            td.number { (vm.nbd_clients) }
            td { (vm.store.as_str()) }
            td { (vm.datastore) }
            td.text {
                @if vm.waiting_writes > 0 { span.bad { (vm.waiting_writes) " writes wait for space" } }
                @else if let Some(message) = &vm.message { span.bad { (message) } }
                @else { (vm.condition.as_str()) }
            }
        }
    }
}

pub(super) fn job_table(jobs: &[&Job], session: &Session) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Jobs" {
            table {
                thead { tr {
                    th.number scope="col" { "Job" } th scope="col" { "Operation" } th scope="col" { "VM" }
                    th scope="col" { "State" } th scope="col" { "Done" } th.number scope="col" { "Rate" }
                    th.number scope="col" { "Time left" } th.number scope="col" { "Guest latency" } th scope="col" { "Change" }
                } }
                tbody {
                    @for job in jobs {
                        tr {
                            td.number { (job.id) }
                            td { (job.operation.as_str()) " " (job.snapshots.join(", ")) }
                            td { @if let Some(vm) = &job.vm { a href=(format!("/vms/{vm}")) { (vm) } } }
                            td { (job.state.as_str()) }
                            td {
                                progress max=(job.bytes_total.max(1)) value=(job.bytes_done)
                                    aria-label=(format!("Progress of job {}", job.id)) {}
                                " " (format_bytes(job.bytes_done)) " of " (format_bytes(job.bytes_total))
                            }
                            td.number { (format_rate(job.rate_bytes_s)) }
                            td.number { (job.eta_s.map_or("-".to_owned(), format_seconds)) }
                            td.number { (job.guest_latency_us.map_or("-".to_owned(), api::units::format_us)) }
                            td { @if job.state.is_open() { (job_actions(job, session)) } }
                        }
                    }
                }
            }
        }
    }
}

fn job_actions(job: &Job, session: &Session) -> Markup {
    let paused = job.state == api::JobState::Paused;
    let verbs = [(if paused { "resume" } else { "pause" }, Role::Operator), ("cancel", Role::Admin)];
    let caller = &session.caller;
    let verbs =
        verbs.iter().filter(|(_, role)| caller.role >= *role && !caller.is_limited()).map(|(verb, _)| verb);
    html! {
        form method="post" action=(format!("/jobs/{}", job.id)) {
            (form_key(session))
            @for verb in verbs {
                button.plain name="verb" value=(verb) aria-label=(format!("{verb} job {}", job.id)) { (verb) } " "
            }
        }
    }
}
