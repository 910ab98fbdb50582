//! One module per noun; each command asks the daemon, then prints.

mod attach;
mod check;
mod commit;
mod convert;
mod difference;
mod disk;
mod event;
mod fill;
mod generate;
mod job;
mod loss;
pub mod progress;
mod snapshot;
mod space;
mod status;
mod tree;
mod up;
mod vm;

use std::path::PathBuf;

use tokio::runtime::Runtime;

use crate::cli::{CheckArgs, Cli, Command};
use crate::client::Client;
use crate::datastore::Datastore;
use crate::demo;
use crate::error::{Error, Result};
use crate::output::{self, Output};

pub use progress::{Watched, watch};

/// Answers the exit code: a check that found damage has done what it was asked.
pub fn run(cli: &Cli, output: Output) -> Result<u8> {
    match &cli.command {
        Command::Check(CheckArgs { path: Some(path) }) => check::files(path, output),
        Command::Check(_) => {
            let client = Client::new(&Datastore::for_client(named(cli).as_deref())?);
            runtime()?.block_on(check::store(&client, output))
        }
        Command::Scrub => {
            let client = Client::new(&Datastore::for_client(named(cli).as_deref())?);
            runtime()?.block_on(check::scrub(&client, output))
        }
        _ => run_others(cli, output).map(|()| 0),
    }
}

fn named(cli: &Cli) -> Option<PathBuf> {
    // An empty variable counts as unset: shells make it easy to pass one.
    let variable = std::env::var_os("UNSTUN_DATASTORE").filter(|value| !value.is_empty()).map(PathBuf::from);
    cli.global.datastore.clone().or(variable)
}

fn run_others(cli: &Cli, output: Output) -> Result<()> {
    let named = named(cli);
    let named = named.as_deref();
    match &cli.command {
        Command::Up(args) => up::run(named, args, output),
        Command::Convert(args) => convert::run(args, output),
        Command::Generate(args) => generate::run(args, output),
        command => {
            let client = Client::new(&Datastore::for_client(named)?);
            runtime()?.block_on(ask_daemon(command, &client, output))
        }
    }
}

async fn ask_daemon(command: &Command, client: &Client, output: Output) -> Result<()> {
    match command {
        Command::Status => status::run(client, output).await,
        Command::Vm(command) => vm::run(command, client, output).await,
        Command::Space { vm } => space::run(vm, client, output).await,
        Command::Snapshot(command) => snapshot::run(command, client, output).await,
        Command::Job(command) => job::run(command, client, output).await,
        Command::Events(args) => event::run(args, client, output).await,
        Command::Attach(args) => attach::run(args, client, output).await,
        Command::Demo => demo::run(client, output, &demo::Plan::default()).await,
        Command::Up(_) | Command::Convert(_) | Command::Generate(_) | Command::Check(_) | Command::Scrub => {
            unreachable!("run elsewhere")
        }
    }
}

/// Asks before something that cannot be taken back. `does` completes "--yes ... without asking".
fn consent(question: &str, does: &str) -> Result<()> {
    if !output::can_ask() {
        return Err(Error::refused(format!(
            "not confirmed: there is no terminal to ask on; --yes {does} without asking"
        )));
    }
    match output::ask(question)? {
        true => Ok(()),
        false => Err(Error::refused("not confirmed; nothing was changed")),
    }
}

/// One thread: nothing here waits for anything but a socket, a timer or a signal.
pub fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::failed(format!("tokio runtime: {e}")))
}
