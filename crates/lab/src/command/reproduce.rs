use std::sync::atomic::Ordering;

use api::args::lab::ReproduceArgs;
use api::error::{Error, ErrorKind, Result};
use api::output::{self, Output};

use crate::experiment::claims::claims;
use crate::experiment::{self, Experiment, frozen};
use crate::report::{self, text};
use crate::reproduce::{self, Fold};
use crate::run::Record;

use super::save;

pub(super) fn run(args: &ReproduceArgs, output: Output) -> Result<()> {
    let experiments = wanted(&args.experiments)?;
    let (records, is_whole) = super::with_bar(|observer| {
        let records = reproduce::reproduce(&experiments, args.seed, observer);
        (records, !observer.interrupted.load(Ordering::Relaxed))
    })?;
    let records = records?;
    save::keep(args.output.as_deref(), output, &records)?;
    // A choice on the other articles needs all of them.
    let folds = match args.experiments.is_empty() && is_whole {
        true => reproduce::folds(&experiments, &records),
        false => Vec::new(),
    };
    match output.is_json() {
        true => output.json(&reproduce::document(&records, &folds))?,
        false => output.text(&(describe(&records) + &describe_folds(&folds)))?,
    }
    match &args.index {
        Some(file) if !is_whole => {
            let cause = format!("interrupted: {} was not written", file.display());
            Err(Error::new(ErrorKind::Cancelled, cause))
        }
        Some(file) => save::file(file, index(&experiments, &records, &folds)?.as_bytes()),
        None => Ok(()),
    }
}

pub(super) fn wanted(names: &[String]) -> Result<Vec<Experiment>> {
    if names.is_empty() {
        return Ok(experiment::shipped()?);
    }
    Ok(names.iter().map(|name| experiment::find(name)).collect::<Result<_, _>>()?)
}

/// Returns the page `docs/published.md`.
fn index(experiments: &[Experiment], records: &[Record], folds: &[Fold]) -> Result<String> {
    let claims = report::index::markdown(&claims()?, experiments, records);
    let state = frozen::state();
    Ok(format!(
        "# What the articles say, and what the model makes of it\n\n\
         Made by `unstun lab reproduce --index docs/published.md`. Frozen state of the models: {state}. {INDEX}\n\
         {score}\n```text{folds}```\n{claims}",
        score = joint_score(records),
        folds = describe_folds(folds),
    ))
}

const INDEX: &str = "A *predicted* figure is counted: it \
is within 25 % (yes or no: exact; a bound: kept), or missed, also where the run does not reach it. A *baseline* is what the \
storage model is fitted to, an *input* is put in, an *implied* figure comes out of any storage or follows one constant that no \
baseline fixes (`unstun lab sensitivity`). The answers of articles 000 to 004 had been seen by those who built the models. In brackets: where the \
claim was read, if not in a stored copy of the page.\n";

/// Figures that are predicted and implied, and those of each that are right.
#[derive(Default)]
struct Score {
    within: usize,
    all: usize,
    implied_within: usize,
    implied: usize,
}

impl Score {
    /// Returns the score of the default columns: of VMware's, or of those of other stacks.
    fn of(records: &[Record], peers: bool) -> Score {
        let is_peer =
            |record: &Record| record.hypothesis.is_none() && record.rows.iter().any(|row| row.default);
        let mut score = Score::default();
        let groups = records.chunk_by(|a, b| a.experiment == b.experiment);
        for of_one in groups.filter(|of_one| of_one.iter().any(is_peer) == peers) {
            for group in report::comparisons(of_one) {
                let column = group.default_column();
                let ((hits, counted), (other, others)) = (group.score(column), group.implied_score(column));
                (score.within, score.all) = (score.within + hits, score.all + counted);
                score.implied_within += other;
                score.implied += others;
            }
        }
        score
    }
}

/// Returns the joint result of the frozen defaults, and that of other stacks; empty if no figure is counted.
fn joint_score(records: &[Record]) -> String {
    let [esx, peers] = [false, true].map(|peers| Score::of(records, peers));
    let mut text = String::new();
    if esx.all > 0 {
        let Score { within, all, implied_within, implied } = esx;
        text += &format!(
            "Frozen defaults together: {within} of {all} predicted figures within 25 %. They were chosen with these figures \
             in view.\nNot counted: {implied} implied figures, {implied_within} of them within 25 %.\n"
        );
    }
    if peers.all + peers.implied > 0 {
        let Score { within, all, implied_within, implied } = peers;
        text += &format!(
            "Other stacks than VMware's together: {within} of {all} predicted figures within 25 %.\n\
             Not counted: {implied} implied figures, {implied_within} of them within 25 %.\n"
        );
    }
    text
}

/// Returns a table for each experiment, with its storage and notes below it, and at the end the joint result of the
/// frozen defaults.
fn describe(records: &[Record]) -> String {
    let mut text = String::new();
    for of_one in records.chunk_by(|a, b| a.experiment == b.experiment) {
        text += &text::rows(of_one);
        text += &foot(&of_one[0]);
        text.push('\n');
    }
    text + LEGEND + &joint_score(records)
}

/// Returns a table of what code chooses for each article without its figures, and the joint result.
fn describe_folds(folds: &[Fold]) -> String {
    if folds.is_empty() {
        return String::new();
    }
    let mut table =
        output::table(&["article", "format", "chosen on the others", "within 25 %", "mean loss of each"]);
    for Fold { article, format, chosen, losses, within, of } in folds {
        let losses: Vec<String> =
            losses.iter().map(|loss| format!("{} {:.2}", loss.hypothesis, loss.mean)).collect();
        table.add_row([
            article.clone(),
            format.name().into(),
            chosen.clone().unwrap_or_else(|| "no evidence, no prediction".into()),
            format!("{within} of {of}"),
            losses.join(", "),
        ]);
    }
    let (within, of) = folds.iter().fold((0, 0), |(a, b), fold| (a + fold.within, b + fold.of));
    format!(
        "\nThe hypothesis that code chooses on all other articles, by the mean of |ln(predicted / published)|, at most ln 4 \
         each:\n{table}\nWithout the article that is scored: {within} of {of} predicted figures within 25 %.\n"
    )
}

const LEGEND: &str = "A range in brackets is the band over unpublished inputs. * is a predicted figure that \
misses by more than 25 %, or that the run did not come to.\nThe first column is the frozen default of the ESX version; redo and native are this project's engine in VMware's place.\n";

fn foot(record: &Record) -> String {
    let Record { storage, notes, .. } = record;
    let fitted = reproduce::count_fitted(record);
    let mut foot =
        format!("storage {storage}, {fitted} constants fitted to the baseline; model {}\n", record.model);
    for note in notes {
        foot += &format!("  {note}\n");
    }
    foot
}
