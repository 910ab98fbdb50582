use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lab::experiment::{self, Experiment, Play, fitted};
use lab::report::text;
use lab::run::{End, Record};
use lab::runner::{Audience, Progress};

use super::save;
use crate::cli::{RunArgs, SubjectArg};
use crate::error::{Error, Result};
use crate::output::Output;
use crate::units::format_seconds;

pub fn run(args: &RunArgs, output: Output) -> Result<()> {
    let experiment = experiment::find(&args.experiment)?;
    let stack = super::stack(args.subject, args.hypothesis.as_deref(), experiment.esx.hypothesis())?;
    if let Some(dir) = &args.output {
        save::folder(dir)?;
    }
    let mut play = Play {
        command: command(args),
        path: args.output.as_ref().map(|dir| dir.join(save::LINES)),
        seed: args.seed,
        ..set_up(experiment, args)?
    };
    play.stack = stack;
    let bar = bar()?;
    let shown = bar.clone();
    let audience = Audience {
        progress: Rc::new(move |progress| shown.set_message(describe(progress))),
        interrupted: super::interruption()?,
    };
    let mut record = play.run(audience);
    bar.finish_and_clear();
    record.began_unix_us = now_unix_us();
    finish(&record, args, output)
}

/// Storage as asked for, or the experiment's own, fitted.
fn set_up(mut experiment: Experiment, args: &RunArgs) -> Result<Play> {
    let storage = match &args.storage {
        Some(name) => fitted::scaled(&experiment, super::storage(name)?)?,
        None => {
            let fitted = fitted::fitted(&experiment, &[], args.seed)?;
            experiment.notes.extend(fitted.notes);
            fitted.model
        }
    };
    let delta_storage = fitted::delta_model(&experiment, &storage)?;
    let stack = super::stack(SubjectArg::Plain, None, experiment.esx.hypothesis())?;
    Ok(Play {
        experiment,
        stack,
        storage,
        delta_storage,
        seed: args.seed,
        command: String::new(),
        path: None,
    })
}

fn command(args: &RunArgs) -> String {
    let mut command = format!("unstun lab run {} --seed {}", args.experiment, args.seed);
    let subject = match args.subject {
        SubjectArg::Esx => "esx",
        SubjectArg::Redo => "redo",
        SubjectArg::Native => "native",
        SubjectArg::Plain => "plain",
    };
    command += &format!(" --subject {subject}");
    if let Some(hypothesis) = &args.hypothesis {
        command += &format!(" --hypothesis \"{hypothesis}\"");
    }
    if let Some(storage) = &args.storage {
        command += &format!(" --storage {storage}");
    }
    command
}

pub(super) fn now_unix_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

fn finish(record: &Record, args: &RunArgs, output: Output) -> Result<()> {
    if let Some(dir) = &args.output {
        save::record(dir, record)?;
        output.note(&format!("kept in {}", dir.display()));
    }
    output.result(record, |record| {
        format!("{}\n{}", text::summary(record), text::rows(std::slice::from_ref(record)))
    })?;
    match &record.end {
        End::Complete => Ok(()),
        End::Interrupted => {
            Err(Error::new(crate::error::ErrorKind::Cancelled, "interrupted; what was sampled is shown"))
        }
        End::Failed(why) => Err(Error::failed(why.clone())),
    }
}

pub(super) fn bar() -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{spinner} {msg}")
        .map_err(|e| Error::failed(format!("progress bar: {e}")))?;
    Ok(ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style))
}

/// `steady, with snapshot: 1 min 20 s left, 94 reads/s, 96 writes/s`.
pub(super) fn describe(progress: &Progress) -> String {
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
    use lab::run::Phase;

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
