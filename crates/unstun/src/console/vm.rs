//! The page of a VM: its snapshots, disks, clients and events, and the forms of what can be done with it.

use api::units::{format_bytes, format_us};
use api::{Alarm, Event, Job, Role, SnapshotTree, Vm};
use maud::{Markup, html};

use super::overview::job_table;
use super::page::{age, form_key, quiesce_choice};
use super::tree::tree;
use crate::access::sessions::Session;

/// Number of events that the page shows, the newest first.
const EVENTS_SHOWN: usize = 30;

/// What the daemon knows of a VM.
pub(super) struct Known {
    pub vm: Vm,
    pub tree: SnapshotTree,
    pub events: Vec<Event>,
    pub jobs: Vec<Job>,
}

pub(super) fn page(known: &Known, alarms: &[Alarm], charts: &Markup, session: &Session) -> Markup {
    let Known { vm, events, .. } = known;
    let open: Vec<&Job> = known.jobs.iter().filter(|job| job.state.is_open()).collect();
    html! {
        @for alarm in alarms {
            p.notice.fault role="alert" { a href="/alarms" { (alarm.severity.as_str()) } ": " (alarm.message) }
        }
        @for notice in &vm.notices { p.notice { (notice) } }
        @if vm.waiting_writes > 0 {
            p.notice.fault role="alert" { (vm.waiting_writes) " guest writes wait: the datastore is full." }
        }
        (facts(vm))
        (charts)
        p { a href=(format!("/vms/{}/cost", vm.name)) { "What its snapshots cost" } }
        @if !open.is_empty() { h2 { "Work under way" } (job_table(&open, session)) }
        h2 { "Snapshots" }
        (tree(&known.tree, session))
        @if session.caller.role >= Role::Operator { (forms(known, session)) }
        h2 { "Disks" }
        (disks(vm))
        h2 { "Clients" }
        (clients(vm))
        h2 { "Events" }
        (event_table(events.iter().rev().take(EVENTS_SHOWN)))
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
            dt { "Attach" } dd { code { "unstun attach VM" } " prints the lines for its hypervisor" }
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
            @if known.vm.guest.access.is_some() { (quiesce_choice()) }
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
            }
        }
    }
}

fn disks(vm: &Vm) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Disks" {
            table {
                thead { tr {
                    th scope="col" { "Disk" } th.number scope="col" { "Size" } th scope="col" { "Mode" }
                    th.number scope="col" { "Layers" } th.number scope="col" { "Guest reads" }
                    th.number scope="col" { "Guest writes" } th.number scope="col" { "First writes" }
                    th.number scope="col" { "Device reads" } th.number scope="col" { "Device writes" } th scope="col" { "NBD" }
                } }
                tbody {
                    @for disk in &vm.disks {
                        tr {
                            th scope="row" { "disk" (disk.number) }
                            td.number { (format_bytes(disk.size_bytes)) }
                            td { (disk.mode.word()) }
                            td.number { (disk.layers.len()) }
                            td.number { (disk.io.guest_reads) }
                            td.number { (disk.io.guest_writes) }
                            td.number { (disk.io.first_writes) }
                            td.number { (disk.io.device_reads) }
                            td.number { (disk.io.device_writes) }
                            td { code { (disk.nbd_uri) } }
                        }
                    }
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

pub(super) fn event_table<'a>(events: impl Iterator<Item = &'a Event>) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Events" {
            table {
                thead { tr {
                    th scope="col" { "When" } th scope="col" { "VM" } th scope="col" { "Event" }
                    th scope="col" { "Snapshot" } th.number scope="col" { "Stun" } th scope="col" { "Message" }
                } }
                tbody {
                    @for event in events {
                        tr {
                            td { (age(event.time)) }
                            td { a href=(format!("/vms/{}", event.vm)) { (event.vm) } }
                            td { (event.operation.as_str()) }
                            td { (event.snapshot.as_deref().unwrap_or("")) }
                            td.number { @if event.stun_us > 0 { (format_us(event.stun_us)) } }
                            td.text { (event.message.as_deref().unwrap_or("")) }
                        }
                    }
                }
            }
        }
    }
}
