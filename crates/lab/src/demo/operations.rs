//! What a native store does by metadata alone: a take, a clone, a revert and a drop, timed as a caller of the API sees
//! them.

use std::time::Instant;

use api::client::Client;
use api::error::{Error, Result};
use api::name::{SnapshotName, VmName};
use api::progress::watch;
use api::units::as_us;
use api::{CommitTarget, Revert, SnapshotTake, VmClone, VmRemove};
use tokio::runtime::Runtime;

use super::report::Operation;
use super::vms::{INSTANT, clear, wait_until_unused};

const CLONE: &str = "demo-clone";

/// Times the operations on a VM without clients. The VM is as before afterwards.
pub(super) fn time(
    client: &Client,
    runtime: &Runtime,
    vm: &VmName,
    disk_bytes: u64,
) -> Result<Vec<Operation>> {
    let clone: VmName = CLONE.parse().map_err(Error::failed)?;
    clear(client, runtime, &clone, disk_bytes)?;
    wait_until_unused(client, runtime, vm)?;
    runtime.block_on(each(client, vm, clone))
}

async fn each(client: &Client, vm: &VmName, clone: VmName) -> Result<Vec<Operation>> {
    let name: SnapshotName = INSTANT.parse().map_err(Error::failed)?;
    let mut done = Vec::new();
    let mut began = Instant::now();
    let mut ended = |name| {
        done.push(Operation { name, us: as_us(began.elapsed()) });
        began = Instant::now();
    };
    let request =
        SnapshotTake { message: "taken by unstun demo".to_owned(), ..SnapshotTake::named(name.clone()) };
    client.snapshot_take(vm, &request).await?;
    ended("take");
    client.vm_clone(vm, &VmClone { snapshot: (&name).into(), name: clone.clone() }).await?;
    ended("clone");
    let snapshot = Some((&name).into());
    let revert = Revert { snapshot, take_first: None, disconnect: false, purge: true, keep: false };
    client.snapshot_revert(vm, &revert).await?;
    ended("revert");
    let job = client.snapshot_commit(vm, &CommitTarget::Snapshot((&name).into())).await?;
    ended("drop");
    watch(client, job).await?;
    client.remove_vm(&clone, &VmRemove { delete_disks: true, purge: true, keep: false }).await?;
    Ok(done)
}
