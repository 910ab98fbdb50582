//! The settings of a VM: name, labels, limits, access to its guest, and what `vm set` changes beside them.

use std::path::PathBuf;
use std::rc::Rc;

use api::error::Result;
use api::limits::{parse_bandwidth, parse_iops};
use api::name::VmName;
use api::{SharedWriters, SnapshotDir, Vm, VmGuest, VmLabels, VmLimits, VmRename};
use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};

use super::page::{form_key, vm_pages};
use super::request::{FormRequest, PageRequest, Route, may, parse_vm};
use super::sent::{Sent, invalid};
use super::{disks, relocate, removal};
use crate::access::sessions::Session;
use crate::daemon::{Daemon, Subject};

pub(super) async fn show(Path(name): Path<String>, page: PageRequest) -> Response {
    let body = async {
        let vm = parse_vm(&name)?;
        page.permit("GET /vms/{vm}", Some(&vm))?;
        let subject = Subject::Vm(vm.clone());
        let look =
            async move |daemon: Rc<Daemon>| Ok((daemon.vm_show(&vm).await?, daemon.datastore_list().await));
        let (vm, mut datastores) = page.ask(subject, look).await?;
        if !may(page.session(), "GET /datastores") {
            datastores.clear();
        }
        let session = page.session();
        Ok(html! {
            (vm_pages(&vm.name, "/settings"))
            h2 { "Disks" }
            (disks::section(&vm, session))
            (of_vm(&vm, session))
            h2 { "Move" }
            (relocate::section(&vm, &datastores, session))
            h2 { "Close and remove" }
            (removal::section(&vm, session))
        })
    };
    page.answer(&format!("Settings of VM {name}"), body).await
}

fn of_vm(vm: &Vm, session: &Session) -> Markup {
    html! {
        h2 { "Name, note and tags" }
        @if may(session, "/vms/{vm}/rename") { (rename_form(vm, session)) }
        @if may(session, "PUT /vms/{vm}/labels") { (labels_form(vm, session)) }
        h2 { "Limits" }
        p.quiet { "Of all its disks and snapshots together; an empty field sets no limit. Now: " (vm.limits.describe()) "." }
        @if may(session, "PUT /vms/{vm}/limits") { (limits_form(vm, session)) }
        h2 { "Guest" }
        @if may(session, "PUT /vms/{vm}/guest") { (guest_form(vm, session)) }
        @else { p { @match &vm.guest.access { Some(access) => code { (access) }, None => "Its file systems cannot be frozen." } } }
        h2 { "Clients and deltas" }
        @if may(session, "PUT /vms/{vm}/shared-writers") { (writers_form(vm, session)) }
        @if may(session, "PUT /vms/{vm}/snapshot-dir") { (snapshot_dir_form(vm, session)) }
    }
}

fn rename_form(vm: &Vm, session: &Session) -> Markup {
    html! {
        form.row method="post" action=(format!("/vms/{}/rename", vm.name)) {
            (form_key(session))
            label { "Name" input name="name" value=(vm.name) required maxlength="64"; }
            button { "Rename" }
            span.quiet { "Power the guest off first, and attach its disks again afterwards." }
        }
    }
}

fn labels_form(vm: &Vm, session: &Session) -> Markup {
    let tags: Vec<_> = vm.tags.iter().map(|tag| tag.as_str()).collect();
    html! {
        form.row method="post" action=(format!("/vms/{}/labels", vm.name)) {
            (form_key(session))
            label { "Note" input name="note" value=(vm.note) maxlength="1000" size="40"; }
            label { "Tags, with spaces between them" input name="tags" value=(tags.join(" ")) maxlength="2000"; }
            button { "Save note and tags" }
        }
    }
}

/// Returns a number of bytes as the shortest text that stands for it exactly.
fn exact(bytes: u64) -> String {
    let units = [(1_u64 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    let unit = units.into_iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit));
    unit.map_or(bytes.to_string(), |(unit, letter)| format!("{}{letter}", bytes / unit))
}

fn limits_form(vm: &Vm, session: &Session) -> Markup {
    let limits = &vm.limits;
    let number = |value: Option<u64>| value.map_or(String::new(), |value| value.to_string());
    let bytes = |value: Option<u64>| value.map_or(String::new(), exact);
    html! {
        form.row method="post" action=(format!("/vms/{}/limits", vm.name)) {
            (form_key(session))
            label { "Requests per second" input name="iops" value=(number(limits.iops)) maxlength="12" size="10" inputmode="numeric"; }
            label { "In bursts" input name="iops_burst" value=(number(limits.iops_burst)) maxlength="12" size="10" inputmode="numeric"; }
            label { "Bytes per second, such as 100M" input name="bandwidth" value=(bytes(limits.bandwidth_bytes_s)) maxlength="20" size="10"; }
            label { "In bursts" input name="bandwidth_burst" value=(bytes(limits.bandwidth_burst_bytes_s)) maxlength="20" size="10"; }
            label { "Seconds of a burst" input name="burst_s" value=(limits.burst_s) required maxlength="5" size="5" inputmode="numeric"; }
            label { "Weight, 1 to 1000" input name="weight" value=(limits.weight) required maxlength="5" size="5" inputmode="numeric"; }
            button { "Set the limits" }
        }
    }
}

fn guest_form(vm: &Vm, session: &Session) -> Markup {
    let access = vm.guest.access.as_ref().map_or(String::new(), ToString::to_string);
    let qmp = vm.guest.qmp.as_ref().map_or(String::new(), ToString::to_string);
    html! {
        form.row method="post" action=(format!("/vms/{}/guest", vm.name)) {
            (form_key(session))
            label { "How its file systems are frozen: unix:PATH, libvirt:DOMAIN or command:NAME; empty: not at all"
                input name="access" value=(access) maxlength="300";
            }
            label { "QEMU's monitor, to save its memory: unix:PATH; empty: not at all"
                input name="qmp" value=(qmp) maxlength="300";
            }
            label { "Milliseconds after which the guest goes on in any case" input name="frozen_ms_max" value=(vm.guest.frozen_ms_max) required maxlength="6" size="8" inputmode="numeric"; }
            button { "Set the access" }
        }
    }
}

fn writers_form(vm: &Vm, session: &Session) -> Markup {
    html! {
        form.row method="post" action=(format!("/vms/{}/shared-writers", vm.name)) {
            (form_key(session))
            @if !vm.shared_writers { input type="hidden" name="shared" value="yes"; }
            span {
                @if vm.shared_writers { "Several clients may write one disk." }
                @else { "One client at a time may write a disk; a live migration and a cluster file system need several." }
            }
            button.plain { @if vm.shared_writers { "Allow one only" } @else { "Allow several" } }
        }
    }
}

fn snapshot_dir_form(vm: &Vm, session: &Session) -> Markup {
    let dir = vm.snapshot_dir.as_ref().map_or(String::new(), |dir| dir.display().to_string());
    html! {
        form.row method="post" action=(format!("/vms/{}/snapshot-dir", vm.name)) {
            (form_key(session))
            label { "Folder of the deltas of later snapshots; empty: beside the disks"
                input name="dir" value=(dir) maxlength="4000" size="40";
            }
            button { "Set the folder" }
        }
    }
}

/// Carries out a change of settings, after which the page of settings says what is set.
async fn set(vm: &str, form: &FormRequest, change: impl AsyncFnOnce(VmName) -> Result<String>) -> Response {
    form.answer(&format!("/vms/{vm}/settings"), async { change(parse_vm(vm)?).await }).await
}

pub(super) async fn rename(Path(vm): Path<String>, form: FormRequest) -> Response {
    let renamed = async {
        let old = parse_vm(&vm)?;
        let request = VmRename { name: form.sent.parsed("name")? };
        form.page.session().caller.check(&request.name)?;
        let rename = async |d: Rc<Daemon>, vm, of| d.vm_rename(&vm, of).await;
        Ok(form.on_vm("/vms/{vm}/rename", &old, request, rename).await?.name)
    };
    match renamed.await {
        Ok(name) => {
            let said = format!(
                "VM {vm} has the name {name}. Attach its disks by their new names; policies and alarms that name {vm} do not follow."
            );
            form.back_to(&format!("/vms/{name}/settings"), Ok(said))
        }
        Err(error) => form.back_to(&format!("/vms/{vm}/settings"), Err(error)),
    }
}

pub(super) async fn labels(Path(vm): Path<String>, form: FormRequest) -> Response {
    let change = async |vm| {
        let request = VmLabels { tags: form.sent.list("tags")?, note: form.sent.text("note").to_owned() };
        request.check().map_err(invalid)?;
        let set = async |d: Rc<Daemon>, vm, of| d.vm_set_labels(&vm, of).await;
        form.on_vm("PUT /vms/{vm}/labels", &vm, request, set).await?;
        Ok("Note and tags are saved.".to_owned())
    };
    set(&vm, &form, change).await
}

/// Returns the limits that the form sets.
fn limits_of(sent: &Sent) -> Result<VmLimits> {
    let parsed = |field: &str, parse: fn(&str) -> std::result::Result<Option<u64>, String>| {
        let text = sent.text(field);
        if text.is_empty() { Ok(None) } else { parse(text).map_err(|e| invalid(format!("{field}: {e}"))) }
    };
    let limits = VmLimits {
        iops: parsed("iops", parse_iops)?,
        iops_burst: parsed("iops_burst", parse_iops)?,
        bandwidth_bytes_s: parsed("bandwidth", parse_bandwidth)?,
        bandwidth_burst_bytes_s: parsed("bandwidth_burst", parse_bandwidth)?,
        burst_s: sent.number("burst_s")?,
        weight: sent.number("weight")?,
    };
    limits.check().map_err(invalid)?;
    Ok(limits)
}

pub(super) async fn limits(Path(vm): Path<String>, form: FormRequest) -> Response {
    let change = async |vm| {
        let set = async |d: Rc<Daemon>, vm, of| d.vm_set_limits(&vm, of).await;
        let set = form.on_vm("PUT /vms/{vm}/limits", &vm, limits_of(&form.sent)?, set).await?;
        Ok(format!("Limits: {}.", set.limits.describe()))
    };
    set(&vm, &form, change).await
}

pub(super) async fn guest(Path(vm): Path<String>, form: FormRequest) -> Response {
    let change = async |vm| {
        let (access, frozen_ms_max) = (form.sent.optional("access")?, form.sent.number("frozen_ms_max")?);
        let request = VmGuest { access, frozen_ms_max, qmp: form.sent.optional("qmp")? };
        request.check().map_err(invalid)?;
        let set = async |d: Rc<Daemon>, vm, of| d.vm_set_guest(&vm, of).await;
        let set = form.on_vm("PUT /vms/{vm}/guest", &vm, request, set).await?;
        Ok(match set.guest.access {
            Some(access) => format!("File systems are frozen with {access}."),
            None => "File systems are not frozen for snapshots.".to_owned(),
        })
    };
    set(&vm, &form, change).await
}

pub(super) async fn shared_writers(Path(vm): Path<String>, form: FormRequest) -> Response {
    let change = async |vm| {
        let request = SharedWriters { shared: form.sent.is_ticked("shared") };
        let set = async |d: Rc<Daemon>, vm, of: SharedWriters| d.vm_set_shared_writers(&vm, of.shared).await;
        let set = form.on_vm("PUT /vms/{vm}/shared-writers", &vm, request, set).await?;
        Ok(format!("{} may write a disk.", if set.shared_writers { "Several clients" } else { "One client" }))
    };
    set(&vm, &form, change).await
}

pub(super) async fn snapshot_dir(Path(vm): Path<String>, form: FormRequest) -> Response {
    let change = async |vm: VmName| {
        let request = SnapshotDir { dir: form.sent.optional::<PathBuf>("dir")? };
        let (body, core) = (request.clone(), form.page.access.core.clone());
        let work = core.vm_set_snapshot_dir(vm.clone(), request);
        let set = form.act(Route::of_vm("PUT /vms/{vm}/snapshot-dir", &vm), &body, work).await?;
        Ok(match set.snapshot_dir {
            Some(dir) => format!("The deltas of later snapshots are created in {}.", dir.display()),
            None => "The deltas of later snapshots are created beside the disks.".to_owned(),
        })
    };
    set(&vm, &form, change).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_shows_limits_exactly_and_reads_them_again() {
        for bytes in [0, 1, 1023, 64 << 10, 100 << 20, (100 << 20) + 1, 1 << 40, 5 << 30] {
            assert_eq!(api::units::parse_bytes(&exact(bytes)).unwrap_or(0), bytes, "{}", exact(bytes));
        }
        assert_eq!(exact(100 << 20), "100M");
        let mut fields =
            vec![("iops", "2000"), ("iops_burst", "5000"), ("bandwidth", "100M"), ("burst_s", "10")];
        let error = limits_of(&Sent::of(&fields)).unwrap_err().message;
        assert!(error.contains("weight: found \"\""), "{error}");
        fields.push(("weight", "50"));
        let limits = limits_of(&Sent::of(&fields)).unwrap();
        assert_eq!((limits.iops, limits.bandwidth_bytes_s, limits.weight), (Some(2000), Some(100 << 20), 50));
        fields[0].1 = "";
        let error = limits_of(&Sent::of(&fields)).unwrap_err().message;
        assert!(error.contains("iops_burst: found 5000 without iops"), "{error}");
    }
}
