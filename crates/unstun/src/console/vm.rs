//! The page of a VM: its snapshots, disks, clients and events, and the forms of what can be done with it.

use std::rc::Rc;
use std::sync::Arc;

use api::error::Result;
use api::name::VmName;
use api::units::format_bytes;
use api::{Alarm, DiskMode, Event, Job, Role, SnapshotTree, Vm, VmCondition, VmLimits, VmSummary};
use axum::extract::{Extension, Path, Query};
use axum::response::Response;
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde::Deserialize;

use super::activity::event_table;
use super::chart::{self, ChartSpan};
use super::jobs::job_table;
use super::page::{form_key, quiesce_choice, vm_pages};
use super::request::{PageRequest, parse_vm};
use super::shown::Shown;
use super::tree::tree;
use super::{disks, removal};
use crate::access::sessions::Session;
use crate::alarms::Alarms;
use crate::daemon::{Daemon, Subject};
use crate::recorder::Recorder;

/// Number of events that the page shows, the newest first.
const EVENTS_SHOWN: usize = 30;

/// What the daemon knows of a VM.
struct Known {
    vm: Vm,
    tree: SnapshotTree,
    events: Vec<Event>,
    jobs: Vec<Job>,
}

/// Query of the page.
#[derive(Deserialize)]
pub(super) struct Charts {
    span: Option<String>,
}

pub(super) async fn show(
    Extension(Shown { recorder, .. }): Extension<Shown>,
    Extension(all): Extension<Arc<Alarms>>,
    Path(name): Path<String>,
    Query(Charts { span }): Query<Charts>,
    page: PageRequest,
) -> Response {
    let content = async {
        let vm = parse_vm(&name)?;
        let known = match know(&page, vm.clone()).await? {
            Ok(known) => known,
            Err(idle) => return Ok(removal::idle(&idle, page.session())),
        };
        let charts = charts(&recorder, &known, ChartSpan::of(span.as_deref())).await;
        let mut lasting = all.list(false);
        lasting.retain(|alarm| alarm.vm.as_ref() == Some(&vm));
        Ok(body(&known, &lasting, &charts, page.session()))
    };
    page.answer(&format!("VM {name}"), content).await
}

/// Returns what is known of an open VM, or the row of one that is closed or broken.
async fn know(page: &PageRequest, vm: VmName) -> Result<std::result::Result<Known, VmSummary>> {
    page.permit("GET /vms/{vm}", Some(&vm))?;
    let subject = Subject::Vm(vm.clone());
    let look = async move |daemon: Rc<Daemon>| {
        if daemon.idle_home(vm.as_str()).is_some() {
            let row = daemon.vm_list().await?.into_iter().find(|row| row.name == vm);
            if let Some(row) = row.filter(|row| row.condition != VmCondition::Open) {
                return Ok(Err(row));
            }
        }
        let (shown, tree) = (daemon.vm_show(&vm).await?, daemon.snapshot_tree(&vm).await?);
        let (events, mut jobs) = (daemon.events(&vm)?, daemon.job_list().await);
        jobs.retain(|job| job.vm.as_ref() == Some(&vm));
        Ok(Ok(Known { vm: shown, tree, events, jobs }))
    };
    page.ask(subject, look).await
}

async fn charts(recorder: &Recorder, known: &Known, span: ChartSpan) -> Markup {
    let until = Timestamp::now();
    let from = until.checked_sub(SignedDuration::from_secs(span.length_s)).unwrap_or(Timestamp::UNIX_EPOCH);
    match recorder.recorded(&known.vm.name, from, until, span.step_s).await {
        Ok(recorded) => chart::charts(&recorded, span, until.as_millisecond(), &known.events),
        Err(e) => html! { p.quiet { (e.message) } },
    }
}

fn body(known: &Known, alarms: &[Alarm], charts: &Markup, session: &Session) -> Markup {
    let Known { vm, events, .. } = known;
    let open: Vec<&Job> = known.jobs.iter().filter(|job| job.state.is_open()).collect();
    html! {
        (vm_pages(&vm.name, ""))
        @for alarm in alarms {
            p.notice.fault role="alert" { a href="/alarms" { (alarm.severity.as_str()) } ": " (alarm.message) }
        }
        @for notice in &vm.notices { p.notice { (notice) } }
        @if vm.waiting_writes > 0 {
            p.notice.fault role="alert" { (vm.waiting_writes) " guest writes wait: the datastore is full." }
        }
        (facts(vm))
        (charts)
        @if !open.is_empty() { h2 { "Work under way" } (job_table(&open, session)) }
        h2 { "Snapshots" }
        (tree(&known.tree, session))
        @if session.caller.role >= Role::Operator { (forms(known, session)) }
        h2 { "Disks" }
        (disks::table(vm))
        h2 { "Clients" }
        (clients(vm))
        h2 { "Events" }
        (event_table(events.iter().rev().take(EVENTS_SHOWN), |name| *name == vm.name))
    }
}

fn facts(vm: &Vm) -> Markup {
    let growth = format!(
        "{} free; disks and deltas can grow by {}",
        format_bytes(vm.space.free_bytes),
        format_bytes(vm.space.worst_growth_bytes)
    );
    html! {
        @if !vm.note.is_empty() { p { (vm.note) } }
        dl {
            @if !vm.tags.is_empty() {
                dt { "Tags" } dd { @for tag in &vm.tags { (tag) " " } }
            }
            dt { "Store" } dd { (vm.store.as_str()) " on datastore " (vm.datastore) }
            dt { "Home" } dd { code { (vm.home.display()) } }
            dt { "Space" } dd { (growth) @if !vm.space.is_enough() { " " span.warn { "that does not fit" } } }
            dt { "Runs on" } dd { @match &vm.current_snapshot {
                Some(name) => { "snapshot " (name) },
                None => { "no snapshot" },
            } }
            @if let Some(access) = &vm.guest.access {
                dt { "Guest" } dd { code { (access) } ", frozen for at most " (vm.guest.frozen_ms_max) " ms" }
            }
            @if vm.limits != VmLimits::default() { dt { "Limits" } dd { (vm.limits.describe()) } }
            @if vm.delayed_requests > 0 { dt { "Delayed" } dd { (vm.delayed_requests) " requests wait for its limits" } }
        }
    }
}

fn forms(known: &Known, session: &Session) -> Markup {
    let vm = &known.vm.name;
    html! {
        form.row method="post" action=(format!("/vms/{vm}/take")) {
            (form_key(session))
            label { "Name of the snapshot" input name="name" required maxlength="80"; }
            label { "Description" input name="message" maxlength="1000"; }
            @if known.vm.guest.access.is_some() { (quiesce_choice(api::Quiesce::No)) }
            @if known.vm.guest.qmp.is_some() {
                label { span { input type="checkbox" name="memory" value="yes"; " With the guest's memory" } }
            }
            button { "Take a snapshot" }
        }
        @if !known.tree.snapshots.is_empty() {
            form.row method="post" action=(format!("/vms/{vm}/clone")) {
                (form_key(session))
                label { "Clone the snapshot"
                    select name="snapshot" {
                        @for snapshot in &known.tree.snapshots { option value=(snapshot.id) { (snapshot.name) } }
                    }
                }
                label { "as a VM with the name" input name="name" required maxlength="64"; }
                button { "Clone" }
            }
        }
        @if session.caller.role == Role::Admin {
            form.row method="post" action=(format!("/vms/{vm}/preview")) {
                (form_key(session))
                @if !known.tree.snapshots.is_empty() {
                    button.plain name="verb" value="commit-all" { "Commit all..." }
                }
                button.plain name="verb" value="undo" { "Undo the last revert or discard..." }
                @if known.vm.disks.iter().any(|disk| disk.mode == DiskMode::IndependentNonpersistent) {
                    button.plain name="verb" value="reset" { "Reset the nonpersistent disks..." }
                }
            }
        }
    }
}

fn clients(vm: &Vm) -> Markup {
    html! {
        @if vm.clients.is_empty() { p.quiet { "No client is connected." } }
        @else {
            ul { @for client in &vm.clients { li { (client) } } }
        }
    }
}
