//! The record of a repair, for its undo: the changed files, the kind of each change, and the names of the copies.

use blk::dir::OWN_FOLDER;
use blk::{Dir, Error, ErrorKind, Result};

use super::cuts::{Cut, Piece};
use crate::home::RECORD as INTENT;
use crate::keyvalue::KeyValues;
use crate::text::{TEXT_BYTES_MAX, decimal, shown, wrong};

/// Folder in the repaired folder, with one folder for each run, numbered from 0001.
pub(super) const FOLDER: &str = "unstun-repair";
pub(super) const LOCK: &str = "lock";
/// Name of the file that lists the files of a run.
pub(super) const RECORD: &str = "record";
/// Name of the file that marks a run as undone.
pub(super) const UNDONE: &str = "undone";
/// Maximum number of files of one run.
const CHANGES_MAX: usize = 1 << 16;

/// Version of the record; version 1 had texts only.
const VERSION: &str = "2";

const SECTOR_BYTES: usize = blk::SECTOR as usize;
/// Length of the record of one changed sector: the offset, the old content, and the new one.
const PIECE_BYTES: usize = 8 + 2 * SECTOR_BYTES;
/// Maximum length of the file for a truncated delta: see `cuts::SECTORS_MAX`.
pub(super) const PIECES_BYTES_MAX: u64 = 64 << 20;

/// How a file is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text is replaced, or written if it did not exist.
    Text { existed: bool },
    /// A file gets a second name beside the copies, and loses its own.
    Aside,
    /// The same for a folder with all its files.
    FolderAside,
    /// Sectors of a delta are written.
    Cut,
}

/// A file of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// Name without a slash, also for a folder.
    pub file: String,
    pub kind: Kind,
}

/// Returns the name of a copy. It does not end in `.vmdk`, so that a folder of copies is no folder of links.
pub(super) fn before_name(file: &str) -> String {
    format!("{file}.before")
}

pub(super) fn after_name(file: &str) -> String {
    format!("{file}.after")
}

pub(super) fn aside_name(file: &str) -> String {
    format!("{file}.aside")
}

pub(super) fn cut_name(file: &str) -> String {
    format!("{file}.cut")
}

pub(super) fn folder_name(number: u32) -> String {
    format!("{number:04}")
}

/// Returns the numbers of the runs, in order.
pub(super) async fn numbers(runs: &Dir) -> Result<Vec<u32>> {
    let names = runs.list().await?;
    let mut numbers: Vec<u32> =
        names.iter().filter_map(|name| name.strip_suffix('/')?.parse().ok()).collect();
    numbers.retain(|number| names.contains(&format!("{}/", folder_name(*number))));
    numbers.sort_unstable();
    Ok(numbers)
}

pub(super) async fn read_if_there(dir: &Dir, file: &str) -> Result<Option<Vec<u8>>> {
    match dir.read_file(file, TEXT_BYTES_MAX as u64).await {
        Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// Refuses a folder with a pending change of unstun's own, whose recovery would overwrite the repair.
pub(super) async fn refuse_pending(dir: &Dir) -> Result<()> {
    let names = match dir.open_dir(OWN_FOLDER, false).await {
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

pub(super) fn write_record(changes: &[Change]) -> Vec<u8> {
    let mut record = KeyValues::new(RECORD);
    record.set("version", VERSION);
    record.set("files", &changes.len().to_string());
    for (index, change) in changes.iter().enumerate() {
        record.set(&format!("file{index}"), &change.file);
        let (kind, existed) = match change.kind {
            Kind::Text { existed } => ("text", existed),
            Kind::Aside => ("aside", true),
            Kind::FolderAside => ("folder", true),
            Kind::Cut => ("cut", true),
        };
        record.set(&format!("kind{index}"), kind);
        record.set(&format!("existed{index}"), if existed { "TRUE" } else { "FALSE" });
    }
    record.to_bytes()
}

pub(super) fn read_record(file: &str, bytes: &[u8]) -> Result<Vec<Change>> {
    let record = KeyValues::parse(file, bytes)?;
    let version = record.get("version")?.unwrap_or_default();
    if version != "1" && version != VERSION {
        let cause = format!(
            "version is {}, expected \"1\" or \"2\"; a newer unstun has written this",
            shown(version)
        );
        return Err(Error::unsupported(file, cause));
    }
    let count: usize = decimal(file, "files", record.get("files")?.unwrap_or_default(), "a number")?;
    let change = |index: usize| {
        let key = format!("file{index}");
        let name = record.get(&key)?.ok_or_else(|| wrong(file, &key, "absent", "the name of a file"))?;
        let key = format!("kind{index}");
        let kind = match record.get(&key)?.unwrap_or("text") {
            "text" => Kind::Text { existed: record.get_bool(&format!("existed{index}"), true)? },
            "aside" => Kind::Aside,
            "folder" => Kind::FolderAside,
            "cut" => Kind::Cut,
            other => {
                return Err(wrong(file, &key, shown(other), "\"text\", \"aside\", \"folder\" or \"cut\""));
            }
        };
        Ok(Change { file: name.into(), kind })
    };
    (0..count.min(CHANGES_MAX)).map(change).collect()
}

pub(super) fn write_pieces(cut: &Cut) -> Vec<u8> {
    let mut bytes = cut.file_bytes.to_le_bytes().to_vec();
    for (offset, piece) in &cut.pieces {
        bytes.extend(offset.to_le_bytes());
        bytes.extend(&piece.before);
        bytes.extend(&piece.after);
    }
    bytes
}

/// Returns the length that the delta has, and its pieces.
pub(super) fn read_pieces(file: &str, bytes: &[u8]) -> Result<(u64, Vec<(u64, Piece)>)> {
    let (length, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| torn(file))?;
    if !rest.len().is_multiple_of(PIECE_BYTES) {
        return Err(torn(file));
    }
    let pieces = rest.chunks_exact(PIECE_BYTES).map(|bytes| {
        let (offset, contents) = bytes.split_first_chunk::<8>().ok_or_else(|| torn(file))?;
        let offset = u64::from_le_bytes(*offset);
        if !offset.is_multiple_of(blk::SECTOR) || offset > u64::MAX / 4 {
            return Err(torn(file));
        }
        let (before, after) = contents.split_at(SECTOR_BYTES);
        Ok((offset, Piece { before: before.to_vec(), after: after.to_vec() }))
    });
    Ok((u64::from_le_bytes(*length), pieces.collect::<Result<_>>()?))
}

fn torn(file: &str) -> Error {
    wrong(file, "the content", "torn", "the sectors that a repair changed")
}
