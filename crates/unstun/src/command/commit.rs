//! `unstun snapshot commit` and `consolidate`: print the effects, ask for consent, start the job, and follow it until
//! it ends. The texts about jobs are those of other commands too.

use api::client::Client;
use api::error::{Error, ErrorKind, Result};
use api::name::VmName;
use api::output::{Output, fields};
use api::progress::{Watched, watch};
use api::units::{format_bytes, format_seconds};
use api::{CommitPreview, CommitTarget, Defragmented, Job, JobState, Operation};

use crate::cli::{CommitArgs, ConsolidateArgs, JobArgs};
use crate::command::consent;

pub(super) async fn run(args: &CommitArgs, client: &Client, output: Output) -> Result<()> {
    let (vm, snapshot) = args.which.parse()?;
    let target = match (snapshot, args.all) {
        (Some(name), false) => CommitTarget::Snapshot(name),
        (None, true) => CommitTarget::All,
        (Some(_), true) => {
            return Err(Error::invalid("expected either a snapshot's name or --all, not both"));
        }
        (None, false) => {
            return Err(Error::invalid(format!("which snapshot of {vm}? expected a name, or --all")));
        }
    };
    carry_out(&vm, &target, &args.job, client, output).await
}

pub(super) async fn consolidate(args: &ConsolidateArgs, client: &Client, output: Output) -> Result<()> {
    carry_out(&args.vm, &CommitTarget::Unowned, &args.job, client, output).await
}

async fn carry_out(
    vm: &VmName,
    target: &CommitTarget,
    args: &JobArgs,
    client: &Client,
    output: Output,
) -> Result<()> {
    let preview = client.commit_preview(vm, target).await?;
    if args.consent.dry_run {
        return output.result(&preview, describe);
    }
    output.note(&describe(&preview));
    if !args.consent.yes {
        match target {
            CommitTarget::Unowned => consent("Consolidate?", "consolidates")?,
            _ => consent("Commit?", "commits")?,
        }
    }
    let job = client.snapshot_commit(vm, target).await?;
    if args.detach {
        return output.result(&job, started);
    }
    finish(watch(client, job).await?, output)
}

fn describe(preview: &CommitPreview) -> String {
    let (verb, what) = match preview.snapshots.is_empty() {
        true => ("consolidate", preview.vm.to_string()),
        false => ("commit", subject(&preview.vm, &preview.snapshots)),
    };
    let lines = fields(&[
        (verb, what),
        ("to move", to_move(preview)),
        ("to free", format_bytes(preview.bytes_freed)),
        ("time", preview.time_text()),
    ]);
    let stays: String = preview.stays.iter().map(|stays| format!("{stays}\n")).collect();
    format!("{lines}{stays}{}", preview.warning)
}

fn to_move(preview: &CommitPreview) -> String {
    match preview.bytes_to_move {
        0 => "nothing".to_owned(),
        bytes => format!("{} at most", format_bytes(bytes)),
    }
}

pub(super) fn started(job: &Job) -> String {
    format!(
        "job {} started; `unstun job list` shows its progress, `unstun job cancel {0}` cancels it",
        job.id
    )
}

pub(super) fn finish(watched: Watched, output: Output) -> Result<()> {
    output.result(&ended(watched)?, done)
}

/// Returns the job if it is done.
pub(super) fn ended(watched: Watched) -> Result<Job> {
    let job = match watched {
        Watched::Ended(job) => job,
        Watched::Detached(job) => return Err(detached(&job)),
    };
    match job.state {
        JobState::Done => Ok(job),
        JobState::Cancelled => {
            let left = match job.operation {
                Operation::Move => "the VM stays where it was",
                Operation::Scrub => "the rest was not read",
                Operation::Land => "the image stays needed",
                Operation::Verify => "the hash was not compared, and nothing is copied before it is",
                Operation::Defragment => "what was moved stays moved",
                _ => "the rest of its delta stays as a delta that no snapshot owns",
            };
            Err(Error::new(ErrorKind::Cancelled, format!("job {} was cancelled: {left}", job.id)))
        }
        _ => Err(failure(&job)),
    }
}

/// Returns an error for a detached job. Ctrl-C is no success, because a script that went on would assume that the delta
/// is gone.
fn detached(job: &Job) -> Error {
    let id = job.id;
    Error::new(
        ErrorKind::Cancelled,
        format!(
            "detached; job {id} continues: `unstun job list` shows its progress, `unstun job cancel {id}` cancels \
             it"
        ),
    )
}

fn failure(job: &Job) -> Error {
    let state = job.state.as_str();
    match &job.error {
        Some(error) => Error::new(error.kind, format!("job {} {state}: {}", job.id, error.message)),
        None => Error::failed(format!("job {} {state}", job.id)),
    }
}

fn done(job: &Job) -> String {
    let took = job.ended.map_or(0, |ended| ended.duration_since(job.started).as_secs().max(0));
    let (verb, what) = match job.operation {
        Operation::Consolidate => ("consolidated", owner(job)),
        Operation::Move => ("moved", owner(job)),
        Operation::Defragment => ("defragmented", owner(job)),
        Operation::Land => ("copied the image below", owner(job)),
        Operation::Verify => ("compared the hash of the image below", owner(job)),
        _ => ("committed", of_job(job)),
    };
    let (took, done) = (format_seconds(took.unsigned_abs()), format_bytes(job.bytes_done));
    let moved = job.defragmented.as_ref().map_or((String::new(), String::new()), moved);
    format!("{verb} {what} in {took}: {}{done} {}{}", moved.0, job.bytes.as_str(), moved.1)
}

/// Returns what a defragmentation has moved, and lines about what stayed, with the remedies.
fn moved(of: &Defragmented) -> (String, String) {
    let moved = match of.moved_bytes {
        0 => "nothing".to_owned(),
        bytes => format_bytes(bytes),
    };
    let stayed = [
        (
            of.shared_bytes,
            "snapshots or clones show blocks of them too; commit the snapshots first, or add --copy-shared",
        ),
        (of.no_room_bytes, "the datastore has no contiguous free space for them"),
        (of.changed_bytes, "guests changed them all the time; try again when they are less active"),
    ];
    let line = |(bytes, cause): (u64, &str)| match bytes {
        0 => String::new(),
        bytes => format!("\n{} stayed as they were: {cause}", format_bytes(bytes)),
    };
    (format!("{moved} moved, "), stayed.map(line).concat())
}

/// Returns a text such as `web@a, b`. Deltas that no snapshot owns have no name.
pub(super) fn subject(vm: &VmName, snapshots: &[String]) -> String {
    match snapshots {
        [] => format!("{vm}: deltas that no snapshot owns"),
        names => format!("{vm}@{}", names.join(", ")),
    }
}

/// Returns the object of a job.
pub(super) fn of_job(job: &Job) -> String {
    match (&job.vm, job.operation) {
        (Some(vm), Operation::Commit | Operation::Consolidate) => subject(vm, &job.snapshots),
        _ => owner(job),
    }
}

fn owner(job: &Job) -> String {
    job.vm.as_ref().map_or("the store".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defragmentation_says_what_it_moved_and_why_the_rest_stayed() {
        let none = Defragmented::default();
        assert_eq!(moved(&none), ("nothing moved, ".to_owned(), String::new()));
        let shared = Defragmented { shared_bytes: 512 << 20, ..none };
        let (nothing, why) = moved(&shared);
        assert_eq!(nothing, "nothing moved, ");
        assert!(why.starts_with("\n512 MiB stayed as they were: snapshots") && why.contains("--copy-shared"));
        let some = Defragmented { moved_bytes: 1 << 30, changed_bytes: 4 << 20, ..none };
        assert_eq!(moved(&some).0, "1 GiB moved, ");
        assert!(moved(&some).1.starts_with("\n4 MiB stayed as they were: guests"));
    }
}
