//! Arguments of `unstun policy`.

use api::calendar::Calendar;
use api::name::{PolicyName, RepositoryName, Tag, VmName};
use api::units::parse_duration_s;
use api::window::Window;
use api::{Quiesce, Removes, Retention, VmGlob};
use clap::{Args, Subcommand};

use super::ConsentArgs;

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Create a policy: a schedule, the snapshots to keep, and the VMs that it applies to
    Create(PolicyArgs),
    /// List the policies with their next and last runs
    List,
    /// Show a policy with its last run and what it could not do
    Show { name: PolicyName },
    /// Change a policy; an option that is left out changes nothing
    Set(PolicyArgs),
    /// Remove a policy; its snapshots stay
    #[command(visible_alias = "rm")]
    Remove { name: PolicyName },
    /// Take the snapshots of a policy now, and remove those that no rule keeps
    Apply {
        name: PolicyName,
        /// Take only that of this VM; may be repeated
        #[arg(long)]
        vm: Vec<VmName>,
    },
    /// Show the next times of a policy, and what it would remove now
    Preview { name: PolicyName },
}

#[derive(Debug, Args)]
pub struct PolicyArgs {
    pub name: PolicyName,
    /// Take snapshots at these times, as systemd writes them: daily, "Mon..Fri 22:00", "*:0/15 UTC"; may be repeated
    #[arg(long, value_name = "CALENDAR")]
    pub schedule: Vec<Calendar>,
    /// Apply to the VMs with this name, in which * and ? are wildcards; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub vm: Vec<VmGlob>,
    /// Apply to the VMs that have this tag (`vm set VM --add-tag`); may be repeated
    #[arg(long)]
    pub tag: Vec<Tag>,
    #[command(flatten)]
    pub keep: KeepArgs,
    /// Name the snapshots so; {policy}, {vm} and {time} are replaced [default: {policy}-{time}]
    #[arg(long, value_name = "TEMPLATE")]
    pub template: Option<String>,
    /// Choose whether the last time that passed while the daemon was not running is caught up [default: true]
    #[arg(long, value_name = "true|false")]
    pub catch_up: Option<bool>,
    /// Commit snapshots of redo VMs only within this window, such as "Mon..Fri 22:00-06:00", or `any`; may be repeated
    #[arg(long, value_name = "WINDOW", value_parser = parse_window)]
    pub commit_window: Vec<WindowArg>,
    /// Choose which snapshots are removed when no rule keeps them [default: own]
    #[arg(long, value_enum)]
    pub removes: Option<Removes>,
    /// Choose whether the guests' file systems are frozen for its takes (`vm set VM --guest-agent`) [default: no]
    #[arg(long, value_enum)]
    pub quiesce: Option<Quiesce>,
    /// Back its snapshots up into this repository of /etc/unstun/repositories.toml, or `none`
    #[arg(long, value_name = "NAME", value_parser = parse_backup)]
    pub backup: Option<BackupArg>,
    /// Keep these of its backups of each VM, such as "14 daily, 8 weekly" [default: all]
    #[arg(long, value_name = "RULES")]
    pub backup_keep: Option<Retention>,
    /// Choose whether the policy takes, backs up and removes snapshots [default: true]
    #[arg(long, value_name = "true|false")]
    pub enabled: Option<bool>,
    #[command(flatten)]
    pub consent: ConsentArgs,
}

/// Rules of the retention, of snapshots or of backups. With `policy set`, one of them replaces all.
#[derive(Debug, Args)]
pub struct KeepArgs {
    /// Keep the last N
    #[arg(long, value_name = "N")]
    pub keep_last: Option<u32>,
    /// Keep the last one of each of N hours
    #[arg(long, value_name = "N")]
    pub keep_hourly: Option<u32>,
    /// Keep the last one of each of N days
    #[arg(long, value_name = "N")]
    pub keep_daily: Option<u32>,
    /// Keep the last one of each of N weeks
    #[arg(long, value_name = "N")]
    pub keep_weekly: Option<u32>,
    /// Keep the last one of each of N months
    #[arg(long, value_name = "N")]
    pub keep_monthly: Option<u32>,
    /// Keep the last one of each of N years
    #[arg(long, value_name = "N")]
    pub keep_yearly: Option<u32>,
    /// Keep all
    #[arg(long)]
    pub keep_all: bool,
    /// Remove none that is younger than this, such as 12h or 30d
    #[arg(long, value_name = "TIME", value_parser = parse_duration_s)]
    pub min_age: Option<u64>,
}

impl KeepArgs {
    /// Returns the rules, where `now` has those that are not stated.
    pub fn retention(&self, now: Retention) -> Retention {
        let KeepArgs { keep_last, keep_hourly, keep_daily, keep_weekly, keep_monthly, keep_yearly, .. } =
            self;
        let rules = [keep_last, keep_hourly, keep_daily, keep_weekly, keep_monthly, keep_yearly];
        let min_age_s = self.min_age.unwrap_or(now.min_age_s);
        if rules.iter().all(|rule| rule.is_none()) && !self.keep_all {
            return Retention { min_age_s, ..now };
        }
        let [last, hourly, daily, weekly, monthly, yearly] = rules.map(|rule| rule.unwrap_or(0));
        Retention { last, hourly, daily, weekly, monthly, yearly, min_age_s, all: self.keep_all }
    }
}

/// A window, or `any` for no window. A type of its own, because clap reads a bare `Option` as "may be left out".
#[derive(Debug, Clone)]
pub struct WindowArg(pub Option<Window>);

/// A repository, or `none`.
#[derive(Debug, Clone)]
pub struct BackupArg(pub Option<RepositoryName>);

fn parse_backup(text: &str) -> Result<BackupArg, String> {
    match text {
        "none" => Ok(BackupArg(None)),
        _ => text.parse().map(|name| BackupArg(Some(name))),
    }
}

fn parse_window(text: &str) -> Result<WindowArg, String> {
    match text {
        "any" => Ok(WindowArg(None)),
        _ => text.parse().map(|window| WindowArg(Some(window))),
    }
}
