//! `unstun bin`.

use api::client::Client;
use api::error::{Error, Result};
use api::output::{Output, align_right, table};
use api::units::{format_bytes, format_seconds};
use api::{BinEmptied, BinEmpty, BinEntry, BinKind, BinRestore, BinRestored, Operation, VmCondition};
use jiff::Timestamp;

use crate::cli::{BinCommand, ConsentArgs};
use crate::command::consent;

pub(super) async fn run(command: &BinCommand, client: &Client, output: Output) -> Result<()> {
    match command {
        BinCommand::List => {
            let within = client.within().await?;
            output.result(&client.bin_entries(within.as_ref()).await?, |entries| list(entries))
        }
        BinCommand::Restore { entry, name, disconnect } => {
            let (entry, name) = (entry.to_owned(), name.clone());
            let datastore = client.within().await?;
            let request = BinRestore { entry, name, datastore, disconnect: *disconnect };
            output.result(&client.bin_restore(&request).await?, restored)
        }
        BinCommand::Empty { entries, consent } => empty(entries, consent, client, output).await,
    }
}

async fn empty(entries: &[String], args: &ConsentArgs, client: &Client, output: Output) -> Result<()> {
    let request = BinEmpty { entries: entries.to_vec(), datastore: client.within().await? };
    let preview = client.bin_empty_preview(&request).await?;
    if args.dry_run {
        return output.result(&preview, goes);
    }
    if !preview.entries.is_empty() && !args.yes {
        output.note(&goes(&preview));
        consent("Remove permanently?", "removes")?;
    }
    // Only the entries that were shown are removed, not those added since.
    let ids = preview.entries.iter().map(|entry| entry.id.clone()).collect();
    let done = match preview.entries.is_empty() {
        true => preview,
        false => client.bin_empty(&BinEmpty { entries: ids, ..request }).await?,
    };
    output.result(&done, emptied)?;
    match done.left.first() {
        None => Ok(()),
        Some(left) => Err(Error::refused(format!(
            "entry {} of VM {} stays in the bin: {}",
            left.id, left.vm, left.cause
        ))),
    }
}

fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or("-".to_owned(), format_bytes)
}

fn rows(entries: &[BinEntry]) -> String {
    let mut table = table(&["entry", "kind", "origin", "removed", "expires in", "allocated", "datastore"]);
    let now = Timestamp::now();
    for entry in entries {
        let left = entry.kept_until.duration_since(now).as_secs().max(0).unsigned_abs();
        table.add_row([
            entry.id.clone(),
            entry.kind.as_str().to_owned(),
            of(entry),
            format!("{:.0}", entry.removed),
            format_seconds(left),
            bytes(entry.bytes),
            entry.datastore.to_string(),
        ]);
    }
    align_right(&mut table, &[4, 5]);
    table.to_string()
}

/// Returns a text such as `web`, or `web, revert to base`.
fn of(entry: &BinEntry) -> String {
    let subject = entry.subject.as_ref();
    match (entry.kind, entry.operation) {
        (BinKind::Vm, _) => entry.vm.to_string(),
        (_, Operation::Revert) => {
            format!("{}, revert{}", entry.vm, subject.map_or(String::new(), |to| format!(" to {to}")))
        }
        (_, operation) => {
            format!(
                "{}, {}{}",
                entry.vm,
                operation.as_str(),
                subject.map_or(String::new(), |of| format!(" of {of}"))
            )
        }
    }
}

fn list(entries: &[BinEntry]) -> String {
    match entries {
        [] => "the bin is empty".to_owned(),
        entries => rows(entries),
    }
}

fn goes(preview: &BinEmptied) -> String {
    match preview.entries.as_slice() {
        [] => "the bin is empty".to_owned(),
        entries => format!(
            "{}\nto remove permanently: {} in {}; this cannot be undone",
            rows(entries),
            format_bytes(preview.bytes),
            counted(entries.len())
        ),
    }
}

fn counted(entries: usize) -> String {
    match entries {
        1 => "1 entry".to_owned(),
        entries => format!("{entries} entries"),
    }
}

fn emptied(done: &BinEmptied) -> String {
    match done.entries.len() {
        0 => "nothing was removed".to_owned(),
        entries => format!("{} removed permanently: {}", counted(entries), format_bytes(done.bytes)),
    }
}

fn restored(restored: &BinRestored) -> String {
    let vm = &restored.vm;
    if restored.entry.kind == BinKind::State {
        return format!(
            "restored the state of {}; `unstun attach {vm}` prints the current export names",
            of(&restored.entry)
        );
    }
    let named = match restored.entry.vm == *vm {
        true => format!("{vm} restored"),
        false => format!("{} restored as {vm}", restored.entry.vm),
    };
    match restored.condition {
        VmCondition::Open => format!(
            "{named}\nthe earlier export names are refused; `unstun attach {vm}` prints the current ones\n(for \
             the plain names, {vm}/diskN: `unstun vm open {vm}`, when no earlier client is running)"
        ),
        VmCondition::Closed => {
            format!("{named}, closed as before; `unstun vm open {vm}` opens the VM")
        }
        VmCondition::Broken => {
            format!("{named}, but it cannot be served; `unstun vm list` shows the cause")
        }
    }
}
