//! The alarms: what lasts, what has ended, and the forms that acknowledge and mute.

use std::sync::Arc;

use api::units::parse_duration_s;
use api::{Alarm, AlarmAcknowledge, AlarmMute, AlarmMuted, AlarmSeverity, Role};
use axum::extract::{Extension, Path};
use axum::response::Response;
use maud::{Markup, html};

use super::page::{age, form_key};
use super::request::{FormRequest, PageRequest, Route};
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
                        @match (&muted.alarm, muted.rule) {
                            (Some(alarm), _) => { "alarm " (alarm) }
                            (None, rule) => { "rule " (rule.map_or("", |rule| rule.as_str())) }
                        }
                        @if let Some(vm) = &muted.vm { " of VMs " (vm) }
                        " until " (format!("{:.0}", muted.until)) ", by " (muted.by) ". "
                        code { "unstun alarm unmute " (muted.id) } " ends it."
                    }
                }
            }
        }
        @if !ended.is_empty() {
            h2 { "Ended" }
            (table("Alarms that have ended", &ended, None))
        }
        p.quiet { code { "unstun alarm rules" } " lists the rules, " code { "unstun alarm channels" } " where alarms are delivered." }
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
                    (_, Some(by), _) => { "by " (by.by) @if !by.note.is_empty() { ": " (by.note) } },
                    (Some(session), None, _) => (forms(alarm, session)),
                    _ => "",
                }
            }
        }
    }
}

fn forms(alarm: &Alarm, session: &Session) -> Markup {
    html! {
        @if session.caller.role >= Role::Operator {
            form.row method="post" action=(format!("/alarms/{}/acknowledge", alarm.id)) {
                (form_key(session))
                label { "Note" input name="note" maxlength="1000"; }
                button.plain aria-label=(format!("Acknowledge {}", alarm.id)) { "Acknowledge" }
            }
            @if !session.caller.is_limited() {
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
        let caller = &form.page.session().caller;
        if !caller.reaches_alarm(&alarms.find(&id)?) {
            return Err(caller.forbidden("the alarm is about none of its VMs"));
        }
        let work = alarms.acknowledge(&id, Some((caller.who.clone(), request.note.clone())));
        let alarm =
            form.act(Route::to("/alarms/{alarm}/acknowledge", "{alarm}", &id), &request, work).await?;
        Ok(format!("Alarm {} is acknowledged.", alarm.id))
    };
    form.answer("/alarms", done).await
}

pub(super) async fn mute(
    Extension(alarms): Extension<Arc<Alarms>>,
    Path(id): Path<String>,
    form: FormRequest,
) -> Response {
    let done = async {
        let for_s = parse_duration_s(form.sent.text("time")).map_err(invalid)?;
        let request = AlarmMute { alarm: Some(id.clone()), for_s, ..AlarmMute::default() };
        request.check().map_err(invalid)?;
        let work = alarms.mute(request.clone(), form.page.session().caller.who.clone());
        let muted = form.act(Route::plain("/alarms/mutes"), &request, work).await?;
        Ok(format!("Alarm {id} is not delivered until {:.0}.", muted.until))
    };
    form.answer("/alarms", done).await
}
