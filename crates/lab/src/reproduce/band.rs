//! Values of inputs that are not published: one run for each value, and the band of their predictions.

use super::folds::score;
use crate::experiment::{Experiment, Input};
use crate::run::{Record, Row};

/// An experiment with values for its unknowns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Variant {
    /// Index of the experiment.
    pub experiment: usize,
    /// Values that differ from the first ones; empty: the run that is shown.
    pub known: Vec<(Input, u64)>,
}

/// Returns the variants, with the shown run first for each experiment. Unknowns vary one at a time: a grid of them
/// would be wider without more information.
pub(super) fn variants(experiments: &[Experiment]) -> Vec<Variant> {
    let of = |(number, experiment): (usize, &Experiment)| {
        let others = experiment.unknowns.iter().flat_map(move |unknown| {
            let rest = unknown.values.iter().skip(1);
            rest.map(move |value| Variant { experiment: number, known: vec![(unknown.input, *value)] })
        });
        let shown = Variant { experiment: number, known: Vec::new() };
        [shown].into_iter().chain(others).collect::<Vec<_>>()
    };
    experiments.iter().enumerate().flat_map(of).collect()
}

/// Returns the first record, with bands over all records. Their rows are the same cells in the same order. A note says
/// how many counted figures each other value predicts.
pub(super) fn join(records: Vec<(&Variant, Record)>) -> Record {
    let mut records = records.into_iter();
    let (_, mut shown) = records.next().expect("a column has a run");
    let (hits, counted) = score(&shown);
    for (variant, other) in records {
        for (input, value) in variant.known.iter().filter(|_| counted > 0) {
            let (with, _) = score(&other);
            let name = input.name();
            shown.notes.push(format!(
                "With {name} = {value}, {with} of {counted} predicted figures are within 25 %; as shown, {hits}."
            ));
        }
        for row in &mut shown.rows {
            let same = |r: &&Row| (r.phase, r.quantity, &r.note) == (row.phase, row.quantity, &row.note);
            if let Some(same) = other.rows.iter().find(same) {
                row.band = widest(row, same);
            }
        }
    }
    shown
}

fn widest(row: &Row, other: &Row) -> Option<(f64, f64)> {
    let ends = |row: &Row| row.band.or(row.predicted.map(|p| (p, p)));
    match (ends(row), ends(other)) {
        (Some((low, high)), Some((l, h))) => Some((low.min(l), high.max(h))),
        (one, other) => one.or(other),
    }
}
