//! The bin: removed VMs and states, with the form that restores them.

use std::rc::Rc;
use std::sync::Arc;

use api::error::{Error, Result};
use api::units::format_bytes;
use api::{BinEntry, BinRestore, Role};
use axum::extract::{Extension, Form, State};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::json;

use super::actions::Sent;
use super::browser::Browser;
use super::page::{age, form_key};
use crate::access::authorize::Access;
use crate::access::sessions::Session;
use crate::daemon::{Daemon, Subject};

pub(super) fn page(entries: &[BinEntry], session: &Session) -> Markup {
    html! {
        p.quiet { "The bin keeps what was removed or thrown away for a while, unless its space is needed before." }
        @if entries.is_empty() { p { "The bin is empty." } }
        @else {
            div.scroll tabindex="0" role="region" aria-label="Bin" {
                table {
                    thead { tr {
                        th scope="col" { "VM" } th scope="col" { "What" } th scope="col" { "By" } th scope="col" { "Removed" }
                        th scope="col" { "Kept until" } th.number scope="col" { "Frees" } th scope="col" { "Datastore" }
                        th scope="col" { "Restore" }
                    } }
                    tbody { @for entry in entries { (row(entry, session)) } }
                }
            }
        }
    }
}

fn row(entry: &BinEntry, session: &Session) -> Markup {
    html! {
        tr {
            th scope="row" { (entry.vm) }
            td { (entry.kind.as_str()) " " (entry.subject.as_deref().unwrap_or("")) }
            td { (entry.operation.as_str()) }
            td { (age(entry.removed)) }
            td { time datetime=(entry.kept_until) { (format!("{:.0}", entry.kept_until)) } }
            td.number { (entry.bytes.map_or("-".to_owned(), format_bytes)) }
            td { (entry.datastore) }
            td {
                @if session.caller.role == Role::Admin {
                    form method="post" action="/bin/restore" {
                        (form_key(session))
                        input type="hidden" name="entry" value=(entry.id);
                        button.plain aria-label=(format!("Restore {} {}", entry.kind.as_str(), entry.vm)) { "Restore" }
                    }
                }
            }
        }
    }
}

/// Restores an entry. Where clients use the running disks the daemon refuses, and names them.
pub(super) async fn restore(
    State(access): State<Arc<Access>>,
    Extension(browser): Extension<Browser>,
    Form(sent): Form<Sent>,
) -> Response {
    let done = async {
        let request =
            BinRestore { entry: sent.entry.clone(), name: None, datastore: None, disconnect: false };
        let (subject, body) = (Subject::Bin(None, vec![sent.entry.clone()]), json!(request));
        let operation = async move |daemon: Rc<Daemon>| daemon.bin_restore(request).await;
        let work = access.core.ask(subject, operation);
        let of = ("/bin/restore", "/bin/restore".to_owned(), None);
        let restored = browser.act(&access, &sent, of, body, work).await?;
        Ok::<_, Error>(format!(
            "VM {} is back: its {} was restored.",
            restored.vm,
            restored.entry.kind.as_str()
        ))
    };
    let done: Result<String> = done.await;
    browser.back_to("/bin", &access, done)
}
