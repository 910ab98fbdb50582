//! Measurements of other tools as `Record`s, so that anyone's own runs get the same report.
//!
//! The format is told by what is in the file, never by its name. The bytes come from strangers: whatever they are, reading
//! them ends, in memory bounded by the constants here, and what made no sense is skipped and said.

mod base;
mod detect;
mod fields;
mod fio;
mod iometer;
mod lines;
mod merge;
mod number;
mod pdh;
mod ping;
#[cfg(test)]
mod tests;
mod vmware;

use std::io::BufRead;

use blk::{Error, ErrorKind, Result};

use crate::run::Record;
use crate::workload::Workload;
use lines::Lines;

pub use detect::Format;
pub use merge::merge;

/// Intervals kept of one file: at 250 bytes each 125 MB; at one a second almost six days.
pub const SAMPLES_MAX: usize = 500_000;
/// Beats, stuns and marks kept of one file, each kind.
pub const EVENTS_MAX: usize = 200_000;
/// Complaints kept; beyond them they are counted.
pub const SKIPPED_MAX: usize = 100;
/// Longest text taken over from a file into a name or a message.
const TEXT_CHARS_MAX: usize = 200;

/// Which of a file's columns are wanted: each a part of the name, in any case; None wants all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    pub vm: Option<String>,
    pub disk: Option<String>,
    pub counter: Option<String>,
}

/// Something that was passed over, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// From 1; None where it concerns the whole file.
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

/// What a file came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    pub format: Format,
    /// None of a configuration, which measured nothing.
    pub records: Vec<Record>,
    /// What a configuration would have run.
    pub workload: Option<Workload>,
    pub skipped: Vec<Skipped>,
}

/// What was passed over, while a file is read.
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

/// Of a file, as text that may be shown: no control characters, not longer than a line.
fn text(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(TEXT_CHARS_MAX).collect()
}

/// Reads all of `input`, called `name` in what is said of it.
///
/// Errors: `Unsupported` where no format is recognised or nothing in the file is of use, with what was found; `Io` where
/// the first bytes cannot be read. A file cut or unreadable further on gives what was read until there.
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
