//! One module per noun; each command asks the daemon, then prints.

mod commit;
mod convert;
mod event;
mod job;
pub mod progress;
mod snapshot;
mod status;
mod up;
mod vm;

use std::path::PathBuf;

use tokio::runtime::Runtime;

use crate::cli::{Cli, Command};
use crate::client::Client;
use crate::datastore::Datastore;
use crate::demo;
use crate::error::{Error, Result};
use crate::output::Output;

pub use progress::{Watched, watch};

pub fn run(cli: &Cli, output: Output) -> Result<()> {
    // An empty variable counts as unset: shells make it easy to pass one.
    let variable = std::env::var_os("UNSTUN_DATASTORE").filter(|value| !value.is_empty()).map(PathBuf::from);
    let named = cli.global.datastore.as_deref().or(variable.as_deref());
    match &cli.command {
        Command::Up(args) => up::run(named, args, output),
        Command::Convert(args) => convert::run(args, output),
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
        Command::Snapshot(command) => snapshot::run(command, client, output).await,
        Command::Job(command) => job::run(command, client, output).await,
        Command::Events(args) => event::run(args, client, output).await,
        Command::Demo => demo::run(client, output, &demo::Plan::default()).await,
        Command::Up(_) | Command::Convert(_) => unreachable!("run without a client"),
    }
}

/// One thread: nothing here waits for anything but a socket, a timer or a signal.
pub fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::failed(format!("tokio runtime: {e}")))
}
