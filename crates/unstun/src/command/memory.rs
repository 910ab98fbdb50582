//! `unstun snapshot memory`: what is saved of a guest's memory, and its stream.

use std::io::{self, IsTerminal, Write};

use api::client::Client;
use api::error::{Error, Result};
use api::name::{SnapshotRef, VmName};
use api::output::{Output, fields};
use api::units::format_bytes;
use api::{Diff, DiskMode, SnapshotMemory, Vm};

use crate::cli::VmAndName;
use crate::command::difference;
use crate::guest::stream_to;

/// What QEMU reads in the place of a stream, or of the rest of one: it ends, and a guest that is not there is noticed. At the end
/// of a pipe that had nothing in it QEMU 7.2 waits for ever.
const NO_STREAM: &[u8] = b"no stream\n";

pub(super) async fn run(
    which: &VmAndName,
    (stream, unchanged): (bool, bool),
    client: &Client,
    output: Output,
) -> Result<()> {
    let done = show(which, (stream, unchanged), client, output).await;
    if unchanged && done.is_err() && !io::stdout().is_terminal() {
        // QEMU may have gone.
        let _ = io::stdout().write_all(NO_STREAM);
    }
    done
}

async fn show(
    which: &VmAndName,
    (stream, unchanged): (bool, bool),
    client: &Client,
    output: Output,
) -> Result<()> {
    let (vm, snapshot) = which.parse_both::<SnapshotRef>()?;
    let memory = find(&vm, &snapshot, client).await?;
    if !stream {
        return output.result(&memory, describe);
    }
    if io::stdout().is_terminal() {
        let remedy = "redirect it into a file or a pipe";
        return Err(Error::invalid(format!(
            "a stream of {} for QEMU: {remedy}",
            format_bytes(memory.ram_bytes)
        )));
    }
    if unchanged {
        refuse_changed(&client.vm_show(&vm).await?, &memory, client).await?;
    }
    stream_to(&memory.file, &mut io::stdout().lock()).map_err(Error::failed)
}

/// Returns the memory at a snapshot. A path of the API has the snapshot's id, because a name may have any character.
pub(super) async fn find(vm: &VmName, snapshot: &SnapshotRef, client: &Client) -> Result<SnapshotMemory> {
    let tree = client.snapshot_tree(vm).await?;
    let wanted = snapshot.as_str();
    let named: Vec<_> = tree.snapshots.iter().filter(|one| one.name == wanted || one.id == wanted).collect();
    let id = match named.as_slice() {
        [one] => one.id.parse().map_err(Error::failed)?,
        // The daemon says what is wrong with it.
        _ => snapshot.clone(),
    };
    client.snapshot_memory(vm, &id).await
}

/// Refuses a disk that differs from the snapshot: the guest would find other data than it has in its memory.
pub(super) async fn refuse_changed(vm: &Vm, memory: &SnapshotMemory, client: &Client) -> Result<()> {
    let id: SnapshotRef = memory.id.parse().map_err(Error::failed)?;
    for disk in vm.disks.iter().filter(|disk| disk.mode == DiskMode::Persistent) {
        let request = Diff { disk: disk.number, from: id.clone(), to: None, start_bytes: 0 };
        if !difference::all(&vm.name, request, client).await?.ranges.is_empty() {
            return Err(Error::refused(format!(
                "{}/disk{} differs from snapshot {}, whose memory would not fit it; first run `unstun snapshot revert {} {}`",
                vm.name, disk.number, memory.snapshot, vm.name, memory.snapshot
            )));
        }
    }
    Ok(())
}

fn describe(memory: &SnapshotMemory) -> String {
    fields(&[
        ("snapshot", format!("{}@{}", memory.vm, memory.snapshot)),
        ("memory", format!("{} in {}", format_bytes(memory.ram_bytes), format_bytes(memory.stored_bytes))),
        ("file", memory.file.display().to_string()),
        ("saved by", format!("QEMU {}", memory.qemu)),
    ])
}
