use lab::predict::{self, Answer, Question, STACKS};
use lab::reproduce::{Onlooker, Progress, in_parallel};
use lab::runner::Audience;

use crate::cli::PredictArgs;
use crate::command::progress;
use crate::error::{Error, ErrorKind, Result};
use crate::output::{self, Output};
use crate::units::{format_seconds, format_us};

pub fn run(args: &PredictArgs, output: Output) -> Result<()> {
    let storage = super::storage(&args.storage)?;
    let question = Question { iops: args.iops, read_percent: args.read, keep_s: args.keep, seed: args.seed };
    let bar = progress::bar(STACKS.len() as u64)?;
    let show = |Progress { done, name, .. }| {
        bar.set_position(done as u64);
        bar.set_message(name);
    };
    let interrupted = super::interruption()?;
    let onlooker = Onlooker { progress: &show, interrupted: &interrupted };
    let answers = in_parallel(
        STACKS.len(),
        |n| STACKS[n].0.to_string(),
        onlooker,
        |n| {
            let audience = Audience { interrupted: interrupted.clone(), ..Audience::none() };
            predict::ask(question, n, &storage, audience)
        },
    );
    bar.finish_and_clear();
    let answers: Option<Vec<Answer>> = answers.into_iter().collect();
    let answers = answers.ok_or_else(|| Error::new(ErrorKind::Cancelled, "interrupted"))?;
    output.result(&answers, |answers| table(answers))
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
