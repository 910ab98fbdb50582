//! The form that creates a VM.

use std::sync::Arc;

use api::error::{Error, Result};
use api::units::parse_disk_size;
use api::{DiskCreate, Store, VmCreate, WhenFull};
use axum::extract::{Extension, Form, State};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::json;

use super::actions::Sent;
use super::browser::Browser;
use super::page::form_key;
use crate::access::authorize::Access;
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
    let store = match sent.store.as_str() {
        "native" => Store::Native,
        "redo" => Store::Redo,
        other => return Err(Error::invalid(format!("store {other:?}: expected native or redo"))),
    };
    let size_bytes = parse_disk_size(&sent.size).map_err(Error::invalid)?;
    let name = sent.name.parse().map_err(Error::invalid)?;
    let disks = vec![DiskCreate::new(size_bytes)];
    Ok(VmCreate { name, disks, store, when_full: WhenFull::default(), datastore: None })
}

pub(super) async fn create(
    State(access): State<Arc<Access>>,
    Extension(browser): Extension<Browser>,
    Form(sent): Form<Sent>,
) -> Response {
    let done = async {
        let request = request(&sent)?;
        let (body, work) = (json!(request), access.core.clone().vm_create(request));
        let vm = browser.act(&access, &sent, ("/vms", "/vms".to_owned(), None), body, work).await?;
        Ok::<_, Error>(vm.name)
    };
    match done.await {
        Ok(name) => {
            let said =
                format!("VM {name} is created; `unstun attach {name}` prints the lines for its hypervisor.");
            browser.back_to(&format!("/vms/{name}"), &access, Ok(said))
        }
        Err(error) => browser.back_to("/", &access, Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_that_makes_no_sense_says_what_was_expected() {
        let sent = |name: &str, size: &str, store: &str| {
            let (name, size, store) = (name.to_owned(), size.to_owned(), store.to_owned());
            request(&Sent { name, size, store, ..Sent::default() })
        };
        assert_eq!(sent("web", "20G", "native").unwrap().disks[0].size_bytes, 20 << 30);
        for (name, size, store, expected) in [
            ("../web", "20G", "native", "expected 1 to 64 letters"),
            ("web", "many", "native", "\"many\""),
            ("web", "20G", "raw", "expected native or redo"),
        ] {
            let error = sent(name, size, store).unwrap_err().message;
            assert!(error.contains(expected), "{error}");
        }
    }
}
