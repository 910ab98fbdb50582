//! `unstun vm`.

use crate::api::{Disk, DiskCreate, Space, Vm, VmCreate, VmRemoved, VmSummary};
use crate::cli::{VmCommand, VmCreateArgs};
use crate::client::Client;
use crate::error::Result;
use crate::output::{Output, align_right, fields, table};
use crate::units::format_bytes;

pub async fn run(command: &VmCommand, client: &Client, output: Output) -> Result<()> {
    match command {
        VmCommand::Create(args) => {
            output.result(&client.vm_create(&request(args)).await?, |vm| format!("created\n{}", describe(vm)))
        }
        VmCommand::List => output.result(&client.vm_list().await?, |vms| list(vms)),
        VmCommand::Show { vm } => output.result(&client.vm_show(vm).await?, describe),
        VmCommand::Remove { vm, delete_disks } => {
            output.result(&client.vm_remove(vm, *delete_disks).await?, removed)
        }
    }
}

fn request(args: &VmCreateArgs) -> VmCreate {
    VmCreate {
        name: args.vm.clone(),
        disks: args.disks.iter().map(|&size_bytes| DiskCreate { size_bytes }).collect(),
        store: args.store.into(),
        when_full: args.when_full.into(),
    }
}

fn list(vms: &[VmSummary]) -> String {
    if vms.is_empty() {
        return "no VMs; create one with `unstun vm create NAME --disk 20G`".to_owned();
    }
    let mut table = table(&["VM", "disks", "size", "allocated", "snapshots", "clients"]);
    for vm in vms {
        table.add_row([
            vm.name.to_string(),
            vm.disks.to_string(),
            format_bytes(vm.size_bytes),
            format_bytes(vm.allocated_bytes),
            vm.snapshots.to_string(),
            vm.nbd_clients.to_string(),
        ]);
    }
    align_right(&mut table, &[1, 2, 3, 4, 5]);
    table.to_string()
}

fn describe(vm: &Vm) -> String {
    let mut lines = vec![
        ("VM", vm.name.to_string()),
        ("id", vm.id.clone()),
        ("home", vm.home.display().to_string()),
        ("snapshots", snapshots(vm)),
        ("clients", vm.nbd_clients.to_string()),
        ("room", space(&vm.space)),
    ];
    if vm.needs_consolidation {
        lines.push((
            "note",
            "deltas remain that no snapshot owns (a cancelled commit leaves them)".to_owned(),
        ));
    }
    let disks: String = vm.disks.iter().map(disk).collect();
    format!("{}{disks}", fields(&lines))
}

fn snapshots(vm: &Vm) -> String {
    match &vm.current_snapshot {
        Some(current) => format!("{}, running on {current}", vm.snapshots),
        None => vm.snapshots.to_string(),
    }
}

fn disk(disk: &Disk) -> String {
    let mode = match disk.mode {
        crate::api::DiskMode::Persistent => "persistent",
        crate::api::DiskMode::IndependentPersistent => "independent-persistent",
        crate::api::DiskMode::IndependentNonpersistent => "independent-nonpersistent",
    };
    let mut layers = table(&["layer", "format", "allocated", "state of"]);
    for layer in disk.layers.iter().rev() {
        let state = match (&layer.snapshot, layer.writable) {
            (Some(snapshot), _) => snapshot.as_str(),
            (None, true) => "running",
            (None, false) => "-",
        };
        let file = layer.descriptor.file_name().unwrap_or(layer.descriptor.as_os_str());
        table_row(
            &mut layers,
            [&file.to_string_lossy(), &layer.format, &format_bytes(layer.allocated_bytes), state],
        );
    }
    align_right(&mut layers, &[2]);
    let (number, slot, size) = (disk.number, &disk.slot, format_bytes(disk.size_bytes));
    format!("\ndisk{number}  {slot}  {size}  {mode}\n{}\n{layers}\n", disk.nbd_uri)
}

fn table_row(table: &mut comfy_table::Table, cells: [&str; 4]) {
    table.add_row(cells);
}

/// Free space against what every delta of the datastore could still grow by.
pub fn space(space: &Space) -> String {
    let (free, growth) = (format_bytes(space.free_bytes), format_bytes(space.worst_growth_bytes));
    if space.is_enough() {
        return format!("{free} free; the deltas can grow by {growth} at worst, which fits");
    }
    let short = format_bytes(space.worst_growth_bytes - space.free_bytes);
    format!(
        "{free} free, but the deltas can grow by {growth} at worst: {short} short if guests rewrite everything"
    )
}

fn removed(removed: &VmRemoved) -> String {
    let (name, home) = (&removed.name, removed.home.display());
    match removed.disks_deleted {
        true => format!("{name} removed, its files deleted"),
        false => format!("{name} removed; its files stay in {home}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_says_how_much_is_short() {
        let tight = Space { free_bytes: 100 << 30, worst_growth_bytes: 220 << 30 };
        assert!(space(&tight).contains("120 GiB short"));
        let enough = Space { free_bytes: 1 << 40, worst_growth_bytes: 220 << 30 };
        assert!(space(&enough).ends_with("which fits"));
    }
}
