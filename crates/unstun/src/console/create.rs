//! The form that creates a VM.

use api::error::Result;
use api::units::parse_disk_size;
use api::{DiskCreate, VmCreate, WhenFull};
use axum::response::Response;
use maud::{Markup, html};

use super::page::form_key;
use super::request::{FormRequest, Route};
use super::sent::{Sent, invalid};
use crate::access::sessions::Session;

pub(super) fn form(session: &Session) -> Markup {
    html! {
        form.row method="post" action="/create" {
            (form_key(session))
            label { "Name of a new VM" input name="name" required maxlength="64"; }
            label { "Size of its disk, such as 20G" input name="size" required maxlength="20"; }
            label { "Store"
                select name="store" {
                    option value="native" { "native: snapshots cost nothing" }
                    option value="redo" { "redo: VMware's files" }
                }
            }
            button { "Create" }
        }
    }
}

fn request(sent: &Sent) -> Result<VmCreate> {
    let size_bytes = parse_disk_size(sent.text("size")).map_err(invalid)?;
    let (name, store, disks) = (sent.parsed("name")?, sent.word("store")?, vec![DiskCreate::new(size_bytes)]);
    Ok(VmCreate { name, disks, store, when_full: WhenFull::default(), datastore: None })
}

pub(super) async fn create(form: FormRequest) -> Response {
    let created = async {
        let request = request(&form.sent)?;
        let (body, work) = (request.clone(), form.page.access.core.clone().vm_create(request));
        form.act(Route::plain("/vms"), &body, work).await
    };
    match created.await {
        Ok(vm) => {
            let name = vm.name;
            let said =
                format!("VM {name} is created; `unstun attach {name}` prints the lines for its hypervisor.");
            form.back_to(&format!("/vms/{name}"), Ok(said))
        }
        Err(error) => form.back_to("/", Err(error)),
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
        assert_eq!(sent("web", "20G", "native").unwrap().disks[0].size_bytes, 20 << 30);
        for (name, size, store, expected) in [
            ("../web", "20G", "native", "expected 1 to 64 letters"),
            ("web", "many", "native", "\"many\""),
            ("web", "20G", "raw", "expected native, redo"),
        ] {
            let error = sent(name, size, store).unwrap_err().message;
            assert!(error.contains(expected), "{error}");
        }
    }
}
