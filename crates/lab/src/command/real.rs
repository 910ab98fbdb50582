//! One run on real storage, in a folder of its own that is removed when the run has ended.

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::args::lab::HookArgs;
use api::error::{Error, Result};

use crate::experiment::{Experiment, Limits, Scaled, Space};
use crate::real::{Hooks, Pool, Setup, Stack};
use crate::run::Record;
use crate::runner::{Plan, RunObserver};

use super::save;

/// Name of the subject that is the user's own stack.
pub(super) const HOOKS: &str = "hooks";

/// Name of the subject that has a pool.
const RBD: &str = "rbd";

/// Returns the user's own stack, or `None` unless all of its required options are given.
pub(super) fn hooks(args: &HookArgs) -> Option<Stack> {
    let (take, commit) = (args.take.clone()?, args.commit.clone()?);
    if args.target.is_empty() {
        return None;
    }
    let limit = Duration::from_secs(u64::from(args.hook_limit));
    let hooks = Hooks { take, commit, frozen: args.frozen.clone(), limit };
    Some(Stack::Hooks { disks: args.target.clone(), hooks })
}

/// Returns the stack of that name. Errors: a stack that does not exist, and one that this machine cannot run.
pub(super) fn stack(name: &str, args: &HookArgs) -> Result<Stack> {
    if name != HOOKS {
        let stack = if name == RBD { Stack::Rbd(Pool::parse(&args.rbd)?) } else { Stack::by_name(name)? };
        stack.check()?;
        return Ok(stack);
    }
    let missing = || Error::invalid("hooks: needs --target, --take and --commit, and --real DIR");
    let (frozen, target) = (args.frozen.len(), args.target.len());
    if frozen != 0 && frozen != target {
        let cause =
            format!("hooks: --frozen is given {frozen} times, --target {target}; one belongs to each");
        return Err(Error::invalid(cause));
    }
    hooks(args).ok_or_else(missing)
}

/// Returns the experiment scaled to the time, and to the space in `dir` or the size of the user's disks.
pub(super) fn scale(experiment: &Experiment, stack: &Stack, dir: &Path, seconds: f64) -> Result<Scaled> {
    save::folder(dir)?;
    let space = match stack.disk_bytes()? {
        Some(disks) => Space::Disks(disks),
        None => Space::Free(crate::real::free_bytes(dir)?),
    };
    Ok(experiment.scaled_to(&Limits { seconds, space }))
}

/// Runs the plan on disks of `disk_bytes` each. Failures of the stack are in the record.
pub(super) fn run(
    stack: &Stack,
    folder: &Scratch,
    disk_bytes: &[u64],
    plan: Plan,
    observer: RunObserver,
) -> Result<Record> {
    let program = api::program::find("unstun")?;
    let setup = Setup { folder: &folder.0, program: &program, disk_bytes };
    Ok(crate::real::run(stack, &setup, plan, observer))
}

/// Folder of one run. Dropping it removes the folder with everything in it.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Creates the folder in `dir`, which is created if necessary. No other run may have the same `name`.
    pub(super) fn make(dir: &Path, name: &str) -> Result<Scratch> {
        // Other programs resolve relative paths against directories of their own.
        let dir = std::path::absolute(dir).map_err(|e| Error::invalid(format!("{}: {e}", dir.display())))?;
        let folder = dir.join(name.replace(':', "-"));
        save::folder(&dir)?;
        std::fs::create_dir(&folder).map_err(|e| {
            Error::failed(format!("{}: {e}; each run makes this folder, and removes it", folder.display()))
        })?;
        Ok(Scratch(folder))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that cannot be removed is found by the next run, which names it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
