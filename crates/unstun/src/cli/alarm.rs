//! Arguments of `unstun alarm`.

use api::name::Tag;
use api::units::parse_duration_s;
use api::{AlarmRule, VmGlob};
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum AlarmCommand {
    /// List the alarms that last
    List {
        /// List those that have ended too
        #[arg(long)]
        all: bool,
    },
    /// Acknowledge an alarm: it is seen to
    Ack {
        /// Name the alarm, such as snapshot_old:web
        id: String,
        /// Record this line of text with it
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Take an acknowledgement back
    Unack { id: String },
    /// Deliver an alarm, or those of a rule, no longer for a time
    Mute(MuteArgs),
    /// List what is muted
    Mutes,
    /// Deliver again what a mute has held back
    Unmute { number: u64 },
    /// List the channels over which alarms are delivered, and how deliveries ended
    Channels,
    /// Deliver a test message over a channel
    Test { channel: String },
    /// List the rules with their thresholds
    Rules,
    /// Change the threshold of a rule
    Set(ThresholdArgs),
    /// Give a rule its default again, for all VMs
    Reset { rule: AlarmRule },
}

#[derive(Debug, Args)]
pub struct MuteArgs {
    /// Name the alarm (snapshot_old:web) or the rule (snapshot_old)
    pub what: String,
    /// Limit a rule to the VMs with this name, in which * and ? are wildcards
    #[arg(long, value_name = "PATTERN")]
    pub vm: Option<VmGlob>,
    /// Mute for this time, such as 8h or 30d
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration_s)]
    pub for_s: u64,
}

#[derive(Debug, Args)]
pub struct ThresholdArgs {
    pub rule: AlarmRule,
    /// Set this number, in the unit that `alarm rules` shows; `on` or `off` for a rule without a number
    #[arg(value_parser = parse_value)]
    pub value: Threshold,
    /// Set it for the VMs with this name only, in which * and ? are wildcards
    #[arg(long, value_name = "PATTERN", conflicts_with = "tag")]
    pub vm: Option<VmGlob>,
    /// Set it for the VMs with this tag only
    #[arg(long)]
    pub tag: Option<Tag>,
}

/// A threshold; None is off. A type of its own, because clap reads a bare `Option` as "may be left out".
#[derive(Debug, Clone, Copy)]
pub struct Threshold(pub Option<u64>);

fn parse_value(text: &str) -> Result<Threshold, String> {
    match text {
        "off" => Ok(Threshold(None)),
        "on" => Ok(Threshold(Some(1))),
        _ => text
            .parse()
            .map(|value| Threshold(Some(value)))
            .map_err(|_| format!("{text:?}: expected a whole number, on or off")),
    }
}
