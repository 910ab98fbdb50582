//! Imports measurements of other tools as `Record`s, so that users' own runs get the same report.
//!
//! The content of a file decides its format, never its name. The bytes are untrusted: reading always ends, and the
//! constants here bound its memory. What makes no sense is skipped and reported.

mod base;
mod detect;
mod events;
mod fields;
mod fio;
mod iometer;
mod lines;
mod merge;
mod number;
mod pdh;
mod phases;
mod ping;
#[cfg(test)]
mod tests;
mod vcenter;
mod vmware;

use std::io::BufRead;

use blk::{Error, ErrorKind, Result};

use crate::run::Record;
use crate::workload::Workload;
use lines::Lines;

pub use detect::Format;
pub use merge::{Merged, merge};
pub use phases::{PhaseMark, mark_phases};

/// Most intervals kept of one file: 125 MB at 250 bytes each; almost six days at one a second.
pub const SAMPLES_MAX: usize = 500_000;
/// Most beats, stuns and marks kept of one file, for each kind.
pub const EVENTS_MAX: usize = 200_000;
/// Most series of one file: a page of a hundred runs still opens.
pub const SERIES_MAX: usize = 100;
/// Most complaints kept; further ones are only counted.
pub const SKIPPED_MAX: usize = 100;
/// Longest text taken from a file into a name or a message.
const TEXT_CHARS_MAX: usize = 200;

/// The columns of a file to import: each field is a part of a name, in any case; None selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    pub vm: Option<String>,
    pub disk: Option<String>,
    pub counter: Option<String>,
}

/// Something that was skipped, and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Number from 1; None where the whole file is concerned.
    pub line: Option<u64>,
    pub what: String,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    pub format: Format,
    /// Empty for a configuration, which contains no measurements.
    pub records: Vec<Record>,
    /// The load that a configuration describes.
    pub workload: Option<Workload>,
    pub skipped: Vec<Skipped>,
}

/// Collects what is skipped while a file is read.
#[derive(Debug, Default)]
struct Skips {
    list: Vec<Skipped>,
    more: u64,
}

impl Skips {
    fn at(&mut self, line: u64, what: impl Into<String>) {
        self.add(Some(line), what.into());
    }

    fn file(&mut self, what: impl Into<String>) {
        self.add(None, what.into());
    }

    fn add(&mut self, line: Option<u64>, what: String) {
        if self.list.len() < SKIPPED_MAX {
            self.list.push(Skipped { line, what: text(&what) });
        } else {
            self.more += 1;
        }
    }

    fn into_list(mut self) -> Vec<Skipped> {
        if self.more > 0 {
            self.list.push(Skipped { line: None, what: format!("{} more of these", self.more) });
        }
        self.list
    }
}

/// Returns text of a file that is safe to show: without control characters, and no longer than a line.
fn text(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(TEXT_CHARS_MAX).collect()
}

/// Imports all of `input`, which messages call `name`.
///
/// Errors: `Unsupported` where no format is recognised or nothing in the file is of use, with what was found; `Io`
/// where the first bytes cannot be read. A file that is cut or unreadable further on gives what was read until there.
pub fn import(name: &str, input: &mut dyn BufRead, selection: &Selection) -> Result<Imported> {
    let mut lines = Lines::new(input).map_err(|e| Error::new(ErrorKind::Io, name, e.to_string()))?;
    let format = detect::detect(lines.head()).ok_or_else(|| unknown(name, lines.head()))?;
    let mut skips = Skips::default();
    let (mut records, mut workload) = (Vec::new(), None);
    match format {
        Format::IometerConfig => workload = Some(iometer::config::read(&mut lines, &mut skips)),
        Format::IometerResults => records = iometer::results::read(name, &mut lines, &mut skips),
        Format::FioJson => records = fio::json::read(name, &mut lines, &mut skips)?,
        Format::FioLog => records = fio::log::read(name, &mut lines, &mut skips),
        Format::Pdh => records = pdh::read(name, &mut lines, selection, &mut skips)?,
        Format::Vcenter => records = vcenter::read(name, &mut lines, selection, &mut skips),
        Format::VmwareLog => records = vmware::read(name, &mut lines, &mut skips),
        Format::Ping => records = ping::read(name, &mut lines, &mut skips),
    }
    if let Some(cause) = lines.failure() {
        skips.at(lines.number(), format!("reading ended here: {cause}"));
    }
    let nothing = records.is_empty() && workload.as_ref().is_none_or(|w| w.workers.is_empty());
    let skipped = skips.into_list();
    if nothing {
        let why = skipped.first().map_or_else(|| "it holds no measurement".into(), Skipped::to_string);
        return Err(Error::unsupported(
            name,
            format!("read as {}, but nothing came of it: {why}", format.name()),
        ));
    }
    records.iter_mut().for_each(|record| base::note_skipped(record, &skipped));
    Ok(Imported { format, records, workload, skipped })
}

/// Sets the phases of records that have none from the events of vmware.log.
pub fn find_phases(records: &mut [Record]) {
    records.iter_mut().for_each(events::find_phases);
}

fn unknown(name: &str, head: &str) -> Error {
    let first = head.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    let found = if first.is_empty() {
        "an empty file".into()
    } else {
        format!("a file that begins {:?}", text(first))
    };
    let known = Format::ALL.map(Format::name).join(", ");
    Error::unsupported(name, format!("{found}; expected one of: {known}"))
}
