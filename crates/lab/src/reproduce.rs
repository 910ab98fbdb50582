//! Every published experiment on modelled storage, under every hypothesis, and with our engine in VMware's place.
//!
//! The storage models are fitted first, each to its baseline; then all experiments run, in as many threads as there are
//! cores. A run is a function of its seed, so the threads affect only the duration.

mod band;
mod folds;
mod jobs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blk::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::experiment::fitted::{self, Fitted};
use crate::experiment::{Experiment, Format, Input, ModelledRun, Stack};
use crate::modelled::Engine;
use crate::run::{ConstantSource, Record, Row};
use crate::runner::RunObserver;
use crate::vmware::rules::Hypothesis;
use band::Variant;
pub(crate) use folds::{Fold, folds};
pub(crate) use jobs::in_parallel;

/// Progress that is shown to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    pub done: usize,
    pub of: usize,
    /// The fit or run that has just ended: "zandboer-saturated io-lock".
    pub name: String,
}

/// Receiver of the progress, called from any thread, which may also end the runs.
#[derive(Clone, Copy)]
pub(crate) struct JobObserver<'a> {
    pub progress: &'a (dyn Fn(Progress) + Sync),
    pub interrupted: &'a Arc<AtomicBool>,
}

/// What `lab reproduce --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Document<'a> {
    pub rows: Vec<&'a Row>,
    pub experiments: Vec<Summary<'a>>,
    /// Empty where not all of the included experiments ran.
    pub folds: &'a [Fold],
}

/// The models and constants behind one experiment's rows.
#[derive(Debug, Serialize)]
pub(crate) struct Summary<'a> {
    pub experiment: &'a str,
    pub title: &'a str,
    pub source: &'a str,
    pub storage: &'a str,
    /// Number of constants fitted to the baseline.
    pub fitted: usize,
    pub constants: &'a [crate::run::Constant],
    pub left_out: &'a [String],
    pub notes: &'a [String],
}

/// Returns the stacks that apply to an experiment: all hypotheses about its format where VMware kept deltas, and our engine.
/// Of an article about another stack only that one applies.
pub(crate) fn stacks(experiment: &Experiment) -> Vec<Stack> {
    if experiment.peer.is_some() {
        return vec![experiment.own_stack()];
    }
    let esx: Vec<Stack> = match experiment.esx.format {
        Format::VVol => vec![Stack::Esx(experiment.esx.hypothesis())],
        format => {
            let applies = |h: &Hypothesis| format == Format::SeSparse || !h.is_about_sesparse();
            Hypothesis::ALL.into_iter().filter(applies).map(Stack::Esx).collect()
        }
    };
    // Our subjects have no counterpart of a linked clone: the clone of a running disk is one more snapshot.
    let ours = [Engine::Redo, Engine::Native]
        .map(Stack::Engine)
        .into_iter()
        .filter(|_| !experiment.esx.linked_clone);
    esx.into_iter().chain(ours).collect()
}

/// Runs all experiments. A record is one column of one experiment: a run with every unknown at its first value. Its rows
/// are those of the published cells, with bands over the other values. The records are in the order of the experiments,
/// the default hypothesis first.
///
/// Errors: `Cancelled` when interrupted before the first run ended; a name that does not exist. A failure within a run
/// is in its record.
pub(crate) fn reproduce(
    experiments: &[Experiment],
    seed: u64,
    observer: JobObserver<'_>,
) -> Result<Vec<Record>> {
    let variants = band::variants(experiments);
    let fits = fit_all(experiments, &variants, seed, observer)?;
    let plays: Vec<(usize, Stack, &Variant)> = variants
        .iter()
        .flat_map(|variant| {
            let experiment = &experiments[variant.experiment];
            // A band costs a run for each value. Only the default hypothesis gets one, because its predictions are
            // compared with the figures.
            let wanted = |stack: &Stack| variant.known.is_empty() || stack.column(experiment).default;
            let stacks = stacks(experiment).into_iter().filter(wanted);
            stacks.map(move |stack| (variant.experiment, stack, variant))
        })
        .collect();
    let names = |n: usize| format!("{} {}", experiments[plays[n].0].name, label(plays[n].1));
    let records = in_parallel(plays.len(), names, observer, |n| {
        let (experiment, stack, variant) = plays[n];
        play(&experiments[experiment], stack, variant, &fits, seed, observer.interrupted)
    });
    let mut columns: BTreeMap<(usize, Stack), Vec<(&Variant, Record)>> = BTreeMap::new();
    for ((experiment, stack, variant), record) in plays.iter().zip(records) {
        if let Some(record) = record {
            columns.entry((*experiment, *stack)).or_default().push((*variant, record?));
        }
    }
    if columns.is_empty() {
        return Err(Error::cancelled("reproduce"));
    }
    let mut reproduced: Vec<(usize, bool, Record)> = Vec::new();
    for ((experiment, stack), records) in columns {
        let is_default = stack.column(&experiments[experiment]).default;
        reproduced.push((experiment, !is_default, band::join(records)));
    }
    reproduced.sort_by_key(|(experiment, other, _)| (*experiment, *other));
    Ok(reproduced.into_iter().map(|(_, _, record)| record).collect())
}

fn label(stack: Stack) -> &'static str {
    match stack {
        Stack::Esx(hypothesis) => hypothesis.name(),
        other => other.name(),
    }
}

/// One fit for each baseline and set of known values. Storage of the same make gets the same constants.
type Fits = BTreeMap<String, Result<Fitted>>;

/// Returns the key of a fit. Of the known values only those of the load count, because no other changes a baseline.
fn fit_key(experiment: &Experiment, known: &[(Input, u64)]) -> String {
    let baseline = experiment.fitted_on.as_ref().unwrap_or(&experiment.name);
    let moving: Vec<_> = known.iter().filter(|(input, _)| input.moves_baseline()).collect();
    format!("{baseline} {moving:?}")
}

fn fit_all(
    experiments: &[Experiment],
    variants: &[Variant],
    seed: u64,
    observer: JobObserver<'_>,
) -> Result<Fits> {
    let mut wanted: BTreeMap<String, &Variant> = BTreeMap::new();
    for variant in variants {
        wanted.entry(fit_key(&experiments[variant.experiment], &variant.known)).or_insert(variant);
    }
    let wanted: Vec<(String, &Variant)> = wanted.into_iter().collect();
    let names = |n: usize| format!("fit of {}", wanted[n].0);
    let fits = in_parallel(wanted.len(), names, observer, |n| {
        let variant = wanted[n].1;
        let baseline = fitted::fitted_on(&experiments[variant.experiment])?;
        fitted::fitted_itself(&baseline, &variant.known, seed)
    });
    let keys = wanted.iter().map(|(key, _)| key.clone());
    keys.zip(fits).map(|(key, fit)| Ok((key, fit.ok_or_else(|| Error::cancelled("reproduce"))?))).collect()
}

fn play(
    experiment: &Experiment,
    stack: Stack,
    variant: &Variant,
    fits: &Fits,
    seed: u64,
    interrupted: &Arc<AtomicBool>,
) -> Result<Record> {
    let key = fit_key(experiment, &variant.known);
    let missing = || Error::new(ErrorKind::Invalid, &experiment.name, "its storage was not fitted");
    let fitted =
        fitted::carried_to(experiment, fits.get(&key).ok_or_else(missing)?.as_ref().map_err(Error::clone)?)?;
    let mut known = variant.known.iter().fold(experiment.clone(), |e, (input, value)| e.with(*input, *value));
    known.notes.extend(fitted.notes);
    let storage = fitted::with_known(fitted.model, &variant.known)?;
    let delta_storage = fitted::delta_model(&known, &storage)?;
    let command = format!("unstun lab run {} --subject {} --seed {seed}", known.name, subject(stack));
    let play = ModelledRun { delta_storage, command, ..ModelledRun::new(known, stack, storage, seed) };
    let cells = play.experiment.published.len();
    let mut record = play.run(RunObserver::until(interrupted));
    record.rows.truncate(cells);
    Ok(record)
}

/// Returns the stack as an argument of `lab run`.
fn subject(stack: Stack) -> String {
    match stack {
        Stack::Esx(hypothesis) => format!("esx --hypothesis {:?}", hypothesis.name()),
        other => other.name().to_string(),
    }
}

/// Returns the document that is printed as JSON.
pub(crate) fn document<'a>(records: &'a [Record], folds: &'a [Fold]) -> Document<'a> {
    let rows = records.iter().flat_map(|record| &record.rows).collect();
    let mut experiments: Vec<Summary<'_>> = Vec::new();
    for record in records {
        if experiments.last().is_none_or(|last| last.experiment != record.experiment) {
            experiments.push(Summary {
                experiment: &record.experiment,
                title: &record.title,
                source: &record.source,
                storage: &record.storage,
                fitted: count_fitted(record),
                constants: &record.constants,
                left_out: &record.left_out,
                notes: &record.notes,
            });
        }
    }
    Document { rows, experiments, folds }
}

/// Returns the number of constants that were fitted for the run.
pub(crate) fn count_fitted(record: &Record) -> usize {
    record.constants.iter().filter(|c| c.source == ConstantSource::FittedToBaseline).count()
}

fn is_interrupted(observer: JobObserver<'_>) -> bool {
    observer.interrupted.load(Ordering::Relaxed)
}
