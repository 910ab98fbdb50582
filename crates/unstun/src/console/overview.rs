//! The overview: datastores, VMs, work under way.

use std::collections::BTreeSet;
use std::rc::Rc;

use api::listen::escape;
use api::name::{PolicyName, Tag};
use api::units::format_bytes;
use api::{Datastore, Job, Status, VmSummary};
use axum::extract::Query;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use super::datastores::{full_notice, state};
use super::jobs::job_table;
use super::page::form_key;
use super::request::{PageRequest, may};
use super::{bulk, create};
use crate::access::sessions::Session;
use crate::daemon::{Daemon, Subject};

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

pub(super) async fn show(Query(filter): Query<Filter>, page: PageRequest) -> Response {
    let body = async {
        let look = async |daemon: Rc<Daemon>| {
            // Damaged policies are reported elsewhere.
            let policies = daemon.policy_list().await.unwrap_or_default();
            Ok((daemon.status().await?, daemon.vm_list().await?, daemon.job_list().await, policies))
        };
        let (status, mut vms, mut jobs, policies) = page.ask(Subject::None, look).await?;
        let policies: Vec<_> = policies.into_iter().map(|one| one.policy.name).collect();
        let caller = &page.session().caller;
        vms.retain(|vm| caller.reaches(vm.name.as_str()));
        jobs.retain(|job| caller.reaches_job(job));
        // The figures of datastores are about more than the caller's VMs.
        let status = (!caller.is_limited()).then_some(&status);
        Ok(html! {
            @if let Some(status) = status { (of_datastores(status)) }
            h2 { "VMs" }
            @if vms.is_empty() { (first_steps()) } @else { (vm_table(&vms, &filter, &policies, page.session())) }
            @if may(page.session(), "/vms") { (create::form(page.session())) }
            h2 { "Work under way" }
            (open_jobs(&jobs, page.session()))
        })
    };
    page.answer("Overview", body).await
}

fn of_datastores(status: &Status) -> Markup {
    html! {
        @for full in &status.full { (full_notice(full)) }
        h2 { a href="/datastores" { "Datastores" } }
        (datastores(&status.datastores))
    }
}

fn open_jobs(jobs: &[Job], session: &Session) -> Markup {
    let open: Vec<&Job> = jobs.iter().filter(|job| job.state.is_open()).collect();
    html! {
        @if open.is_empty() { p.quiet { "Nothing is under way." } } @else { (job_table(&open, session)) }
    }
}

fn first_steps() -> Markup {
    html! {
        p { "There is no VM yet. Create one here or on the command line, or " a href="/create" { "import" } " a folder of VMware's:" }
        p { code { "unstun vm create web --disk 20G" } }
        p { code { "unstun vm import /path/to/folder" } }
        p { "Then the page \"Attach\" of the VM has the lines for QEMU, libvirt and Proxmox." }
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
                            th scope="row" { a href=(format!("/datastores#{}", one.name)) { (one.name) } }
                            td { (state(one)) }
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

fn vm_table(vms: &[VmSummary], filter: &Filter, policies: &[PolicyName], session: &Session) -> Markup {
    let shown = selected(vms, filter);
    let tags: BTreeSet<&Tag> = vms.iter().flat_map(|vm| &vm.tags).collect();
    let offers = bulk::is_offered(session);
    html! {
        form.row method="get" action="/" {
            label { "Part of the name" input type="search" name="q" value=(filter.q); }
            button.plain { "Filter" }
            span.quiet { (shown.len()) " of " (vms.len()) " VMs" }
        }
        @if offers {
            form method="post" action="/bulk/take" {
                (form_key(session))
                (rows(&shown, filter, true))
                (bulk::fields(policies, &tags, session))
            }
        } @else { (rows(&shown, filter, false)) }
    }
}

/// Returns the table; with the boxes that choose VMs if `has_choice` is set.
fn rows(shown: &[&VmSummary], filter: &Filter, has_choice: bool) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="VMs" {
            table {
                thead { tr {
                    @if has_choice { th scope="col" { "Choose" } }
                    @for (title, sort, word) in COLUMNS {
                        @let order = if sort == Sort::Name { "ascending" } else { "descending" };
                        th.number[sort != Sort::Name] scope="col" aria-sort=[(sort == filter.sort).then_some(order)] {
                            a href=(format!("/?sort={word}&q={}", escape(&filter.q))) { (title) }
                        }
                    }
                    th.number scope="col" { "Clients" } th scope="col" { "Store" } th scope="col" { "Datastore" }
                    th scope="col" { "State" } th scope="col" { "Tags" }
                } }
                tbody { @for vm in shown { (vm_row(vm, has_choice)) } }
            }
        }
    }
}

fn vm_row(vm: &VmSummary, has_choice: bool) -> Markup {
    let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), format_bytes);
    html! {
        tr {
            @if has_choice { td { (bulk::choice(vm)) } }
            th scope="row" {
                a href=(format!("/vms/{}", vm.name)) { (vm.name) }
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
            td { @for tag in &vm.tags { (tag) " " } }
        }
    }
}
