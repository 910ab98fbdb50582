//! The page of one policy: what it does next, the form that changes it with a preview, and its removal.

use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::name::PolicyName;
use api::units::format_bytes;
use api::{PolicyPreview, PolicyStatus};
use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::page::form_key;
use super::policy_form::{fields_of, fields_of_new, form, is_new, policy, shown_policy};
use super::request::{FormRequest, PageRequest, Route, may};
use super::sent::{Sent, invalid};
use crate::access::sessions::Session;
use crate::daemon::{Daemon, Subject};

/// Maximum number of VMs, and of snapshots, that a page names.
const NAMED_MAX: usize = 200;

pub(super) async fn show(Path(name): Path<String>, page: PageRequest) -> Response {
    let body = async {
        page.permit("GET /policies/{name}", None)?;
        let name: PolicyName = name.parse().map_err(invalid)?;
        let look = async move |daemon: Rc<Daemon>| {
            let status = daemon.policy_show(&name).await?;
            let preview = daemon.policy_preview(status.policy.clone()).await?;
            Ok((status, preview))
        };
        let (status, preview) = page.ask(Subject::None, look).await?;
        Ok(one(&status, &preview, page.session()))
    };
    page.answer(&format!("Policy {name}"), body).await
}

fn one(status: &PolicyStatus, preview: &PolicyPreview, session: &Session) -> Markup {
    let name = &status.policy.name;
    html! {
        @if !status.policy.enabled { p.notice { "The policy is disabled: it takes and removes no snapshots." } }
        @for problem in status.problems.iter().take(NAMED_MAX) { p.notice.fault { (problem.sentence()) } }
        (effects(preview))
        p.quiet { "Created " (format!("{:.0}", status.created)) "; " (status.by) " created it or changed it last." }
        @if may(session, "PUT /policies/{name}") {
            h2 { "Change it" }
            (form(&fields_of(&status.policy), session))
        }
        @if may(session, "DELETE /policies/{name}") {
            h2 { "Remove it" }
            form.row method="post" action=(format!("/policies/{name}/remove")) {
                (form_key(session))
                button.loss { "Remove policy " (name) }
                span.quiet { "Its snapshots stay." }
            }
        }
    }
}

/// Returns what a policy does: its next times, and what it takes, keeps and removes of each VM.
fn effects(preview: &PolicyPreview) -> Markup {
    let policy = &preview.policy;
    let schedule: Vec<_> = policy.schedule.iter().map(|calendar| calendar.as_str()).collect();
    html! {
        dl {
            dt { "Schedule" } dd { (schedule.join("; ")) }
            dt { "Next times" } dd { @if preview.next.is_empty() { "none" } @for time in &preview.next { (format!("{time:.0}")) br; } }
            dt { "Keeps" } dd { (policy.keep) }
            @if let Some(to) = &policy.backup { dt { "Backs up into" } dd { (to.repository) ", and keeps there " (to.keep) } }
            dt { "Applies to" } dd { (policy.describe_vms()) }
        }
        @if preview.vms.is_empty() { p.notice { "The policy applies to no open VM." } } @else { (vms(preview)) }
    }
}

fn vms(preview: &PolicyPreview) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="VMs of the policy" {
            table {
                thead { tr {
                    th scope="col" { "VM" } th scope="col" { "Next snapshot" } th.number scope="col" { "Keeps" }
                    th scope="col" { "Removes" }
                } }
                tbody {
                    @for one in preview.vms.iter().take(NAMED_MAX) {
                        tr {
                            th scope="row" { a href=(format!("/vms/{}", one.vm)) { (one.vm) } }
                            td { (one.next_snapshot.as_deref().unwrap_or("none")) }
                            td.number { (one.kept) }
                            td.text { @if one.removed.is_empty() { "nothing" } @else { (removed(&one.removed)) } }
                        }
                    }
                }
            }
        }
        @if preview.vms.len() > NAMED_MAX { p { "And " (preview.vms.len() - NAMED_MAX) " more VMs." } }
    }
}

fn removed(all: &[api::PolicyRemoval]) -> Markup {
    html! {
        @for one in all.iter().take(NAMED_MAX) {
            (one.snapshot) " of " (format!("{:.0}", one.created)) ", " (format_bytes(one.bytes)) br;
        }
        @if all.len() > NAMED_MAX { "and " (all.len() - NAMED_MAX) " more" }
    }
}

/// The form with all fields, for a new policy.
pub(super) async fn show_new(page: PageRequest) -> Response {
    match page.permit("/policies", None) {
        Ok(()) => page.show("A new policy", &form(&fields_of_new(), page.session())),
        Err(error) => page.fault("A new policy", &error),
    }
}

fn title(sent: &Sent) -> String {
    if is_new(sent) { "A new policy".to_owned() } else { format!("Policy {}", sent.text("name")) }
}

/// Shows what the policy of the form would do. If there is none like that, the form is shown again as it was sent.
pub(super) async fn preview(form: FormRequest) -> Response {
    let looked = async {
        let policy = policy(&form.sent)?;
        let body = policy.clone();
        let look = async move |daemon: Rc<Daemon>| daemon.policy_preview(policy).await;
        form.act(Route::plain("/policies/preview"), &body, form.page.ask(Subject::None, look)).await
    };
    match looked.await {
        Ok(preview) => {
            let (verb, name) = (if is_new(&form.sent) { "Create" } else { "Change" }, &preview.policy.name);
            let title = format!("{verb} policy {name}?");
            form.page.still(&title, None, &question(&preview, &form.sent, form.page.session()))
        }
        Err(error) if error.kind == ErrorKind::Invalid => {
            let body = super::policy_form::form(&form.sent, form.page.session());
            form.page.still(&title(&form.sent), Some(&error), &body)
        }
        Err(error) => form.back_to("/policies", Err(error)),
    }
}

fn question(preview: &PolicyPreview, sent: &Sent, session: &Session) -> Markup {
    let (name, removals) = (&preview.policy.name, preview.removals());
    let (action, verb) = match is_new(sent) {
        true => ("/policies/create-shown".to_owned(), "Create"),
        false => (format!("/policies/{name}/set"), "Change"),
    };
    html! {
        (effects(preview))
        @if removals > 0 {
            p.notice { strong { "The policy will remove " (removals) " snapshots that exist. That cannot be undone." } }
        }
        form.row method="post" action=(action) {
            (form_key(session))
            input type="hidden" name="policy" value=(json!(preview.policy));
            button.loss[removals > 0] { (verb) " policy " (name) }
            a href="/policies" { "Change nothing" }
        }
    }
}

/// Creates the policy that a preview has shown.
pub(super) async fn create_shown(form: FormRequest) -> Response {
    let done = async { create(&form, shown_policy(&form.sent)?).await };
    form.answer("/policies", done).await
}

pub(super) async fn create(form: &FormRequest, policy: api::Policy) -> Result<String> {
    let (body, by) = (policy.clone(), form.page.session().caller.who.clone());
    let create = async move |daemon: Rc<Daemon>| daemon.policy_create(policy, by).await;
    let work = form.page.ask(Subject::Datastore(None), create);
    let created = form.act(Route::plain("/policies"), &body, work).await?;
    Ok(format!("Policy {} is created; it applies to {} VMs now.", created.policy.name, created.vms.len()))
}

/// Replaces a policy by the one that a preview has shown.
pub(super) async fn set(Path(name): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let route = Route::to("PUT /policies/{name}", "{name}", &name);
        let (name, policy): (PolicyName, _) = (name.parse().map_err(invalid)?, shown_policy(&form.sent)?);
        let (body, by) = (policy.clone(), form.page.session().caller.who.clone());
        let set = async move |daemon: Rc<Daemon>| daemon.policy_set(&name, policy, by).await;
        let set = form.act(route, &body, form.page.ask(Subject::Datastore(None), set)).await?;
        Ok(format!("Policy {} is changed; it applies to {} VMs now.", set.policy.name, set.vms.len()))
    };
    form.answer("/policies", done).await
}

pub(super) async fn remove(Path(name): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let route = Route::to("DELETE /policies/{name}", "{name}", &name);
        let name: PolicyName = name.parse().map_err(invalid)?;
        let remove = async move |daemon: Rc<Daemon>| daemon.policy_remove(&name).await;
        let work = form.page.ask(Subject::Datastore(None), remove);
        let removed = form.act(route, &Value::Null, work).await?;
        Ok::<_, Error>(format!("Policy {} is removed; its snapshots stay.", removed.policy.name))
    };
    form.answer("/policies", done).await
}
