//! Fits a storage model's free constants to an experiment's baseline and to nothing else.
//!
//! The fit receives an experiment that has been reduced to its baseline ([`Experiment::baseline`]), so no other figure
//! can influence it.

use blk::{Error, Result};

use super::modelled_run::{ModelledRun, Stack};
use super::{Experiment, Fit, Input, find};
use crate::modelled::Engine;
use crate::run::{Constant, ConstantSource, End, Phase, Use};
use crate::runner::{Action, RunObserver};
use crate::storage::{StorageModel, fit};

/// Number of rounds, because two constants affect two figures each.
const TURNS: usize = 2;
/// Tolerance as a share of the figure: a tenth of the precision with which its author read a graph.
const TOLERANCE: f64 = 0.01;
/// Longest run of one trial, seconds. At 700 I/Os a second, runs of this length scatter by less than one percent.
const TRIAL_S: f64 = 20.0;

/// A model, and notes on constants that could not be fitted.
#[derive(Debug, Clone)]
pub struct Fitted {
    pub model: StorageModel,
    pub notes: Vec<String>,
}

impl Experiment {
    /// Returns the experiment without everything that a fit must not see.
    pub fn baseline(&self) -> Experiment {
        let mut baseline = self.clone();
        baseline.published.retain(|cell| cell.r#use == Use::Baseline);
        baseline.steps.retain(|step| matches!(step.phase, Phase::Prepare | Phase::Baseline));
        baseline.unknowns.clear();
        baseline.heartbeat = None;
        baseline
    }

    /// Returns the baseline with its runs shortened for one trial.
    fn trial(&self) -> Experiment {
        let mut trial = self.clone();
        for step in &mut trial.steps {
            if let Action::Run { seconds, .. } = &mut step.action {
                *seconds = seconds.min(TRIAL_S * f64::from(self.time_divisor()));
            }
        }
        trial
    }
}

/// Returns the experiment's model with its free constants fitted, to its own baseline or to that of the experiment it
/// names. `known` gives values for inputs that the articles do not publish.
///
/// Errors: a name that does not exist. A baseline that the model cannot reach gives a note.
pub fn fitted(experiment: &Experiment, known: &[(Input, u64)], seed: u64) -> Result<Fitted> {
    carried_to(experiment, &fitted_itself(&fitted_on(experiment)?, known, seed)?)
}

/// Returns the experiment whose baseline the model is fitted to.
pub fn fitted_on(experiment: &Experiment) -> Result<Experiment> {
    experiment.fitted_on.as_ref().map_or_else(|| Ok(experiment.clone()), |other| find(other))
}

/// Returns the fitted model of an experiment that uses its own baseline; otherwise as `fitted`.
pub fn fitted_itself(experiment: &Experiment, known: &[(Input, u64)], seed: u64) -> Result<Fitted> {
    let model = with_cache(model(&experiment.storage)?, known)?;
    let known = with(experiment.clone(), known);
    Ok(fit_to(&known.baseline(), scaled(&known, model)?, seed))
}

/// Returns this experiment's model with the constants that were fitted on the experiment it names. Without one it
/// returns `fitted`.
pub fn carried_to(experiment: &Experiment, fitted: &Fitted) -> Result<Fitted> {
    match &experiment.fitted_on {
        None => Ok(fitted.clone()),
        Some(other) => carry_over(fitted, &find(other)?, scaled(experiment, model(&experiment.storage)?)?),
    }
}

fn with(experiment: Experiment, known: &[(Input, u64)]) -> Experiment {
    known.iter().fold(experiment, |experiment, (input, value)| experiment.with(*input, *value))
}

/// Returns the model, in full size, with a known size of its cache.
///
/// Errors: `NotFound` for a model without a cache.
fn with_cache(model: StorageModel, known: &[(Input, u64)]) -> Result<StorageModel> {
    const CACHE: &str = "read_cache";
    let mut sizes = known.iter().filter(|(input, _)| *input == Input::ReadCacheBytes);
    sizes.try_fold(model, |model, (_, bytes)| {
        let own = model.constants().iter().find(|c| c.name == CACHE).map_or(0.0, |c| c.value);
        let value = own * *bytes as f64 / model.value(CACHE)?;
        model.with(CACHE, value, ConstantSource::Declared, "one of the values that are plausible")
    })
}

/// Returns the model with those of the known values that are times of its calls.
///
/// Errors: a model without calls, or a value with which it would not work.
pub fn with_known(model: StorageModel, known: &[(Input, u64)]) -> Result<StorageModel> {
    const CALL: &str = "calls.call";
    let calls = known.iter().filter(|(input, _)| *input == Input::FileCallUs);
    calls.map(|(_, us)| *us as f64 * 1000.0).try_fold(model, |model, wanted_ns| {
        let present_ns = model.value(CALL)?;
        let own = model.constants().iter().find(|c| c.name == CALL).map_or(0.0, |c| c.value);
        let note = "one of the values that are plausible";
        model.with(CALL, own * wanted_ns / present_ns, ConstantSource::Declared, note)
    })
}

/// Returns a model by its name, or from a user's file.
pub fn model(name: &str) -> Result<StorageModel> {
    if !name.ends_with(".toml") {
        return StorageModel::named(name);
    }
    let text = std::fs::read_to_string(name).map_err(|e| Error::not_found(name, e.to_string()))?;
    StorageModel::parse(name.trim_end_matches(".toml"), name, &text)
}

/// Constants that shrink with the disks of a smaller run: the capacity, on which a stroke depends, and the caches. Each
/// is the last part of a constant's name.
const SIZES: [&str; 4] = ["capacity", "read_cache", "dirty_max", "fast_size"];

/// Returns the model for the size in which the experiment is simulated.
pub fn scaled(experiment: &Experiment, mut model: StorageModel) -> Result<StorageModel> {
    let divisor = experiment.size_divisor();
    if divisor == 1 {
        return Ok(model);
    }
    let is_size = |c: &&Constant| SIZES.contains(&last(&c.name));
    let sizes: Vec<Constant> = model.constants().iter().filter(is_size).cloned().collect();
    for Constant { name, value, source, note, .. } in sizes {
        let note = format!("{note}; divided by {divisor}, as the disks are");
        model = model.with(&name, value / divisor as f64, source, &note)?;
    }
    Ok(model)
}

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Fits the model to `baseline`, which is all that the fit uses.
pub fn fit_to(baseline: &Experiment, mut model: StorageModel, seed: u64) -> Fitted {
    let trial = baseline.trial();
    let mut notes = Vec::new();
    let turns = if baseline.fits.len() > 1 { TURNS } else { 1 };
    for turn in 1..=turns {
        for wanted in &baseline.fits {
            match fit_one(&trial, wanted, &model, seed) {
                Ok(better) => model = better,
                Err(e) if turn == turns => notes.push(format!("Not fitted: {e}.")),
                Err(_) => {}
            }
        }
    }
    Fitted { model, notes }
}

fn fit_one(trial: &Experiment, wanted: &Fit, model: &StorageModel, seed: u64) -> Result<StorageModel> {
    let is_wanted = |cell: &&super::Published| cell.phase == wanted.phase && cell.quantity == wanted.quantity;
    let target = trial.published.iter().find(is_wanted).and_then(|cell| cell.value);
    let target = target.ok_or_else(|| Error::invalid(&trial.name, "a fit to a figure that is not there"))?;
    fit::fit(model, &wanted.constant, wanted.low..wanted.high, target, TOLERANCE, |model| {
        predicted(trial, wanted, model, seed)
    })
}

/// Returns the figure of one trial. Errors: a run that failed, or that does not have the figure, with the reason.
fn predicted(trial: &Experiment, wanted: &Fit, model: &StorageModel, seed: u64) -> Result<f64> {
    let play = ModelledRun::new(trial.clone(), Stack::Engine(Engine::Plain), model.clone(), seed);
    let record = play.run(RunObserver::none());
    let why = || match (&record.end, nothing_counted(trial, wanted.phase)) {
        (End::Failed(why), _) => format!("its run failed: {why}"),
        (_, Some(why)) => why,
        _ => format!("it has no {:?} of {:?}", wanted.quantity, wanted.phase),
    };
    let found = record.figure(wanted.phase, wanted.quantity).filter(|figure| figure.is_finite());
    found.ok_or_else(|| Error::invalid(&trial.name, format!("a trial gives no figure to fit to: {}", why())))
}

/// Returns a sentence about a step of the phase whose warm-up is as long as its run in a trial: no sample counts.
fn nothing_counted(trial: &Experiment, phase: Phase) -> Option<String> {
    trial.steps.iter().filter(|step| step.phase == phase).find_map(|step| match step.action {
        Action::Run { seconds, warm_up_seconds } if warm_up_seconds >= seconds => Some(format!(
            "its warm-up of {warm_up_seconds} s leaves nothing of the {seconds} s that a trial runs; shorten \
             warm_up_seconds"
        )),
        _ => None,
    })
}

/// Copies the other experiment's fitted constants to the model, where it has a counterpart: the same disks in another
/// arrangement.
fn carry_over(fitted: &Fitted, from: &Experiment, mut model: StorageModel) -> Result<Fitted> {
    let mut notes = fitted.notes.clone();
    for constant in fitted.model.constants().iter().filter(|c| c.source == ConstantSource::FittedToBaseline) {
        let Some(same) = counterpart(&model, &constant.name) else {
            notes
                .push(format!("{} of {} has no counterpart in {}.", constant.name, from.storage, model.name));
            continue;
        };
        let note = format!("fitted to the baseline of {}", from.name);
        model = model.with(&same, constant.value, ConstantSource::FittedToBaseline, &note)?;
    }
    Ok(Fitted { model, notes })
}

/// Returns the same constant of the same device in another model: the only one with the same last part of its name.
fn counterpart(model: &StorageModel, constant: &str) -> Option<String> {
    let mut same = model.constants().iter().filter(|c| last(&c.name) == last(constant));
    let first = same.next()?;
    same.next().is_none().then(|| first.name.clone())
}

/// Returns the model of a separate device for deltas. If it has the name of the disks' model it is the fitted one.
pub fn delta_model(experiment: &Experiment, fitted: &StorageModel) -> Result<Option<StorageModel>> {
    match &experiment.esx.delta_storage {
        None => Ok(None),
        Some(name) if *name == fitted.name => Ok(Some(fitted.clone())),
        Some(name) => model(name).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_that_leaves_nothing_is_told() {
        let mut experiment = find("v7000-sas").unwrap();
        for step in experiment.steps.iter_mut().filter(|step| step.phase == Phase::Baseline) {
            step.action = Action::Run { seconds: 260.0, warm_up_seconds: 260.0 };
        }
        let model = scaled(&experiment, model(&experiment.storage).unwrap()).unwrap();
        let Fitted { notes, .. } = fit_to(&experiment.baseline(), model, 1);
        assert!(notes[0].contains("leaves nothing of the") && !notes[0].contains("NaN"), "{notes:?}");
    }
}
