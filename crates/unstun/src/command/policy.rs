//! `unstun policy`.

use api::client::Client;
use api::error::{Error, Result};
use api::name::PolicyName;
use api::output::{Output, fields, table};
use api::units::{format_bytes, format_us};
use api::{
    Policy, PolicyApplied, PolicyApply, PolicyBackup, PolicyPreview, PolicyProblem, PolicyRun, PolicyStatus,
    Quiesce, Removes, Retention, TEMPLATE_DEFAULT,
};
use jiff::Timestamp;

use super::consent;
use crate::cli::{BackupArg, PolicyArgs, PolicyCommand};

/// Maximum number of VMs that a line names.
const NAMED_MAX: usize = 8;

pub(super) async fn run(command: &PolicyCommand, client: &Client, output: Output) -> Result<()> {
    match command {
        PolicyCommand::Create(args) => {
            let policy = with(args, new(&args.name));
            let preview = check(&policy, client).await?;
            if args.consent.dry_run {
                return output.result(&preview, show_preview);
            }
            ask(&preview, args.consent.yes, output)?;
            output.result(&client.policy_create(&policy).await?, show)
        }
        PolicyCommand::Set(args) => {
            let policy = with(args, client.policy_show(&args.name).await?.policy);
            let preview = check(&policy, client).await?;
            if args.consent.dry_run {
                return output.result(&preview, show_preview);
            }
            ask(&preview, args.consent.yes, output)?;
            output.result(&client.policy_set(&args.name, &policy).await?, show)
        }
        PolicyCommand::List => output.result(&client.policy_list().await?, |all| list(all)),
        PolicyCommand::Show { name } => output.result(&client.policy_show(name).await?, show),
        PolicyCommand::Remove { name } => output.result(&client.policy_remove(name).await?, |removed| {
            format!("policy {} is removed; its snapshots stay", removed.policy.name)
        }),
        PolicyCommand::Apply { name, vm } => {
            let applied = client.policy_apply(name, &PolicyApply { vms: vm.clone() }).await?;
            output.result(&applied, show_applied)?;
            match applied.problems.len() {
                0 => Ok(()),
                n => Err(Error::failed(format!("policy {name}: {n} snapshots were not taken"))),
            }
        }
        PolicyCommand::Preview { name } => {
            let policy = client.policy_show(name).await?.policy;
            output.result(&client.policy_preview(&policy).await?, show_preview)
        }
    }
}

fn new(name: &PolicyName) -> Policy {
    Policy {
        name: name.clone(),
        schedule: Vec::new(),
        keep: Retention::default(),
        vms: Vec::new(),
        tags: Vec::new(),
        template: TEMPLATE_DEFAULT.to_owned(),
        catch_up: true,
        commit_window: Vec::new(),
        removes: Removes::Own,
        quiesce: Quiesce::No,
        backup: None,
        enabled: true,
    }
}

/// Returns the policy with what the options say.
fn with(args: &PolicyArgs, mut policy: Policy) -> Policy {
    if !args.schedule.is_empty() {
        policy.schedule.clone_from(&args.schedule);
    }
    if !args.vm.is_empty() || !args.tag.is_empty() {
        (policy.vms, policy.tags) = (args.vm.clone(), args.tag.clone());
    }
    if !args.commit_window.is_empty() {
        policy.commit_window = args.commit_window.iter().filter_map(|window| window.0.clone()).collect();
    }
    if let Some(template) = &args.template {
        policy.template.clone_from(template);
    }
    policy.keep = args.keep.retention(policy.keep);
    policy.catch_up = args.catch_up.unwrap_or(policy.catch_up);
    policy.removes = args.removes.unwrap_or(policy.removes);
    policy.quiesce = args.quiesce.unwrap_or(policy.quiesce);
    policy.backup = backup(args, policy.backup);
    policy.enabled = args.enabled.unwrap_or(policy.enabled);
    policy
}

/// Returns where a policy backs up, with what the options say.
fn backup(args: &PolicyArgs, now: Option<PolicyBackup>) -> Option<PolicyBackup> {
    let repository = match &args.backup {
        Some(BackupArg(wanted)) => wanted.clone()?,
        None => now.as_ref()?.repository.clone(),
    };
    let keep = args.backup_keep.or(now.map(|now| now.keep)).unwrap_or_else(Retention::all);
    Some(PolicyBackup { repository, keep })
}

/// Checks the policy, and returns what it will do.
async fn check(policy: &Policy, client: &Client) -> Result<PolicyPreview> {
    policy.check().map_err(|cause| Error::invalid(format!("policy {}: {cause}", policy.name)))?;
    client.policy_preview(policy).await
}

/// Asks before a policy removes snapshots that exist.
fn ask(preview: &PolicyPreview, yes: bool, output: Output) -> Result<()> {
    let removed = preview.removals();
    if removed == 0 || yes {
        return Ok(());
    }
    output.note(&show_preview(preview));
    let question =
        format!("policy {} will remove {removed} snapshots that exist. Go on?", preview.policy.name);
    consent(&question, "lets the policy remove them")
}

fn list(all: &[PolicyStatus]) -> String {
    if all.is_empty() {
        return "no policies; `unstun policy create` makes one".to_owned();
    }
    let mut table = table(&["policy", "schedule", "keeps", "VMs", "next", "last", "problems"]);
    for one in all {
        let schedule: Vec<_> = one.policy.schedule.iter().map(|calendar| calendar.as_str()).collect();
        table.add_row([
            one.policy.name.to_string(),
            schedule.join("; "),
            one.policy.keep.to_string(),
            one.vms.len().to_string(),
            next(one),
            one.last.as_ref().map_or("-".to_owned(), last),
            one.problems.len().to_string(),
        ]);
    }
    table.to_string()
}

fn next(one: &PolicyStatus) -> String {
    match (one.policy.enabled, one.next) {
        (false, _) => "disabled".to_owned(),
        (true, Some(next)) => format!("{next:.0}"),
        (true, None) => "none".to_owned(),
    }
}

fn last(run: &PolicyRun) -> String {
    let failed = if run.failed > 0 { format!(", {} failed", run.failed) } else { String::new() };
    let again = if run.ended.is_none() { ", under way" } else { "" };
    format!("{:.0}: {} taken{failed}{again}", run.scheduled, run.taken)
}

fn show(one: &PolicyStatus) -> String {
    let policy = &one.policy;
    let schedule: Vec<_> = policy.schedule.iter().map(|calendar| calendar.as_str()).collect();
    let names: Vec<_> = one.vms.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let more = if one.vms.len() > NAMED_MAX { ", ..." } else { "" };
    let mut lines = vec![
        ("policy", policy.name.to_string()),
        ("schedule", schedule.join("; ")),
        ("keeps", format!("{}; removes {}", policy.keep, removes(policy.removes))),
        ("applies to", policy.describe_vms()),
        ("VMs now", format!("{}: {}{more}", one.vms.len(), names.join(", "))),
        ("names", policy.template.clone()),
        ("next", next(one)),
        ("last", one.last.as_ref().map_or("-".to_owned(), last)),
        ("by", format!("{}, {:.0}", one.by, one.created)),
    ];
    if !policy.commit_window.is_empty() {
        let windows: Vec<_> = policy.commit_window.iter().map(ToString::to_string).collect();
        lines.push(("commits in", windows.join("; ")));
    }
    if policy.quiesce != Quiesce::No {
        lines.push(("quiesce", policy.quiesce.as_str().to_owned()));
    }
    if let (Some(to), Some(backups)) = (&policy.backup, &one.backups) {
        lines.push(("backs up", format!("into {}; keeps {}", to.repository, to.keep)));
        lines.push(("backups", backups.sentence()));
    }
    if one.waiting > 0 {
        lines.push(("to remove", format!("{} snapshots", one.waiting)));
    }
    one.problems.iter().for_each(|found| lines.push(("problem", found.sentence())));
    fields(&lines)
}

fn removes(which: Removes) -> &'static str {
    match which {
        Removes::Own => "its own snapshots",
        Removes::All => "all snapshots",
    }
}

fn show_applied(applied: &PolicyApplied) -> String {
    let taken = applied.taken.iter();
    let taken =
        taken.map(|one| format!("taken {}@{}, stun {}", one.vm, one.snapshot, format_us(one.stun_us)));
    let lines: Vec<_> = taken.chain(applied.problems.iter().map(PolicyProblem::sentence)).collect();
    if lines.is_empty() {
        return "nothing was taken: the policy applies to no open VM, or each has a snapshot of this second"
            .to_owned();
    }
    lines.join("\n")
}

fn show_preview(preview: &PolicyPreview) -> String {
    let times: Vec<_> = preview.next.iter().map(Timestamp::to_string).collect();
    let mut lines =
        vec![format!("next: {}", if times.is_empty() { "none".to_owned() } else { times.join(", ") })];
    for vm in &preview.vms {
        let name = vm.next_snapshot.as_ref().map_or(String::new(), |name| format!(", next {name}"));
        lines.push(format!("VM {}: keeps {}, removes {}{name}", vm.vm, vm.kept, vm.removed.len()));
        for removed in &vm.removed {
            let bytes = format_bytes(removed.bytes);
            lines.push(format!("  removes {} of {:.0}, {bytes}", removed.snapshot, removed.created));
        }
    }
    if preview.vms.is_empty() {
        lines.push("the policy applies to no open VM".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::KeepArgs;

    #[test]
    fn a_rule_replaces_all_and_an_age_alone_none() {
        let none = KeepArgs {
            keep_last: None,
            keep_hourly: None,
            keep_daily: None,
            keep_weekly: None,
            keep_monthly: None,
            keep_yearly: None,
            keep_all: false,
            min_age: None,
        };
        let now = Retention { last: 3, daily: 7, ..Retention::default() };
        assert_eq!(KeepArgs { min_age: Some(60), ..none }.retention(now), Retention { min_age_s: 60, ..now });
        let args = KeepArgs { keep_weekly: Some(4), keep_last: None, min_age: None, keep_all: false, ..none };
        assert_eq!(args.retention(now), Retention { weekly: 4, ..Retention::default() });
    }
}
