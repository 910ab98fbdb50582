//! The command line of `unstun-lab`. `unstun lab ...` and `unstun demo ...` run it with their arguments unchanged.

use std::process::ExitCode;

use api::args::lab::LabCommand;
use api::args::{DemoArgs, Global};
use api::client::{Client, runtime};
use api::error::{ErrorBody, Result};
use api::output::{Output, note};
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
    /// Load a VM while a snapshot is taken, kept and committed (about 40 s)
    Demo(DemoArgs),
}

/// Returns the exit code of a command; for a failed run, that of its error.
fn run(cli: &Cli, output: Output) -> Result<u8> {
    refuse_other_version(env!("CARGO_PKG_VERSION"))?;
    match &cli.command {
        Command::Own(command) | Command::Lab(command) => command::run(command, output),
        Command::Demo(DemoArgs { output: dir }) => {
            let client = Client::for_command(cli.global.datastore.as_deref())?;
            let plan = demo::Plan::default();
            runtime()?.block_on(demo::run(&client, output, &plan, dir.as_deref())).map(|()| 0)
        }
    }
}

pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output::new(cli.global.json);
    match run(&cli, output) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let code = error.exit_code();
            note(&format!("unstun-lab: {error}"));
            if cli.global.json {
                // Standard output may be what failed; the exit code still reports the error.
                let _ = output.json(&ErrorBody::from(error));
            }
            ExitCode::from(code)
        }
    }
}
