//! The demo's VMs, one for each kind of store. Each run begins with empty disks.

use std::rc::Rc;
use std::time::Duration;

use api::client::Client;
use api::error::{Error, ErrorKind, Result};
use api::name::VmName;
use api::output::Output;
use api::progress::{Watched, watch};
use api::units::format_bytes;
use api::{DiskCreate, Store, Vm, VmCreate, VmRemove, WhenFull};
use blk::volume::Volume;
use blk::{Buf, SECTOR};
use sim::oracle::sequence_of;
use tokio::runtime::Runtime;

use crate::compare::SNAPSHOT;
use crate::real::{World, open_disk};

/// Snapshot of the operations that are timed.
pub(super) const INSTANT: &str = "instant";
/// Snapshots that an interrupted demo leaves.
const OWN: [&str; 2] = [SNAPSHOT, INSTANT];
/// Number of sectors that are read before a disk counts as the demo's own.
const SAMPLES: u64 = 64;
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
    clear(client, runtime, &name)?;
    // Space for the disk itself, and for a delta that may grow to the same size.
    let (free, needed) = (runtime.block_on(client.status())?.free_bytes, 2 * disk_bytes);
    if free < needed {
        let message = format!("{} free, but the demo may need {}", format_bytes(free), format_bytes(needed));
        return Err(Error::new(ErrorKind::NoSpace, message));
    }
    output.note(&format!(
        "creating VM {name} with a {} disk of {}",
        store.as_str(),
        format_bytes(disk_bytes)
    ));
    let datastore = runtime.block_on(client.within())?;
    let disks = vec![DiskCreate::new(disk_bytes)];
    let request = VmCreate { name, disks, store, when_full: WhenFull::Wait, datastore };
    runtime.block_on(client.vm_create(&request))
}

/// Removes the VM of that name, which an earlier demo left, if there is one.
///
/// # Errors
/// Like those of `create`.
pub(super) fn clear(client: &Client, runtime: &Runtime, name: &VmName) -> Result<()> {
    let vm = match runtime.block_on(client.vm_show(name)) {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
        shown => shown?,
    };
    wait_until_unused(client, runtime, name)?;
    end_jobs(client, runtime, name)?;
    let tree = runtime.block_on(client.snapshot_tree(name))?;
    let has_other = tree.snapshots.iter().any(|snapshot| !OWN.contains(&snapshot.name.as_str()));
    if has_other || vm.disks.len() != 1 || !holds_only_stamps(&vm.disks[0].nbd_uri)? {
        let remedy = format!("`unstun vm remove {name}` frees the name");
        return Err(Error::refused(format!(
            "VM {name} holds data or snapshots that are not the demo's; {remedy}"
        )));
    }
    wait_until_unused(client, runtime, name)?;
    let request = VmRemove { delete_disks: true, purge: true, keep: false };
    runtime.block_on(client.vm_remove(name, &request)).map(drop)
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

/// Returns whether sampled sectors, the first one among them, are zeros or were written by the lab.
fn holds_only_stamps(uri: &str) -> Result<bool> {
    let world = World::new()?;
    let disk = open_disk(&world, uri)?;
    world.run(only_stamps(disk)).map_err(Error::from)
}

async fn only_stamps(disk: Rc<dyn Volume>) -> blk::Result<bool> {
    let sectors = disk.info().size_bytes / SECTOR;
    for sample in 0..SAMPLES {
        let sector = sample * (sectors - 1) / (SAMPLES - 1);
        let (bytes, result) = disk.clone().read(sector * SECTOR, Buf::alloc(SECTOR as usize)).await;
        result?;
        if sequence_of(&bytes, 0, sector).is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}
