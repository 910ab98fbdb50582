//! Carries a plan out, with an undo copy of every file before the first one changes; and takes the last one back.
//!
//! Order: the copies of all files as they are and as they will be, the record that names them, and the folders they lie in
//! are durable; then each file is replaced by a rename of its own. A crash leaves every file as it was or as it was planned,
//! and the record takes back either.

use blk::{Dir, Error, ErrorKind, Result};

use super::Plan;
use crate::home::{PRIVATE_FOLDER, RECORD as INTENT};
use crate::keyvalue::KeyValues;
use crate::read::parse;
use crate::text::{TEXT_BYTES_MAX, decimal, shown, wrong};

/// In the repaired folder; the runs lie below, numbered from 0001.
const FOLDER: &str = "unstun-repair";
const LOCK: &str = "lock";
/// Names the files of a run.
const RECORD: &str = "record";
/// Marks a run that was taken back.
const UNDONE: &str = "undone";
/// Files of one run.
const CHANGES_MAX: usize = 1 << 16;

/// A run that was taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// Path of the folder with the copies.
    pub copies: String,
    pub files: Vec<String>,
}

/// A file of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    file: String,
    /// Without a copy from before: the file was not there.
    existed: bool,
}

/// Writes the files of `plan`. Returns the path of the folder with the undo copies.
///
/// # Errors
/// `Refused`: a change of unstun's own is pending in the folder. `Locked`: another repair runs. After any error the files
/// are as they were or as they were planned, each by itself; [`undo`] takes back what was written.
pub async fn apply(dir: &Dir, plan: &Plan) -> Result<String> {
    refuse_pending(dir).await?;
    let runs = dir.open_dir(FOLDER, true).await?;
    let _lock = runs.lock(LOCK).await?;
    let number = numbers(&runs).await?.last().map_or(1, |last| last + 1);
    let run = runs.open_dir(&folder_name(number), true).await?;
    let mut changes = Vec::new();
    for (file, after) in &plan.changes.texts {
        let before = read_if_there(dir, file).await?;
        if let Some(before) = &before {
            run.replace_file(&before_name(file), before).await?;
        }
        run.replace_file(&after_name(file), after).await?;
        changes.push(Change { file: file.clone(), existed: before.is_some() });
    }
    run.replace_file(RECORD, &record(&changes)).await?;
    runs.sync().await?;
    dir.sync().await?;
    for (file, after) in &plan.changes.texts {
        dir.replace_file(file, after).await?;
    }
    Ok(run.path().to_owned())
}

/// Takes the last run back that was not taken back yet.
///
/// # Errors
/// `NotFound`: there is none. `Refused`: a file was changed since; nothing is written then.
pub async fn undo(dir: &Dir) -> Result<Undone> {
    refuse_pending(dir).await?;
    let none =
        || Error::not_found(dir.path(), format!("there is no repair to take back: no record in {FOLDER}"));
    let runs = match dir.open_dir(FOLDER, false).await {
        Err(e) if e.kind == ErrorKind::NotFound => return Err(none()),
        opened => opened?,
    };
    let _lock = runs.lock(LOCK).await?;
    for number in numbers(&runs).await?.into_iter().rev() {
        let run = runs.open_dir(&folder_name(number), false).await?;
        let names = run.list().await?;
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        if !has(RECORD) || has(UNDONE) {
            continue;
        }
        let bytes = run.read_file(RECORD, TEXT_BYTES_MAX as u64).await?;
        let changes = parse(run.env(), run.path_of(RECORD), bytes, read_record).await?;
        take_back(dir, &run, &changes).await?;
        run.replace_file(UNDONE, b"").await?;
        let files = changes.into_iter().map(|change| change.file).collect();
        return Ok(Undone { copies: run.path().to_owned(), files });
    }
    Err(none())
}

async fn take_back(dir: &Dir, run: &Dir, changes: &[Change]) -> Result<()> {
    let limit = TEXT_BYTES_MAX as u64;
    let mut restored = Vec::new();
    for change in changes {
        let now = read_if_there(dir, &change.file).await?;
        let before = match change.existed {
            true => Some(run.read_file(&before_name(&change.file), limit).await?),
            false => None,
        };
        if now == before {
            continue;
        }
        if now != Some(run.read_file(&after_name(&change.file), limit).await?) {
            let cause = format!("it was changed since the repair, whose copies lie in {}", shown(run.path()));
            return Err(Error::refused(
                dir.path_of(&change.file),
                format!("{cause}; nothing was taken back"),
            ));
        }
        restored.push((&change.file, before));
    }
    for (file, before) in restored {
        match before {
            Some(before) => dir.replace_file(file, &before).await?,
            None => dir.unlink_if_present(file).await?,
        }
    }
    dir.sync().await
}

/// Recovery of an interrupted change of ours would write over the repair.
async fn refuse_pending(dir: &Dir) -> Result<()> {
    let names = match dir.open_dir(PRIVATE_FOLDER, false).await {
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(()),
        opened => opened?.list().await?,
    };
    match names.iter().any(|name| name == INTENT) {
        false => Ok(()),
        true => {
            let cause =
                "a change of this folder was interrupted; open the VM with unstun first, which finishes it";
            Err(Error::refused(dir.path(), cause))
        }
    }
}

async fn read_if_there(dir: &Dir, file: &str) -> Result<Option<Vec<u8>>> {
    match dir.read_file(file, TEXT_BYTES_MAX as u64).await {
        Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// No `.vmdk` at its end: a folder of copies is no folder of links.
fn before_name(file: &str) -> String {
    format!("{file}.before")
}

fn after_name(file: &str) -> String {
    format!("{file}.after")
}

fn folder_name(number: u32) -> String {
    format!("{number:04}")
}

/// The numbers of the runs, in order.
async fn numbers(runs: &Dir) -> Result<Vec<u32>> {
    let names = runs.list().await?;
    let mut numbers: Vec<u32> =
        names.iter().filter_map(|name| name.strip_suffix('/')?.parse().ok()).collect();
    numbers.retain(|number| names.contains(&format!("{}/", folder_name(*number))));
    numbers.sort_unstable();
    Ok(numbers)
}

fn record(changes: &[Change]) -> Vec<u8> {
    let mut record = KeyValues::new(RECORD);
    record.set("version", "1");
    record.set("files", &changes.len().to_string());
    for (index, change) in changes.iter().enumerate() {
        record.set(&format!("file{index}"), &change.file);
        record.set(&format!("existed{index}"), if change.existed { "TRUE" } else { "FALSE" });
    }
    record.to_bytes()
}

fn read_record(file: &str, bytes: &[u8]) -> Result<Vec<Change>> {
    let record = KeyValues::parse(file, bytes)?;
    let version = record.get("version")?.unwrap_or_default();
    if version != "1" {
        let cause = format!("version is {}, expected \"1\"; a newer unstun has written this", shown(version));
        return Err(Error::unsupported(file, cause));
    }
    let count: usize = decimal(file, "files", record.get("files")?.unwrap_or_default(), "a number")?;
    let change = |index: usize| {
        let key = format!("file{index}");
        let name = record.get(&key)?.ok_or_else(|| wrong(file, &key, "absent", "the name of a file"))?;
        Ok(Change { file: name.into(), existed: record.get_bool(&format!("existed{index}"), true)? })
    };
    (0..count.min(CHANGES_MAX)).map(change).collect()
}
