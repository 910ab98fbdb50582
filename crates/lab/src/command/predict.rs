use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use api::args::lab::PredictArgs;
use api::error::{Error, ErrorKind, Result};
use api::output::{self, Output};
use api::units::{format_bytes, format_seconds, format_us};

use crate::predict::{self, Answer, Question, STACKS};
use crate::real::SurveyObserver;
use crate::reproduce::in_parallel;
use crate::run::{Constant, ConstantSource};
use crate::runner::RunObserver;
use crate::storage::StorageModel;
use crate::storage::measured::Measured;

use super::real::Scratch;
use super::run::bar;

pub(super) fn run(args: &PredictArgs, output: Output) -> Result<()> {
    let storage = storage(args, output)?;
    let question = Question { iops: args.iops, read_percent: args.read, keep_s: args.keep, seed: args.seed };
    let answers = super::with_bar(|observer| {
        let name = |n: usize| STACKS[n].0.to_string();
        in_parallel(STACKS.len(), name, observer, |n| {
            predict::ask(question, n, &storage, RunObserver::until(observer.interrupted))
        })
    })?;
    let answers: Option<Vec<Answer>> = answers.into_iter().collect();
    let answers = answers.ok_or_else(|| Error::new(ErrorKind::Cancelled, "interrupted"))?;
    output.result(&answers, |answers| table(answers))
}

/// Returns a model that ships, a user's model, or a model measured in the directory of that name.
fn storage(args: &PredictArgs, output: Output) -> Result<StorageModel> {
    let dir = Path::new(&args.storage);
    if StorageModel::named(&args.storage).is_ok() || !dir.is_dir() {
        return super::storage(&args.storage);
    }
    let measured = survey(dir, args.seconds)?;
    let model = measured.model(&args.storage)?;
    output.note(&figures(&measured, &model, args.seed));
    Ok(model)
}

pub(super) fn survey(dir: &Path, seconds: u32) -> Result<Measured> {
    let (bar, folder) = (bar()?, Scratch::make(dir, "unstun-survey")?);
    let interrupted = super::interruption()?;
    let shown = bar.clone();
    let observer: SurveyObserver = Rc::new(move |what| {
        shown.set_message(format!("measuring: {what}"));
        match interrupted.load(Ordering::Relaxed) {
            true => Err(blk::Error::new(blk::ErrorKind::Cancelled, what, "interrupted")),
            false => Ok(()),
        }
    });
    let measured = crate::real::survey(folder.path(), f64::from(seconds), observer);
    bar.finish_and_clear();
    Ok(measured?)
}

/// Returns a table of the measured figures and of the model's rates for them, and the model.
pub(super) fn figures(measured: &Measured, model: &StorageModel, seed: u64) -> String {
    let mut table = output::table(&["measured", "IOPS", "mean", "the model's IOPS"]);
    for figure in &measured.figures {
        let modelled = predict::rate(figure, model, seed);
        table.add_row([
            figure.load.text(),
            format!("{:.0}", figure.iops),
            format_us(figure.latency_us as u64),
            modelled.map_or("-".into(), |iops| format!("{iops:.0}")),
        ]);
    }
    output::align_right(&mut table, &[1, 2, 3]);
    let mut text = format!("{table}\n\nthe model, on {}:\n", format_bytes(measured.file_bytes));
    for Constant { name, value, unit, source, note } in model.constants() {
        let word = if *source == ConstantSource::Measured { "measured" } else { "declared" };
        text += &format!("  {name} {value} {unit} ({word}: {note})\n");
    }
    text
}

fn table(answers: &[Answer]) -> String {
    let mut table = output::table(&[
        "stack",
        "commit ends",
        "before",
        "with snapshot",
        "committing",
        "99 %",
        "longest gap",
        "stuns",
        "longest",
    ]);
    for answer in answers {
        let rate = |value: Option<f64>| value.map_or("-".to_string(), |iops| format!("{iops:.0}/s"));
        table.add_row([
            answer.stack.to_string(),
            ends(answer),
            rate(answer.baseline_iops),
            rate(answer.snapshot_iops),
            rate(answer.commit_iops),
            answer.commit_p99_us.map_or("-".to_string(), |us| format_us(us as u64)),
            format_us(answer.gap_us),
            answer.stuns.to_string(),
            format_us(answer.longest_stun_us),
        ]);
    }
    output::align_right(&mut table, &[1, 2, 3, 4, 5, 6, 7, 8]);
    table.to_string()
}

fn ends(answer: &Answer) -> String {
    match (&answer.failure, answer.commit_s) {
        (Some(why), _) => why.clone(),
        (None, Some(seconds)) => format!("after {}", format_seconds(seconds.ceil() as u64)),
        (None, None) => "not within an hour".into(),
    }
}
