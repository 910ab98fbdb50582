//! Arguments of `unstun config`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::ConsentArgs;

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the policies, the tokens without their secrets, and the thresholds of alarms, as JSON
    Export,
    /// Add the policies, tokens and thresholds of an export
    Import(ConfigImportArgs),
}

#[derive(Debug, Args)]
pub struct ConfigImportArgs {
    /// File that `config export` has printed
    pub file: PathBuf,
    /// Also replace what is there with another content
    #[arg(long)]
    pub replace: bool,
    #[command(flatten)]
    pub consent: ConsentArgs,
}
