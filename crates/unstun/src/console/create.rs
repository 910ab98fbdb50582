//! Forms that create a VM, and that import one which VMware made.

use std::path::PathBuf;
use std::rc::Rc;

use api::error::{Error, Result};
use api::name::DatastoreName;
use api::units::parse_disk_size;
use api::{DatastoreCondition, DiskCreate, VmCreate, VmImport, WhenFull};
use axum::response::Response;
use maud::{Markup, html};

use super::page::{form_key, shell};
use super::request::{FormRequest, PageRequest, Route, may};
use super::sent::{Sent, invalid};
use crate::access::sessions::Session;
use crate::daemon::{Daemon, Subject};

/// The page with all fields; the overview has a short form.
pub(super) async fn show(page: PageRequest) -> Response {
    let body = async {
        page.permit("/vms", None)?;
        let look = async |daemon: Rc<Daemon>| Ok(daemon.datastore_list().await);
        let mut all = page.ask(Subject::None, look).await?;
        all.retain(|one| one.condition == DatastoreCondition::Open);
        let datastores: Vec<_> = all.into_iter().map(|one| one.name).collect();
        let session = page.session();
        Ok(html! {
            h2 { "A new VM" }
            form.row method="post" action="/create" {
                (form_key(session))
                (create_fields())
                (datastore_choice(&datastores, "the main one"))
                (when_full_choice())
                button { "Create" }
            }
            (from_snapshot_or_image())
            @if may(session, "/import") { (import_form(&datastores, session)) }
        })
    };
    page.answer("Create or import a VM", body).await
}

/// Returns how a VM is made of something that exists. `qemu-img` reads an image where the command runs.
fn from_snapshot_or_image() -> Markup {
    html! {
        h2 { "A VM of what exists" }
        p { "The page of a VM clones each of its snapshots: \"Clone\" in the tree. A clone begins with the snapshot's content and copies nothing." }
        p { "These commands, on the daemon's host, fill a disk from an image that " code { "qemu-img" } " can read:" }
        (shell("Commands that fill a disk", &html! {
            code { "unstun vm create NAME --from IMAGE.qcow2" } "\n"
            code { "unstun vm create NAME --disk 40G --from IMAGE.raw --from-format raw" }
        }))
    }
}

/// The form of the overview.
pub(super) fn form(session: &Session) -> Markup {
    html! {
        form.row method="post" action="/create" {
            (form_key(session))
            (create_fields())
            button { "Create" }
            a href="/create" { "More choices, and import" }
        }
    }
}

fn create_fields() -> Markup {
    html! {
        label { "Name of a new VM" input name="name" required maxlength="64"; }
        label { "Sizes of its disks, such as 20G or 20G 200G" input name="size" required maxlength="400"; }
        label { "Store"
            select name="store" {
                option value="native" { "native: snapshots cost nothing" }
                option value="redo" { "redo: VMware's files" }
            }
        }
    }
}

fn datastore_choice(all: &[DatastoreName], default: &str) -> Markup {
    html! {
        label { "Datastore"
            select name="datastore" {
                option value="" { (default) }
                @for name in all { option value=(name) { (name) } }
            }
        }
    }
}

fn when_full_choice() -> Markup {
    html! {
        label { "When the datastore is full, writes"
            select name="when_full" {
                option value="wait" { "wait for space" }
                option value="error" { "fail" }
            }
        }
    }
}

fn import_form(datastores: &[DatastoreName], session: &Session) -> Markup {
    html! {
        h2 { "Import a VM of VMware's, or an OVA" }
        p.quiet {
            "An OVA (.ova) is read where it is, too: the disks of the new native VM show its content at once, and it is copied in the "
            "background, after its hashes were compared. " "The folder of a VM is read where it is, and it is not written unless that is chosen: what guests write goes to deltas in the "
            "datastore, on a snapshot " code { "as-imported" } ". No other program may use the VM meanwhile. "
            "A move into a native store copies it later, while its guest runs."
        }
        form.row method="post" action="/import" {
            (form_key(session))
            label { "Path of its folder, .vmx or .ova on the daemon's host" input name="path" required maxlength="4000" size="40"; }
            label { "Name; empty: that of the .vmx, or in the OVA" input name="name" maxlength="64"; }
            (datastore_choice(datastores, "the one that has the folder, or else the main one"))
            (when_full_choice())
            label { "Other folders that its files may refer to, with spaces between them" input name="allow_roots" maxlength="8000"; }
            label { span { input type="checkbox" name="in_place" value="yes"; " Write the folder's own files" } }
            label { span { input type="checkbox" name="ignore_content_ids" value="yes"; " Accept links whose content IDs do not match" } }
            button { "Import" }
        }
        p.quiet { code { "unstun check PATH" } " says before whether the folder is sound." }
    }
}

fn when_full(sent: &Sent) -> Result<WhenFull> {
    if sent.text("when_full").is_empty() { Ok(WhenFull::default()) } else { sent.word("when_full") }
}

fn request(sent: &Sent) -> Result<VmCreate> {
    let sizes = sent.text("size").split([',', ' ']).filter(|part| !part.is_empty());
    let disks = sizes.map(|size| parse_disk_size(size).map(DiskCreate::new).map_err(invalid));
    let disks: Vec<_> = disks.collect::<Result<_>>()?;
    if disks.is_empty() {
        return Err(Error::invalid("size: found nothing, expected one such as 20G"));
    }
    let (name, store, datastore) = (sent.parsed("name")?, sent.word("store")?, sent.optional("datastore")?);
    Ok(VmCreate { name, disks, store, when_full: when_full(sent)?, datastore })
}

fn import_request(sent: &Sent) -> Result<VmImport> {
    let absolute = |path: PathBuf| match path.is_absolute() {
        true => Ok(path),
        false => Err(invalid(format!("path {:?}: expected one that begins with /", path.display()))),
    };
    let roots: Vec<PathBuf> = sent.list("allow_roots")?;
    Ok(VmImport {
        path: absolute(sent.parsed("path")?)?,
        name: sent.optional("name")?,
        in_place: sent.is_ticked("in_place"),
        allow_roots: roots.into_iter().map(absolute).collect::<Result<_>>()?,
        ignore_content_ids: sent.is_ticked("ignore_content_ids"),
        write_sesparse: false,
        store: None,
        copy: true,
        verify: true,
        when_full: when_full(sent)?,
        datastore: sent.optional("datastore")?,
    })
}

pub(super) async fn create(form: FormRequest) -> Response {
    let created = async {
        let request = request(&form.sent)?;
        let (body, work) = (request.clone(), form.page.access.core.clone().vm_create(request));
        form.act(Route::plain("/vms"), &body, work).await
    };
    match created.await {
        Ok(vm) => {
            let said = format!("VM {} is created; \"Attach\" has the lines for its hypervisor.", vm.name);
            form.back_to(&format!("/vms/{}", vm.name), Ok(said))
        }
        Err(error) => form.back_to(back(&form.sent), Err(error)),
    }
}

/// Returns the page that has the form: only that of `/create` has the choice of a datastore.
fn back(sent: &Sent) -> &'static str {
    if sent.has("datastore") { "/create" } else { "/" }
}

/// Imports a folder of VMware's, or an OVA.
pub(super) async fn import(form: FormRequest) -> Response {
    let imported = async {
        let request = import_request(&form.sent)?;
        let (body, work) = (request.clone(), form.page.access.core.clone().vm_import(request));
        form.act(Route::plain("/import"), &body, work).await
    };
    match imported.await {
        Ok(vm) => {
            let notices: String = vm.notices.iter().map(|notice| format!(" {notice}")).collect();
            let said = format!("VM {} is imported, with {} snapshots.{notices}", vm.name, vm.snapshots);
            form.back_to(&format!("/vms/{}", vm.name), Ok(said))
        }
        Err(error) => form.back_to("/create", Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_that_makes_no_sense_says_what_was_expected() {
        let sent = |name: &str, size: &str, store: &str| {
            request(&Sent::of(&[("name", name), ("size", size), ("store", store)]))
        };
        let vm = sent("web", "20G, 1T", "native").unwrap();
        assert_eq!(vm.disks.iter().map(|disk| disk.size_bytes).collect::<Vec<_>>(), [20 << 30, 1 << 40]);
        for (name, size, store, expected) in [
            ("../web", "20G", "native", "expected 1 to 64 letters"),
            ("web", "many", "native", "\"many\""),
            ("web", " ", "native", "expected one such as 20G"),
            ("web", "20G", "raw", "expected native, redo"),
        ] {
            let error = sent(name, size, store).unwrap_err().message;
            assert!(error.contains(expected), "{error}");
        }
        let error = import_request(&Sent::of(&[("path", "vmware/web")])).unwrap_err().message;
        assert!(error.contains("begins with /"), "{error}");
    }
}
