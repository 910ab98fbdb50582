//! The command line of `unstun-lab`. `unstun lab ...` and `unstun demo ...` run it with their arguments unchanged.

use std::process::ExitCode;

use api::args::lab::LabCommand;
use api::args::{DemoArgs, Global};
use api::client::Client;
use api::error::Result;
use api::output::{Output, exit};
use api::program::refuse_other_version;
use clap::{Parser, Subcommand};

use crate::{command, demo};

/// Measure what a snapshot costs: published experiments and your own, on modelled or on real storage.
#[derive(Debug, Parser)]
#[command(name = "unstun-lab", version)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    #[command(flatten)]
    Own(LabCommand),
    /// The same, as `unstun lab` calls it
    #[command(subcommand, hide = true)]
    Lab(LabCommand),
    /// Load a VM while a snapshot is taken, kept and committed, on both kinds of store (about 45 s)
    Demo(DemoArgs),
}

/// Returns the exit code of a command; for a failed run, that of its error.
fn run(cli: &Cli, output: Output) -> Result<u8> {
    refuse_other_version(env!("CARGO_PKG_VERSION"))?;
    match &cli.command {
        Command::Own(command) | Command::Lab(command) => {
            command::run(command, cli.global.datastore.as_deref(), output)
        }
        Command::Demo(DemoArgs { output: dir }) => {
            let client = Client::for_command(cli.global.datastore.as_deref())?;
            demo::run(&client, output, &demo::work(), dir.as_deref()).map(|()| 0)
        }
    }
}

pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output::new(cli.global.json);
    exit("unstun-lab", output, run(&cli, output))
}
