//! The rules of the alarms with their thresholds, and the channels over which alarms are delivered.

use std::sync::Arc;

use api::error::{Error, Result};
use api::{AlarmChannel, AlarmMute, AlarmRule, AlarmRuleShown, AlarmThreshold};
use axum::extract::{Extension, Path};
use axum::response::Response;
use clap::ValueEnum;
use maud::{Markup, html};
use serde_json::Value;

use super::alarms::mute_for;
use super::page::{age, form_key};
use super::request::{FormRequest, PageRequest, Route, may};
use crate::access::sessions::Session;
use crate::alarms::Alarms;

/// Address of the page.
const HERE: &str = "/alarms/rules";

pub(super) async fn show(Extension(alarms): Extension<Arc<Alarms>>, page: PageRequest) -> Response {
    let body = async {
        page.permit("GET /alarms/rules", None)?;
        page.permit("GET /alarms/channels", None)?;
        let session = page.session();
        Ok(html! {
            (rules(&alarms.rules(), session))
            @if may(session, "PUT /alarms/rules") { h2 { "Set a threshold" } (set_form(session)) }
            @if may(session, "/alarms/mutes") { h2 { "Mute a rule" } (mute_form(session)) }
            h2 { "Channels" }
            (channels(&alarms.channels.list().await, session))
        })
    };
    page.answer("Rules and channels of alarms", body).await
}

/// Returns what a rule is about, as the help of the command line has it.
fn meaning(rule: AlarmRule) -> String {
    let value = rule.to_possible_value();
    value.and_then(|value| value.get_help().map(ToString::to_string)).unwrap_or_default()
}

fn rules(all: &[AlarmRuleShown], session: &Session) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Rules" {
            table {
                thead { tr {
                    th scope="col" { "Rule" } th scope="col" { "Raises an alarm if" } th scope="col" { "Threshold" }
                    th scope="col" { "For some VMs" } th scope="col" { "Change" }
                } }
                tbody { @for shown in all { (row(shown, session)) } }
            }
        }
    }
}

fn row(shown: &AlarmRuleShown, session: &Session) -> Markup {
    let name = shown.rule.as_str();
    html! {
        tr {
            th scope="row" { (name) }
            td.text { (meaning(shown.rule)) }
            td { (shown.describe(shown.general())) }
            td {
                @for one in shown.thresholds.iter().filter(|one| one.vm.is_some() || one.tag.is_some()) {
                    (one.objects()) ": " (shown.describe(one.value)) br;
                }
            }
            td {
                @if !shown.thresholds.is_empty() && may(session, "DELETE /alarms/rules/{rule}") {
                    form method="post" action=(format!("{HERE}/{name}/reset")) {
                        (form_key(session))
                        button.plain aria-label=(format!("Back to the default: {name}")) { "Back to the default" }
                    }
                }
            }
        }
    }
}

fn rule_choice() -> Markup {
    html! {
        label { "Rule"
            select name="rule" {
                @for rule in AlarmRule::ALL { option { (rule.as_str()) } }
            }
        }
    }
}

fn set_form(session: &Session) -> Markup {
    html! {
        form.row method="post" action=(HERE) {
            (form_key(session))
            (rule_choice())
            label { "A number in the unit of the rule, or on, or off" input name="value" required maxlength="7" size="8"; }
            label { "For VMs, with * and ?; empty: all" input name="vm" maxlength="64"; }
            label { "Or for VMs with this tag" input name="tag" maxlength="40"; }
            button { "Set the threshold" }
        }
    }
}

fn mute_form(session: &Session) -> Markup {
    html! {
        form.row method="post" action=(format!("{HERE}/mute")) {
            (form_key(session))
            (rule_choice())
            label { "For VMs, with * and ?; empty: all" input name="vm" maxlength="64"; }
            label { "For this time" input name="time" value="8h" required maxlength="10" size="5"; }
            button.plain { "Mute the rule" }
        }
    }
}

fn channels(all: &[AlarmChannel], session: &Session) -> Markup {
    html! {
        p.quiet { "Files in the folder of the option " code { "--alarms-dir" } " name them, on the daemon's host." }
        @if all.is_empty() { p { "There is no channel: alarms are in the log, on these pages and in " code { "unstun alarm list" } "." } }
        @else {
            div.scroll tabindex="0" role="region" aria-label="Channels" {
                table {
                    thead { tr {
                        th scope="col" { "Channel" } th scope="col" { "Kind" } th.number scope="col" { "Delivered" }
                        th.number scope="col" { "Failed" } th scope="col" { "Last" } th scope="col" { "Fault" } th scope="col" { "Try it" }
                    } }
                    tbody { @for one in all { (channel(one, session)) } }
                }
            }
        }
    }
}

fn channel(one: &AlarmChannel, session: &Session) -> Markup {
    html! {
        tr {
            th scope="row" { (one.name) }
            td { (one.kind.as_deref().unwrap_or("cannot be used")) }
            td.number { (one.delivered) }
            td.number { (one.failed) }
            td { @if let Some(last) = one.last { (age(last)) } @else { "never" } }
            td.text { @if let Some(fault) = one.fault.as_ref().or(one.last_error.as_ref()) { span.bad { (fault) } } }
            td {
                @if one.kind.is_some() && may(session, "/alarms/channels/{name}/test") {
                    form method="post" action="/alarms/channels/test" {
                        (form_key(session))
                        input type="hidden" name="channel" value=(one.name);
                        button.plain aria-label=(format!("Send a test message over {}", one.name)) { "Send a test message" }
                    }
                }
            }
        }
    }
}

fn parse_rule(text: &str) -> Result<AlarmRule> {
    AlarmRule::from_str(text, false)
        .map_err(|_| Error::invalid(format!("{text:?}: expected a rule of this page")))
}

/// Returns the threshold that the form describes.
fn threshold(form: &FormRequest) -> Result<AlarmThreshold> {
    let sent = &form.sent;
    let value = match sent.text("value").trim() {
        "off" => None,
        "on" => Some(1),
        _ => Some(sent.number("value")?),
    };
    let (rule, vm, tag) = (parse_rule(sent.text("rule"))?, sent.optional("vm")?, sent.optional("tag")?);
    let threshold = AlarmThreshold { rule, vm, tag, value };
    threshold.check().map_err(Error::invalid)?;
    Ok(threshold)
}

pub(super) async fn set(Extension(alarms): Extension<Arc<Alarms>>, form: FormRequest) -> Response {
    let done = async {
        let wanted = threshold(&form)?;
        let work = alarms.set_threshold(wanted.clone());
        form.act(Route::plain("PUT /alarms/rules"), &wanted, work).await?;
        Ok(format!("The threshold of rule {} is set.", wanted.rule.as_str()))
    };
    form.answer(HERE, done).await
}

/// Gives a rule its default again.
pub(super) async fn reset(
    Extension(alarms): Extension<Arc<Alarms>>,
    Path(rule): Path<String>,
    form: FormRequest,
) -> Response {
    let done = async {
        let found = parse_rule(&rule)?;
        let route = Route::to("DELETE /alarms/rules/{rule}", "{rule}", found.as_str());
        form.act(route, &Value::Null, alarms.reset_rule(found)).await?;
        Ok(format!("Rule {} has its default again.", found.as_str()))
    };
    form.answer(HERE, done).await
}

pub(super) async fn mute(Extension(alarms): Extension<Arc<Alarms>>, form: FormRequest) -> Response {
    let done = async {
        let (rule, vm) = (Some(parse_rule(form.sent.text("rule"))?), form.sent.optional("vm")?);
        mute_for(&alarms, AlarmMute { rule, vm, ..AlarmMute::default() }, &form).await
    };
    form.answer("/alarms", done).await
}

/// Sends a test message over a channel.
pub(super) async fn test(Extension(alarms): Extension<Arc<Alarms>>, form: FormRequest) -> Response {
    let done = async {
        let name = form.sent.text("channel");
        let route = Route::to("/alarms/channels/{name}/test", "{name}", name);
        let channel = form.act(route, &Value::Null, alarms.channels.test(name)).await?;
        Ok(format!("A test message was delivered over channel {}.", channel.name))
    };
    form.answer(HERE, done).await
}
