use api::args::lab::ReproduceArgs;
use api::error::Result;
use api::output::Output;

use crate::experiment::{self, Experiment};
use crate::report::{self, text};
use crate::reproduce;
use crate::run::Record;

use super::save;

pub(super) fn run(args: &ReproduceArgs, output: Output) -> Result<()> {
    let experiments = wanted(&args.experiments)?;
    let records = super::with_bar(|observer| reproduce::reproduce(&experiments, args.seed, observer))??;
    save::keep(args.output.as_deref(), output, &records)?;
    if output.is_json() {
        return output.json(&reproduce::document(&records));
    }
    output.text(&describe(&records))
}

fn wanted(names: &[String]) -> Result<Vec<Experiment>> {
    if names.is_empty() {
        return Ok(experiment::shipped()?);
    }
    Ok(names.iter().map(|name| experiment::find(name)).collect::<Result<_, _>>()?)
}

/// Returns a table for each experiment, with its storage and notes below it, and at the end the joint result of the
/// frozen defaults.
fn describe(records: &[Record]) -> String {
    let mut text = String::new();
    let (mut within, mut all) = (0, 0);
    for of_one in records.chunk_by(|a, b| a.experiment == b.experiment) {
        text += &text::rows(of_one);
        for group in report::comparisons(of_one) {
            let (hits, counted) = group.score(group.default_column());
            (within, all) = (within + hits, all + counted);
        }
        text += &foot(&of_one[0]);
        text.push('\n');
    }
    text += LEGEND;
    if all > 0 {
        text += &format!("Frozen defaults together: {within} of {all} predicted figures within 25 %.\n");
    }
    text
}

const LEGEND: &str = "A range in brackets is the band over unpublished inputs. * is a predicted figure that \
misses by more than 25 %, or that the run did not come to.\nThe first column is the frozen default of the ESX version; redo and native are this project's engine in VMware's place.\n";

fn foot(record: &Record) -> String {
    let Record { storage, notes, .. } = record;
    let fitted = reproduce::count_fitted(record);
    let mut foot = format!("storage {storage}, {fitted} constants fitted to the baseline\n");
    for note in notes {
        foot += &format!("  {note}\n");
    }
    foot
}
