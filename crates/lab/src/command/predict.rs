use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use api::args::lab::PredictArgs;
use api::error::{Error, ErrorKind, Result};
use api::output::{self, Output};
use api::units::{format_bytes, format_seconds, format_us};

use crate::predict::{self, Accuracy, Answer, Band, Point, Prediction, Question, STACKS};
use crate::real::SurveyObserver;
use crate::reproduce::in_parallel;
use crate::run::{Constant, ConstantSource};
use crate::runner::RunObserver;
use crate::storage::StorageModel;
use crate::storage::measured::{Figure, Measured};

use super::real::Scratch;
use super::run::bar;

/// The model, and those of storage that is slower and faster by as much as the model was off.
struct Models {
    own: StorageModel,
    apart: Option<Apart>,
}

struct Apart {
    slower_by: f64,
    faster_by: f64,
    slower: StorageModel,
    faster: StorageModel,
}

impl Models {
    /// Returns the models in the order of the answers of one stack.
    fn all(&self) -> Vec<&StorageModel> {
        let apart = self.apart.iter().flat_map(|apart| [&apart.slower, &apart.faster]);
        std::iter::once(&self.own).chain(apart).collect()
    }
}

pub(super) fn run(args: &PredictArgs, output: Output) -> Result<()> {
    let models = models(args, output)?;
    let question = Question { iops: args.iops, read_percent: args.read, keep_s: args.keep, seed: args.seed };
    let all = models.all();
    let answers = super::with_bar(|observer| {
        let name = |n: usize| STACKS[n / all.len()].0.to_string();
        in_parallel(STACKS.len() * all.len(), name, observer, |n| {
            predict::ask(
                question,
                n / all.len(),
                all[n % all.len()],
                RunObserver::until(observer.interrupted),
            )
        })
    })?;
    let answers: Option<Vec<Answer>> = answers.into_iter().collect();
    let answers = answers.ok_or_else(|| Error::new(ErrorKind::Cancelled, "interrupted"))?;
    let predictions: Vec<Prediction> = answers.chunks(all.len()).map(|of| prediction(of, &models)).collect();
    output.result(&predictions, |predictions| table(predictions))
}

/// Returns the answers of one stack, which are in the order of `Models::all`.
fn prediction(answers: &[Answer], models: &Models) -> Prediction {
    let band = models.apart.as_ref().map(|Apart { slower_by, faster_by, .. }| Band {
        slower_by: *slower_by,
        faster_by: *faster_by,
        slower: answers[1].clone(),
        faster: answers[2].clone(),
    });
    Prediction { answer: answers[0].clone(), band }
}

/// Returns a model that ships, a user's model, or models measured in the directory of that name.
fn models(args: &PredictArgs, output: Output) -> Result<Models> {
    let dir = Path::new(&args.storage);
    if StorageModel::named(&args.storage).is_ok() || !dir.is_dir() {
        return Ok(Models { own: super::storage(&args.storage)?, apart: None });
    }
    let measured = survey(dir, args.seconds, args.read)?;
    let own = measured.model(&args.storage)?;
    let points = points(&measured, &own, args.seed);
    output.note(&figures(&measured, &points, &own));
    let accuracy = Accuracy::new(&args.storage, &measured, &points, args.read)?;
    output.note(&accuracy.text());
    accuracy.check(args.iops, args.accept_off)?;
    let Accuracy { slower_by, faster_by, .. } = accuracy;
    let slower = measured.slower(slower_by).model(&args.storage)?;
    let faster = measured.slower(1.0 / faster_by).model(&args.storage)?;
    Ok(Models { own, apart: Some(Apart { slower_by, faster_by, slower, faster }) })
}

pub(super) fn survey(dir: &Path, seconds: u32, read_percent: u8) -> Result<Measured> {
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
    let measured = crate::real::survey(folder.path(), f64::from(seconds), read_percent, observer);
    bar.finish_and_clear();
    Ok(measured?)
}

/// Returns the measured points with the model's rates for them.
pub(super) fn points(measured: &Measured, model: &StorageModel, seed: u64) -> Vec<Point> {
    let point = |figure: &Figure| Point {
        load: figure.load,
        measured: figure.iops,
        modelled: predict::rate(figure, model, seed),
    };
    measured.figures.iter().map(point).collect()
}

/// Returns a table of the measured figures and of the model's rates for them, and the model.
pub(super) fn figures(measured: &Measured, points: &[Point], model: &StorageModel) -> String {
    let mut table = output::table(&["measured", "IOPS", "mean", "the model's IOPS", "off", ""]);
    for (figure, point) in measured.figures.iter().zip(points) {
        let rate = point.modelled.map_or("-".into(), |iops| format!("{iops:.0}"));
        table.add_row([
            figure.load.text(),
            format!("{:.0}", figure.iops),
            format_us(figure.latency_us as u64),
            rate,
            point.ratio().map_or("-".into(), |ratio| format!("x {ratio:.2}")),
            if figure.load.is_fitted() { "fitted" } else { "held out" }.into(),
        ]);
    }
    output::align_right(&mut table, &[1, 2, 3, 4]);
    let mut text = format!("{table}\n\nthe model, on {}:\n", format_bytes(measured.file_bytes));
    for Constant { name, value, unit, source, note } in model.constants() {
        let word = if *source == ConstantSource::Measured { "measured" } else { "declared" };
        text += &format!("  {name} {value} {unit} ({word}: {note})\n");
    }
    text
}

fn table(predictions: &[Prediction]) -> String {
    let mut table = output::table(&COLUMNS.map(|(name, _)| name));
    for Prediction { answer, band } in predictions {
        let cell = |(_, show): Column| match band {
            None => show(answer),
            Some(Band { slower, faster, .. }) => banded(&show(answer), &show(slower), &show(faster)),
        };
        table.add_row(COLUMNS.map(cell));
    }
    output::align_right(&mut table, &[1, 2, 3, 4, 5, 6, 7, 8]);
    table.to_string()
}

/// Returns an answer with those on slower and on faster storage, unless all read the same.
fn banded(own: &str, slower: &str, faster: &str) -> String {
    match own == slower && own == faster {
        true => own.into(),
        false => format!("{own} ({slower} - {faster})"),
    }
}

/// The name of a column, and its content.
type Column = (&'static str, fn(&Answer) -> String);

const COLUMNS: [Column; 9] = [
    ("stack", |answer| answer.stack.into()),
    ("commit ends", ends),
    ("before", |answer| rate(answer.baseline_iops)),
    ("with snapshot", |answer| rate(answer.snapshot_iops)),
    ("committing", |answer| rate(answer.commit_iops)),
    ("99 %", |answer| answer.commit_p99_us.map_or("-".to_string(), |us| format_us(us as u64))),
    ("longest gap", |answer| format_us(answer.gap_us)),
    ("stuns", |answer| answer.stuns.to_string()),
    ("longest", |answer| format_us(answer.longest_stun_us)),
];

fn rate(value: Option<f64>) -> String {
    value.map_or("-".to_string(), |iops| format!("{iops:.0}/s"))
}

fn ends(answer: &Answer) -> String {
    match (&answer.failure, answer.commit_s) {
        (Some(why), _) => why.clone(),
        (None, Some(seconds)) => format!("after {}", format_seconds(seconds.ceil() as u64)),
        (None, None) => "not within an hour".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_band_is_shown_where_it_differs() {
        assert_eq!(banded("100/s", "100/s", "100/s"), "100/s");
        assert_eq!(
            banded("after 3 s", "not within an hour", "after 2 s"),
            "after 3 s (not within an hour - after 2 s)"
        );
    }
}
