//! Commands of `unstun lab`. They call the lab's library and print the result. They use no daemon, and no daemon runs
//! any of them.

// Commands and the demo run in real time.
#![allow(clippy::disallowed_methods)]

mod compare;
mod devices;
mod import;
mod predict;
mod real;
mod recorded;
mod report;
mod reproduce;
mod run;
pub(crate) mod save;
mod sensitivity;
mod sweep;

pub(crate) use run::{bar, describe};

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::args::lab::{LabCommand, SubjectArg};
use api::client::runtime;
use api::error::{Error, Result};
use api::output::{self, Output};
use api::progress;

use crate::experiment::{self, Experiment, Stack, fitted};
use crate::modelled::Engine;
use crate::peers::Kind;
use crate::reproduce::{JobObserver, Progress};
use crate::storage::StorageModel;
use crate::vmware::rules::Hypothesis;
use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};

/// Returns the exit code. The results of a failed run are printed, and the exit code is still that of a failure.
pub(crate) fn run(command: &LabCommand, datastore: Option<&Path>, output: Output) -> Result<u8> {
    let done = match command {
        LabCommand::Compare(args) => return compare::run(args, output),
        LabCommand::Run(args) => return run::run(args, output),
        LabCommand::Devices(args) => return devices::run(args, output),
        LabCommand::List => list(output),
        LabCommand::Reproduce(args) => reproduce::run(args, output),
        LabCommand::Sensitivity(args) => return sensitivity::run(args, output),
        LabCommand::Report(args) => report::run(args, datastore, output),
        LabCommand::Import(args) => import::run(args, output),
        LabCommand::Sweep(args) => sweep::run(args, output),
        LabCommand::Predict(args) => predict::run(args, output),
    };
    done.map(|()| 0)
}

#[derive(serde::Serialize)]
struct Listed {
    name: String,
    title: String,
    source: String,
    storage: String,
}

fn list(output: Output) -> Result<()> {
    let listed = |Experiment { name, title, source, storage, .. }| Listed { name, title, source, storage };
    let all: Vec<Listed> = experiment::shipped()?.into_iter().map(listed).collect();
    output.result(&all, |all| {
        let mut table = output::table(&["name", "what", "source"]);
        for Listed { name, title, source, .. } in all {
            table.add_row([name, title, source]);
        }
        table.to_string()
    })
}

fn modelled(name: &str) -> Result<SubjectArg> {
    let wanted = if name == "redo:drain" { "redo" } else { name };
    SubjectArg::from_str(wanted, false).map_err(|_| {
        let all = SubjectArg::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let known: Vec<String> = all.map(|value| value.get_name().to_string()).collect();
        Error::invalid(format!(
            "{name}: not a modelled subject ({}); others are measured with --real DIR",
            known.join(", ")
        ))
    })
}

/// Returns the stack of a subject. `own` is the hypothesis if none is given.
fn stack(subject: SubjectArg, hypothesis: Option<&str>, own: Hypothesis) -> Result<Stack> {
    match (subject, hypothesis) {
        (SubjectArg::Esx, None) => Ok(Stack::Esx(own)),
        (SubjectArg::Esx, Some(name)) => name.parse().map(Stack::Esx).map_err(Error::invalid),
        (_, Some(_)) => Err(Error::invalid("--hypothesis is about VMware's deltas: it needs --subject esx")),
        (SubjectArg::Redo, None) => Ok(Stack::Engine(Engine::Redo)),
        (SubjectArg::Native, None) => Ok(Stack::Engine(Engine::Native)),
        (SubjectArg::Plain, None) => Ok(Stack::Engine(Engine::Plain)),
        (SubjectArg::Qcow2, None) => Ok(Stack::Peer(Kind::Qcow2)),
        (SubjectArg::Qcow2ExtendedL2, None) => Ok(Stack::Peer(Kind::Qcow2ExtendedL2)),
        (SubjectArg::Lvm, None) => Ok(Stack::Peer(Kind::Lvm)),
        (SubjectArg::Fleecing, None) => Ok(Stack::Peer(Kind::Fleecing)),
        (SubjectArg::Rbd, None) => Ok(Stack::Peer(Kind::Rbd)),
        (SubjectArg::Zfs, None) => Ok(Stack::Peer(Kind::Zfs)),
    }
}

fn storage(name: &str) -> Result<StorageModel> {
    Ok(fitted::model(name)?)
}

/// Does `work` with a progress bar that the user may interrupt.
fn with_bar<T>(work: impl FnOnce(JobObserver<'_>) -> T) -> Result<T> {
    let (bar, interrupted) = (progress::bar(0)?, interruption()?);
    let show = |Progress { done, of, name }| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
        bar.set_message(name);
    };
    let result = work(JobObserver { progress: &show, interrupted: &interrupted });
    bar.finish_and_clear();
    Ok(result)
}

/// Returns a flag that is set by Ctrl-C and by the signals that end this process or its terminal. The run must then end
/// its servers; what was sampled until then is kept.
pub(crate) fn interruption() -> Result<Arc<AtomicBool>> {
    let flag: Arc<AtomicBool> = Arc::default();
    let (seen, runtime) = (flag.clone(), runtime()?);
    let wait = move || {
        if runtime.block_on(signalled()).is_ok() {
            seen.store(true, Ordering::Relaxed);
        }
    };
    // The thread ends with the process; no code waits for it.
    std::thread::Builder::new()
        .name("interruption".into())
        .spawn(wait)
        .map_err(|e| Error::failed(format!("thread that waits for Ctrl-C: {e}")))?;
    Ok(flag)
}

async fn signalled() -> std::io::Result<()> {
    let (mut ends, mut hangs_up) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = ends.recv() => Ok(()),
        _ = hangs_up.recv() => Ok(()),
    }
}
