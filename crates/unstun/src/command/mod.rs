//! Commands, one module per noun. Each command sends requests to the daemon, then prints.

mod alarm;
pub(crate) mod attach;
mod backup;
mod bin;
mod check;
mod commit;
mod complete;
mod config;
mod convert;
mod cost;
mod datastore;
mod difference;
mod disk;
mod event;
mod export;
mod exported_snapshot;
mod fill;
mod generate;
mod job;
mod lab;
mod labels;
mod limits;
mod loss;
mod memory;
mod pieces;
mod policy;
mod pull;
mod rebuild;
mod repair;
mod repo;
mod restore;
mod snapshot;
mod source;
mod space;
mod status;
mod thaw;
mod token;
mod tree;
mod up;
mod vm;

pub(crate) use backup::READY;

use api::client::{Client, runtime};
use api::error::{Error, Result};
use api::location;
use api::output::{self, Output};

use crate::cli::{BackupArgs, CheckArgs, Cli, Command, DatastoreCommand};

/// Returns the exit code. A check that found damage is no error; its exit code reports the damage.
pub(crate) fn run(cli: &Cli, output: Output) -> Result<u8> {
    match &cli.command {
        Command::Check(CheckArgs { path: Some(path) }) => check::files(path, output),
        Command::Repair(args) => repair::run(args, output),
        Command::Datastore(DatastoreCommand::Rebuild { source, into }) => rebuild::run(source, into, output),
        Command::Lab(_) | Command::Demo(_) => lab::run(),
        Command::Check(_) => runtime()?.block_on(check::stores(&client(cli)?, output)),
        Command::Scrub => runtime()?.block_on(check::scrub(&client(cli)?, output)),
        _ => run_others(cli, output).map(|()| 0),
    }
}

fn client(cli: &Cli) -> Result<Client> {
    Client::for_command(cli.global.datastore.as_deref())
}

fn run_others(cli: &Cli, output: Output) -> Result<()> {
    match &cli.command {
        Command::Up(args) => {
            up::run(cli.global.datastore.clone().or_else(location::variable).as_deref(), args, output)
        }
        Command::Datastore(DatastoreCommand::Create { path, size, force }) => {
            datastore::create(path, *size, *force, output)
        }
        Command::Convert(args) => convert::run(args, output),
        Command::Pull(args) => pull::run(args, output),
        Command::Repo(command) => runtime()?.block_on(repo::run(command, output)),
        Command::Backup(BackupArgs { command: Some(command), .. }) if !command.boots() => {
            backup::run_without_daemon(command, output)
        }
        Command::Restore(args) if args.into.is_some() => {
            runtime()?.block_on(restore::into_files(args, output))
        }
        Command::Thaw(args) => thaw::run(cli.global.datastore.as_deref(), args, output),
        Command::Generate(args) => generate::run(args, output),
        Command::Complete { words } => complete::run(words, output),
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
        Command::Export(args) => export::run(args, client, output).await,
        Command::Backup(BackupArgs { command: Some(command), .. }) => {
            backup::boot(command, client, output).await
        }
        Command::Backup(BackupArgs { make, .. }) => backup::make(make, client, output).await,
        Command::Restore(args) => restore::run(args, client, output).await,
        Command::Source(command) => source::run(command, client, output).await,
        Command::Job(command) => job::run(command, client, output).await,
        Command::Events(args) => event::run(args, client, output).await,
        Command::Policy(command) => policy::run(command, client, output).await,
        Command::Alarm(command) => alarm::run(command, client, output).await,
        Command::Token(command) => token::run(command, client, output).await,
        Command::Config(command) => config::run(command, client, output).await,
        Command::Console { vm } => token::console(vm.as_ref(), client, output).await,
        Command::Cost(args) => cost::run(args, client, output).await,
        Command::Audit(args) => token::audit(args.last, client, output).await,
        Command::Attach(args) => attach::run(args, client, output).await,
        Command::Up(_)
        | Command::Convert(_)
        | Command::Pull(_)
        | Command::Repo(_)
        | Command::Generate(_)
        | Command::Complete { .. }
        | Command::Demo(_)
        | Command::Lab(_)
        | Command::Check(_)
        | Command::Repair(_)
        | Command::Scrub
        | Command::Thaw(_) => {
            unreachable!("run elsewhere")
        }
    }
}

/// Asks for consent to an operation that cannot be undone. `does` completes "--yes ... without asking".
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
