//! One module per noun; each command asks the daemon, then prints.

mod attach;
mod bin;
mod check;
mod commit;
mod convert;
mod datastore;
mod difference;
mod disk;
mod event;
mod fill;
mod generate;
mod job;
pub mod lab;
mod loss;
pub mod progress;
mod repair;
mod snapshot;
mod space;
mod status;
mod tree;
mod up;
mod vm;

use std::path::{Path, PathBuf};

use tokio::runtime::Runtime;

use crate::cli::{CheckArgs, Cli, Command, DatastoreCommand};
use crate::client::{Client, Within};
use crate::datastore::Datastore;
use crate::demo;
use crate::error::{Error, Result};
use crate::output::{self, Output};

pub use progress::{Watched, watch};

/// Answers the exit code: a check that found damage has done what it was asked.
pub fn run(cli: &Cli, output: Output) -> Result<u8> {
    match &cli.command {
        Command::Check(CheckArgs { path: Some(path) }) => check::files(path, output),
        Command::Repair(args) => repair::run(args, output),
        Command::Lab(command) => lab::run(command, output),
        Command::Check(_) => runtime()?.block_on(check::stores(&client(cli)?, output)),
        Command::Scrub => runtime()?.block_on(check::scrub(&client(cli)?, output)),
        _ => run_others(cli, output).map(|()| 0),
    }
}

fn variable() -> Option<PathBuf> {
    // An empty variable counts as unset: shells make it easy to pass one.
    std::env::var_os("UNSTUN_DATASTORE").filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Of the daemon that serves what the command names.
fn client(cli: &Cli) -> Result<Client> {
    let named = cli.global.datastore.as_deref();
    if let Some(Within::Name(name)) = named.and_then(within)
        && let Ok(datastore) = Datastore::for_client(variable().as_deref())
    {
        return Ok(Client::of(&datastore.served_by(), Some(Within::Name(name))));
    }
    let datastore = Datastore::for_client(named.map(Path::to_path_buf).or_else(variable).as_deref())?;
    let served_by = datastore.served_by();
    let within = (served_by != datastore).then(|| Within::Folder(datastore.root().to_path_buf()));
    Ok(Client::of(&served_by, within))
}

/// A folder that is there, or a name. None: neither.
pub fn within(text: &Path) -> Option<Within> {
    match text.canonicalize() {
        Ok(path) => Some(Within::Folder(path)),
        Err(_) => text.to_str()?.parse().ok().map(Within::Name),
    }
}

fn run_others(cli: &Cli, output: Output) -> Result<()> {
    match &cli.command {
        Command::Up(args) => up::run(cli.global.datastore.clone().or_else(variable).as_deref(), args, output),
        Command::Datastore(DatastoreCommand::Create { path, force }) => {
            datastore::create(path, *force, output)
        }
        Command::Convert(args) => convert::run(args, output),
        Command::Generate(args) => generate::run(args, output),
        command => {
            let client = client(cli)?;
            runtime()?.block_on(ask_daemon(command, &client, output))
        }
    }
}

async fn ask_daemon(command: &Command, client: &Client, output: Output) -> Result<()> {
    match command {
        Command::Status => status::run(client, output).await,
        Command::Datastore(command) => datastore::run(command, client, output).await,
        Command::Vm(command) => vm::run(command, client, output).await,
        Command::Bin(command) => bin::run(command, client, output).await,
        Command::Space { vm } => space::run(vm, client, output).await,
        Command::Snapshot(command) => snapshot::run(command, client, output).await,
        Command::Job(command) => job::run(command, client, output).await,
        Command::Events(args) => event::run(args, client, output).await,
        Command::Attach(args) => attach::run(args, client, output).await,
        Command::Demo { output: dir } => {
            demo::run(client, output, &demo::Plan::default(), dir.as_deref()).await
        }
        Command::Up(_)
        | Command::Convert(_)
        | Command::Generate(_)
        | Command::Lab(_)
        | Command::Check(_)
        | Command::Repair(_)
        | Command::Scrub => {
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
