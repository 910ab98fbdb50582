//! The disks of a VM: their sizes, layers and requests, and the forms that add, grow, change and remove them.

use std::path::PathBuf;
use std::rc::Rc;

use api::error::Result;
use api::units::{format_bytes, parse_disk_size};
use api::{Disk, DiskCreate, DiskGrow, DiskMode, DiskSetMode, Vm};
use axum::extract::Path;
use axum::response::Response;
use clap::ValueEnum;
use maud::{Markup, html};
use serde::Serialize;
use serde_json::Value;

use super::page::{choice, form_key};
use super::request::{FormRequest, Route, may, parse_vm};
use super::sent::invalid;
use crate::access::sessions::Session;
use crate::daemon::{Daemon, Subject};

/// Returns the table of disks of the VM's page.
pub(super) fn table(vm: &Vm) -> Markup {
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

/// Returns the disks with the forms that change them, for the page of settings.
pub(super) fn section(vm: &Vm, session: &Session) -> Markup {
    let may_change = may(session, "PUT /vms/{vm}/disks/{number}/size");
    html! {
        @if vm.disks.is_empty() { p.quiet { "The VM has no disk." } }
        @else {
            div.scroll tabindex="0" role="region" aria-label="Disks and their forms" {
                table {
                    thead { tr {
                        th scope="col" { "Disk" } th.number scope="col" { "Size" } th scope="col" { "Mode" }
                        th scope="col" { "Descriptor" } @if may_change { th scope="col" { "Change" } }
                    } }
                    tbody { @for disk in &vm.disks { (row(vm, disk, may_change, session)) } }
                }
            }
        }
        @if may(session, "/vms/{vm}/disks") { (add_form(vm, session)) }
    }
}

fn row(vm: &Vm, disk: &Disk, may_change: bool, session: &Session) -> Markup {
    html! {
        tr {
            th scope="row" { "disk" (disk.number) " " span.quiet { (disk.slot) } }
            td.number { (format_bytes(disk.size_bytes)) }
            td { (disk.mode.word()) }
            td { code { (disk.descriptor.display()) } }
            @if may_change {
                td { (forms(vm, disk, session)) }
            }
        }
    }
}

/// Returns a form about a disk in a part of the page that is closed at first. `word` opens it.
fn folded(vm: &Vm, disk: &Disk, verb: &str, word: &str, fields: &Markup, session: &Session) -> Markup {
    html! {
        details {
            summary aria-label=(format!("{word}: disk{}", disk.number)) { (word) }
            form.row method="post" action=(format!("/vms/{}/disks/{}/{verb}", vm.name, disk.number)) {
                (form_key(session))
                (fields)
            }
        }
    }
}

fn forms(vm: &Vm, disk: &Disk, session: &Session) -> Markup {
    let grow = html! {
        label { "New size, such as 40G" input name="size" required maxlength="20" size="8"; }
        button { "Grow" }
    };
    let mode = html! { (mode_choice(disk.mode)) button { "Set the mode" } };
    let content = [("keep", "stays in its files"), ("delete", "is deleted, which cannot be undone")];
    let remove = html! {
        (choice("Its content", "files", &content, "keep"))
        button.loss { "Remove disk" (disk.number) " of " (vm.name) }
    };
    html! {
        (folded(vm, disk, "grow", "Grow", &grow, session))
        (folded(vm, disk, "mode", "Mode", &mode, session))
        (folded(vm, disk, "remove", "Remove", &remove, session))
    }
}

fn mode_choice(now: DiskMode) -> Markup {
    let words: Vec<_> = DiskMode::value_variants().iter().map(|mode| (mode.word(), mode.word())).collect();
    choice("Mode", "mode", &words, now.word())
}

fn add_form(vm: &Vm, session: &Session) -> Markup {
    html! {
        form.row method="post" action=(format!("/vms/{}/disks/add", vm.name)) {
            (form_key(session))
            label { "Size of a new disk, such as 20G" input name="size" required maxlength="20" size="8"; }
            (mode_choice(DiskMode::default()))
            label { "Folder; empty: that of the VM" input name="dir" maxlength="4000"; }
            button { "Add a disk" }
        }
    }
}

pub(super) async fn add(Path(vm): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let vm = parse_vm(&vm)?;
        let size_bytes = parse_disk_size(form.sent.text("size")).map_err(invalid)?;
        let (mode, dir) = (form.sent.word("mode")?, form.sent.optional::<PathBuf>("dir")?);
        let request = DiskCreate { size_bytes, mode, dir, from: None };
        let (body, core) = (request.clone(), form.page.access.core.clone());
        let work = core.disk_add(vm.clone(), request);
        let disk = form.act(Route::of_vm("/vms/{vm}/disks", &vm), &body, work).await?;
        Ok(format!("disk{} of {} is added.", disk.number, format_bytes(disk.size_bytes)))
    };
    form.answer(&format!("/vms/{vm}/settings"), done).await
}

/// Carries out an operation on a disk, by a route of the API.
async fn on_disk<T: Send + 'static>(
    form: &FormRequest,
    name: &str,
    (vm, number): (&str, u32),
    body: &impl Serialize,
    operation: impl AsyncFnOnce(Rc<Daemon>, api::name::VmName) -> Result<T> + Send + 'static,
) -> Result<T> {
    let vm = parse_vm(vm)?;
    let route = Route::of_vm(name, &vm);
    let route = Route { path: route.path.replace("{number}", &number.to_string()), ..route };
    let subject = Subject::Vm(vm.clone());
    form.act(route, body, form.page.ask(subject, async move |daemon| operation(daemon, vm).await)).await
}

pub(super) async fn grow(Path((vm, number)): Path<(String, u32)>, form: FormRequest) -> Response {
    let done = async {
        let size_bytes = parse_disk_size(form.sent.text("size")).map_err(invalid)?;
        let grow = async move |d: Rc<Daemon>, vm| d.disk_grow(&vm, number, size_bytes).await;
        let route = "PUT /vms/{vm}/disks/{number}/size";
        let grown = on_disk(&form, route, (&vm, number), &DiskGrow { size_bytes }, grow).await?;
        let clients: Vec<_> = grown.reconnect.iter().map(ToString::to_string).collect();
        let note = match clients.is_empty() {
            true => String::new(),
            false => format!(" Clients see the old size until they reconnect: {}.", clients.join(", ")),
        };
        Ok(format!("disk{number} has {}.{note}", format_bytes(grown.disk.size_bytes)))
    };
    form.answer(&format!("/vms/{vm}/settings"), done).await
}

pub(super) async fn mode(Path((vm, number)): Path<(String, u32)>, form: FormRequest) -> Response {
    let done = async {
        let mode = form.sent.word("mode")?;
        let set = async move |d: Rc<Daemon>, vm| d.disk_set_mode(&vm, number, mode).await;
        let route = "PUT /vms/{vm}/disks/{number}/mode";
        let disk = on_disk(&form, route, (&vm, number), &DiskSetMode { mode }, set).await?;
        Ok(format!("disk{number} is {}.", disk.mode.word()))
    };
    form.answer(&format!("/vms/{vm}/settings"), done).await
}

pub(super) async fn remove(Path((vm, number)): Path<(String, u32)>, form: FormRequest) -> Response {
    let done = async {
        let delete_files = form.sent.text("files") == "delete";
        let remove = async move |d: Rc<Daemon>, vm| d.disk_remove(&vm, number, delete_files).await;
        let route = "DELETE /vms/{vm}/disks/{number}";
        let removed = on_disk(&form, route, (&vm, number), &Value::Null, remove).await?;
        if removed.files_deleted {
            return Ok(format!("disk{number} is removed, and its files are deleted."));
        }
        let files: Vec<_> = removed.layers.iter().map(|layer| layer.display().to_string()).collect();
        Ok(format!("disk{number} is removed; its files stay: {}.", files.join(", ")))
    };
    form.answer(&format!("/vms/{vm}/settings"), done).await
}
