//! The datastores: their space with its forecast, their problems, and the forms that add, check and remove them.

use std::path::PathBuf;

use api::error::Error;
use api::name::DatastoreName;
use api::units::format_bytes;
use api::{Datastore, DatastoreAdd, DatastoreCondition, DatastoreRemovePreview, FullDatastore};
use axum::extract::{Extension, Path};
use axum::response::Response;
use jiff::Timestamp;
use maud::{Markup, html};
use serde_json::Value;
use std::rc::Rc;
use std::sync::Arc;

use super::forecast;
use super::page::{form_key, shell};
use super::request::{FormRequest, PageRequest, Route, may};
use super::sent::invalid;
use crate::access::sessions::Session;
use crate::alarms::{Alarms, Trend};
use crate::daemon::{Daemon, DatastoreGrowth, Subject, image_at};

pub(super) async fn show(Extension(alarms): Extension<Arc<Alarms>>, page: PageRequest) -> Response {
    let body = async {
        page.permit("GET /datastores", None)?;
        let look = async |daemon: Rc<Daemon>| {
            Ok((daemon.datastore_list().await, daemon.full_datastores().await, daemon.growth().await))
        };
        let (all, full, growth) = page.ask(Subject::None, look).await?;
        let session = page.session();
        Ok(html! {
            @for one in &full { (full_notice(one)) }
            @for one in &all {
                @let growth = growth.iter().find(|growth| growth.datastore == one.name);
                (section(one, growth, &alarms.trend(one.name.as_str(), one.free_bytes.unwrap_or(0)), session))
            }
            @if may(session, "/datastores") { (add_form(session)) }
            @if may(session, "/datastores") { (create_commands()) }
            p { a href="/repair" { "What to do about broken datastores and VMs" } }
        })
    };
    page.answer("Datastores", body).await
}

pub(super) fn full_notice(full: &FullDatastore) -> Markup {
    let waiting: Vec<&str> = full.waiting.iter().map(|waiting| waiting.vm.as_str()).collect();
    html! {
        p.notice.fault role="alert" {
            "Datastore " (full.datastore) " is full: guest writes wait (" (waiting.join(", ")) "). "
            @if let Some(first) = full.freeable.first() {
                "Committing snapshots frees most: begin with VM " a href=(format!("/vms/{}", first.vm)) { (first.vm) } ". "
            }
            a href="/datastores" { "What frees space" }
        }
    }
}

/// Returns the state of a datastore in a word or a sentence.
pub(super) fn state(one: &Datastore) -> Markup {
    html! {
        @match (&one.hung, one.condition, &one.message) {
            (Some(hung), _, _) => span.bad { "has not answered for " (hung.for_s) " s (" (hung.doing) ")" },
            (None, DatastoreCondition::Open, None) => span.good { "served" },
            (None, _, Some(message)) => span.bad { (message) },
            (None, condition, None) => span.bad { (condition.as_str()) },
        }
    }
}

fn section(one: &Datastore, growth: Option<&DatastoreGrowth>, trend: &Trend, session: &Session) -> Markup {
    let bytes = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), format_bytes);
    let used = one.total_bytes.zip(one.free_bytes).map(|(total, free)| total.saturating_sub(free));
    html! {
        h2 id=(one.name) { (one.name) @if one.is_main { " (main)" } }
        p { (state(one)) }
        @for notice in &one.notices { p.notice { (notice) } }
        @if let (Some(used), Some(total)) = (used, one.total_bytes) {
            p {
                meter max=(total.max(1)) value=(used) aria-label=(format!("Used space of {}", one.name)) {}
                " " (format_bytes(used)) " of " (format_bytes(total)) " used, " (bytes(one.free_bytes)) " free"
            }
        }
        dl {
            dt { "Place" } dd { code { (one.path.display()) } @if one.is_device { " (a device, which does not grow)" } }
            dt { "VMs" } dd { (one.vms.unwrap_or(0)) @if one.native_store { ", with a native store" } }
            @if let Some(growth) = growth {
                dt { "At worst" } dd {
                    "disks and deltas can grow by " (format_bytes(growth.worst_growth_bytes))
                    @if one.free_bytes.is_some_and(|free| growth.worst_growth_bytes > free) { ", " span.warn { "which does not fit" } }
                }
            }
            dt { "At the present rate" } dd { (forecast::sentence(trend, Timestamp::now())) }
            dt { "Reserves" } dd {
                a href="/bin" { (bytes(one.bin_bytes)) " in the bin" } ", freed when the space is needed; "
                (bytes(one.reclaimable_bytes)) " reclaimable"
            }
        }
        @if let Some(total) = one.total_bytes { (forecast::chart(one.name.as_str(), trend, total, Timestamp::now())) }
        @if let Some(growth) = growth { (largest(growth, session)) }
        (forms(one, session))
    }
}

/// Returns the snapshots whose commit frees the most space.
fn largest(growth: &DatastoreGrowth, session: &Session) -> Markup {
    html! {
        @if !growth.freeable.is_empty() {
            h3 { "What frees space" }
            ul {
                @for one in &growth.freeable {
                    li {
                        "Snapshot " (one.snapshot) " of VM " a href=(format!("/vms/{}", one.vm)) { (one.vm) }
                        ": at most " (format_bytes(one.bytes_max)) " "
                        @if may(session, "/vms/{vm}/commit") {
                            form.inline method="post" action=(format!("/vms/{}/preview", one.vm)) {
                                (form_key(session))
                                input type="hidden" name="snapshot" value=(one.snapshot);
                                button.plain name="verb" value="commit" aria-label=(format!("Commit {} of {}", one.snapshot, one.vm)) { "Commit..." }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn forms(one: &Datastore, session: &Session) -> Markup {
    let is_open = one.condition == DatastoreCondition::Open;
    let button = |verb: &str, title: &str| {
        html! {
            form.inline method="post" action=(format!("/datastores/{}/{verb}", one.name)) {
                (form_key(session))
                button.plain aria-label=(format!("{title} {}", one.name)) { (title) }
            }
            " "
        }
    };
    html! {
        div.row {
            @if is_open && may(session, "/check") { (button("check", "Check")) }
            @if is_open && one.native_store && may(session, "/scrub") { (button("scrub", "Scrub")) }
            @if one.native_store && may(session, "GET /scrub") { a href=(format!("/datastores/{}/scrub", one.name)) { "Last scrub" } " " }
            @if !one.is_main && may(session, "DELETE /datastores/{name}") { (button("remove/preview", "Stop serving...")) }
        }
        @if one.is_device && one.condition == DatastoreCondition::Broken && may(session, "/datastores") { (take_over_form(one, session)) }
    }
}

fn take_over_form(one: &Datastore, session: &Session) -> Markup {
    html! {
        details {
            summary { "Another host holds its lease, and is lost" }
            form.row method="post" action="/datastores/add" {
                (form_key(session))
                input type="hidden" name="path" value=(one.path.display());
                input type="hidden" name="name" value=(one.name);
                label { span {
                    input type="checkbox" name="take_over" value="yes" required;
                    " That host is dead or cut off from the device. If it is only suspended, both lose data."
                } }
                button.loss { "Take over " (one.name) }
            }
        }
    }
}

fn add_form(session: &Session) -> Markup {
    html! {
        h2 { "Another datastore" }
        form.row method="post" action="/datastores/add" {
            (form_key(session))
            label { "Path of a folder, or of a device that was prepared" input name="path" required maxlength="4000" size="40"; }
            label { "Name; empty: that of the folder" input name="name" maxlength="64"; }
            button { "Serve it" }
        }
    }
}

/// Returns the commands that make a datastore of a device. They overwrite it, so they run on the daemon's host alone.
fn create_commands() -> Markup {
    html! {
        p { "A block device is prepared first, on the daemon's host. The command refuses a device that has content:" }
        (shell("Commands for a device", &html! {
            code { "unstun datastore create /dev/disk/by-id/DEVICE" } "\n"
            code { "unstun datastore add NAME=/dev/disk/by-id/DEVICE" }
        }))
    }
}

pub(super) async fn add(form: FormRequest) -> Response {
    let done = async {
        let path: PathBuf = form.sent.parsed("path")?;
        if !path.is_absolute() && image_at(&path).is_none() {
            return Err(Error::invalid(format!(
                "path: found {:?}, expected one that begins with /, or rbd:POOL/IMAGE",
                path.display()
            )));
        }
        let (name, take_over) = (form.sent.optional("name")?, form.sent.is_ticked("take_over"));
        let request = DatastoreAdd { path, name, take_over, reservations: None };
        let (body, core) = (request.clone(), form.page.access.core.clone());
        let added = form.act(Route::plain("/datastores"), &body, core.datastore_add(request)).await?;
        Ok(format!("Datastore {} is served, with {} VMs.", added.name, added.vms.unwrap_or(0)))
    };
    form.answer("/datastores", done).await
}

pub(super) async fn preview(Path(name): Path<String>, form: FormRequest) -> Response {
    let looked = async {
        let route = Route::to("/datastores/{name}/remove/preview", "{name}", &name);
        let name: DatastoreName = name.parse().map_err(invalid)?;
        let look = async move |daemon: Rc<Daemon>| daemon.datastore_remove_preview(&name).await;
        let work = form.page.ask(Subject::None, look);
        let preview = form.act(route, &Value::Null, work).await?;
        Ok((format!("Stop serving datastore {}?", preview.name), question(&preview, form.page.session())))
    };
    form.report("/datastores", looked).await
}

fn question(preview: &DatastoreRemovePreview, session: &Session) -> Markup {
    let names =
        |vms: &[api::name::VmName]| vms.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    html! {
        dl {
            dt { "Path" } dd { code { (preview.path.display()) } }
            @if !preview.vms.is_empty() { dt { "VMs" } dd { (names(&preview.vms)) ", which are not served then" } }
            @if !preview.idle_vms.is_empty() { dt { "Closed or broken VMs" } dd { (names(&preview.idle_vms)) } }
            @if preview.bin_entries > 0 { dt { "Bin" } dd { (format_bytes(preview.bin_bytes)) ", which stays in the datastore" } }
        }
        p.notice { strong { "Its content stays. Adding the datastore again serves it again." } }
        @if preview.clients.is_empty() {
            form.row method="post" action=(format!("/datastores/{}/remove", preview.name)) {
                (form_key(session))
                button.loss { "Stop serving " (preview.name) }
                a href="/datastores" { "Change nothing" }
            }
        } @else {
            p.notice.fault { "Clients are connected. Disconnect them first:" }
            ul { @for one in &preview.clients { li { "VM " (one.vm) ": " (one.client) } } }
            p { a href="/datastores" { "To the datastores" } }
        }
    }
}

pub(super) async fn remove(Path(name): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let route = Route::to("DELETE /datastores/{name}", "{name}", &name);
        let name: DatastoreName = name.parse().map_err(invalid)?;
        let subject = Subject::Added(name.clone());
        let work = form.page.ask(subject, async move |daemon| daemon.datastore_remove(&name).await);
        let removed = form.act(route, &Value::Null, work).await?;
        Ok(format!(
            "Datastore {} is no longer served; its content stays in {}.",
            removed.name,
            removed.path.display()
        ))
    };
    form.answer("/datastores", done).await
}
