//! `unstun source`.

use api::client::Client;
use api::error::Result;
use api::output::{Output, align_right, table};
use api::progress::watch;
use api::units::format_bytes;
use api::{HashState, Source, SourceState};

use crate::cli::SourceCommand;
use crate::command::commit;

pub(super) async fn run(command: &SourceCommand, client: &Client, output: Output) -> Result<()> {
    match command {
        SourceCommand::List => {
            let (within, mut all) = (client.within().await?, client.source_list().await?);
            all.retain(|source| within.as_ref().is_none_or(|name| source.datastore == *name));
            output.result(&all, |all| list(all))
        }
        SourceCommand::Copy { number, detach } => {
            let datastore = match client.within().await? {
                Some(name) => name,
                // The first of the list is the main one.
                None => client.datastore_list().await?.remove(0).name,
            };
            let job = client.source_copy(*number, &datastore).await?;
            match detach {
                true => output.result(&job, commit::started),
                false => commit::finish(watch(client, job).await?, output),
            }
        }
    }
}

fn list(all: &[Source]) -> String {
    if all.is_empty() {
        return "no sources".to_owned();
    }
    let mut table = table(&["datastore", "source", "state", "size", "copied", "disks", "image"]);
    for source in all {
        table.add_row([
            source.datastore.to_string(),
            source.number.to_string(),
            state(source).to_owned(),
            format_bytes(source.size_bytes),
            format_bytes(source.copied_bytes),
            source.disks.join(", "),
            image(source),
        ]);
    }
    align_right(&mut table, &[1, 3, 4]);
    let faults: String = all.iter().filter_map(fault).collect();
    format!("{table}{faults}")
}

fn image(source: &Source) -> String {
    match source.backup {
        Some(number) => format!("backup {number} in {}", source.uri),
        None => source.uri.clone(),
    }
}

fn state(source: &Source) -> &'static str {
    match (source.state, source.copy) {
        (SourceState::Open, _) if source.hash == Some(HashState::Pending) => "being verified",
        (SourceState::Open, true) => "being copied",
        (SourceState::Open, false) => "not copied",
        (state, _) => state.as_str(),
    }
}

fn fault(source: &Source) -> Option<String> {
    let message = source.message.as_ref()?;
    Some(format!("\nsource {} of {}: {message}", source.number, source.datastore))
}

/// Returns a line about the source below a disk.
pub(super) fn describe(source: &Source) -> String {
    let (copied, size) = (format_bytes(source.copied_bytes), format_bytes(source.size_bytes));
    let trusted = if source.trusted { "; it is trusted not to change" } else { "" };
    let hash = if source.hash == Some(HashState::Matches) { "; its hash matches" } else { "" };
    let message = source.message.as_ref().map_or(String::new(), |message| format!(": {message}"));
    let state = state(source);
    format!("over {} ({state}, {copied} of {size} in the store{trusted}{hash}){message}", image(source))
}
