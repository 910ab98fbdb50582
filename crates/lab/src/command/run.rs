use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use api::args::lab::{HookArgs, RunArgs, SubjectArg};
use api::error::{Error, ErrorKind, Result};
use api::output::Output;
use api::units::format_seconds;

use crate::experiment::{self, Experiment, ModelledRun, Scaled, fitted};
use crate::report::text;
use crate::run::{Clock, End, Record};
use crate::runner::{Plan, Progress, RunObserver};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::real::{self, HOOKS, Scratch};
use super::save;

/// Returns the exit code. A failed run is a result, and the exit code is still that of a failure.
pub(super) fn run(args: &RunArgs, output: Output) -> Result<u8> {
    let experiment = experiment::find(&args.experiment)?;
    let bar = bar()?;
    let shown = bar.clone();
    let observer = RunObserver {
        progress: Rc::new(move |progress| shown.set_message(describe(progress))),
        interrupted: super::interruption()?,
    };
    let record = match &args.real {
        Some(dir) => on_real(&experiment, args, dir, observer, output)?,
        None => modelled(experiment, args, observer)?,
    };
    bar.finish_and_clear();
    finish(&record, args, output)
}

fn modelled(experiment: Experiment, args: &RunArgs, observer: RunObserver) -> Result<Record> {
    let stack = match (&args.subject, &args.hypothesis) {
        (None, None) => experiment.own_stack(),
        (subject, hypothesis) => {
            let subject = super::modelled(subject.as_deref().unwrap_or("esx"))?;
            super::stack(subject, hypothesis.as_deref(), experiment.esx.hypothesis())?
        }
    };
    let set_up = set_up(experiment, args.storage.as_deref(), args.seed)?;
    let record = ModelledRun { stack, command: command(args), path: lines(args)?, ..set_up }.run(observer);
    Ok(Record { began_unix_us: now_unix_us(), ..record })
}

/// Runs on real storage. Notes on the scaling are printed before the run, and kept in its record.
fn on_real(
    experiment: &Experiment,
    args: &RunArgs,
    dir: &Path,
    observer: RunObserver,
    output: Output,
) -> Result<Record> {
    let own = if args.hooks.target.is_empty() { "native" } else { HOOKS };
    let name = args.subject.as_deref().unwrap_or(own);
    let stack = real::stack(name, &args.hooks)?;
    let scaled = real::scale(experiment, &stack, dir, args.minutes.seconds())?;
    scaled.notes.iter().for_each(|note| output.note(note));
    let folder = Scratch::make(dir, &format!("unstun-run-{name}"))?;
    let Scaled { disk_bytes, workload, protocol, notes } = scaled;
    let head = experiment.head(name, &dir.display().to_string(), Clock::Real, args.seed);
    let head = Record { command: command(args), notes, ..head };
    let plan = Plan { head, workload, protocol, path: lines(args)? };
    let record = real::run(&stack, &folder, &disk_bytes, plan, observer)?;
    Ok(Record { subject: name.to_string(), ..record })
}

/// Returns the file in which the run is kept while it goes on.
fn lines(args: &RunArgs) -> Result<Option<PathBuf>> {
    let Some(dir) = &args.output else { return Ok(None) };
    save::folder(dir)?;
    Ok(Some(dir.join(save::LINES)))
}

/// Sets up the experiment on the given storage, or on its own storage, fitted. The stack is a flat file.
pub(super) fn set_up(mut experiment: Experiment, storage: Option<&str>, seed: u64) -> Result<ModelledRun> {
    let storage = match storage {
        Some(name) => fitted::scaled(&experiment, super::storage(name)?)?,
        None => {
            let fitted = fitted::fitted(&experiment, &[], seed)?;
            experiment.notes.extend(fitted.notes);
            fitted.model
        }
    };
    let delta_storage = fitted::delta_model(&experiment, &storage)?;
    let stack = super::stack(SubjectArg::Plain, None, experiment.esx.hypothesis())?;
    Ok(ModelledRun { delta_storage, ..ModelledRun::new(experiment, stack, storage, seed) })
}

fn command(args: &RunArgs) -> String {
    let mut words = vec!["unstun lab run".to_string(), quoted(&args.experiment)];
    words.push(format!("--seed {}", args.seed));
    let mut option = |name: &str, value: Option<&str>| {
        words.extend(value.map(|value| format!("--{name} {}", quoted(value))));
    };
    option("subject", args.subject.as_deref());
    option("hypothesis", args.hypothesis.as_deref());
    option("storage", args.storage.as_deref());
    if let Some(dir) = &args.real {
        option("real", dir.to_str());
        option("minutes", Some(&args.minutes.minutes.to_string()));
    }
    let HookArgs { target, take, commit, frozen, hook_limit, rbd } = &args.hooks;
    option("rbd", args.subject.as_ref().filter(|subject| *subject == "rbd").map(|_| rbd.as_str()));
    target.iter().for_each(|target| option("target", Some(target)));
    option("take", take.as_deref());
    option("commit", commit.as_deref());
    frozen.iter().for_each(|place| option("frozen", Some(place)));
    option("hook-limit", take.as_ref().map(|_| hook_limit.to_string()).as_deref());
    words.join(" ")
}

/// Returns the word quoted so that a shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:+,=@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

pub(super) fn now_unix_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

fn finish(record: &Record, args: &RunArgs, output: Output) -> Result<u8> {
    save::keep(args.output.as_deref(), output, std::slice::from_ref(record))?;
    output.result(record, |record| {
        format!("{}\n{}", text::summary(record), text::rows(std::slice::from_ref(record)))
    })?;
    let (why, kind) = match &record.end {
        End::Complete => return Ok(0),
        End::Interrupted => ("interrupted; what was sampled is shown", ErrorKind::Cancelled),
        End::Failed(why) => (why.as_str(), ErrorKind::Failed),
    };
    output.note(&format!("unstun: {why}"));
    Ok(kind.exit_code())
}

pub(crate) fn bar() -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{spinner} {msg}")
        .map_err(|e| Error::failed(format!("progress bar: {e}")))?;
    Ok(ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style))
}

/// Returns a text such as `steady, with snapshot: 1 min 20 s left, 94 reads/s, 96 writes/s`.
pub(crate) fn describe(progress: &Progress) -> String {
    let left = progress.left_us.map(|us| format!("{} left, ", format_seconds(us / 1_000_000)));
    format!(
        "{}: {}{:.0} reads/s, {:.0} writes/s",
        progress.label,
        left.unwrap_or_default(),
        progress.reads_per_s,
        progress.writes_per_s
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Phase;

    #[test]
    fn what_repeats_a_run_is_read_back_by_a_shell() {
        assert_eq!(quoted("nbd+unix:///disk?socket=s"), "'nbd+unix:///disk?socket=s'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!((quoted("zandboer-paced").as_str(), quoted("").as_str()), ("zandboer-paced", "''"));
    }

    #[test]
    fn a_line_has_phase_time_left_and_rates() {
        let progress = Progress {
            phase: Phase::Snapshot,
            label: "steady, with snapshot".into(),
            at_us: 0,
            left_us: Some(80_000_000),
            reads_per_s: 94.4,
            writes_per_s: 95.6,
            commit: None,
        };
        assert_eq!(describe(&progress), "steady, with snapshot: 1 min 20 s left, 94 reads/s, 96 writes/s");
        let unknown = Progress { left_us: None, ..progress };
        assert_eq!(describe(&unknown), "steady, with snapshot: 94 reads/s, 96 writes/s");
    }
}
