//! Files of runs in a folder.

use std::path::{Path, PathBuf};

use api::error::{Error, ErrorKind, Result};
use api::output::Output;

use crate::report::{html, json};
use crate::run::Record;

/// File of a run while it goes on, with a line for every event.
pub(crate) const LINES: &str = "run.jsonl";
const RUN: &str = "run.json";
pub(crate) const PAGE: &str = "report.html";
/// End of the name of a file that is being written. It is this program's own, so that no file of the user has it.
const NEW: &str = ".unstun-new";
/// Largest file of runs that the lab reads: two days of samples in each of ten columns.
const FILE_BYTES_MAX: u64 = 1 << 30;

pub(crate) fn folder(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|e| Error::failed(format!("{}: {e}", dir.display())))
}

/// Writes the records to the folder that the user named, if any.
pub(crate) fn keep(dir: Option<&Path>, output: Output, all: &[Record]) -> Result<()> {
    let Some(dir) = dir else { return Ok(()) };
    records(dir, all)?;
    output.note(&format!("kept in {}", dir.display()));
    Ok(())
}

pub(crate) fn records(dir: &Path, records: &[Record]) -> Result<()> {
    folder(dir)?;
    file(&dir.join(RUN), json::write(records)?.as_bytes())?;
    file(&dir.join(PAGE), html::page(records).as_bytes())
}

/// Writes a file beside the old one and puts it in its place, so that a full disk leaves the old one. What is no regular
/// file, such as a pipe, is written as it is.
pub(crate) fn file(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |e| Error::failed(format!("{}: {e}", path.display()));
    if std::fs::symlink_metadata(path).is_ok_and(|old| !old.is_file()) {
        return std::fs::write(path, bytes).map_err(failed);
    }
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(NEW);
    let new = path.with_file_name(name);
    let written = std::fs::write(&new, bytes).and_then(|()| std::fs::rename(&new, path));
    written.map_err(failed).inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })
}

/// Reads the records of a folder or a file. A run that was interrupted counts as far as it came.
pub(crate) fn read(path: &Path) -> Result<Vec<Record>> {
    let file = if path.is_dir() { in_folder(path) } else { path.to_path_buf() };
    let place = file.display().to_string();
    let bytes = std::fs::metadata(&file).map_err(|e| not_found(&place, &e))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(Error::refused(format!("{place}: {bytes} bytes, at most {FILE_BYTES_MAX} are read")));
    }
    if file.extension().is_some_and(|extension| extension == "jsonl") {
        let record = crate::runner::read(&file)
            .map_err(|e| Error::new(ErrorKind::Damaged, format!("{place}: {e}")))?;
        return Ok(vec![record]);
    }
    let text = std::fs::read(&file).map_err(|e| not_found(&place, &e))?;
    Ok(json::read(&place, &text)?)
}

fn in_folder(dir: &Path) -> PathBuf {
    let whole = dir.join(RUN);
    if whole.exists() { whole } else { dir.join(LINES) }
}

fn not_found(place: &str, error: &std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::NotFound => Error::not_found(format!("{place}: {error}")),
        _ => Error::failed(format!("{place}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.html");
        file(&path, b"old").unwrap();
        std::fs::write(dir.path().join("report.html.new"), b"the user's").unwrap();
        file(&path, b"new").unwrap();
        assert_eq!(std::fs::read(dir.path().join("report.html.new")).unwrap(), b"the user's");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left over");
        // A folder of that name makes the write fail, as a full disk would.
        std::fs::create_dir(dir.path().join(".report.html.unstun-new")).unwrap();
        assert!(file(&path, b"newer").is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }
}
