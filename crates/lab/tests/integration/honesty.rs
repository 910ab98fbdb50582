//! Tests what a fit uses: baselines only. They change the figures that are to be predicted; no constant may change.

use lab::experiment::{Experiment, Stack, find, fitted, shipped};
use lab::run::{Constant, ConstantSource, Use};
use lab::vmware::rules::Hypothesis;
use lab::vmware::spec::Version;

const SEED: u64 = 1;

fn constants(experiment: &Experiment) -> Vec<Constant> {
    let fitted = fitted::fitted(experiment, &[], SEED).expect("its model is known");
    assert!(fitted.notes.is_empty(), "{}: {:?}", experiment.name, fitted.notes);
    let all = fitted.model.constants().iter();
    all.filter(|c| c.source == ConstantSource::FittedToBaseline).cloned().collect()
}

/// Changes every figure except those of the baseline, and removes the unknowns.
fn with_other_predictions(experiment: &Experiment) -> Experiment {
    let mut other = experiment.clone();
    for cell in other.published.iter_mut().filter(|cell| cell.r#use != Use::Baseline) {
        cell.value = cell.value.map(|value| value * 3.0 + 1.0);
    }
    other.unknowns.clear();
    other
}

fn with_another_baseline(experiment: &Experiment) -> Experiment {
    let mut other = experiment.clone();
    for cell in other.published.iter_mut().filter(|cell| cell.r#use == Use::Baseline) {
        cell.value = cell.value.map(|value| value * 0.8);
    }
    other
}

#[test]
fn a_fit_depends_on_the_baseline_and_on_nothing_else() {
    for name in ["zandboer-saturated", "powerstore-vmfs", "v7000-sas", "v7000-tiered"] {
        let experiment = find(name).unwrap();
        let fitted = constants(&experiment);
        assert_eq!(fitted.len(), experiment.fits.len(), "{name}");
        assert_eq!(constants(&with_other_predictions(&experiment)), fitted, "{name}");
        assert_ne!(constants(&with_another_baseline(&experiment)), fitted, "{name}");
    }
}

#[test]
fn no_more_is_fitted_than_a_baseline_says() {
    for experiment in shipped().unwrap() {
        let cells = experiment.published.iter().filter(|c| c.r#use == Use::Baseline && c.value.is_some());
        assert!(experiment.fits.len() <= cells.count().min(2), "{}", experiment.name);
    }
}

/// The guide names the published figures that were in view when the defaults were chosen. No result of a run changes
/// them.
#[test]
fn the_frozen_defaults_stay_what_they_are() {
    for experiment in shipped().unwrap() {
        let frozen = match experiment.esx.release {
            Version::Esx35 | Version::Esx40 | Version::Esx50 | Version::Esx55 => Hypothesis::IoLockBlind,
            Version::Esx60 | Version::Esx70 => Hypothesis::ConcurrentCached,
        };
        assert_eq!(experiment.esx.hypothesis(), frozen, "{}", experiment.name);
        assert!(Stack::Esx(frozen).column(&experiment).default);
    }
}
