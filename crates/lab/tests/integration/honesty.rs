//! Tests what a fit uses: baselines only. They change the figures that are to be predicted; no constant may change.

use lab::experiment::{Experiment, Stack, find, fitted, shipped};
use lab::run::{Constant, ConstantSource, Quantity, Use};
use lab::storage::StorageModel;
use lab::vmware::rules::Hypothesis;
use lab::vmware::spec::{Spec, Version};

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
        assert!(experiment.own_stack().column(&experiment).default, "{}", experiment.name);
        let of_esx = Stack::Esx(frozen).column(&experiment).default;
        assert_eq!(of_esx, experiment.peer.is_none(), "{}", experiment.name);
    }
}

/// Returns a constant that is a time, in microseconds, or a rate of events, in events a second.
fn as_figure(constant: &Constant) -> Option<(bool, f64)> {
    let us = |factor: f64| Some((true, constant.value * factor));
    match constant.unit.as_str() {
        "ns" => us(1e-3),
        "us" => us(1.0),
        "ms" => us(1e3),
        "s" => us(1e6),
        "1/s" => Some((false, constant.value)),
        _ => None,
    }
}

/// Returns the declared constants of an experiment's model that equal one of its counted figures within one percent.
fn put_in(experiment: &Experiment) -> Vec<String> {
    let mut constants = StorageModel::named(&experiment.storage).unwrap().constants().to_vec();
    constants.extend(Spec::esx(experiment.esx.release, experiment.disk_bytes()).constants());
    constants.extend(experiment.declared());
    // A bound is not the figure.
    let counted =
        experiment.published.iter().filter(|cell| cell.r#use == Use::Predict && cell.bound.is_none());
    let figures: Vec<(bool, f64)> = counted
        .filter_map(|cell| match cell.quantity {
            Quantity::Seconds => Some((true, cell.value? * 1e6)),
            Quantity::StunUs | Quantity::StunSpanUs | Quantity::StunGapUs | Quantity::LatencyUs => {
                Some((true, cell.value?))
            }
            Quantity::Iops | Quantity::ReadsPerS | Quantity::WritesPerS => Some((false, cell.value?)),
            _ => None,
        })
        .collect();
    let is_figure = |constant: &Constant| {
        as_figure(constant).is_some_and(|(is_time, value)| {
            figures.iter().any(|(time, figure)| *time == is_time && (value / figure - 1.0).abs() <= 0.01)
        })
    };
    let declared = constants.iter().filter(|constant| constant.source == ConstantSource::Declared);
    declared.filter(|constant| is_figure(constant)).map(|constant| constant.name.clone()).collect()
}

#[test]
fn no_declared_constant_equals_a_counted_figure() {
    for experiment in shipped().unwrap() {
        assert_eq!(put_in(&experiment), [""; 0], "{}", experiment.name);
    }
    // The planted defect: a figure that is the cost of a call.
    let mut planted = find("sightler-6.0").unwrap();
    let gap = planted.published.iter_mut().find(|cell| cell.quantity == Quantity::StunGapUs).unwrap();
    gap.value = Some(1000.0);
    assert!(put_in(&planted).iter().any(|name| name.contains("call")), "{:?}", put_in(&planted));
}
