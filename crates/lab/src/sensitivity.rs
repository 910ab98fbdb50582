//! How far each published figure of an experiment follows each constant that no baseline fixes.
//!
//! An elasticity of 1 says that the prediction grows by one percent if the constant does. A figure that does not depend
//! on the storage, or that follows one such constant, is implied: a hit there says nothing of the mechanism.

use std::sync::atomic::Ordering;

use blk::Result;
use serde::Serialize;

use crate::experiment::{Experiment, Input, ModelledRun, Published, fitted};
use crate::reproduce::{JobObserver, in_parallel};
use crate::run::{ConstantSource, Phase, Quantity, Row, Use};
use crate::runner::RunObserver;
use crate::storage::StorageModel;
use crate::vmware::spec::ADJUSTMENTS;

/// Elasticity from which a figure follows a constant.
pub(crate) const FOLLOWS: f64 = 0.9;
/// Elasticity below which a figure does not depend on a constant of the storage. The random numbers of a load move rates by about one
/// percent, which is 0.05 at the change of [`RAISED`].
pub(crate) const INDEPENDENT: f64 = 0.1;
/// Ratio by which constants are changed.
const RAISED: f64 = 1.25;
/// Ratio of a device that is slower or faster as a whole, for figures that are yes or no.
const WHOLE: f64 = 4.0;

/// The matrix of one experiment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Matrix {
    pub experiment: String,
    pub hypothesis: String,
    /// What was changed, in the order of the elasticities.
    pub changes: Vec<Changed>,
    pub figures: Vec<Figure>,
}

/// A change, and its ratio to the value that the predictions are made with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Changed {
    pub constant: String,
    /// The constant is one of the storage.
    pub storage: bool,
    pub ratio: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Figure {
    pub phase: Phase,
    pub quantity: Quantity,
    pub stun: Option<u32>,
    pub published: Option<f64>,
    pub r#use: Use,
    pub predicted: Option<f64>,
    /// None where a run did not reach the figure, and for figures that are yes or no.
    pub elasticities: Vec<Option<f64>>,
    /// Elasticity to the times of the whole storage; None as above.
    pub storage: Option<f64>,
    /// The reason why the figure is implied; None: the mechanism decides it.
    pub implied: Option<String>,
    pub note: String,
}

impl Figure {
    /// Returns whether the experiment counts a figure that is implied.
    pub(crate) fn is_wrong(&self) -> bool {
        self.r#use == Use::Predict && self.implied.is_some()
    }
}

/// One run of the matrix.
struct Change {
    changed: Changed,
    run: ModelledRun,
}

/// Computes the matrix of an experiment under the hypothesis of its release.
///
/// Errors: `Cancelled`; a storage model that does not exist.
pub(crate) fn matrix(experiment: &Experiment, seed: u64, observer: JobObserver<'_>) -> Result<Matrix> {
    let experiment = Experiment { published: probes(&experiment.published), ..experiment.clone() };
    let hypothesis = experiment.own_stack().column(&experiment).name;
    let base = base(&experiment, &[], seed)?;
    let mut changes = of_storage(&base);
    changes.extend(of_mechanism(&base));
    changes.extend(of_unknowns(&experiment, seed)?);
    let whole = [RAISED, WHOLE, 1.0 / WHOLE];
    let mut runs: Vec<ModelledRun> = vec![base.clone()];
    for ratio in whole {
        runs.push(with_storage(&base, slower(&base.storage, ratio)));
    }
    runs.extend(changes.iter().map(|change| change.run.clone()));
    let name = |n: usize| match n.checked_sub(1 + whole.len()) {
        Some(n) => format!("{} {}", experiment.name, changes[n].changed.constant),
        None => experiment.name.clone(),
    };
    let rows = in_parallel(runs.len(), name, observer, |n| {
        let mut record = runs[n].run(RunObserver::until(observer.interrupted));
        record.rows.truncate(experiment.published.len());
        record.rows
    });
    // A run that was interrupted lacks figures, which would look like a dependence.
    let is_whole = !observer.interrupted.load(Ordering::Relaxed);
    let rows: Option<Vec<Vec<Row>>> = rows.into_iter().collect();
    let rows = rows.filter(|_| is_whole).ok_or_else(|| blk::Error::cancelled("sensitivity"))?;
    let (whole_rows, changed_rows) = rows[1..].split_at(whole.len());
    let changes: Vec<Changed> = changes.into_iter().map(|change| change.changed).collect();
    let figures = (0..experiment.published.len())
        .map(|n| figure(&rows[0][n], whole_rows, changed_rows, &changes, n))
        .collect();
    Ok(Matrix { experiment: experiment.name, hypothesis: hypothesis.into(), changes, figures })
}

/// Returns the cells with the stuns in place of lost pings, which are whole numbers and follow the stuns.
fn probes(published: &[Published]) -> Vec<Published> {
    let probe = |cell: &Published| match cell.quantity {
        Quantity::PingsLost => Published { quantity: Quantity::StunUs, ..cell.clone() },
        _ => cell.clone(),
    };
    published.iter().map(probe).collect()
}

fn base(experiment: &Experiment, known: &[(Input, u64)], seed: u64) -> Result<ModelledRun> {
    let storage = fitted::with_known(fitted::fitted(experiment, known, seed)?.model, known)?;
    let known = known.iter().fold(experiment.clone(), |e, (input, value)| e.with(*input, *value));
    let delta_storage = fitted::delta_model(&known, &storage)?;
    let stack = known.own_stack();
    Ok(ModelledRun { delta_storage, ..ModelledRun::new(known, stack, storage, seed) })
}

fn with_storage(base: &ModelledRun, storage: StorageModel) -> ModelledRun {
    ModelledRun { storage, ..base.clone() }
}

/// Returns the model with all times longer and all rates lower by a ratio, fitted constants included.
fn slower(model: &StorageModel, ratio: f64) -> StorageModel {
    model.constants().iter().filter(|c| c.value > 0.0).fold(model.clone(), |slower, constant| {
        let value = match constant.unit.as_str() {
            "ns" | "us" | "ms" | "s" => constant.value * ratio,
            "MB/s" | "GB/s" | "1/s" => constant.value / ratio,
            _ => return slower,
        };
        slower.with(&constant.name, value, constant.source, &constant.note).unwrap_or(slower)
    })
}

/// Returns a change for each constant of the storage that is not fitted and that can be raised.
fn of_storage(base: &ModelledRun) -> Vec<Change> {
    let free = |c: &&crate::run::Constant| c.source != ConstantSource::FittedToBaseline && c.value > 0.0;
    let change = |constant: &crate::run::Constant| {
        let raised = constant.value * RAISED;
        let raised = if constant.unit.is_empty() { raised.ceil() } else { raised };
        let storage = base.storage.with(&constant.name, raised, constant.source, &constant.note).ok()?;
        let changed =
            Changed { constant: constant.name.clone(), storage: true, ratio: raised / constant.value };
        Some(Change { changed, run: with_storage(base, storage) })
    };
    base.storage.constants().iter().filter(free).filter_map(change).collect()
}

fn of_mechanism(base: &ModelledRun) -> Vec<Change> {
    let change = |(name, adjust): &(&str, crate::vmware::spec::Adjust)| {
        let ratio = base.ratio_of(*adjust)?;
        let run = ModelledRun { adjust: Some(*adjust), ..base.clone() };
        Some(Change { changed: Changed { constant: (*name).into(), storage: false, ratio }, run })
    };
    ADJUSTMENTS.iter().filter_map(change).collect()
}

/// Returns a change for each other value of an input that is not published. The storage is fitted for each.
fn of_unknowns(experiment: &Experiment, seed: u64) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    // The call for a file is among the constants of the storage.
    for unknown in experiment.unknowns.iter().filter(|unknown| unknown.input != Input::FileCallUs) {
        let first = unknown.values[0];
        // Zero switches a mechanism on or off and has no ratio.
        for value in unknown.values[1..].iter().filter(|value| **value > 0 && first > 0) {
            let constant = format!("{} {value}", unknown.input.name());
            let run = base(experiment, &[(unknown.input, *value)], seed)?;
            let ratio = *value as f64 / first as f64;
            changes.push(Change { changed: Changed { constant, storage: false, ratio }, run });
        }
    }
    Ok(changes)
}

fn figure(row: &Row, whole: &[Vec<Row>], changed: &[Vec<Row>], changes: &[Changed], n: usize) -> Figure {
    let elasticity_of = |rows: &Vec<Row>, ratio: f64| elasticity(row, &rows[n], ratio);
    let elasticities: Vec<Option<f64>> =
        changed.iter().zip(changes).map(|(rows, change)| elasticity_of(rows, change.ratio)).collect();
    let storage = elasticity_of(&whole[0], RAISED);
    let moved = |rows: &Vec<Row>, e: Option<f64>| {
        e.map_or_else(|| rows[n].predicted != row.predicted, |e| e.abs() >= INDEPENDENT)
    };
    // Ratios do not change if all times do: each constant of the storage is looked at too.
    let of_storage = changes.iter().zip(changed).zip(&elasticities).filter(|((change, _), _)| change.storage);
    let depends = match row.quantity {
        // A wrong answer stays counted.
        Quantity::Converged => {
            row.published != row.predicted || whole.iter().any(|rows| rows[n].predicted != row.predicted)
        }
        _ => moved(&whole[0], storage) || of_storage.into_iter().any(|((_, rows), e)| moved(rows, *e)),
    };
    let implied =
        if depends { followed(&elasticities, changes) } else { Some("any storage yields it".into()) };
    Figure {
        phase: row.phase,
        quantity: row.quantity,
        stun: row.stun,
        published: row.published,
        r#use: row.r#use,
        predicted: row.predicted,
        elasticities,
        storage,
        implied: implied.filter(|_| row.predicted.is_some()),
        note: row.note.clone(),
    }
}

fn elasticity(row: &Row, other: &Row, ratio: f64) -> Option<f64> {
    let (value, changed) = (row.predicted?, other.predicted?);
    let defined = row.quantity != Quantity::Converged && value > 0.0 && changed > 0.0 && ratio != 1.0;
    defined.then(|| (changed / value).ln() / ratio.ln())
}

/// Returns the constant that the figure follows, if there is one.
fn followed(elasticities: &[Option<f64>], changes: &[Changed]) -> Option<String> {
    let size = |e: &Option<f64>| e.map_or(0.0, f64::abs);
    let (most, change) =
        elasticities.iter().zip(changes).max_by(|(a, _), (b, _)| size(a).total_cmp(&size(b)))?;
    (size(most) >= FOLLOWS).then(|| format!("follows {} by {:+.2}", change.constant, most.unwrap_or(0.0)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::experiment::find;

    fn of(experiment: &Experiment) -> Matrix {
        let interrupted = Arc::default();
        matrix(experiment, 1, JobObserver { progress: &|_| {}, interrupted: &interrupted }).unwrap()
    }

    fn find_figure(matrix: &Matrix, quantity: Quantity) -> &Figure {
        matrix.figures.iter().find(|f| f.quantity == quantity && f.phase == Phase::Commit).unwrap()
    }

    #[test]
    fn a_stun_that_follows_the_cost_of_a_call_is_implied_and_may_not_be_counted() {
        let mut experiment = find("sightler-5.5").unwrap();
        let matrix = of(&experiment);
        let stuns = find_figure(&matrix, Quantity::StunUs);
        assert!(stuns.implied.as_ref().is_some_and(|why| why.contains("calls.call")), "{stuns:?}");
        assert!(matrix.figures.iter().all(|figure| !figure.is_wrong()), "{matrix:?}");
        // The planted defect: the experiment counts it.
        experiment.published.retain(|cell| cell.quantity == Quantity::StunUs);
        experiment.published.iter_mut().for_each(|cell| cell.r#use = Use::Predict);
        assert!(find_figure(&of(&experiment), Quantity::StunUs).is_wrong());
    }

    #[test]
    fn elasticities_are_of_ratios_and_the_largest_one_is_followed() {
        let row =
            |value| Row { predicted: value, ..Row::measured("x", Phase::Commit, Quantity::Seconds, 0.0) };
        let e = elasticity(&row(Some(100.0)), &row(Some(125.0)), 1.25).unwrap();
        assert!((e - 1.0).abs() < 1e-9);
        assert_eq!(elasticity(&row(Some(100.0)), &row(None), 1.25), None);
        let changes =
            ["a", "b"].map(|constant| Changed { constant: constant.into(), storage: true, ratio: RAISED });
        assert_eq!(followed(&[Some(0.3), Some(-0.95)], &changes).unwrap(), "follows b by -0.95");
        assert_eq!(followed(&[Some(0.3), Some(-0.85)], &changes), None);
    }
}
