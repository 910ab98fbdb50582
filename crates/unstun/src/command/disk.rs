//! `unstun vm disk`.

use api::client::Client;
use api::error::{Error, Result};
use api::name::DiskRef;
use api::output::{Output, align_right, table};
use api::units::format_bytes;
use api::{Disk, DiskCreate, DiskGrown, DiskRemoved, DiskSetMode};

use crate::cli::{DiskAddArgs, DiskCommand};
use crate::command::{fill, loss, source};
use crate::daemon::image_at;

pub(super) async fn run(command: &DiskCommand, client: &Client, output: Output) -> Result<()> {
    match command {
        DiskCommand::Add(args) => add(args, client, output).await,
        DiskCommand::Remove { disk, delete_files } => {
            let removed = client.remove_disk(disk, *delete_files).await?;
            output.result(&removed, |removed| describe_removed(disk, removed))
        }
        DiskCommand::Grow { disk, size } => {
            let grown = client.grow_disk(disk, *size).await?;
            output.result(&grown, |grown| describe_grown(disk, grown))
        }
        DiskCommand::Set { disk, mode } => {
            let changed = client.set_disk_mode(disk, &DiskSetMode { mode: *mode }).await?;
            output.result(&changed, |changed| titled("changed", changed))
        }
    }
}

async fn add(args: &DiskAddArgs, client: &Client, output: Output) -> Result<()> {
    let mut disks: Vec<DiskCreate> = args.disk.iter().map(|spec| spec.0.clone()).collect();
    let source = args.from.as_deref();
    let source = source.map(|path| fill::Source::look(path, args.from_format.as_deref())).transpose()?;
    let mode = match &source {
        Some(source) => Some(source.prepare(&mut disks)?),
        None => None,
    };
    let wanted = disks.pop().ok_or_else(|| Error::invalid("which disk? expected SIZE or --from FILE"))?;
    let mut disk = client.disk_add(&args.vm, &wanted).await?;
    if let (Some(source), Some(mode)) = (source, mode) {
        match source.fill(client, &args.vm, &disk, mode).await {
            Ok(filled) => disk = filled,
            Err(error) => {
                let half = DiskRef { vm: args.vm.clone(), number: disk.number };
                // A partly filled disk is of no use. `vm show` lists it if it cannot be removed.
                let _ = client.remove_disk(&half, true).await;
                return Err(error);
            }
        }
    }
    output.result(&disk, |disk| titled("added", disk))
}

fn titled(title: &str, disk: &Disk) -> String {
    format!("{title}{}", describe_disk(disk))
}

fn describe_grown(disk: &DiskRef, grown: &DiskGrown) -> String {
    let size = format_bytes(grown.disk.size_bytes);
    if grown.shown {
        return format!("{disk} has {size}, and its guest sees them");
    }
    if grown.reconnect.is_empty() {
        return format!("{disk} has {size}");
    }
    let clients = loss::connected(&grown.reconnect);
    let cause = grown.cause.as_ref().map_or(String::new(), |cause| format!(" (QEMU was not told: {cause})"));
    format!("{disk} has {size}; connected clients see the old size until they reconnect: {clients}{cause}")
}

fn describe_removed(disk: &DiskRef, removed: &DiskRemoved) -> String {
    match removed.files_deleted {
        true => format!("{disk} removed, its files deleted"),
        false => {
            let files: String =
                removed.layers.iter().map(|layer| format!("\n  {}", layer.display())).collect();
            format!("{disk} removed; its files stay:{files}")
        }
    }
}

pub(super) fn describe_disk(disk: &Disk) -> String {
    let mut layers = table(&["layer", "format", "allocated", "state of"]);
    for layer in disk.layers.iter().rev() {
        let state = match (&layer.snapshot, layer.writable) {
            (Some(snapshot), _) => snapshot.as_str(),
            (None, true) => "running",
            (None, false) if layer.foreign => "another VM's",
            (None, false) => "-",
        };
        let whole = layer.descriptor.as_os_str();
        let file = match image_at(&layer.descriptor) {
            Some(_) => whole,
            None => layer.descriptor.file_name().unwrap_or(whole),
        };
        let allocated = format_bytes(layer.allocated_bytes);
        layers.add_row([&*file.to_string_lossy(), &layer.format, &allocated, state]);
    }
    align_right(&mut layers, &[2]);
    let (number, slot, size) = (disk.number, &disk.slot, format_bytes(disk.size_bytes));
    let mode = disk.mode.word();
    let source = disk.source.as_ref().map_or(String::new(), |below| format!("\n{}", source::describe(below)));
    format!("\ndisk{number}  {slot}  {size}  {mode}\n{}{source}\n{layers}\n", disk.nbd_uri)
}
