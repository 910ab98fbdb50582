//! `lab compare`: runs the subjects in turns, on real or on modelled storage. On real storage each run has a folder of
//! its own, which is removed when the run has ended.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::args::lab::CompareArgs;
use api::error::{Error, ErrorKind, Result};
use api::output::Output;

use crate::compare::{self, Summary, Work};
use crate::experiment::{self, Experiment, ModelledRun, Scaled};
use crate::peers::Setup;
use crate::run::{Clock, End, Phase, Quantity, Record};
use crate::runner::{Plan, RunObserver};
use crate::storage::StorageModel;
use crate::vmware::spec::Version;
use indicatif::ProgressBar;

use super::predict;
use super::real::{self, HOOKS, Scratch};
use super::run::{bar, describe, now_unix_us, set_up};
use super::save;

/// Title of the standard work.
const TITLE: &str = "The same work, in turns";
/// Storage model of the standard work.
const STORAGE: &str = "nvme";
/// Length of the benchmark of a directory, as with `lab predict`.
const SURVEY_S: u32 = 20;

/// Returns the exit code.
pub(super) fn run(args: &CompareArgs, output: Output) -> Result<u8> {
    let lab = Lab::new(args, output)?;
    if let Environment::Real(_, scaled) = &lab.environment {
        scaled.notes.iter().for_each(|note| output.note(note));
    }
    let continues = || !lab.interrupted.load(Ordering::Relaxed);
    let mut refused = None;
    let mut records = compare::alternate(
        &lab.names,
        args.rounds,
        |name, round| {
            lab.bar.println(format!("round {} of {}: {name}", round + 1, args.rounds));
            lab.one(name, round).unwrap_or_else(|error| {
                let end = End::Failed(error.to_string());
                refused = Some(error);
                Record { end, ..lab.head(name) }
            })
        },
        continues,
    );
    if let Some(model) = &lab.measured {
        let predicted = lab.names.iter().filter_map(|name| lab.predicted(name, &records, model));
        let predicted: Vec<Record> = predicted.collect();
        records.extend(predicted);
    }
    lab.bar.finish_and_clear();
    finish(args, &records, refused, continues(), output)
}

fn finish(
    args: &CompareArgs,
    records: &[Record],
    refused: Option<Error>,
    whole: bool,
    output: Output,
) -> Result<u8> {
    save::keep(args.output.as_deref(), output, records)?;
    let summaries: Vec<Summary> = compare::summarize(records);
    output.result(&summaries, |summaries| compare::text(summaries))?;
    if !whole {
        output.note("interrupted; what was measured is shown");
        return Ok(ErrorKind::Cancelled.exit_code());
    }
    if let Some(error) = refused {
        output.note(&error.to_string());
        return Ok(error.kind.exit_code());
    }
    let failed = summaries.iter().any(|summary| summary.rounds == 0);
    Ok(if failed { ErrorKind::Failed.exit_code() } else { 0 })
}

fn work(args: &CompareArgs) -> Work {
    Work {
        disk_bytes: args.size,
        block_bytes: args.block,
        read_percent: args.read,
        outstanding: args.depth,
        phase_seconds: f64::from(args.seconds),
    }
}

/// Storage and work, which are the same for every subject.
enum Environment<'a> {
    Real(&'a Path, Scaled),
    Modelled(Box<ModelledRun>),
}

struct Lab<'a> {
    args: &'a CompareArgs,
    names: Vec<String>,
    experiment: Option<Experiment>,
    environment: Environment<'a>,
    /// Model of the measured directory, where the measured figures are to be predicted as well.
    measured: Option<StorageModel>,
    interrupted: Arc<AtomicBool>,
    bar: ProgressBar,
}

impl<'a> Lab<'a> {
    /// Checks the arguments: what would fail in the first round fails before anything is created.
    fn new(args: &'a CompareArgs, output: Output) -> Result<Lab<'a>> {
        let names = names(args)?;
        let experiment = args.experiment.as_deref().map(experiment::find).transpose()?;
        let environment = match (&args.real, &experiment) {
            (Some(dir), Some(experiment)) => {
                Environment::Real(dir, scale_all(args, &names, experiment, dir)?)
            }
            (Some(dir), None) => Environment::Real(dir, standard(args)?),
            (None, experiment) => Environment::Modelled(Box::new(modelled(args, experiment.clone())?)),
        };
        let measured = match (&args.real, args.predict) {
            (Some(dir), true) => Some(survey(dir, args, output)?),
            _ => None,
        };
        let interrupted = super::interruption()?;
        Ok(Lab { args, names, experiment, environment, measured, interrupted, bar: bar()? })
    }

    fn one(&self, name: &str, round: u32) -> Result<Record> {
        let record = match &self.environment {
            Environment::Real(dir, scaled) => self.real(name, dir, scaled, round)?,
            Environment::Modelled(play) => {
                let own = play.experiment.esx.hypothesis();
                let stack = super::stack(super::modelled(compare::subject_of(name))?, None, own)?;
                let run = ModelledRun { stack, seed: self.seed(name, round), ..(**play).clone() };
                Record { began_unix_us: now_unix_us(), ..run.run(self.observer(name)) }
            }
        };
        let title = if record.title.is_empty() { TITLE.into() } else { record.title };
        Ok(Record { title, subject: name.to_string(), ..record })
    }

    /// Returns the seed of a modelled run. With one seed all rounds of a subject would be the same run.
    fn seed(&self, name: &str, round: u32) -> u64 {
        let first = if compare::subject_of(name) == name { 0 } else { self.args.rounds };
        self.args.seed.wrapping_add(u64::from(first) + u64::from(round))
    }

    /// Runs the model of a subject on the model of the measured directory. The time that its thread takes for a request is
    /// fitted to the measured baseline, and nothing else is. Returns None for a subject without a model.
    fn predicted(&self, name: &str, measured: &[Record], storage: &StorageModel) -> Option<Record> {
        let modelled = match name {
            "qemu" => "qcow2",
            "qemu:extended_l2" => "qcow2:extended_l2",
            other => other,
        };
        let stack = super::stack(super::modelled(modelled).ok()?, None, Version::Esx70.hypothesis()).ok()?;
        let experiment = bare(&work(self.args), &storage.name);
        let run = ModelledRun::new(experiment, stack, storage.clone(), self.args.seed);
        let request_ns = baseline_iops(measured, name).map_or(0, |iops| (1e9 / iops) as u64);
        let record = ModelledRun { command: command(), setup: Setup { request_ns, ..run.setup }, ..run }
            .run(self.observer(name));
        Some(Record { subject: format!("{name}, predicted"), ..record })
    }

    fn observer(&self, name: &str) -> RunObserver {
        let (bar, name) = (self.bar.clone(), name.to_string());
        RunObserver {
            progress: Rc::new(move |progress| bar.set_message(format!("{name}, {}", describe(progress)))),
            interrupted: self.interrupted.clone(),
        }
    }

    fn head(&self, name: &str) -> Record {
        let (storage, clock) = match &self.environment {
            Environment::Modelled(play) => (play.storage.name.clone(), Clock::Virtual),
            Environment::Real(dir, _) => (dir.display().to_string(), Clock::Real),
        };
        let seed = self.args.seed;
        let standard =
            || Record { title: TITLE.into(), ..Record::head("compare", name, &storage, clock, seed) };
        let of = |experiment: &Experiment| experiment.head(name, &storage, clock, seed);
        let head = self.experiment.as_ref().map_or_else(standard, of);
        Record { command: command(), began_unix_us: now_unix_us(), ..head }
    }

    fn real(&self, name: &str, dir: &Path, scaled: &Scaled, round: u32) -> Result<Record> {
        let stack = real::stack(compare::subject_of(name), &self.args.hooks)?;
        let folder = Scratch::make(dir, &format!("unstun-compare-{}-{round}", name.replace(' ', "-")))?;
        let Scaled { disk_bytes, workload, protocol, notes } = scaled.clone();
        let head = Record { notes, ..self.head(name) };
        let plan = Plan { head, workload, protocol, path: None };
        real::run(&stack, &folder, &disk_bytes, plan, self.observer(name))
    }
}

/// Returns the median rate of a subject without a snapshot.
fn baseline_iops(records: &[Record], name: &str) -> Option<f64> {
    let own: Vec<Record> = records.iter().filter(|record| record.subject == name).cloned().collect();
    let cell = compare::summarize(&own).first()?.find(Phase::Baseline, Quantity::Iops)?.value;
    (cell.median > 0.0).then_some(cell.median)
}

/// Returns the standard work as an experiment.
fn bare(work: &Work, storage: &str) -> Experiment {
    let (workers, steps) = (work.workload().workers, work.protocol().steps);
    Experiment::bare("compare", storage, Version::Esx70, work.disk_bytes, workers, steps)
}

/// Benchmarks the directory and returns a model of it, whose figures are printed.
fn survey(dir: &Path, args: &CompareArgs, output: Output) -> Result<StorageModel> {
    save::folder(dir)?;
    let measured = predict::survey(dir, SURVEY_S, args.read)?;
    let model = measured.model(&dir.display().to_string())?;
    let points = predict::points(&measured, &model, args.seed);
    output.note(&predict::figures(&measured, &points, &model));
    Ok(model)
}

fn command() -> String {
    std::env::args().collect::<Vec<_>>().join(" ")
}

/// Returns the names of the runs of a round; fails if a subject does not exist. On real storage the first of several
/// subjects runs twice, because only equal runs show the noise of the comparison.
fn names(args: &CompareArgs) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for name in &args.subjects {
        let second = compare::again(name);
        let free = [name, &second].into_iter().find(|free| !names.contains(free));
        let free = free.ok_or_else(|| Error::invalid(format!("{name} is named more than twice")))?;
        names.push(free.clone());
    }
    if real::hooks(&args.hooks).is_some() && !names.iter().any(|name| name == HOOKS) {
        names.push(HOOKS.into());
    }
    for name in names.iter().map(|name| compare::subject_of(name)) {
        match args.real {
            Some(_) => drop(real::stack(name, &args.hooks)?),
            None => drop(super::modelled(name)?),
        }
    }
    let is_twice = names.iter().any(|name| compare::subject_of(name) != name);
    if args.real.is_some() && names.len() > 1 && !is_twice && !args.no_noise {
        names.push(compare::again(&names[0]));
    }
    if names.is_empty() {
        return Err(Error::invalid("no subject: name some, or give --target, --take and --commit"));
    }
    Ok(names)
}

fn standard(args: &CompareArgs) -> Result<Scaled> {
    let work = work(args);
    let (workload, disk_bytes) = (work.workload(), vec![work.disk_bytes]);
    workload.check(&disk_bytes).map_err(Error::invalid)?;
    Ok(Scaled { disk_bytes, workload, protocol: work.protocol(), notes: Vec::new() })
}

/// Returns the experiment in the size that fits the smallest subject.
fn scale_all(args: &CompareArgs, names: &[String], experiment: &Experiment, dir: &Path) -> Result<Scaled> {
    let scale = |name: &String| {
        let stack = real::stack(compare::subject_of(name), &args.hooks)?;
        real::scale(experiment, &stack, dir, args.minutes.seconds())
    };
    let scaled: Vec<Scaled> = names.iter().map(scale).collect::<Result<_>>()?;
    let smallest = scaled.into_iter().min_by_key(|scaled| scaled.disk_bytes.iter().sum::<u64>());
    smallest.ok_or_else(|| Error::invalid("no subject"))
}

/// Returns the experiment, or else the standard work. `--storage` replaces the experiment's own storage.
fn modelled(args: &CompareArgs, experiment: Option<Experiment>) -> Result<ModelledRun> {
    let storage = args.storage.as_deref();
    let (experiment, storage) = match experiment {
        Some(experiment) => (experiment, storage),
        None => {
            let work = work(args);
            work.workload().check(&[work.disk_bytes]).map_err(Error::invalid)?;
            let storage = storage.unwrap_or(STORAGE);
            (bare(&work, storage), Some(storage))
        }
    };
    Ok(ModelledRun { command: command(), ..set_up(experiment, storage, args.seed)? })
}
