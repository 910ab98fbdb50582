//! The program `unstun`: the daemon, its REST API, and the commands that talk to it.
//!
//! It is a library so that tests can examine the command line and the bodies of requests; `main.rs` only calls
//! `main`. On purpose, the daemon touches no block of a guest's data here, and there is no policy of the engine, no simulator and
//! no lab (`unstun lab` and `unstun demo` run the program `unstun-lab`). The commands `convert`, `export` and `pull` read a
//! disk as any client does.

mod access;
mod alarms;
pub mod cli;
mod command;
mod console;
mod daemon;
mod etc;
mod fatal;
mod guest;
mod hex;
mod log;
mod memory;
mod nbd_tls;
mod notify;
mod qemu_img;
mod recorder;
mod repository;
pub mod rest;
mod retention;
mod sparse;

use std::process::ExitCode;
use std::time::Duration;

use api::output::{Output, exit, exit_with};
use clap::Parser;
use tracing::error;

use crate::cli::{Cli, Command};
use crate::log::Filter;

/// Time that a cluster has to close its images at the end.
const CLOSING_MAX: Duration = Duration::from_secs(5);

/// Runs the command line of this process, and returns its exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output::new(cli.global.json);
    let code = run(&cli, output);
    blk::rbd::until_closed(CLOSING_MAX);
    code
}

fn run(cli: &Cli, output: Output) -> ExitCode {
    match &cli.command {
        Command::Up(args) => {
            log::start(args.log.clone());
            // What ends the daemon is a line of its log.
            exit_with(output, command::run(cli, output), |error| error!("{error}"))
        }
        _ => {
            log::start(Filter::default());
            exit("unstun", output, command::run(cli, output))
        }
    }
}
