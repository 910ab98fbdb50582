//! `unstun alarm`.

use api::client::Client;
use api::error::{Error, Result};
use api::output::{Output, table};
use api::{Alarm, AlarmAcknowledge, AlarmChannel, AlarmMute, AlarmMuted, AlarmRuleShown, AlarmThreshold};
use clap::ValueEnum;

use crate::cli::{AlarmCommand, MuteArgs, Threshold, ThresholdArgs};

pub(super) async fn run(command: &AlarmCommand, client: &Client, output: Output) -> Result<()> {
    match command {
        AlarmCommand::List { all } => output.result(&client.alarm_list(*all).await?, |all| list(all)),
        AlarmCommand::Ack { id, note } => {
            api::name::check_message(note).map_err(Error::invalid)?;
            let request = AlarmAcknowledge { note: note.clone() };
            output.result(&client.alarm_acknowledge(&path(id)?, &request).await?, |alarm| {
                format!("alarm {} is acknowledged", alarm.id)
            })
        }
        AlarmCommand::Unack { id } => output
            .result(&client.alarm_unacknowledge(&path(id)?).await?, |alarm| {
                format!("alarm {} is not acknowledged any more", alarm.id)
            }),
        AlarmCommand::Mute(args) => mute(args, client, output).await,
        AlarmCommand::Mutes => output.result(&client.alarm_mutes().await?, |all| list_mutes(all)),
        AlarmCommand::Unmute { number } => output.result(&client.alarm_unmute(*number).await?, |muted| {
            format!("{} is delivered again", muted.what())
        }),
        AlarmCommand::Channels => output.result(&client.alarm_channels().await?, |all| list_channels(all)),
        AlarmCommand::Test { channel } => output
            .result(&client.alarm_test(&path(channel)?).await?, |channel| {
                format!("a test message was delivered over channel {}", channel.name)
            }),
        AlarmCommand::Rules => output.result(&client.alarm_rules().await?, |rules| list_rules(rules)),
        AlarmCommand::Set(args) => {
            let ThresholdArgs { rule, value: Threshold(value), vm, tag } = args;
            let threshold = AlarmThreshold { rule: *rule, vm: vm.clone(), tag: tag.clone(), value: *value };
            threshold.check().map_err(Error::invalid)?;
            output.result(&client.alarm_set_threshold(&threshold).await?, |rules| list_rules(rules))
        }
        AlarmCommand::Reset { rule } => {
            output.result(&client.alarm_reset_rule(rule.as_str()).await?, |rules| list_rules(rules))
        }
    }
}

/// Returns an alarm's id for a path: it has no character that a path cannot have.
fn path(id: &str) -> Result<String> {
    let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':');
    match !id.is_empty() && id.chars().all(sound) {
        true => Ok(id.to_owned()),
        false => Err(Error::invalid(format!("alarm {id:?}: expected RULE:OBJECT, such as snapshot_old:web"))),
    }
}

async fn mute(args: &MuteArgs, client: &Client, output: Output) -> Result<()> {
    let rule = api::AlarmRule::from_str(&args.what, false).ok();
    let alarm = if rule.is_none() { Some(path(&args.what)?) } else { None };
    if let Some(id) = alarm.as_ref().filter(|id| !id.contains(':')) {
        let cause = "it is no rule (`unstun alarm rules` lists them) and no alarm (RULE:OBJECT)";
        return Err(Error::invalid(format!("{id}: {cause}")));
    }
    let request = AlarmMute { alarm, rule, vm: args.vm.clone(), for_s: args.for_s };
    request.check().map_err(Error::invalid)?;
    output.result(&client.alarm_mute(&request).await?, |muted| {
        format!(
            "{} is not delivered until {:.0}: mute {}; `unstun alarm mutes` lists them",
            muted.what(),
            muted.until,
            muted.id
        )
    })
}

fn list(alarms: &[Alarm]) -> String {
    if alarms.is_empty() {
        return "no alarms".to_owned();
    }
    let show = |alarm: &Alarm| {
        let state = match (&alarm.cleared, &alarm.acknowledged) {
            (Some(cleared), _) => format!(", until {cleared:.0}"),
            (None, Some(by)) if by.note.is_empty() => format!(", acknowledged by {}", by.by),
            (None, Some(by)) => format!(", acknowledged by {}: {}", by.by, by.note),
            (None, None) => String::new(),
        };
        let line = format!("{} {} since {:.0}{state}", alarm.severity.as_str(), alarm.id, alarm.raised);
        format!("{line}\n  {}", alarm.message)
    };
    alarms.iter().map(show).collect::<Vec<_>>().join("\n")
}

fn list_mutes(all: &[AlarmMuted]) -> String {
    if all.is_empty() {
        return "nothing is muted".to_owned();
    }
    let mut table = table(&["mute", "what", "until", "by"]);
    for muted in all {
        table.add_row([muted.id.to_string(), muted.what(), format!("{:.0}", muted.until), muted.by.clone()]);
    }
    table.to_string()
}

fn list_channels(all: &[AlarmChannel]) -> String {
    if all.is_empty() {
        return "no channels: alarms are in the log and in `unstun alarm list` only".to_owned();
    }
    let mut table = table(&["channel", "kind", "delivered", "failed", "last"]);
    for one in all {
        let last = one.last.map_or("-".to_owned(), |last| format!("{last:.0}"));
        let error = one.fault.as_ref().or(one.last_error.as_ref());
        table.add_row([
            one.name.clone(),
            one.kind.clone().unwrap_or("cannot be used".to_owned()),
            one.delivered.to_string(),
            one.failed.to_string(),
            error.map_or(last.clone(), |error| format!("{last}: {error}")),
        ]);
    }
    table.to_string()
}

fn list_rules(rules: &[AlarmRuleShown]) -> String {
    let mut table = table(&["rule", "for", "threshold"]);
    for shown in rules {
        table.add_row([shown.rule.as_str().to_owned(), "all".to_owned(), shown.describe(shown.general())]);
        for one in shown.thresholds.iter().filter(|one| one.vm.is_some() || one.tag.is_some()) {
            table.add_row([String::new(), one.objects(), shown.describe(one.value)]);
        }
    }
    table.to_string()
}
