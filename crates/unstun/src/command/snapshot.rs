//! `unstun snapshot`, except the commit itself.

use crate::api::{CommitTarget, Snapshot, SnapshotTake, SnapshotTaken, SnapshotTree};
use crate::cli::{SnapshotCommand, VmAndName};
use crate::client::Client;
use crate::command::{commit, vm};
use crate::error::{Error, Result};
use crate::name;
use crate::output::{Output, fields};
use crate::units::{format_bytes, format_us};

pub async fn run(command: &SnapshotCommand, client: &Client, output: Output) -> Result<()> {
    match command {
        SnapshotCommand::Take { which, message } => {
            name::check_message(message).map_err(Error::invalid)?;
            let (vm, name) = which.parse_both()?;
            let request = SnapshotTake { name, message: message.clone() };
            output.result(&client.snapshot_take(&vm, &request).await?, taken)
        }
        SnapshotCommand::Tree { vm } => output.result(&client.snapshot_tree(vm).await?, tree),
        SnapshotCommand::Commit(args) => commit::run(args, client, output).await,
        SnapshotCommand::Delete { vm, name } => {
            Err(explain_delete(vm.as_deref(), name.as_deref(), client).await)
        }
    }
}

fn taken(taken: &SnapshotTaken) -> String {
    fields(&[
        ("taken", format!("{}@{}", taken.vm, taken.snapshot.name)),
        ("stun", format_us(taken.stun_us)),
        ("room", vm::space(&taken.space)),
    ])
}

fn tree(tree: &SnapshotTree) -> String {
    if tree.snapshots.is_empty() {
        return format!(
            "{} has no snapshots; take one with `unstun snapshot take {} NAME`",
            tree.vm, tree.vm
        );
    }
    let mut text = format!("{}\n", tree.vm);
    branch(&tree.snapshots, None, 1, &mut text);
    text
}

/// Depth is bounded by the 255 links a chain may have.
fn branch(all: &[Snapshot], parent: Option<&str>, depth: usize, text: &mut String) {
    for snapshot in all.iter().filter(|s| s.parent.as_deref() == parent) {
        let indent = "  ".repeat(depth);
        let sealed = if snapshot.sealed { "" } else { ", not sealed yet" };
        let here = if snapshot.current { "   <- you are here" } else { "" };
        let size = format_bytes(snapshot.delta_bytes);
        let created = format!("{:.0}", snapshot.created);
        text.push_str(&format!("{indent}{}  {created}, {size} written since{sealed}{here}\n", snapshot.name));
        if !snapshot.message.is_empty() {
            text.push_str(&format!("{indent}  \"{}\"\n", snapshot.message));
        }
        branch(all, Some(&snapshot.id), depth + 1, text);
    }
}

/// The figures of the named snapshot where it can be asked for; the two meanings in any case.
async fn explain_delete(vm: Option<&str>, name: Option<&str>, client: &Client) -> Error {
    let which = vm.map(|vm| VmAndName { vm: vm.to_owned(), name: name.map(str::to_owned) });
    let parsed = which.and_then(|which| which.parse_both().ok());
    let mut cost = String::new();
    let mut place = "VM NAME".to_owned();
    if let Some((vm, snapshot)) = parsed {
        place = format!("{vm} {snapshot}");
        let target = CommitTarget::Snapshot(snapshot);
        if let Ok(preview) = client.commit_preview(&vm, &target).await {
            cost = format!(" (moves {})", format_bytes(preview.bytes_to_move));
        }
    }
    Error::refused(format!(
        "\"delete\" could mean either of two things, so nothing was done:\n  \
         commit   keeps everything written since the take and gives up the way back{cost}:\n           \
         unstun snapshot commit {place}\n  \
         discard  throws away everything written since the take: on the running branch the VM goes back to the\n           \
         snapshot and its name is dropped, a side branch is dropped. This version has no discard."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(id: &str, parent: Option<&str>, current: bool) -> Snapshot {
        Snapshot {
            id: id.to_owned(),
            name: format!("snap-{id}"),
            parent: parent.map(str::to_owned),
            created: "2026-11-20T12:00:00Z".parse().unwrap(),
            current,
            sealed: true,
            message: String::new(),
            delta_bytes: 1 << 20,
        }
    }

    #[test]
    fn the_tree_shows_parents_and_where_the_vm_runs() {
        let snapshots =
            vec![snapshot("1", None, false), snapshot("2", Some("1"), true), snapshot("3", Some("1"), false)];
        let text = tree(&SnapshotTree { vm: "web".parse().unwrap(), snapshots });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "web");
        assert_eq!(lines[1], "  snap-1  2026-11-20T12:00:00Z, 1 MiB written since");
        assert!(lines[2].starts_with("    snap-2") && lines[2].ends_with("<- you are here"));
        assert!(lines[3].starts_with("    snap-3"));
    }
}
