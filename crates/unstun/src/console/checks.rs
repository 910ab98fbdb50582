//! Checks and scrubs of the stores of datastores, and the page of what is broken with the commands that repair it.

use std::rc::Rc;

use api::error::ErrorKind;
use api::name::DatastoreName;
use api::{Checked, Datastore, DatastoreCondition, Finding, Severity, VmCondition};
use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;

use super::datastores::state;
use super::page::shell;
use super::removal::repair;
use super::request::{FormRequest, PageRequest, Route};
use super::sent::invalid;
use crate::daemon::{Daemon, Subject};

/// Checks the store of a datastore while it is in use, and shows what was found.
pub(super) async fn check(Path(name): Path<String>, form: FormRequest) -> Response {
    let looked = async {
        let name: DatastoreName = name.parse().map_err(invalid)?;
        let (subject, of) = (Subject::Datastore(Some(name.clone())), Some(name.clone()));
        let work = form.page.ask(subject, async move |daemon| daemon.store_check(of).await);
        let route = Route { path: format!("/check?datastore={name}"), ..Route::plain("/check") };
        let checked = form.act(route, &Value::Null, work).await?;
        Ok((format!("Check of datastore {name}"), findings(&checked)))
    };
    form.report("/datastores", looked).await
}

/// Starts a job that reads every block of a datastore's store.
pub(super) async fn scrub(Path(name): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let name: DatastoreName = name.parse().map_err(invalid)?;
        let (subject, of) = (Subject::Datastore(Some(name.clone())), Some(name.clone()));
        let scrub = async move |daemon: Rc<Daemon>| daemon.store_scrub(of).await;
        let route = Route { path: format!("/scrub?datastore={name}"), ..Route::plain("/scrub") };
        let job = form.act(route, &Value::Null, form.page.ask(subject, scrub)).await?;
        Ok(format!("Job {} scrubs datastore {name}; the overview shows its progress.", job.id))
    };
    form.answer("/datastores", done).await
}

/// The findings of the last scrub.
pub(super) async fn scrubbed(Path(name): Path<String>, page: PageRequest) -> Response {
    let body = async {
        page.permit("GET /scrub", None)?;
        let of: Option<DatastoreName> = Some(name.parse().map_err(invalid)?);
        let look = async move |daemon: Rc<Daemon>| daemon.store_scrubbed(of);
        match page.ask(Subject::None, look).await {
            Ok(checked) => Ok(findings(&checked)),
            Err(e) if e.kind == ErrorKind::NotFound => {
                Ok(html! { p { (e.message) } p { a href="/datastores" { "To the datastores" } } })
            }
            Err(e) => Err(e),
        }
    };
    page.answer(&format!("Last scrub of datastore {name}"), body).await
}

fn findings(checked: &Checked) -> Markup {
    let damaged = checked.findings.iter().any(|finding| finding.severity == Severity::Damage);
    html! {
        p { code { (checked.path.display()) } ": "
            @if checked.findings.is_empty() { span.good { "nothing was found" } }
            @else if damaged { span.bad { "damage was found" } }
            @else { "no damage was found" }
        }
        @if !checked.findings.is_empty() {
            div.scroll tabindex="0" role="region" aria-label="Findings" {
                table {
                    thead { tr {
                        th scope="col" { "Severity" } th scope="col" { "File" } th scope="col" { "What" }
                        th scope="col" { "Found" } th scope="col" { "Expected" } th scope="col" { "What to do" }
                    } }
                    tbody { @for finding in &checked.findings { (row(finding)) } }
                }
            }
        }
        p { a href="/datastores" { "To the datastores" } }
    }
}

fn row(finding: &Finding) -> Markup {
    let class = if finding.severity == Severity::Damage { "bad" } else { "quiet" };
    html! {
        tr {
            td { span class=(class) { (finding.severity.as_str()) } }
            td.text { (finding.file) }
            td.text { (finding.field) }
            td.text { (finding.found) }
            td.text { (finding.expected) }
            td.text { (finding.remedy) }
        }
    }
}

/// The datastores and VMs that are not served, each with what to do.
pub(super) async fn broken(page: PageRequest) -> Response {
    let body = async {
        page.permit("GET /datastores", None)?;
        let look = async |daemon: Rc<Daemon>| Ok((daemon.datastore_list().await, daemon.vm_list().await?));
        let (mut datastores, mut vms) = page.ask(Subject::None, look).await?;
        datastores.retain(|one| one.condition != DatastoreCondition::Open);
        vms.retain(|vm| vm.condition == VmCondition::Broken);
        Ok(html! {
            @if datastores.is_empty() && vms.is_empty() { p { "Every datastore and every VM that is not closed is served." } }
            @for one in &datastores { (broken_datastore(one)) }
            @for vm in &vms {
                h2 { "VM " a href=(format!("/vms/{}", vm.name)) { (vm.name) } }
                p.notice.fault { (vm.message.as_deref().unwrap_or("Its files cannot be read.")) }
                (repair(vm))
            }
            h2 { "VMware's folders that are not imported" }
            p { "A folder is checked and repaired where it is, without the daemon:" }
            (shell("Commands for a folder", &html! {
                code { "unstun check /path/to/folder" } "\n"
                code { "unstun repair /path/to/folder" }
            }))
        })
    };
    page.answer("Repair", body).await
}

fn broken_datastore(one: &Datastore) -> Markup {
    let (name, path) = (&one.name, one.path.display());
    html! {
        h2 { "Datastore " a href=(format!("/datastores#{name}")) { (name) } }
        p.notice.fault { (state(one)) }
        @if one.condition == DatastoreCondition::Hung {
            p { "Check its file server or device. Guests and operations continue when it answers." }
        } @else {
            p { "These commands, on the daemon's host, show what is wrong with it, and serve it again when that is mended:" }
            (shell(&format!("Commands that check {name}"), &html! {
                code { "unstun check " (path) } "\n"
                code { "unstun datastore add " (name) "=" (path) }
            }))
            p { "If its store is damaged, this writes what can be read to a new datastore:" }
            (shell(&format!("Commands that rebuild {name}"), &html! {
                code { "unstun datastore rebuild " (path) " --into NEW-FOLDER" }
            }))
            @if one.is_device {
                p { "If another host holds its lease and is lost, take it over:" }
                (shell(&format!("Commands that take over {name}"), &html! { code { "unstun datastore take-over " (name) } }))
            }
        }
    }
}
