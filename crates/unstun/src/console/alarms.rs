//! The alarms: what lasts, what has ended, and the forms that acknowledge and mute.

use std::sync::Arc;

use api::error::Result;
use api::units::parse_duration_s;
use api::{Alarm, AlarmAcknowledge, AlarmMute, AlarmMuted, AlarmSeverity};
use axum::extract::{Extension, Path};
use axum::response::Response;
use maud::{Markup, html};
use serde::Serialize;
use serde_json::Value;

use super::page::{age, form_key};
use super::request::{FormRequest, PageRequest, Route, may};
use super::sent::invalid;
use crate::access::sessions::Session;
use crate::alarms::Alarms;

pub(super) async fn show(Extension(all): Extension<Arc<Alarms>>, page: PageRequest) -> Response {
    let caller = &page.session().caller;
    let mut found = all.list(true);
    found.retain(|alarm| caller.reaches_alarm(alarm));
    let mutes = if caller.is_limited() { Vec::new() } else { all.mutes() };
    page.show("Alarms", &lists(&found, &mutes, page.session()))
}

fn lists(alarms: &[Alarm], mutes: &[AlarmMuted], session: &Session) -> Markup {
    let (lasting, ended): (Vec<_>, Vec<_>) = alarms.iter().partition(|alarm| alarm.cleared.is_none());
    html! {
        @if lasting.is_empty() { p { "There is no alarm." } }
        @else { (table("Alarms that last", &lasting, Some(session))) }
        @if !mutes.is_empty() {
            h2 { "Muted" }
            ul {
                @for muted in mutes {
                    li {
                        (muted.what()) " until " (format!("{:.0}", muted.until)) ", by " (muted.by) " "
                        @if may(session, "DELETE /alarms/mutes/{id}") {
                            form.inline method="post" action=(format!("/alarms/mutes/{}/end", muted.id)) {
                                (form_key(session))
                                button.plain aria-label=(format!("Deliver it again: {}", muted.what())) { "Deliver it again" }
                            }
                        }
                    }
                }
            }
        }
        @if !ended.is_empty() {
            h2 { "Ended" }
            (table("Alarms that have ended", &ended, None))
        }
        @if may(session, "GET /alarms/rules") { p { a href="/alarms/rules" { "Rules and channels" } } }
    }
}

/// Returns the table of alarms; with a session, with the forms that its caller may send.
fn table(title: &str, alarms: &[&Alarm], session: Option<&Session>) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(title) {
            table {
                thead { tr {
                    th scope="col" { "Severity" } th scope="col" { "Alarm" } th scope="col" { "Since" }
                    th scope="col" { @if session.is_some() { "Acknowledged" } @else { "Until" } }
                } }
                tbody { @for alarm in alarms { (row(alarm, session)) } }
            }
        }
    }
}

fn row(alarm: &Alarm, session: Option<&Session>) -> Markup {
    let class = if alarm.severity == AlarmSeverity::Warning { "warn" } else { "bad" };
    html! {
        tr {
            td { span class=(class) { (alarm.severity.as_str()) } }
            td.text {
                @if let Some(vm) = &alarm.vm { a href=(format!("/vms/{vm}")) { (alarm.id) } } @else { strong { (alarm.id) } }
                br; (alarm.message)
            }
            td { (age(alarm.raised)) }
            td {
                @match (session, &alarm.acknowledged, alarm.cleared) {
                    (None, _, Some(cleared)) => (age(cleared)),
                    (session, Some(by), _) => { "by " (by.by) @if !by.note.is_empty() { ": " (by.note) } (take_back(alarm, session)) },
                    (Some(session), None, _) => (forms(alarm, session)),
                    _ => "",
                }
            }
        }
    }
}

/// Returns the form that takes back that an alarm is acknowledged.
fn take_back(alarm: &Alarm, session: Option<&Session>) -> Markup {
    html! {
        @if let Some(session) = session.filter(|session| may(session, "DELETE /alarms/{alarm}/acknowledge")) {
            form method="post" action=(format!("/alarms/{}/unacknowledge", alarm.id)) {
                (form_key(session))
                button.plain aria-label=(format!("Take back that {} is acknowledged", alarm.id)) { "Take back" }
            }
        }
    }
}

fn forms(alarm: &Alarm, session: &Session) -> Markup {
    html! {
        @if may(session, "/alarms/{alarm}/acknowledge") {
            form.row method="post" action=(format!("/alarms/{}/acknowledge", alarm.id)) {
                (form_key(session))
                label { "Note" input name="note" maxlength="1000"; }
                button.plain aria-label=(format!("Acknowledge {}", alarm.id)) { "Acknowledge" }
            }
            @if may(session, "/alarms/mutes") {
                form.row method="post" action=(format!("/alarms/{}/mute", alarm.id)) {
                    (form_key(session))
                    label { "Mute for" input name="time" value="8h" required maxlength="10" size="5"; }
                    button.plain aria-label=(format!("Mute {}", alarm.id)) { "Mute" }
                }
            }
        } @else { span.quiet { "not yet" } }
    }
}

pub(super) async fn acknowledge(
    Extension(alarms): Extension<Arc<Alarms>>,
    Path(id): Path<String>,
    form: FormRequest,
) -> Response {
    let done = async {
        let request = AlarmAcknowledge { note: form.sent.text("note").to_owned() };
        api::name::check_message(&request.note).map_err(invalid)?;
        let by = Some((form.page.session().caller.who.clone(), request.note.clone()));
        change(&alarms, &id, &form, "/alarms/{alarm}/acknowledge", &request, by).await?;
        Ok(format!("Alarm {id} is acknowledged."))
    };
    form.answer("/alarms", done).await
}

pub(super) async fn unacknowledge(
    Extension(alarms): Extension<Arc<Alarms>>,
    Path(id): Path<String>,
    form: FormRequest,
) -> Response {
    let done = async {
        let route = "DELETE /alarms/{alarm}/acknowledge";
        change(&alarms, &id, &form, route, &Value::Null, None).await?;
        Ok(format!("Alarm {id} is not acknowledged any more."))
    };
    form.answer("/alarms", done).await
}

/// Acknowledges an alarm of the caller's VMs, or takes that back.
async fn change(
    alarms: &Alarms,
    id: &str,
    form: &FormRequest,
    route: &str,
    body: &impl Serialize,
    by: Option<(String, String)>,
) -> Result<Alarm> {
    let caller = &form.page.session().caller;
    if !caller.reaches_alarm(&alarms.find(id)?) {
        return Err(caller.forbidden("the alarm is about none of its VMs"));
    }
    form.act(Route::to(route, "{alarm}", id), body, alarms.acknowledge(id, by)).await
}

pub(super) async fn mute(
    Extension(alarms): Extension<Arc<Alarms>>,
    Path(id): Path<String>,
    form: FormRequest,
) -> Response {
    let request = AlarmMute { alarm: Some(id), ..AlarmMute::default() };
    form.answer("/alarms", mute_for(&alarms, request, &form)).await
}

/// Mutes what the request names for the time of the form.
pub(super) async fn mute_for(alarms: &Alarms, mut request: AlarmMute, form: &FormRequest) -> Result<String> {
    request.for_s = parse_duration_s(form.sent.text("time")).map_err(invalid)?;
    request.check().map_err(invalid)?;
    let work = alarms.mute(request.clone(), form.page.session().caller.who.clone());
    let muted = form.act(Route::plain("/alarms/mutes"), &request, work).await?;
    Ok(format!("Not delivered until {:.0}: {}.", muted.until, muted.what()))
}

pub(super) async fn unmute(
    Extension(alarms): Extension<Arc<Alarms>>,
    Path(id): Path<u64>,
    form: FormRequest,
) -> Response {
    let done = async {
        let route = Route::to("DELETE /alarms/mutes/{id}", "{id}", &id.to_string());
        let muted = form.act(route, &Value::Null, alarms.unmute(id)).await?;
        Ok(format!("Delivered again: {}.", muted.what()))
    };
    form.answer("/alarms", done).await
}
