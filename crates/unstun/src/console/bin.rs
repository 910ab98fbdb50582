//! The bin: removed VMs and states, with the form that restores them.

use api::error::Error;
use api::units::format_bytes;
use api::{BinEmptied, BinEmpty, BinEntry, BinRestore};
use axum::response::Response;
use maud::{Markup, html};

use super::page::{age, form_key};
use super::request::{FormRequest, PageRequest, Route, may};
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
            @if may(session, "/bin/empty") { p { (empty_form(None, "Empty the bin...", session)) } }
            div.scroll tabindex="0" role="region" aria-label="Bin" {
                table {
                    thead { tr {
                        th scope="col" { "VM" } th scope="col" { "What" } th scope="col" { "By" } th scope="col" { "Removed" }
                        th scope="col" { "Kept until" } th.number scope="col" { "Frees" } th scope="col" { "Datastore" }
                        th scope="col" { "Change" }
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
                @if may(session, "/bin/restore") {
                    form.inline method="post" action="/bin/restore" {
                        (form_key(session))
                        input type="hidden" name="entry" value=(entry.id);
                        button.plain aria-label=(format!("Restore {} {}", entry.kind.as_str(), entry.vm)) { "Restore" }
                    }
                    " "
                    (empty_form(Some(entry), "Remove for good...", session))
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

fn empty_form(entry: Option<&BinEntry>, title: &str, session: &Session) -> Markup {
    let of = entry.map_or(String::new(), |entry| format!(" {} {}", entry.kind.as_str(), entry.vm));
    html! {
        form.inline method="post" action="/bin/empty/preview" {
            (form_key(session))
            @if let Some(entry) = entry { input type="hidden" name="entry" value=(entry.id); }
            button.plain aria-label=(format!("{title}{of}")) { (title) }
        }
    }
}

/// Returns the entries that a form names; none of them stands for all.
fn request(form: &FormRequest) -> BinEmpty {
    BinEmpty { entries: form.sent.all("entry").map(str::to_owned).collect(), datastore: None }
}

pub(super) async fn preview(form: FormRequest) -> Response {
    let looked = async {
        let request = request(&form);
        let (subject, body) = (Subject::Bin(None, request.entries.clone()), request.clone());
        let work = form.page.ask(subject, async move |daemon| daemon.bin_empty_preview(&request).await);
        let preview = form.act(Route::plain("/bin/empty/preview"), &body, work).await?;
        Ok(("Remove for good?".to_owned(), question(&preview, form.page.session())))
    };
    form.report("/bin", looked).await
}

fn question(preview: &BinEmptied, session: &Session) -> Markup {
    html! {
        ul {
            @for entry in &preview.entries {
                li {
                    (entry.kind.as_str()) " " (entry.subject.as_deref().unwrap_or("")) " of VM " (entry.vm)
                    @if let Some(bytes) = entry.bytes { ", " (format_bytes(bytes)) }
                }
            }
        }
        @for left in &preview.left { p.notice { "VM " (left.vm) ": " (left.cause) } }
        p.notice { strong { "This frees " (format_bytes(preview.bytes)) ", and cannot be undone." } }
        form.row method="post" action="/bin/empty" {
            (form_key(session))
            // The entries that were shown, and no others that are added meanwhile.
            @for entry in &preview.entries { input type="hidden" name="entry" value=(entry.id); }
            button.loss { "Remove " (preview.entries.len()) " entries for good" }
            a href="/bin" { "Change nothing" }
        }
    }
}

pub(super) async fn empty(form: FormRequest) -> Response {
    let done = async {
        let request = request(&form);
        if request.entries.is_empty() {
            return Err(Error::invalid("no entry of the bin was named; nothing was removed"));
        }
        let (subject, body) = (Subject::Bin(None, request.entries.clone()), request.clone());
        let work = form.page.ask(subject, async move |daemon| daemon.bin_empty(&request).await);
        let emptied = form.act(Route::plain("/bin/empty"), &body, work).await?;
        let (count, bytes) = (emptied.entries.len(), format_bytes(emptied.bytes));
        match emptied.left.first() {
            None => Ok(format!("{count} entries are removed for good, which frees {bytes}.")),
            Some(left) => Err(Error::failed(format!(
                "{count} entries are removed for good, {} are not: VM {}: {}",
                emptied.left.len(),
                left.vm,
                left.cause
            ))),
        }
    };
    form.answer("/bin", done).await
}
