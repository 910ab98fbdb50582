//! The demo's VMs, one for each kind of store. Each run begins with empty disks.

use std::rc::Rc;
use std::time::Duration;

use api::client::Client;
use api::error::{Error, ErrorKind, Result};
use api::name::{DatastoreName, VmName};
use api::output::Output;
use api::progress::{Watched, watch};
use api::units::format_bytes;
use api::{DiskCreate, Store, Vm, VmCreate, VmRemove, WhenFull};
use blk::volume::Volume;
use blk::{Buf, SECTOR};
use sim::oracle::sequence_of;
use tokio::runtime::Runtime;

use crate::compare::SNAPSHOT;
use crate::real::{UringExecutor, open_disk};

/// Snapshot of the operations that are timed.
pub(super) const INSTANT: &str = "instant";
/// Snapshots that an interrupted demo leaves.
const OWN: [&str; 2] = [SNAPSHOT, INSTANT];
/// Bytes of each read of a disk that is checked for data of others.
const READ_BYTES: u64 = 1 << 20;
/// Interval and number of the checks whether a client that has disconnected is gone: ten seconds.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 500;

/// Returns the name of the VM in a store.
pub(super) fn name(store: &str) -> String {
    format!("demo-{store}")
}

/// Creates the VM of a store. A VM that an earlier demo left is removed first.
///
/// # Errors
/// `Refused` if a VM of that name holds anything but the demo's own data, or is in use. `NoSpace` if the datastore has
/// less free space than the demo may need.
pub(super) fn create(
    client: &Client,
    runtime: &Runtime,
    output: Output,
    store: Store,
    disk_bytes: u64,
) -> Result<Vm> {
    let name: VmName = name(store.as_str()).parse().map_err(Error::failed)?;
    clear(client, runtime, &name, disk_bytes)?;
    let datastore = runtime.block_on(client.within())?;
    // Space for the disk itself, and for a delta that may grow to the same size.
    let (free, needed) = (runtime.block_on(free_bytes(client, datastore.as_ref()))?, 2 * disk_bytes);
    if free < needed {
        let message = format!("{} free, but the demo may need {}", format_bytes(free), format_bytes(needed));
        return Err(Error::new(ErrorKind::NoSpace, message));
    }
    output.note(&format!(
        "creating VM {name} with a {} disk of {}",
        store.as_str(),
        format_bytes(disk_bytes)
    ));
    let disks = vec![DiskCreate::new(disk_bytes)];
    let request = VmCreate { name, disks, store, when_full: WhenFull::Wait, datastore };
    runtime.block_on(client.vm_create(&request))
}

/// Returns the free space of a datastore; `None` is the main one.
async fn free_bytes(client: &Client, datastore: Option<&DatastoreName>) -> Result<u64> {
    let all = client.datastore_list().await?;
    let found = all.into_iter().find(|one| datastore.map_or(one.is_main, |name| one.name == *name));
    // The figure is absent for a datastore that is not open. The creation of the VM then reports why.
    Ok(found.and_then(|one| one.free_bytes).unwrap_or(u64::MAX))
}

/// Removes the VM of that name, which an earlier demo left, if there is one. Its disk has the demo's size, and all of it
/// is read: a VM with any other data stays. One with snapshots goes into the bin, because their content is not read.
///
/// # Errors
/// Like those of `create`.
pub(super) fn clear(client: &Client, runtime: &Runtime, name: &VmName, disk_bytes: u64) -> Result<()> {
    let vm = match runtime.block_on(client.vm_show(name)) {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
        shown => shown?,
    };
    wait_until_unused(client, runtime, name)?;
    end_jobs(client, runtime, name)?;
    let tree = runtime.block_on(client.snapshot_tree(name))?;
    let has_other = tree.snapshots.iter().any(|snapshot| !OWN.contains(&snapshot.name.as_str()));
    let has_own_size = matches!(&vm.disks[..], [disk] if disk.size_bytes == disk_bytes);
    if has_other || !has_own_size || !holds_only_stamps(&vm.disks[0].nbd_uri)? {
        let remedy = format!("`unstun vm remove {name}` frees the name");
        return Err(Error::refused(format!(
            "VM {name} holds data or snapshots that are not the demo's; {remedy}"
        )));
    }
    wait_until_unused(client, runtime, name)?;
    let request = VmRemove { delete_disks: true, purge: tree.snapshots.is_empty(), keep: false };
    runtime.block_on(client.remove_vm(name, &request)).map(drop)
}

/// Waits until clients that have disconnected are gone. A client that stays is an error.
pub(super) fn wait_until_unused(client: &Client, runtime: &Runtime, name: &VmName) -> Result<()> {
    let mut clients = Vec::new();
    for _ in 0..LOOKS {
        clients = runtime.block_on(client.vm_show(name))?.clients;
        if clients.is_empty() {
            return Ok(());
        }
        std::thread::park_timeout(LOOK);
    }
    let first = clients.first().map_or("", |client| client.client.as_str());
    let cause = format!("VM {name} has {} clients ({first}); the demo needs it alone", clients.len());
    Err(Error::refused(cause))
}

/// Waits for the end of the VM's jobs: an interrupted demo leaves its commit running.
fn end_jobs(client: &Client, runtime: &Runtime, name: &VmName) -> Result<()> {
    let jobs = runtime.block_on(client.job_list())?;
    for job in jobs.into_iter().filter(|job| job.vm.as_ref() == Some(name) && job.state.is_open()) {
        if let Watched::Detached(job) = runtime.block_on(watch(client, job))? {
            return Err(Error::new(ErrorKind::Cancelled, format!("interrupted; job {} goes on", job.id)));
        }
    }
    Ok(())
}

/// Returns whether every sector is zeros or was written by the lab.
fn holds_only_stamps(uri: &str) -> Result<bool> {
    let executor = UringExecutor::new()?;
    let disk = open_disk(&executor, uri)?;
    executor.run(only_stamps(disk)).map_err(Error::from)
}

async fn only_stamps(disk: Rc<dyn Volume>) -> blk::Result<bool> {
    let size_bytes = disk.info().size_bytes;
    let mut offset = 0;
    while offset < size_bytes {
        let buf = Buf::alloc(READ_BYTES.min(size_bytes - offset) as usize);
        let (bytes, result) = disk.clone().read(offset, buf).await;
        result?;
        let mut sectors = (offset / SECTOR..).zip(bytes.chunks_exact(SECTOR as usize));
        if sectors.any(|(sector, bytes)| sequence_of(bytes, 0, sector).is_err()) {
            return Ok(false);
        }
        offset += bytes.len() as u64;
    }
    Ok(true)
}
