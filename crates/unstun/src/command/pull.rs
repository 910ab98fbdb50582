//! `unstun pull`: copies an NBD export into a raw file, or brings such a copy from one snapshot to another. It needs no daemon
//! of its own.
//!
//! A record beside the file says what it holds, so that no increment is applied to a file that does not hold its base. An
//! interrupted pull leaves a record that says so, and is repeated by the same command.

mod copy;
mod fault;
mod record;
mod source;
mod target;

use std::path::Path;

use api::Pulled;
use api::error::{Error, Result};
use api::output::Output;
use api::units::format_bytes;

use crate::cli::PullArgs;
use copy::copy;
use record::{Record, State};
use source::Source;
use target::Target;

pub(super) fn run(args: &PullArgs, output: Output) -> Result<()> {
    let source = Source::connect(&args.uri, args.since.as_deref(), args.until.as_deref())?;
    if source.snapshot().is_none() {
        let note = "note: this is a running disk; the copy shows a mix of times if it is written during the pull, and cannot be \
                    the base of an increment; take a snapshot and pull that";
        output.note(note);
    }
    let pulled = match &args.since {
        None => pull_whole(args, source)?,
        Some(_) => pull_increment(args, source)?,
    };
    output.result(&pulled, describe)
}

fn pull_whole(args: &PullArgs, source: Source) -> Result<Pulled> {
    let file = &args.output;
    // A copy that was interrupted is of no use to anybody.
    let interrupted = Record::read(file)?.is_some_and(|known| known.is_interrupted_copy_of(source.export()));
    let size_bytes = source.size_bytes();
    let record = Record::new(&source, State::Copying, size_bytes);
    let whole = record.whole(size_bytes);
    let kept = |record: &Record| if target::is_device(file) { Ok(()) } else { record.write(file) };
    let may_replace = args.force || interrupted;
    target::check_replaceable(file, may_replace, size_bytes)?;
    kept(&record)?;
    let target = Target::create(file, may_replace, size_bytes)?;
    finish(source, target, None, &|| kept(&whole), file)
}

fn pull_increment(args: &PullArgs, source: Source) -> Result<Pulled> {
    let file = &args.output;
    let size_bytes = source.size_bytes();
    let target = Target::open(file)?;
    let base_bytes = base_size(args, &source, &target)?;
    let base = source.base().cloned();
    let record =
        Record::new(&source, State::Updating { since: base.expect("--since was given") }, base_bytes);
    let whole = record.whole(size_bytes);
    let kept = |record: &Record| if target::is_device(file) { Ok(()) } else { record.write(file) };
    kept(&record)?;
    target.grow(size_bytes)?;
    finish(source, target, Some(base_bytes), &|| kept(&whole), file)
}

/// Checks that the file holds the base of the increment. Returns the size of that content in bytes.
fn base_size(args: &PullArgs, source: &Source, target: &Target) -> Result<u64> {
    let file = &args.output;
    let since = args.since.as_deref().unwrap_or_default();
    let held_bytes = target.size_bytes()?;
    let base_bytes = match Record::read(file)? {
        Some(record) if !args.force => record.base_of(source, file)?,
        _ if args.force => held_bytes.min(source.size_bytes()),
        _ => {
            let (file, export) = (file.display(), source.export());
            return Err(Error::refused(format!(
                "{file} has no record of what it holds; if it holds {export}@{since}, add --force; otherwise pull all of \
                 it, without --since and with --force"
            )));
        }
    };
    let is_longer = held_bytes > source.size_bytes() && !target::is_device(file);
    if is_longer || base_bytes > source.size_bytes() || held_bytes < base_bytes {
        return Err(Error::refused(format!(
            "{} has {held_bytes} bytes, of which {base_bytes} were pulled, and {} has {}; pull all of it, without --since and \
             with --force",
            file.display(),
            source.export(),
            source.size_bytes()
        )));
    }
    Ok(base_bytes)
}

/// Copies, makes the file durable, and records that it is whole.
fn finish(
    source: Source,
    target: Target,
    base_bytes: Option<u64>,
    record_whole: &dyn Fn() -> Result<()>,
    file: &Path,
) -> Result<Pulled> {
    let described = Pulled {
        export: source.export().to_owned(),
        output: file.to_path_buf(),
        size_bytes: source.size_bytes(),
        snapshot: source.snapshot().map(|snapshot| snapshot.name.clone()),
        since: source.base().map(|base| base.name.clone()),
        bytes_read: 0,
        bytes_written: 0,
    };
    // A running disk may have changed back meanwhile, so that a second increment would not write all that the first one did.
    let advice = match described.snapshot.is_none() && described.since.is_some() {
        true => "pull all of it, without --since and with --force",
        false => "the same command completes it",
    };
    let copied = copy(source, target, base_bytes).map_err(|e| incomplete(&e, file, advice))?;
    record_whole().map_err(|e| incomplete(&e, file, advice))?;
    Ok(Pulled { bytes_read: copied.bytes_read, bytes_written: copied.bytes_written, ..described })
}

fn incomplete(error: &Error, file: &Path, advice: &str) -> Error {
    Error::new(error.kind, format!("{} ({} is incomplete; {advice})", error.message, file.display()))
}

fn describe(pulled: &Pulled) -> String {
    let [size, read, written] =
        [pulled.size_bytes, pulled.bytes_read, pulled.bytes_written].map(format_bytes);
    let what = match &pulled.snapshot {
        Some(snapshot) => format!("{}@{snapshot}", pulled.export),
        None => format!("{}, running", pulled.export),
    };
    let since = pulled.since.as_ref().map_or_else(String::new, |since| format!(" since {since}"));
    format!("{}: {what}{since}, {size}; {read} read, {written} written", pulled.output.display())
}
