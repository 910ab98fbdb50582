//! `unstun status`.

use crate::api::Status;
use crate::client::Client;
use crate::command::datastore;
use crate::error::Result;
use crate::output::{Output, fields};
use crate::units::format_bytes;

pub async fn run(client: &Client, output: Output) -> Result<()> {
    output.result(&client.status().await?, describe)
}

pub fn describe(status: &Status) -> String {
    let io = if status.direct_io { "direct" } else { "buffered (the file system refuses O_DIRECT)" };
    let told = fields(&[
        ("datastore", status.datastore.display().to_string()),
        ("daemon", format!("unstun {}, process {}, since {:.0}", status.version, status.pid, status.started)),
        ("room", format!("{} free of {}", format_bytes(status.free_bytes), format_bytes(status.total_bytes))),
        ("disk I/O", io.to_owned()),
        ("NBD", status.nbd.join("\n     ")),
        ("clients", status.nbd_clients.to_string()),
        ("VMs", format!("{} with {} disks, {} snapshots", status.vms, status.disks, status.snapshots)),
        ("open jobs", status.open_jobs.to_string()),
    ]);
    match status.datastores.as_slice() {
        [main] if main.notices.is_empty() => told,
        all => format!("{told}{}\n", datastore::list(all)),
    }
}
