//! `unstun backup`.

mod boot;
mod catalogue;
mod make;
mod serve;

use std::collections::BTreeMap;

use api::client::{Client, runtime};
use api::error::{Error, ErrorKind, Result};
use api::output::Output;
use api::progress;
use api::units::format_bytes;
use api::{BackupsVerified, RepositoryPruned, Retention};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use repo::{Grace, Origin, Repository, Seen, State};

pub(super) use self::catalogue::find;
pub(crate) use self::serve::READY;
use crate::cli::{BackupCommand, BackupMakeArgs, KeepArgs, KeyArgs, RepoArgs};
use crate::repository::{Place, cache, now_us, time};
use crate::retention;

/// Word of a repository for a state whose file systems were frozen.
const FILE_SYSTEM: &str = "file-system";
/// Time after which a backup that was begun counts as abandoned: a week.
const OPEN_US_MAX: u64 = 7 * 24 * 3600 * 1_000_000;

pub(super) async fn make(args: &BackupMakeArgs, client: &Client, output: Output) -> Result<()> {
    make::run(args, client, output).await
}

/// Restores a backup as a VM for a command that decides whether it boots.
pub(super) async fn boot(command: &BackupCommand, client: &Client, output: Output) -> Result<()> {
    let BackupCommand::Verify { which, repo, boot: Some(boot), .. } = command else {
        unreachable!("run elsewhere")
    };
    boot::run(which, repo, boot, client, output).await
}

pub(super) fn run_without_daemon(command: &BackupCommand, output: Output) -> Result<()> {
    match command {
        BackupCommand::Serve { which, repo, disk, socket, once } => {
            serve::run(which, repo, *disk, socket, *once)
        }
        command => runtime()?.block_on(run(command, output)),
    }
}

async fn run(command: &BackupCommand, output: Output) -> Result<()> {
    match command {
        BackupCommand::List { vm, repo, removed } => {
            let repository = open(repo).await?;
            let vm = vm.as_ref().map(ToString::to_string);
            let all = catalogue::all(repository.state(), vm.as_deref(), *removed);
            output.result(&all, |all| catalogue::list(all))
        }
        BackupCommand::Show { which, repo } => {
            let repository = open(repo).await?;
            let number = find(repository.state(), which)?;
            let shown = catalogue::shown(number, repository.state().backup(number)?, false);
            output.result(&shown, catalogue::describe)
        }
        BackupCommand::Verify { which, repo, sample, .. } => {
            verify(&open(repo).await?, which, *sample, output).await
        }
        BackupCommand::Prune { numbers, repo, keep, vm, noted, grace, dry_run } => {
            let mut repository = open(repo).await?;
            let mut removed = numbers.clone();
            numbers.iter().try_for_each(|number| repository.state().backup(*number).map(drop))?;
            removed.extend(unkept(&repository, keep, vm, noted.as_deref())?);
            removed.sort_unstable();
            removed.dedup();
            prune(&mut repository, removed, *grace, *dry_run, output).await
        }
        BackupCommand::Copy { which, repo, to, to_key_file, to_passphrase_file } => {
            let key = KeyArgs { key_file: to_key_file.clone(), passphrase_file: to_passphrase_file.clone() };
            let to = open(&RepoArgs { repo: Some(to.clone()), key }).await?;
            copy(&open(repo).await?, which, to, output).await
        }
        BackupCommand::Recall { numbers, repo } => {
            let mut repository = open(repo).await?;
            repository.recall(numbers.clone(), now_us()).await?;
            let all = catalogue::all(repository.state(), None, false);
            let recalled: Vec<_> =
                all.into_iter().filter(|backup| numbers.contains(&backup.backup)).collect();
            output.result(&recalled, |recalled| catalogue::list(recalled))
        }
        BackupCommand::Serve { .. } => unreachable!("run elsewhere"),
    }
}

async fn open(args: &RepoArgs) -> Result<Repository> {
    Place::resolve(args)?.open().await
}

/// Returns the backups that no rule keeps; without a rule there are none.
fn unkept(repository: &Repository, keep: &KeepArgs, vms: &[String], noted: Option<&str>) -> Result<Vec<u32>> {
    let none = Retention::default();
    let keep = keep.retention(none);
    if keep.all || keep.rules().iter().all(|(_, count)| *count == 0) {
        return match keep.min_age_s {
            0 => Ok(Vec::new()),
            _ => Err(Error::invalid(
                "--min-age alone keeps nothing; expected a rule such as --keep-last 7 beside it",
            )),
        };
    }
    let mut of_vm: BTreeMap<&str, Vec<(Timestamp, u32)>> = BTreeMap::new();
    let backups = repository.state().backups.iter();
    let is_meant = |backup: &repo::Backup| {
        let Origin { vm, vm_id, note, .. } = &backup.origin;
        let is_one = vms.is_empty() || vms.iter().any(|one| one == vm || one == vm_id);
        is_one && noted.is_none_or(|noted| noted == note)
    };
    for (number, backup) in backups.filter(|(_, backup)| is_meant(backup)) {
        of_vm.entry(&backup.origin.vm_id).or_default().push((time(backup.taken_us), *number));
    }
    let (zone, now) = (TimeZone::system(), Timestamp::now());
    let of_one = |backups: Vec<(Timestamp, u32)>| {
        let taken: Vec<_> = backups.iter().map(|(taken, _)| *taken).collect();
        let kept = retention::kept(&taken, &keep, &zone, now, now);
        backups.into_iter().zip(kept).filter(|(_, kept)| !kept).map(|((_, number), _)| number)
    };
    Ok(of_vm.into_values().flat_map(of_one).collect())
}

fn data_bytes(state: &State, number: u32) -> u64 {
    state.backups[&number].disks.iter().map(|disk| disk.data_bytes).sum()
}

/// Returns the backups that a user names; all if none is.
fn all_of(state: &State, which: &[String]) -> Result<Vec<u32>> {
    match which.is_empty() {
        true => Ok(state.backups.keys().copied().collect()),
        false => which.iter().map(|which| find(state, which)).collect(),
    }
}

async fn copy(from: &Repository, which: &[String], mut to: Repository, output: Output) -> Result<()> {
    let mut numbers = all_of(from.state(), which)?;
    // An increment needs the copy of the backup before.
    numbers.sort_by_key(|number| (from.state().backups[number].taken_us, *number));
    let bar = progress::bar(numbers.iter().map(|number| data_bytes(from.state(), *number)).sum())?;
    let cache = cache(&to);
    let mut copied = Vec::new();
    for number in numbers {
        let mut passed = |bytes: u64| {
            bar.inc(bytes);
            bar.set_message(format!("backup {number}"));
            Ok(())
        };
        let done = repo::copy(from, number, &mut to, (cache.as_deref(), now_us()), &mut passed).await?;
        copied.extend(done.map(|(number, _)| number));
    }
    bar.finish_and_clear();
    let shown = |number: &u32| Ok(catalogue::shown(*number, to.state().backup(*number)?, false));
    let shown: Vec<_> = copied.iter().map(shown).collect::<Result<_>>()?;
    output.result(&shown, |shown| catalogue::list(shown))
}

async fn prune(
    repository: &mut Repository,
    removed: Vec<u32>,
    grace_s: u64,
    dry_run: bool,
    output: Output,
) -> Result<()> {
    // What this command removes can be taken back after it, whatever the grace.
    let grace = Grace { forgotten_us: grace_s.saturating_mul(1_000_000), open_us: OPEN_US_MAX };
    let pruned = repo::prune(repository, grace, dry_run, now_us()).await?;
    if !removed.is_empty() && !dry_run {
        repository.forget(removed.clone(), now_us()).await?;
    }
    let pruned = RepositoryPruned {
        dry_run,
        removed,
        gone: pruned.backups as u64,
        abandoned: pruned.sessions as u64,
        reclaimed_bytes: pruned.bytes,
        kept_bytes: pruned.kept_bytes,
    };
    output.result(&pruned, describe_pruned)
}

fn describe_pruned(pruned: &RepositoryPruned) -> String {
    let removed = pruned.removed.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let (would, was) = if pruned.dry_run { ("would be ", "would be") } else { ("", "was") };
    let mut lines = Vec::new();
    if !removed.is_empty() {
        lines.push(format!(
            "{would}removed: {removed}; `unstun backup recall` takes them back until their space is reclaimed"
        ));
    }
    if pruned.gone + pruned.abandoned > 0 {
        let (gone, abandoned) = (pruned.gone, pruned.abandoned);
        lines.push(format!("{would}gone for good: {gone} removed earlier, {abandoned} never completed"));
    }
    let (reclaimed, kept) = (format_bytes(pruned.reclaimed_bytes), format_bytes(pruned.kept_bytes));
    lines.push(format!("{reclaimed} {was} reclaimed; {kept} are in use"));
    lines.join("\n")
}

async fn verify(repository: &Repository, which: &[String], sample: u64, output: Output) -> Result<()> {
    let state = repository.state();
    let numbers = all_of(state, which)?;
    let bar = progress::bar(numbers.iter().map(|number| data_bytes(state, *number)).sum())?;
    let (mut seen, mut all) = (Seen::default(), repo::Verified::default());
    for number in &numbers {
        let mut passed = |bytes: u64| {
            bar.inc(bytes);
            Ok(())
        };
        let one = repo::verify(repository, (*number, &state.backups[number]), sample, &mut seen, &mut passed)
            .await?;
        all.chunks += one.chunks;
        all.bytes += one.bytes;
        all.skipped += one.skipped;
        all.findings.extend(one.findings);
    }
    bar.finish();
    let (count, first) = (all.findings.len(), all.findings.first().cloned());
    let verified = BackupsVerified {
        backups: numbers,
        chunks: all.chunks,
        bytes: all.bytes,
        skipped: all.skipped,
        findings: all.findings,
    };
    output.result(&verified, describe_verified)?;
    let Some(first) = first else { return Ok(()) };
    let cause =
        format!("{count} findings, the first: {first}; the backups that are named cannot be restored wholly");
    Err(Error::new(ErrorKind::Damaged, format!("{}: {cause}", repository.place())))
}

fn describe_verified(verified: &BackupsVerified) -> String {
    let (bytes, skipped) = (format_bytes(verified.bytes), verified.skipped);
    let mut lines = verified.findings.clone();
    let count = verified.backups.len();
    lines.push(format!(
        "{count} backups: {} chunks ({bytes}) are right, {skipped} were not read again",
        verified.chunks
    ));
    lines.join("\n")
}
