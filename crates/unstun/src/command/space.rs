//! `unstun space`.

use api::VmSpace;
use api::client::Client;
use api::error::Result;
use api::name::VmName;
use api::output::{Output, align_right, fields, table};
use api::units::{format_bytes, format_seconds};

use crate::command::{tree, vm};

/// Average run below which a disk is called fragmented. A hard disk reads this much in 2 ms, and a jump takes 6 to 10.
const FRAGMENTED_BELOW: u64 = 256 << 10;

pub(super) async fn run(vm: &VmName, client: &Client, output: Output) -> Result<()> {
    output.result(&client.vm_space(vm).await?, describe)
}

fn describe(space: &VmSpace) -> String {
    let mut lines = vec![
        ("VM", space.vm.to_string()),
        ("datastore", space.datastore.to_string()),
        ("logical", format_bytes(space.logical_bytes)),
        ("allocated", format_bytes(space.allocated_bytes)),
        ("shared", format_bytes(space.shared_bytes)),
        ("memory", format_bytes(space.memory_bytes)),
        ("space", vm::space(&space.space)),
        ("bin", vm::bin(&space.space)),
    ];
    let orders = space.disks.iter().filter_map(|disk| Some((disk.number, disk.average_run_bytes?)));
    lines.extend(orders.map(|(number, bytes)| ("order", order(number, bytes, &space.vm))));
    lines.retain(|(name, _)| *name != "memory" || space.memory_bytes > 0);
    let lines = fields(&lines);
    if space.snapshots.is_empty() {
        return lines;
    }
    let columns = if space.memory_bytes > 0 { 4 } else { 3 };
    let mut table = table(&["snapshot", "age", tree::counted(space.store), "memory"][..columns]);
    for snapshot in &space.snapshots {
        let age = format_seconds(snapshot.age_s);
        let (delta, memory) = (format_bytes(snapshot.delta_bytes), format_bytes(snapshot.memory_bytes));
        table.add_row(&[&snapshot.name, &age, &delta, &memory][..columns]);
    }
    align_right(&mut table, &[1, 2, 3][..columns - 1]);
    format!("{lines}{table}")
}

/// Returns a text about the order of a disk's blocks, with the remedy where it slows sequential reads down.
fn order(number: u32, average_run_bytes: u64, vm: &VmName) -> String {
    let text = format!("disk{number} reads {} in one run on average", format_bytes(average_run_bytes));
    match average_run_bytes < FRAGMENTED_BELOW {
        true => format!("{text}; `unstun vm defragment {vm}` lays it out in order"),
        false => text,
    }
}
