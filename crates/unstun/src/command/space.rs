//! `unstun space`.

use api::VmSpace;
use api::client::Client;
use api::error::Result;
use api::name::VmName;
use api::output::{Output, align_right, fields, table};
use api::units::{format_bytes, format_seconds};

use crate::command::{tree, vm};

pub(super) async fn run(vm: &VmName, client: &Client, output: Output) -> Result<()> {
    output.result(&client.vm_space(vm).await?, describe)
}

fn describe(space: &VmSpace) -> String {
    let lines = fields(&[
        ("VM", space.vm.to_string()),
        ("datastore", space.datastore.to_string()),
        ("logical", format_bytes(space.logical_bytes)),
        ("allocated", format_bytes(space.allocated_bytes)),
        ("shared", format_bytes(space.shared_bytes)),
        ("space", vm::space(&space.space)),
        ("bin", vm::bin(&space.space)),
    ]);
    if space.snapshots.is_empty() {
        return lines;
    }
    let mut table = table(&["snapshot", "age", tree::counted(space.store)]);
    for snapshot in &space.snapshots {
        let row = [&snapshot.name, &format_seconds(snapshot.age_s), &format_bytes(snapshot.delta_bytes)];
        table.add_row(row);
    }
    align_right(&mut table, &[1, 2]);
    format!("{lines}{table}")
}
