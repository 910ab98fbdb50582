//! `unstun snapshot`: takes snapshots, and runs the other subcommands.

use api::client::Client;
use api::error::{Error, Result};
use api::name::SnapshotRef;
use api::output::{Output, fields};
use api::units::{format_bytes, format_us};
use api::{CommitTarget, Discard, SnapshotRename, SnapshotTake, SnapshotTaken, SnapshotTree, VmCost};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::cli::{SnapshotCommand, VmAndName};
use crate::command::{commit, difference, loss, memory, tree, vm};

pub(super) async fn run(command: &SnapshotCommand, client: &Client, output: Output) -> Result<()> {
    match command {
        SnapshotCommand::Take { which, message, quiesce, memory, delta } => {
            let (vm, name) = which.parse_both()?;
            let (message, quiesce, memory, delta) = (message.clone(), *quiesce, *memory, *delta);
            let request = SnapshotTake { name, message, quiesce, memory, delta };
            request.check().map_err(Error::invalid)?;
            output.result(&client.snapshot_take(&vm, &request).await?, taken)
        }
        SnapshotCommand::Memory { which, stream, unchanged } => {
            memory::run(which, (*stream, *unchanged), client, output).await
        }
        SnapshotCommand::Tree { vm, cost: false } => {
            output.result(&client.snapshot_tree(vm).await?, |tree| tree::draw(tree, None))
        }
        SnapshotCommand::Tree { vm, cost: true } => {
            let tree = client.snapshot_tree(vm).await?;
            let until = Timestamp::now();
            let oldest = tree.snapshots.iter().map(|snapshot| snapshot.created).min();
            let since = oldest.unwrap_or(until).min(until - SignedDuration::from_secs(1));
            let cost = client.vm_cost(vm, since, until).await?;
            output.result(&TreeAndCost { tree, cost }, |both| tree::draw(&both.tree, Some(&both.cost)))
        }
        SnapshotCommand::Rename { vm, snapshot, name, message } => {
            let (snapshot, name, message) = (snapshot.clone(), name.clone(), message.clone());
            let request = SnapshotRename { snapshot, name, message };
            request.check().map_err(Error::invalid)?;
            output.result(&client.snapshot_rename(vm, &request).await?, |snapshot| {
                let message = if snapshot.message.is_empty() { "none" } else { &snapshot.message };
                fields(&[
                    ("snapshot", format!("{vm}@{}", snapshot.name)),
                    ("description", message.to_owned()),
                ])
            })
        }
        SnapshotCommand::Diff { vm, from, to, verify } => {
            difference::run(vm, from, to.as_ref(), *verify, client, output).await
        }
        SnapshotCommand::Commit(args) => commit::run(args, client, output).await,
        SnapshotCommand::Revert(args) => loss::revert(args, client, output).await,
        SnapshotCommand::Discard(args) => loss::discard(args, client, output).await,
        SnapshotCommand::Undo(args) => loss::undo(args, client, output).await,
        SnapshotCommand::Consolidate(args) => commit::consolidate(args, client, output).await,
        SnapshotCommand::Delete { vm, name } => {
            Err(explain_delete(vm.as_deref(), name.as_deref(), client).await)
        }
    }
}

/// Output of `snapshot tree --cost`.
#[derive(Serialize)]
struct TreeAndCost {
    #[serde(flatten)]
    tree: SnapshotTree,
    cost: VmCost,
}

fn taken(taken: &SnapshotTaken) -> String {
    let mut lines = vec![
        ("taken", format!("{}@{}", taken.vm, taken.snapshot.name)),
        ("stun", format_us(taken.stun_us)),
        ("space", vm::space(&taken.space)),
    ];
    if let Some(quiesced) = &taken.quiesced {
        lines.insert(2, ("guest", quiesced.sentence()));
    }
    if let Some(memory) = &taken.memory {
        lines.insert(2, ("memory", memory.sentence()));
    }
    fields(&lines)
}

/// Returns an error that explains both meanings of "delete", with the figures of the named snapshot if they are
/// available.
async fn explain_delete(vm: Option<&str>, name: Option<&str>, client: &Client) -> Error {
    let which = vm.map(|vm| VmAndName { vm: vm.to_owned(), name: name.map(str::to_owned) });
    let parsed = which.and_then(|which| which.parse_both::<SnapshotRef>().ok());
    let (mut moved, mut lost) = (String::new(), String::new());
    let mut place = "VM NAME".to_owned();
    if let Some((vm, snapshot)) = parsed {
        place = format!("{vm} {}", snapshot.as_str());
        let discard = Discard { snapshot: snapshot.clone(), disconnect: false, purge: false, keep: false };
        if let Ok(preview) = client.commit_preview(&vm, &CommitTarget::Snapshot(snapshot)).await
            && preview.bytes_to_move > 0
        {
            moved = format!(" (moves {})", format_bytes(preview.bytes_to_move));
        }
        if let Ok(preview) = client.discard_preview(&vm, &discard).await {
            lost = format!(" (loses {})", format_bytes(preview.bytes_lost));
        }
    }
    Error::refused(format!(
        "\"delete\" could mean either of two things, so nothing was done:\n  \
         commit   keeps everything written since the take and removes the snapshot{moved}:\n           \
         unstun snapshot commit {place}\n  \
         discard  throws away everything written since the take{lost}: on the running branch the VM is\n           \
         reverted to the snapshot, which is then removed; a side branch is removed:\n           \
         unstun snapshot discard {place}"
    ))
}
