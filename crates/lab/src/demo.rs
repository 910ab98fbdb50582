//! `unstun demo`: what a snapshot costs a VM under load, on both kinds of store.
//!
//! The demo is a preset of the lab's runner: the work of `unstun lab compare`, with every read checked, on VMs of the
//! user's own daemon. It uses the interfaces that every user has.

// The demo measures in real time.
#![allow(clippy::disallowed_methods)]

mod operations;
pub mod report;
mod vms;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use api::client::{Client, runtime};
use api::error::{Error, Result};
use api::output::Output;
use api::units::format_bytes;
use api::{Store, Vm};
use indicatif::ProgressBar;

use crate::command::{bar, describe, save};
use crate::compare::Work;
use crate::demo::report::{Report, StoreRun};
use crate::run::{Clock, End, Record};
use crate::runner::{Action, Plan, Protocol, RunObserver};
use crate::workload::Workload;

/// Interval of flushes, like that of a guest's journal. A flush also makes the tables of a fresh delta durable.
const FLUSH_INTERVAL_US: u64 = 1_000_000;

/// Returns the work: disks small enough that a delta, and with it the commit, fits a demo. Three phases and a commit on
/// two stores take about 45 s.
pub fn work() -> Work {
    Work { disk_bytes: 256 << 20, phase_seconds: 5.0, ..Work::default() }
}

/// Measures, prints, and keeps the runs in `dir`. A run that did not complete is an error.
pub fn run(client: &Client, output: Output, work: &Work, dir: Option<&Path>) -> Result<()> {
    let interrupted = crate::command::interruption()?;
    let (report, records) = measure(client, output, work, dir, &interrupted)?;
    if let Some(dir) = dir {
        save::records(dir, &records)?;
    }
    for record in &records {
        let subject = &record.subject;
        match &record.end {
            End::Complete => {}
            End::Interrupted => {
                let left = "the next `unstun demo` begins anew";
                return Err(Error::new(api::error::ErrorKind::Cancelled, format!("interrupted; {left}")));
            }
            End::Failed(why) => return Err(Error::failed(format!("VM {}: {why}", vms::name(subject)))),
        }
    }
    output.result(&report, |report| format!("\n{}", report.describe()))?;
    if let Some(dir) = dir {
        output.note(&format!("as a page: {}", dir.join(save::PAGE).display()));
    }
    Ok(())
}

/// Measures each store in turn, the native one first. Stops after a run that did not complete.
pub fn measure(
    client: &Client,
    output: Output,
    work: &Work,
    dir: Option<&Path>,
    interrupted: &Arc<AtomicBool>,
) -> Result<(Report, Vec<Record>)> {
    let runtime = runtime()?;
    let mut report = Report { runs: Vec::new(), operations: Vec::new(), attach: String::new() };
    let mut records = Vec::new();
    for store in [Store::Native, Store::Redo] {
        let vm = vms::create(client, &runtime, output, store, work.disk_bytes)?;
        output.note(&format!(
            "VM {}: random {} within {}, {} % reads, depth {}, a flush a second",
            vm.name,
            format_bytes(work.block_bytes.into()),
            format_bytes(work.disk_bytes),
            work.read_percent,
            work.outstanding
        ));
        let record = one(client, &vm, work, dir, interrupted)?;
        let is_complete = record.end == End::Complete;
        report.runs.push(StoreRun::of(&record, vm.name.clone()));
        records.push(record);
        if !is_complete {
            break;
        }
        if store == Store::Native {
            report.operations = operations::time(client, &runtime, &vm.name, work.disk_bytes)?;
            // The revert among the operations has changed the name of the disk's export.
            report.attach = report::attach(&runtime.block_on(client.vm_show(&vm.name))?.disks[0].nbd_uri);
        }
    }
    Ok((report, records))
}

fn one(
    client: &Client,
    vm: &Vm,
    work: &Work,
    dir: Option<&Path>,
    interrupted: &Arc<AtomicBool>,
) -> Result<Record> {
    let storage = vm.home.parent().unwrap_or(&vm.home).display().to_string();
    let seed = u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or_default();
    let mut head = Record::head("demo", vm.store.as_str(), &storage, Clock::Real, seed);
    head.title = "A snapshot taken, kept and committed under load".into();
    head.source = "unstun demo".into();
    head.command = "unstun demo".into();
    head.notes.push("The host's I/Os are those of the disk's files, as the daemon counts them.".into());
    dir.map(save::folder).transpose()?;
    let path = dir.map(|dir| dir.join(format!("{}.jsonl", vm.store.as_str())));
    let plan = Plan { head, workload: workload(work), protocol: protocol(work), path };
    let bar = bar()?;
    let record = crate::real::run_served(client.clone(), vm, plan, observer(&bar, vm.store, interrupted));
    bar.finish_and_clear();
    Ok(record)
}

fn workload(work: &Work) -> Workload {
    let mut workload = Workload { verify: true, ..work.workload() };
    workload.workers.iter_mut().for_each(|worker| worker.flush_interval_us = FLUSH_INTERVAL_US);
    workload
}

/// Returns the steps of the work. The commit has no limit: it lasts until it ends.
fn protocol(work: &Work) -> Protocol {
    let mut protocol = work.protocol();
    for step in &mut protocol.steps {
        if let Action::Commit { limit_seconds, .. } = &mut step.action {
            *limit_seconds = None;
        }
    }
    protocol
}

fn observer(bar: &ProgressBar, store: Store, interrupted: &Arc<AtomicBool>) -> RunObserver {
    let bar = bar.clone();
    RunObserver {
        progress: std::rc::Rc::new(move |progress| {
            bar.set_message(format!("{}, {}", store.as_str(), describe(progress)));
        }),
        interrupted: Arc::clone(interrupted),
    }
}
