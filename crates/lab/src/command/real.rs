//! One run on real storage, in a folder of its own that goes when the run has ended.

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::args::lab::HookArgs;
use api::error::{Error, Result};

use crate::experiment::{Experiment, Means, Room, Scaled};
use crate::real::{Hooks, Site, Stack};
use crate::run::Record;
use crate::runner::{Audience, Plan};

use super::save;

/// The name under which somebody's own stack is measured.
pub const HOOKS: &str = "hooks";

/// Somebody's own stack; None unless it is told in whole.
pub fn hooks(args: &HookArgs) -> Option<Stack> {
    let (take, commit) = (args.take.clone()?, args.commit.clone()?);
    if args.target.is_empty() {
        return None;
    }
    let limit = Duration::from_secs(u64::from(args.hook_limit));
    let hooks = Hooks { take, commit, frozen: args.frozen.clone(), limit };
    Some(Stack::Hooks { disks: args.target.clone(), hooks })
}

pub fn stack(name: &str, args: &HookArgs) -> Result<Stack> {
    if name != HOOKS {
        return Ok(Stack::by_name(name)?);
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

/// The experiment as it fits the time, and `dir` or somebody's disks.
pub fn scale(experiment: &Experiment, stack: &Stack, dir: &Path, seconds: f64) -> Result<Scaled> {
    save::folder(dir)?;
    let room = match stack.disk_bytes()? {
        Some(disks) => Room::Disks(disks),
        None => Room::Free(crate::real::free_bytes(dir)?),
    };
    Ok(experiment.scaled_to(&Means { seconds, room }))
}

/// `disk_bytes`: of each disk. What goes wrong with the stack is in the record.
pub fn run(
    stack: &Stack,
    folder: &Scratch,
    disk_bytes: &[u64],
    plan: Plan,
    audience: Audience,
) -> Result<Record> {
    let program = api::program::find("unstun")?;
    let site = Site { folder: &folder.0, program: &program, disk_bytes };
    Ok(crate::real::run(stack, &site, plan, audience))
}

/// A folder of one run; it goes with everything in it.
pub struct Scratch(PathBuf);

impl Scratch {
    /// In `dir`, which is made. `name` is one that no other run has.
    pub fn make(dir: &Path, name: &str) -> Result<Scratch> {
        // Other programs read names relative to places of their own.
        let dir = std::path::absolute(dir).map_err(|e| Error::invalid(format!("{}: {e}", dir.display())))?;
        let folder = dir.join(name.replace(':', "-"));
        save::folder(&dir)?;
        std::fs::create_dir(&folder).map_err(|e| {
            Error::failed(format!("{}: {e}; each run makes this folder, and removes it", folder.display()))
        })?;
        Ok(Scratch(folder))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is found by the next run, which names it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
