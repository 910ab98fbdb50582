//! Forms that move a VM into another datastore or store, and lay its blocks out in order, while its guest runs.

use std::rc::Rc;

use api::error::Result;
use api::units::{format_bytes, total};
use api::{Datastore, DatastoreCondition, Store, Vm, VmDefragment, VmMove, VmMovePreview};
use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};

use super::page::form_key;
use super::request::{FormRequest, Route, may, parse_vm};
use crate::access::sessions::Session;
use crate::daemon::{Daemon, Subject};

pub(super) fn section(vm: &Vm, datastores: &[Datastore], session: &Session) -> Markup {
    let layers = vm.disks.iter().flat_map(|disk| &disk.layers);
    let bytes = total(layers.filter(|layer| !layer.foreign).map(|layer| layer.allocated_bytes));
    html! {
        @if may(session, "/vms/{vm}/move") {
            p.quiet {
                "The guest keeps running. A job copies the disks with their snapshots, " (format_bytes(bytes))
                " now; the old files are removed when it is done. It can be paused, limited and cancelled."
            }
            (move_form(vm, datastores, session))
        }
        @if vm.store == Store::Native && may(session, "/vms/{vm}/defragment") {
            p.quiet { "Blocks of a disk that writes have scattered can be laid out in order, for sequential reads." }
            (defragment_form(vm, session))
        }
    }
}

fn move_form(vm: &Vm, datastores: &[Datastore], session: &Session) -> Markup {
    let others =
        datastores.iter().filter(|one| one.name != vm.datastore && one.condition == DatastoreCondition::Open);
    let here = datastores.iter().find(|one| one.name == vm.datastore);
    let free = |one: &Datastore| {
        one.free_bytes.map_or(String::new(), |free| format!(", {} free", format_bytes(free)))
    };
    html! {
        form.row method="post" action=(format!("/vms/{}/move/preview", vm.name)) {
            (form_key(session))
            label { "Datastore"
                select name="datastore" {
                    option value="" { (vm.datastore) " (where it is)" @if let Some(here) = here { (free(here)) } }
                    @for one in others { option value=(one.name) { (one.name) (free(one)) } }
                }
            }
            label { "Store"
                select name="store" {
                    @for store in [Store::Native, Store::Redo] {
                        option value=(store.as_str()) selected[store == vm.store] {
                            (store.as_str()) @if store == vm.store { " (as now)" }
                        }
                    }
                }
            }
            button { "Move..." }
        }
    }
}

fn defragment_form(vm: &Vm, session: &Session) -> Markup {
    html! {
        form.row method="post" action=(format!("/vms/{}/defragment", vm.name)) {
            (form_key(session))
            label { "Disk"
                select name="disk" {
                    option value="" { "all" }
                    @for disk in &vm.disks { option value=(disk.number) { "disk" (disk.number) } }
                }
            }
            label { span {
                input type="checkbox" name="copy_shared" value="yes";
                " Copy blocks that snapshots or clones show too; the copies take space"
            } }
            button.plain { "Defragment" }
        }
    }
}

fn request(form: &FormRequest) -> Result<VmMove> {
    let (datastore, store) = (form.sent.optional("datastore")?, Some(form.sent.word("store")?));
    Ok(VmMove { disk: None, store, datastore })
}

pub(super) async fn preview_move(Path(vm): Path<String>, form: FormRequest) -> Response {
    let looked = async {
        let (vm, request) = (parse_vm(&vm)?, request(&form)?);
        let (subject, name) = (Subject::VmTo(vm.clone(), request.datastore.clone()), vm.clone());
        let (body, asked) = (request.clone(), request.clone());
        let look = form.page.ask(subject, async move |daemon| daemon.move_preview(&name, &asked).await);
        let preview = form.act(Route::of_vm("/vms/{vm}/move/preview", &vm), &body, look).await?;
        Ok((format!("Move VM {vm}?"), question(&preview, &request, form.page.session())))
    };
    form.report(&format!("/vms/{vm}/settings"), looked).await
}

fn question(preview: &VmMovePreview, request: &VmMove, session: &Session) -> Markup {
    let vm = &preview.vm;
    html! {
        dl {
            dt { "Datastore" } dd { (preview.datastore) ", the " (preview.store.as_str()) " store" }
            dt { "Folder" } dd { code { (preview.home.display()) } }
            dt { "Snapshots" } dd { (preview.snapshots) }
            dt { "To copy" } dd { (format_bytes(preview.bytes_to_copy)) " at most, and what the guest writes meanwhile" }
            dt { "Free there" } dd { (format_bytes(preview.free_bytes)) }
        }
        p { "Clients stay connected. The old files are removed when the move is done; until then it can be cancelled." }
        form.row method="post" action=(format!("/vms/{vm}/move")) {
            (form_key(session))
            @if let Some(datastore) = &request.datastore { input type="hidden" name="datastore" value=(datastore); }
            input type="hidden" name="store" value=(preview.store.as_str());
            button { "Move VM " (vm) }
            a href=(format!("/vms/{vm}/settings")) { "Change nothing" }
        }
    }
}

/// Starts what the preview has shown.
pub(super) async fn start_move(Path(vm): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let (vm, request) = (parse_vm(&vm)?, request(&form)?);
        let subject = Subject::VmTo(vm.clone(), request.datastore.clone());
        let (body, name) = (request.clone(), vm.clone());
        let work = form.page.ask(subject, async move |daemon| daemon.vm_move(&name, request).await);
        let job = form.act(Route::of_vm("/vms/{vm}/move", &vm), &body, work).await?;
        Ok(format!("Job {} moves the VM; its progress is below.", job.id))
    };
    let done = done.await;
    let page = if done.is_ok() { format!("/vms/{vm}") } else { format!("/vms/{vm}/settings") };
    form.back_to(&page, done)
}

pub(super) async fn defragment(Path(vm): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let vm = parse_vm(&vm)?;
        let (disk, copy_shared) = (form.sent.optional("disk")?, form.sent.is_ticked("copy_shared"));
        let defragment = async |d: Rc<Daemon>, vm, of| d.vm_defragment(&vm, of).await;
        let request = VmDefragment { disk, copy_shared };
        let job = form.on_vm("/vms/{vm}/defragment", &vm, request, defragment).await?;
        Ok(format!("Job {} defragments the VM; its progress is below.", job.id))
    };
    let done = done.await;
    let page = if done.is_ok() { format!("/vms/{vm}") } else { format!("/vms/{vm}/settings") };
    form.back_to(&page, done)
}
