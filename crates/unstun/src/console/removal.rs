//! Forms that close and open a VM, and the preview and the confirmation of its removal.

use std::rc::Rc;

use api::units::format_bytes;
use api::{Disconnect, Vm, VmCondition, VmOpen, VmRemove, VmRemovePreview, VmRemoved, VmSummary};
use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};

use super::page::{form_key, shell};
use super::request::{FormRequest, Route, may, parse_vm};
use crate::access::sessions::Session;
use crate::daemon::Daemon;

/// Returns the forms of an open VM.
pub(super) fn section(vm: &Vm, session: &Session) -> Markup {
    let name = vm.name.as_str();
    html! {
        @if vm.fenced && may(session, "/vms/{vm}/open") {
            p.notice {
                "The content was replaced: the plain names " (name) "/diskN are refused. An earlier client that is still running "
                "would corrupt the guest's file systems."
            }
            (open_form(name, "Serve the plain names again", session))
        }
        @if may(session, "/vms/{vm}/close") {
            form.row method="post" action=(format!("/vms/{name}/close")) {
                (form_key(session))
                @if !vm.clients.is_empty() {
                    label { span { input type="checkbox" name="disconnect" value="yes"; " Disconnect its clients" } }
                }
                button.plain { "Close the VM" }
                span.quiet { "Other tools can use its files until it is opened again." }
            }
        }
        (remove_form(name, session))
    }
}

/// Returns the page of a VM that is closed or broken: why, and what can be done.
pub(super) fn idle(vm: &VmSummary, session: &Session) -> Markup {
    let name = vm.name.as_str();
    let home = vm.home.display();
    html! {
        @match vm.condition {
            VmCondition::Closed => p.notice { "The VM is closed: other tools may use its files, and no client is served." },
            _ => p.notice.fault role="alert" { "The VM is not served: " (vm.message.as_deref().unwrap_or("its files cannot be read")) },
        }
        dl {
            dt { "Store" } dd { (vm.store.as_str()) " on datastore " (vm.datastore) }
            dt { "Home" } dd { code { (home) } }
        }
        @if vm.condition == VmCondition::Broken { (repair(vm)) }
        @if may(session, "/vms/{vm}/open") { (open_form(name, "Open the VM", session)) }
        (remove_form(name, session))
        @if may(session, "/vms/{vm}/open") && vm.condition == VmCondition::Broken {
            details {
                summary { "A move was interrupted, and its other side is lost" }
                form.row method="post" action=(format!("/vms/{name}/open")) {
                    (form_key(session))
                    label { span {
                        input type="checkbox" name="take_over" value="yes" required;
                        " The other side is lost permanently: this side is the VM"
                    } }
                    button.loss { "Take over" }
                }
            }
        }
    }
}

/// Returns the commands that repair the files of a VM. They run on the daemon's host.
pub(super) fn repair(vm: &VmSummary) -> Markup {
    let (home, title) = (vm.home.display(), format!("Commands for VM {}", vm.name));
    html! {
        @if vm.store == api::Store::Redo {
            p { "These commands, on the daemon's host, show what is wrong with its files, what a repair would write, and repair them:" }
            (shell(&title, &html! {
                code { "unstun check " (home) } "\n"
                code { "unstun repair " (home) } "\n"
                code { "unstun repair " (home) " --yes" } "\n"
                code { "unstun vm open " (vm.name) }
            }))
        } @else {
            p { "These commands, on the daemon's host, check the stores in use, and open the VM again:" }
            (shell(&title, &html! { code { "unstun check" } "\n" code { "unstun vm open " (vm.name) } }))
        }
    }
}

fn open_form(vm: &str, title: &str, session: &Session) -> Markup {
    html! {
        form.row method="post" action=(format!("/vms/{vm}/open")) {
            (form_key(session))
            button { (title) }
        }
    }
}

fn remove_form(vm: &str, session: &Session) -> Markup {
    html! {
        @if may(session, "DELETE /vms/{vm}") {
            form.row method="post" action=(format!("/vms/{vm}/remove/preview")) {
                (form_key(session))
                label { "Its disks and snapshots"
                    select name="disks" {
                        option value="delete" { "go into the bin for a while" }
                        option value="purge" { "are removed permanently" }
                        option value="keep" { "stay in its folder" }
                    }
                }
                button.loss { "Remove the VM..." }
            }
        }
    }
}

fn request(form: &FormRequest) -> VmRemove {
    let disks = form.sent.text("disks");
    VmRemove { delete_disks: disks != "keep", purge: disks == "purge", keep: form.sent.is_ticked("keep") }
}

pub(super) async fn preview(Path(vm): Path<String>, form: FormRequest) -> Response {
    let looked = async {
        let vm = parse_vm(&vm)?;
        let look = async |d: Rc<Daemon>, vm, of| d.remove_preview(&vm, of).await;
        let preview = form.on_vm("/vms/{vm}/remove/preview", &vm, request(&form), look).await?;
        Ok((format!("Remove VM {vm}?"), question(&preview, form.sent.text("disks"), form.page.session())))
    };
    form.report(&format!("/vms/{vm}"), looked).await
}

fn question(preview: &VmRemovePreview, disks: &str, session: &Session) -> Markup {
    let sizes = preview.disks.as_ref().map(|disks| {
        let one =
            |disk: &api::RemovedDisk| format!("disk{} ({})", disk.number, format_bytes(disk.size_bytes));
        disks.iter().map(one).collect::<Vec<_>>().join(", ")
    });
    html! {
        dl {
            dt { "Home" } dd { code { (preview.home.display()) } }
            dt { "Disks" } dd { (sizes.unwrap_or_else(|| format!("not read: the VM is {}", preview.condition.as_str()))) }
            @if let Some(snapshots) = preview.snapshots.as_ref().filter(|all| !all.is_empty()) {
                dt { "Snapshots" } dd { (snapshots.join(", ")) }
            }
            @if let Some(bytes) = preview.allocated_bytes { dt { "Allocated" } dd { (format_bytes(bytes)) } }
        }
        p.notice { strong { (fate(preview)) } }
        @if preview.clients.is_empty() {
            form.row method="post" action=(format!("/vms/{}/remove", preview.vm)) {
                (form_key(session))
                input type="hidden" name="disks" value=(disks);
                @if preview.kept_until.is_some() { input type="hidden" name="keep" value="yes"; }
                button.loss { "Remove VM " (preview.vm) }
                a href=(format!("/vms/{}", preview.vm)) { "Change nothing" }
            }
        } @else {
            p.notice.fault { "Clients are connected. Power the guest off, or disconnect them first:" }
            ul { @for client in &preview.clients { li { (client) } } }
            p { a href=(format!("/vms/{}", preview.vm)) { "To VM " (preview.vm) } }
        }
    }
}

fn fate(preview: &VmRemovePreview) -> String {
    match (&preview.kept_until, &preview.not_kept) {
        _ if !preview.disks_deleted => "Its files stay; the VM is removed from unstun's list.".to_owned(),
        (Some(until), _) => format!("The bin keeps it until {until:.0}, or until its space is needed."),
        (None, Some(cause)) => format!("It is removed permanently, which cannot be undone: {cause}."),
        (None, None) => "It is removed permanently, which cannot be undone.".to_owned(),
    }
}

/// Removes what the preview has shown.
pub(super) async fn remove(Path(vm): Path<String>, form: FormRequest) -> Response {
    let removed = async {
        let (name, request) = (parse_vm(&vm)?, request(&form));
        let work = form.page.access.core.clone().vm_remove(name.clone(), request);
        form.act(Route::of_vm("DELETE /vms/{vm}", &name), &request, work).await
    };
    match removed.await {
        Ok(removed) => form.back_to("/", Ok(outcome(&removed))),
        Err(error) => form.back_to(&format!("/vms/{vm}"), Err(error)),
    }
}

fn outcome(removed: &VmRemoved) -> String {
    let (name, home) = (&removed.name, removed.home.display());
    match &removed.bin {
        Some(bin) => format!("VM {name} is removed; the bin keeps it until {:.0}.", bin.kept_until),
        None if removed.disks_deleted => format!("VM {name} is removed, and its files are deleted."),
        None => format!("VM {name} is removed; its files stay in {home}."),
    }
}

pub(super) async fn close(Path(vm): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let name = parse_vm(&vm)?;
        let request = Disconnect { disconnect: form.sent.is_ticked("disconnect") };
        let close = async |d: Rc<Daemon>, vm, of: Disconnect| d.vm_close(&vm, of.disconnect).await;
        let closed = form.on_vm("/vms/{vm}/close", &name, request, close).await?;
        Ok(format!("VM {vm} is closed; other tools can use its files in {}.", closed.home.display()))
    };
    let done = done.await;
    let page = if done.is_ok() { format!("/vms/{vm}") } else { format!("/vms/{vm}/settings") };
    form.back_to(&page, done)
}

pub(super) async fn open(Path(vm): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let name = parse_vm(&vm)?;
        let request = VmOpen { take_over: form.sent.is_ticked("take_over") };
        let work = form.page.access.core.clone().vm_open(name.clone(), request.take_over);
        form.act(Route::of_vm("/vms/{vm}/open", &name), &request, work).await?;
        Ok(format!("VM {vm} is open."))
    };
    form.answer(&format!("/vms/{vm}"), done).await
}
