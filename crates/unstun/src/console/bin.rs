//! The bin: removed VMs and states, with the form that restores them.

use api::units::format_bytes;
use api::{BinEntry, BinRestore, Role};
use axum::response::Response;
use maud::{Markup, html};

use super::page::{age, form_key};
use super::request::{FormRequest, PageRequest, Route};
use crate::access::sessions::Session;
use crate::daemon::Subject;

pub(super) async fn show(page: PageRequest) -> Response {
    let body = async {
        let mut entries = page.ask(Subject::None, async |daemon| daemon.bin_list(None).await).await?;
        entries.retain(|entry| page.session().caller.reaches(entry.vm.as_str()));
        Ok(table(&entries, page.session()))
    };
    page.answer("Bin", body).await
}

fn table(entries: &[BinEntry], session: &Session) -> Markup {
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
pub(super) async fn restore(form: FormRequest) -> Response {
    let done = async {
        let entry = form.sent.text("entry").to_owned();
        let subject = Subject::Bin(None, vec![entry.clone()]);
        let request = BinRestore { entry, name: None, datastore: None, disconnect: false };
        let body = request.clone();
        let work = form.page.ask(subject, async move |daemon| daemon.bin_restore(request).await);
        let restored = form.act(Route::plain("/bin/restore"), &body, work).await?;
        Ok(format!("VM {} is back: its {} was restored.", restored.vm, restored.entry.kind.as_str()))
    };
    form.answer("/bin", done).await
}
