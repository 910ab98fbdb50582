//! The policies: their next and last runs, what they could not do, and the forms that create, apply and switch them.

use std::rc::Rc;

use api::error::Error;
use api::{Policy, PolicyApply, PolicyStatus, Quiesce, Removes};
use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::json;

use super::page::{age, form_key, quiesce_choice};
use super::request::{FormRequest, PageRequest, Route, may};
use super::sent::invalid;
use super::{policy, policy_form};
use crate::access::sessions::Session;
use crate::daemon::{Daemon, Subject};

pub(super) async fn show(page: PageRequest) -> Response {
    let body = async {
        page.permit("GET /policies", None)?;
        let all = page.ask(Subject::None, async |daemon| daemon.policy_list().await).await?;
        Ok(table(&all, page.session()))
    };
    page.answer("Policies", body).await
}

fn table(all: &[PolicyStatus], session: &Session) -> Markup {
    let is_admin = may(session, "/policies");
    html! {
        p.quiet { "A policy takes snapshots at certain times, and removes its own when no rule keeps them." }
        @if all.is_empty() { p { "There is no policy yet." } }
        @else {
            div.scroll tabindex="0" role="region" aria-label="Policies" {
                table {
                    thead { tr {
                        th scope="col" { "Policy" } th scope="col" { "Schedule" } th scope="col" { "Keeps" }
                        th scope="col" { "Applies to" } th.number scope="col" { "VMs" } th scope="col" { "Next" }
                        th scope="col" { "Last" } th scope="col" { "Problems" } th scope="col" { "Actions" }
                    } }
                    tbody { @for one in all { (row(one, session, is_admin)) } }
                }
            }
        }
        @if is_admin { h2 { "A new policy" } (form(session)) }
    }
}

fn row(one: &PolicyStatus, session: &Session, is_admin: bool) -> Markup {
    let policy = &one.policy;
    let schedule: Vec<_> = policy.schedule.iter().map(|calendar| calendar.as_str()).collect();
    html! {
        tr {
            th scope="row" { a href=(format!("/policies/{}/settings", policy.name)) { (policy.name) } }
            td { (schedule.join("; ")) }
            td { (policy.keep) @if policy.removes == Removes::All { " (of all snapshots)" }
                @if policy.quiesce != Quiesce::No { ", quiesce: " (policy.quiesce.as_str()) }
            }
            td { (policy.describe_vms()) }
            td.number { (one.vms.len()) }
            td { @match one.next { _ if !policy.enabled => "disabled", Some(next) => (format!("{next:.0}")), None => "none" } }
            td {
                @if let Some(run) = &one.last {
                    (age(run.scheduled)) ", " (run.taken) " taken"
                    @if run.failed > 0 { span.bad { ", " (run.failed) " failed" } }
                }
            }
            td.text {
                @if let (Some(to), Some(done)) = (&policy.backup, &one.backups) {
                    span.quiet { "Backups into " (to.repository) ": " (done.sentence()) } br;
                }
                @for problem in one.problems.iter().take(3) { span.bad { (problem.sentence()) } br; }
                @if one.waiting > 0 { (one.waiting) " snapshots to remove" }
            }
            td { (actions(policy, session, is_admin)) }
        }
    }
}

fn actions(policy: &Policy, session: &Session, is_admin: bool) -> Markup {
    let name = &policy.name;
    html! {
        @if may(session, "/policies/{name}/apply") {
            form method="post" action=(format!("/policies/{name}/apply")) {
                (form_key(session))
                button.plain aria-label=(format!("Apply now: {name}")) { "Apply now" }
            }
        }
        @if is_admin {
            form method="post" action=(format!("/policies/{name}/switch")) {
                (form_key(session))
                input type="hidden" name="verb" value=(if policy.enabled { "off" } else { "on" });
                @let word = if policy.enabled { "Disable" } else { "Enable" };
                button.plain aria-label=(format!("{word} {name}")) { (word) }
            }
        }
    }
}

fn form(session: &Session) -> Markup {
    html! {
        form.row method="post" action="/policies/create" {
            (form_key(session))
            label { "Name" input name="name" required maxlength="40"; }
            label { "Times, as systemd writes them" input name="schedule" required maxlength="200" value="Mon..Fri 22:00"; }
            label { "Keep the last of so many days" input name="daily" required maxlength="5" value="7" inputmode="numeric"; }
            label { "VMs, with * and ?" input name="vms" required maxlength="64" value="*"; }
            (quiesce_choice(Quiesce::No))
            button { "Create" }
            a href="/policies/create" { "Other rules, tags and windows" }
        }
    }
}

pub(super) async fn create(form: FormRequest) -> Response {
    let done = async { policy::create(&form, policy_form::policy(&form.sent)?).await };
    form.answer("/policies", done).await
}

pub(super) async fn apply(Path(name): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let route = Route::to("/policies/{name}/apply", "{name}", &name);
        let name = name.parse().map_err(invalid)?;
        let apply = async move |daemon: Rc<Daemon>| daemon.policy_apply(&name, PolicyApply::default()).await;
        let work = form.page.ask(Subject::None, apply);
        let applied = form.act(route, &PolicyApply::default(), work).await?;
        match applied.problems.first() {
            None => Ok(format!("{} snapshots are taken.", applied.taken.len())),
            Some(first) => Err(Error::failed(format!(
                "{} snapshots are taken, {} are not: VM {}: {}",
                applied.taken.len(),
                applied.problems.len(),
                first.vm,
                first.cause
            ))),
        }
    };
    form.answer("/policies", done).await
}

/// Enables or disables a policy.
pub(super) async fn switch(Path(name): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let route = Route::to("PUT /policies/{name}", "{name}", &name);
        let name = name.parse().map_err(invalid)?;
        let (enabled, by) = (form.sent.text("verb") == "on", form.page.session().caller.who.clone());
        let change = async move |daemon: Rc<Daemon>| {
            let policy = Policy { enabled, ..daemon.policy_show(&name).await?.policy };
            daemon.policy_set(&name, policy, by).await
        };
        let work = form.page.ask(Subject::Datastore(None), change);
        let set = form.act(route, &json!({"enabled": enabled}), work).await?;
        Ok(format!("Policy {} is {}.", set.policy.name, if enabled { "enabled" } else { "disabled" }))
    };
    form.answer("/policies", done).await
}
