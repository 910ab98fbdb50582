//! `lab compare`: on real storage in turns, each subject in a folder of its own that goes when its run has ended; or on
//! modelled storage.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::ProgressBar;
use lab::compare::{self, Summary, Work};
use lab::experiment::{Experiment, Play};
use lab::real::{Hooks, Site, Stack};
use lab::run::{Clock, End, Record};
use lab::runner::{Audience, Plan};
use lab::vmware::spec::Version;
use lab::workload::Worker;

use super::run::{bar, describe, now_unix_us};
use super::save;
use crate::cli::{CompareArgs, SubjectArg};
use crate::error::{Error, ErrorKind, Result};
use crate::output::Output;

/// The name under which somebody's own stack is compared.
const HOOKS: &str = "hooks";

/// Answers the exit code.
pub fn run(args: &CompareArgs, output: Output) -> Result<u8> {
    let lab = Lab { args, work: work(args), interrupted: super::interruption()?, bar: bar()? };
    lab.check()?;
    let names = lab.names();
    let goes_on = || !lab.interrupted.load(Ordering::Relaxed);
    let mut refused = None;
    let records = compare::alternate(
        &names,
        args.rounds,
        |name, round| {
            lab.bar.println(format!("round {} of {}: {name}", round + 1, args.rounds));
            lab.one(name, round).unwrap_or_else(|error| {
                let end = End::Failed(error.to_string());
                refused = Some(error);
                Record { end, ..lab.head(name) }
            })
        },
        goes_on,
    );
    lab.bar.finish_and_clear();
    finish(args, &records, refused, goes_on(), output)
}

fn finish(
    args: &CompareArgs,
    records: &[Record],
    refused: Option<Error>,
    whole: bool,
    output: Output,
) -> Result<u8> {
    if let Some(dir) = &args.output {
        save::records(dir, records)?;
        output.note(&format!("kept in {}", dir.display()));
    }
    let summaries: Vec<Summary> = compare::summarize(records);
    output.result(&summaries, |summaries| compare::text(summaries))?;
    if !whole {
        output.note("interrupted; what was measured is shown");
        return Ok(ErrorKind::Cancelled.exit_code());
    }
    if let Some(error) = refused {
        output.note(&error.to_string());
        return Ok(error.kind.exit_code());
    }
    let failed = summaries.iter().any(|summary| summary.rounds == 0);
    Ok(if failed { ErrorKind::Failed.exit_code() } else { 0 })
}

fn work(args: &CompareArgs) -> Work {
    Work {
        disk_bytes: args.size,
        block_bytes: args.block,
        read_percent: args.read,
        outstanding: args.depth,
        phase_seconds: f64::from(args.seconds),
    }
}

struct Lab<'a> {
    args: &'a CompareArgs,
    work: Work,
    interrupted: Arc<AtomicBool>,
    bar: ProgressBar,
}

impl Lab<'_> {
    /// What would fail in the first round is told before anything is made.
    fn check(&self) -> Result<()> {
        self.work.workload().check(&[self.work.disk_bytes]).map_err(Error::invalid)?;
        for name in self.args.subjects.iter().filter(|name| *name != HOOKS) {
            match self.args.real {
                Some(_) => drop(Stack::by_name(name)?),
                None => drop(modelled(name)?),
            }
        }
        let has_hooks = self.args.subjects.iter().any(|name| name == HOOKS);
        if has_hooks && self.hooks().is_none() {
            return Err(Error::invalid("hooks: needs --target, --take and --commit, and --real DIR"));
        }
        if self.args.subjects.is_empty() && self.hooks().is_none() {
            return Err(Error::invalid("no subject: name some, or give --target, --take and --commit"));
        }
        Ok(())
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.args.subjects.clone();
        if self.hooks().is_some() && !names.iter().any(|name| name == HOOKS) {
            names.push(HOOKS.into());
        }
        names
    }

    fn hooks(&self) -> Option<Stack> {
        let (take, commit) = (self.args.take.clone()?, self.args.commit.clone()?);
        if self.args.target.is_empty() || self.args.real.is_none() {
            return None;
        }
        let limit = Duration::from_secs(u64::from(self.args.hook_limit));
        Some(Stack::Hooks { disks: self.args.target.clone(), hooks: Hooks { take, commit, limit } })
    }

    fn one(&self, name: &str, round: u32) -> Result<Record> {
        let record = match &self.args.real {
            Some(dir) => self.real(name, dir, round)?,
            None => self.modelled(name)?,
        };
        Ok(Record { subject: name.to_string(), ..record })
    }

    fn audience(&self, name: &str) -> Audience {
        let (bar, name) = (self.bar.clone(), name.to_string());
        Audience {
            progress: Rc::new(move |progress| bar.set_message(format!("{name}, {}", describe(progress)))),
            interrupted: self.interrupted.clone(),
        }
    }

    fn head(&self, name: &str) -> Record {
        let (storage, clock) = match &self.args.real {
            Some(dir) => (dir.display().to_string(), Clock::Real),
            None => (self.args.storage.clone(), Clock::Virtual),
        };
        let mut head = Record::head("compare", name, &storage, clock, self.args.seed);
        head.title = "The same work, in turns".into();
        head.command = std::env::args().collect::<Vec<_>>().join(" ");
        head.began_unix_us = now_unix_us();
        head
    }

    fn real(&self, name: &str, dir: &Path, round: u32) -> Result<Record> {
        let stack = match (name, self.hooks()) {
            (HOOKS, Some(hooks)) => hooks,
            _ => Stack::by_name(name)?,
        };
        let program =
            std::env::current_exe().map_err(|e| Error::failed(format!("finding this program: {e}")))?;
        let folder = Scratch::make(dir, name, round)?;
        let site = Site { folder: &folder.0, program: &program, disk_bytes: &[self.work.disk_bytes] };
        let plan = Plan {
            head: self.head(name),
            workload: self.work.workload(),
            protocol: self.work.protocol(),
            path: None,
        };
        Ok(lab::real::run(&stack, &site, plan, self.audience(name)))
    }

    fn modelled(&self, name: &str) -> Result<Record> {
        let storage = super::storage(&self.args.storage)?;
        let workers: Vec<Worker> = self.work.workload().workers;
        let steps = self.work.protocol().steps;
        let version = Version::Esx70;
        let experiment =
            Experiment::bare("compare", &storage.name, version, self.work.disk_bytes, workers, steps);
        let play = Play {
            stack: super::stack(modelled(name)?, None, version.hypothesis())?,
            experiment,
            storage,
            delta_storage: None,
            seed: self.args.seed,
            command: self.head(name).command,
            path: None,
        };
        Ok(play.run(self.audience(name)))
    }
}

fn modelled(name: &str) -> Result<SubjectArg> {
    match name {
        "esx" => Ok(SubjectArg::Esx),
        "redo" | "redo:drain" => Ok(SubjectArg::Redo),
        "native" => Ok(SubjectArg::Native),
        "plain" => Ok(SubjectArg::Plain),
        _ => Err(Error::invalid(format!(
            "{name}: not a modelled subject (esx, redo, native, plain); others are measured with --real DIR"
        ))),
    }
}

/// A folder of one run; it goes with everything in it.
struct Scratch(PathBuf);

impl Scratch {
    fn make(dir: &Path, name: &str, round: u32) -> Result<Scratch> {
        // Other programs read names relative to places of their own.
        let dir = std::path::absolute(dir).map_err(|e| Error::invalid(format!("{}: {e}", dir.display())))?;
        let folder = dir.join(format!("unstun-compare-{}-{round}", name.replace(':', "-")));
        save::folder(&dir)?;
        std::fs::create_dir(&folder).map_err(|e| {
            Error::failed(format!("{}: {e}; each run makes this folder, and removes it", folder.display()))
        })?;
        Ok(Scratch(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is found by the next run, which names it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
