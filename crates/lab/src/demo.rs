//! `unstun demo`: a guest's load on a real NBD connection while a snapshot is taken, kept and committed.
//!
//! The demo is an ordinary client: all of its data come from the API, the NBD socket and a clock.

// The demo measures in real time.
#![allow(clippy::disallowed_methods)]

pub mod load;
pub mod meter;
pub mod nbd;
mod recording;
pub mod region;
pub mod report;
mod run;
mod screen;
pub mod stamp;
pub mod wire;

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use api::client::Client;
use api::error::{Error, ErrorKind, Result};
use api::name::{SnapshotName, VmName};
use api::output::Output;
use api::progress::{self, Watched, watch};
use api::units::format_bytes;
use api::{DiskCreate, Store, Vm, VmCreate, WhenFull};

use crate::run::Record;

use crate::command::save;
use crate::demo::nbd::Connection;
use crate::demo::recording::Recording;
use crate::demo::region::{Content, Regions};
use crate::demo::report::Report;

const VM: &str = "demo";
const SNAPSHOT: &str = "demo-snapshot";
/// Number of 1 MiB writes in flight while the disk is filled.
const FILL_DEPTH: usize = 8;

/// Length of each phase. The commit has none; it lasts until it ends.
pub struct Plan {
    pub disk_bytes: u64,
    /// Warm-up that is not reported, during which caches, tables and file growth settle.
    pub warm_up: Duration,
    pub baseline: Duration,
    pub snapshot: Duration,
    pub after: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            disk_bytes: 1 << 30,
            warm_up: Duration::from_secs(2),
            baseline: Duration::from_secs(8),
            snapshot: Duration::from_secs(12),
            after: Duration::from_secs(6),
        }
    }
}

/// State in which an interrupted demo leaves the VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    NothingTaken,
    Taken,
    Committing,
}

/// Measures, prints, and keeps the run in `dir`. Wrong data count as damage.
pub async fn run(client: &Client, output: Output, plan: &Plan, dir: Option<&Path>) -> Result<()> {
    let (report, record) = measure(client, output, plan, dir).await?;
    output.result(&report, |report| format!("\n{}", report.describe()))?;
    if let Some(dir) = dir {
        save::record(dir, &record)?;
        output.note(&format!("as a page: {}", dir.join(save::PAGE).display()));
    }
    match report.reads_wrong {
        0 => Ok(()),
        wrong => Err(Error::new(ErrorKind::Damaged, format!("{wrong} reads showed wrong data"))),
    }
}

/// Measures until all phases have ended, or until Ctrl-C.
pub async fn measure(
    client: &Client,
    output: Output,
    plan: &Plan,
    dir: Option<&Path>,
) -> Result<(Report, Record)> {
    let stage = Cell::new(Stage::NothingTaken);
    tokio::select! {
        run = whole(client, output, plan, dir, &stage) => run,
        _ = tokio::signal::ctrl_c() => Err(interrupted(stage.get())),
    }
}

fn interrupted(stage: Stage) -> Error {
    let left = match stage {
        Stage::NothingTaken => "nothing is left but the VM",
        Stage::Taken => "the snapshot stays, and the next `unstun demo` commits it first",
        Stage::Committing => "the commit goes on (`unstun job list`)",
    };
    Error::new(ErrorKind::Cancelled, format!("interrupted; {left}"))
}

async fn whole(
    client: &Client,
    output: Output,
    plan: &Plan,
    dir: Option<&Path>,
    stage: &Cell<Stage>,
) -> Result<(Report, Record)> {
    let vm = VM.parse::<VmName>().map_err(Error::failed)?;
    let snapshot = SNAPSHOT.parse::<SnapshotName>().map_err(Error::failed)?;
    let shown = find_or_create(client, output, plan, &vm).await?;
    finish_earlier_run(client, output, &vm, &snapshot).await?;
    let disk = shown.disks.first().ok_or_else(|| Error::refused(format!("VM {vm} has no disk")))?;
    let seed = u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or_default();
    let regions = prepare_disk(output, &disk.nbd_uri, &vm, seed).await?;
    output.note(&format!(
        "load on {}: random 4 KiB within {}, 70 % reads, depth {}, a flush a second, and a writer at depth 1",
        disk.nbd_uri,
        format_bytes(regions.load_bytes()),
        load::DEPTH
    ));
    // The fill uses `seed` as its sequence number; every later sequence number is greater.
    let load = load::Load::start(&disk.nbd_uri, regions, seed + 1)?;
    let recording = Recording::begin(client, &vm, seed, dir).await?;
    let run = run::Run::new(client, output, plan, stage, (vm, snapshot), load, recording);
    run.phases(disk.nbd_uri.clone()).await
}

async fn find_or_create(client: &Client, output: Output, plan: &Plan, name: &VmName) -> Result<Vm> {
    match client.vm_show(name).await {
        Ok(vm) if vm.nbd_clients > 0 => Err(Error::refused(format!(
            "VM {name} has {} NBD clients; the demo needs it alone",
            vm.nbd_clients
        ))),
        Err(error) if error.kind == ErrorKind::NotFound => {
            // Space for the disk itself, and for a delta that may grow to the same size.
            let needed = 2 * plan.disk_bytes;
            let free = client.status().await?.free_bytes;
            if free < needed {
                let (free, needed) = (format_bytes(free), format_bytes(needed));
                return Err(Error::new(
                    ErrorKind::NoSpace,
                    format!("{free} free, but the demo may need {needed}"),
                ));
            }
            output.note(&format!("creating VM {name} with a disk of {}", format_bytes(plan.disk_bytes)));
            let disks = vec![DiskCreate::new(plan.disk_bytes)];
            let request = VmCreate {
                name: name.clone(),
                disks,
                store: Store::Redo,
                when_full: WhenFull::Wait,
                datastore: None,
            };
            client.vm_create(&request).await
        }
        other => other,
    }
}

/// Ends what an interrupted demo left open, so that this one starts from one base disk.
async fn finish_earlier_run(
    client: &Client,
    output: Output,
    vm: &VmName,
    snapshot: &SnapshotName,
) -> Result<()> {
    let tree = client.snapshot_tree(vm).await?;
    let mut open = client.job_list().await?;
    open.retain(|job| job.vm.as_ref() == Some(vm) && job.state.is_open());
    if tree.snapshots.iter().any(|s| s.name == snapshot.as_str()) {
        output.note(&format!("committing {vm}@{snapshot}, which an earlier demo left"));
        let target = api::CommitTarget::Snapshot(snapshot.into());
        open.push(client.snapshot_commit(vm, &target).await?);
    }
    for job in open {
        match watch(client, job).await? {
            Watched::Ended(_) => {}
            Watched::Detached(job) => {
                return Err(Error::new(ErrorKind::Cancelled, format!("interrupted; job {} goes on", job.id)));
            }
        }
    }
    Ok(())
}

async fn prepare_disk(output: Output, uri: &str, vm: &VmName, seed: u64) -> Result<Regions> {
    let mut connection = Connection::open(uri, FILL_DEPTH).await?;
    let regions = Regions::of(connection.size_bytes)?;
    if connection.read_only {
        return Err(Error::refused(format!("{uri} is read-only")));
    }
    match region::inspect(&mut connection, &regions).await? {
        Content::Filled => {}
        Content::ToFill => {
            output.note(&format!("filling the disk once ({})", format_bytes(connection.size_bytes)));
            let bar = progress::bar(regions.fill_bytes())?;
            region::fill(&mut connection, &regions, seed, &bar).await?;
            bar.finish_and_clear();
        }
        Content::Foreign => {
            let message =
                format!("VM {vm} holds data that is not the demo's; `unstun vm remove {vm}` frees the name");
            return Err(Error::refused(message));
        }
    }
    connection.close().await?;
    Ok(regions)
}
