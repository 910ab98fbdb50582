//! Arguments that the daemon's command line and the lab's have in common: `unstun lab` and `unstun demo` run `unstun-lab`
//! with the arguments that they were given.

pub mod lab;

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Use this datastore, by its folder, or by its name if a daemon serves several [default: $UNSTUN_DATASTORE, else
    /// ./unstun-data if it exists, else /var/lib/unstun]
    #[arg(long, value_name = "DIR|NAME", global = true)]
    pub datastore: Option<PathBuf>,
    /// Print JSON instead of text (see docs/cli-json.md)
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Keep the run in this folder: run.json for `lab report`, and report.html with charts
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}
