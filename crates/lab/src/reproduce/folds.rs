//! The hypotheses chosen without the article that is scored, each article in turn.
//!
//! What VMware serialises and caches is not published, so a hypothesis that is chosen with all figures in view is a fit.
//! Here code chooses it, separately for each format of deltas: the one with the smallest loss over the counted figures
//! of all other articles. A format that no other article measured has no evidence; its figures count as missed.

use serde::Serialize;

use crate::experiment::{Experiment, Format};
use crate::report;
use crate::run::{Quantity, Record, Row, Use};

/// Largest loss of one figure, the logarithm of a factor of 4: beyond that a prediction is as wrong as any other, and so
/// are a figure that a run does not reach and a wrong yes or no.
const LOSS_MAX: f64 = 1.386_294_361_119_890_6;

/// One article and format.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Fold {
    pub article: String,
    pub format: Format,
    /// None: no other article measured this format.
    pub chosen: Option<String>,
    /// The mean loss of each hypothesis over the counted figures of the other articles, in the order of the columns.
    pub losses: Vec<Loss>,
    /// Counted figures of this article that the chosen hypothesis predicts, and all of them.
    pub within: usize,
    pub of: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Loss {
    pub hypothesis: String,
    pub mean: f64,
    pub figures: usize,
}

/// Returns a fold for each article about VMware and format with a counted figure, in the order of the experiments.
pub(crate) fn folds(experiments: &[Experiment], records: &[Record]) -> Vec<Fold> {
    let mut keys: Vec<(&str, Format)> = Vec::new();
    for experiment in experiments {
        let is_vmware = experiment.peer.is_none();
        let key = experiment
            .article
            .as_deref()
            .filter(|_| is_vmware)
            .map(|article| (article, experiment.esx.format));
        let counts = experiment.published.iter().any(|cell| cell.r#use == Use::Predict);
        if let Some(key) = key.filter(|key| counts && !keys.contains(key)) {
            keys.push(key);
        }
    }
    keys.into_iter().map(|(article, format)| fold(experiments, records, article, format)).collect()
}

fn fold(experiments: &[Experiment], records: &[Record], article: &str, format: Format) -> Fold {
    let of = |record: &&Record, same: bool| {
        let experiment = experiments
            .iter()
            .find(|e| e.name == record.experiment && e.esx.format == format && e.peer.is_none());
        let source = experiment.and_then(|e| e.article.as_deref());
        source.is_some_and(|source| (source == article) == same)
    };
    let losses = losses(records.iter().filter(|record| of(record, false)));
    let chosen = losses.iter().min_by(|a, b| a.mean.total_cmp(&b.mean)).map(|loss| loss.hypothesis.clone());
    let (mut within, mut all) = (0, 0);
    let mut seen: Vec<&str> = Vec::new();
    for record in records.iter().filter(|record| of(record, true) && record.hypothesis.is_some()) {
        // Without a choice any column has the number of figures.
        let is_column = chosen.as_ref().map_or(!seen.contains(&record.experiment.as_str()), |chosen| {
            record.hypothesis.as_ref() == Some(chosen)
        });
        if is_column {
            seen.push(&record.experiment);
            let (hits, counted) = score(record);
            (within, all) = (within + if chosen.is_some() { hits } else { 0 }, all + counted);
        }
    }
    Fold { article: article.into(), format, chosen, losses, within, of: all }
}

/// Returns how many counted figures of a record are right, and how many there are.
pub(super) fn score(record: &Record) -> (usize, usize) {
    let groups = report::comparisons(std::slice::from_ref(record));
    groups.iter().map(|group| group.score(0)).fold((0, 0), |(a, b), (c, d)| (a + c, b + d))
}

fn losses<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<Loss> {
    let mut losses: Vec<Loss> = Vec::new();
    for record in records {
        let Some(hypothesis) = &record.hypothesis else { continue };
        let counted = record.rows.iter().filter(|row| row.r#use == Use::Predict && row.published.is_some());
        let each: Vec<f64> = counted.map(loss).collect();
        if each.is_empty() {
            continue;
        }
        let place = losses.iter().position(|loss| loss.hypothesis == *hypothesis).unwrap_or_else(|| {
            losses.push(Loss { hypothesis: hypothesis.clone(), mean: 0.0, figures: 0 });
            losses.len() - 1
        });
        let known = &mut losses[place];
        let sum = known.mean * known.figures as f64 + each.iter().sum::<f64>();
        known.figures += each.len();
        known.mean = sum / known.figures as f64;
    }
    losses
}

/// Returns the loss of one figure: the size of the logarithm of predicted by published, at most [`LOSS_MAX`].
fn loss(row: &Row) -> f64 {
    match (row.published, row.predicted) {
        _ if report::is_kept(row) => 0.0,
        (Some(published), Some(predicted))
            if row.quantity != Quantity::Converged && published > 0.0 && predicted > 0.0 =>
        {
            (predicted / published).ln().abs().min(LOSS_MAX)
        }
        _ => LOSS_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::find;
    use crate::run::{Clock, Phase};

    fn record(experiment: &str, hypothesis: &str, predicted: Option<f64>) -> Record {
        let row = Row {
            published: Some(100.0),
            predicted,
            r#use: Use::Predict,
            ..Row::measured(experiment, Phase::Snapshot, Quantity::Iops, 0.0)
        };
        let head = Record::head(experiment, "esx", "", Clock::Virtual, 1);
        Record { hypothesis: Some(hypothesis.into()), rows: vec![row], ..head }
    }

    #[test]
    fn an_article_is_scored_by_the_choice_of_the_others() {
        let experiments: Vec<Experiment> =
            ["zandboer-saturated", "v7000-sas", "powerstore-vmfs"].map(|name| find(name).unwrap()).into();
        let records = [
            record("zandboer-saturated", "io-lock", Some(100.0)),
            record("zandboer-saturated", "concurrent", Some(300.0)),
            record("v7000-sas", "io-lock", Some(1000.0)),
            record("v7000-sas", "concurrent", Some(110.0)),
            record("powerstore-vmfs", "io-lock", Some(100.0)),
            record("powerstore-vmfs", "concurrent", None),
        ];
        let folds = folds(&experiments, &records);
        let seen: Vec<_> =
            folds.iter().map(|f| (f.article.as_str(), f.chosen.as_deref(), f.within, f.of)).collect();
        let expected = [
            // The other article of the format prefers the hypothesis that misses here.
            ("zandboer 2009", Some("concurrent"), 0, 1),
            ("kanap 2015", Some("io-lock"), 0, 1),
            // No other article measured SEsparse: the perfect column counts for nothing.
            ("nahumi 2021", None, 0, 1),
        ];
        assert_eq!(seen, expected);
        assert_eq!(folds[0].losses[0].mean, LOSS_MAX, "ten times too much is as wrong as four times");
        assert!((folds[0].losses[1].mean - 1.1f64.ln()).abs() < 1e-9);
    }
}
