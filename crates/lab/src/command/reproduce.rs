use api::args::lab::ReproduceArgs;
use api::error::Result;
use api::output::Output;
use api::progress;

use crate::experiment::{self, Experiment};
use crate::report::{self, text};
use crate::reproduce::{self, Onlooker, Progress, Reproduced};
use crate::run::Record;

use super::save;

pub(super) fn run(args: &ReproduceArgs, output: Output) -> Result<()> {
    let experiments = wanted(&args.experiments)?;
    let bar = progress::bar(0)?;
    let show = |Progress { done, of, name }| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
        bar.set_message(name);
    };
    let interrupted = super::interruption()?;
    let onlooker = Onlooker { progress: &show, interrupted: &interrupted };
    let reproduced = reproduce::reproduce(&experiments, args.seed, onlooker)?;
    bar.finish_and_clear();
    if let Some(dir) = &args.output {
        let records: Vec<Record> = reproduced.iter().map(|one| one.record.clone()).collect();
        save::records(dir, &records)?;
        output.note(&format!("kept in {}", dir.display()));
    }
    if output.is_json() {
        return output.json(&reproduce::document(&reproduced));
    }
    output.text(&describe(&reproduced))
}

fn wanted(names: &[String]) -> Result<Vec<Experiment>> {
    if names.is_empty() {
        return Ok(experiment::shipped()?);
    }
    Ok(names.iter().map(|name| experiment::find(name)).collect::<Result<_, _>>()?)
}

/// Returns a table for each experiment, with its storage and notes below it, and at the end the joint result of the
/// frozen defaults.
fn describe(reproduced: &[Reproduced]) -> String {
    let mut text = String::new();
    let (mut within, mut all) = (0, 0);
    for of_one in reproduced.chunk_by(|a, b| a.record.experiment == b.record.experiment) {
        let records: Vec<Record> = of_one.iter().map(|one| one.record.clone()).collect();
        text += &text::rows(&records);
        for group in report::comparisons(&records) {
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

fn foot(one: &Reproduced) -> String {
    let Record { storage, notes, .. } = &one.record;
    let mut foot = format!("storage {storage}, {} constants fitted to the baseline\n", one.fitted);
    for note in notes {
        foot += &format!("  {note}\n");
    }
    foot
}
