//! The first line: time zone, and the columns to read.

use std::collections::BTreeMap;

use blk::{Error, Result};

use super::column::{Column, Layer, Role, column};
use crate::import::fields::Fields;
use crate::import::{Selection, Skips, text};

/// Most columns read of each line: enough for the disks and VMs of the largest host, with all their counters.
const COLUMNS_MAX: usize = 20_000;
/// Most names in a message or a note.
pub(super) const EXAMPLES: usize = 8;

/// A column that is imported.
pub(super) struct Wanted {
    pub place: usize,
    pub layer: Layer,
    pub role: Role,
    pub scale: f64,
    /// Index into the disks of the header.
    pub disk: usize,
}

/// The first line. Of its tens of thousands of names only those of wanted disks are kept.
#[derive(Default)]
pub(super) struct Header {
    pub separator: u8,
    /// Minutes from the local times to UTC.
    pub bias_minutes: i64,
    pub columns: usize,
    pub wanted: Vec<Wanted>,
    pub disks: usize,
    pub guests: Vec<String>,
    pub hosts: Vec<String>,
    pub zone: String,
}

/// Returns the separator: the one after the first field, whose name contains none of them.
fn separator(line: &str) -> u8 {
    let is_tab = line.trim_start_matches('"').starts_with("(PDH-TSV");
    let commas = line.find(',').unwrap_or(usize::MAX);
    let semicolons = line.find(';').unwrap_or(usize::MAX);
    match is_tab || (line.contains('\t') && !line.contains("\",\"")) {
        true => b'\t',
        false if semicolons < commas => b';',
        false => b',',
    }
}

pub(super) fn header(
    name: &str,
    line: &str,
    selection: &Selection,
    fields: &mut Fields,
    skips: &mut Skips,
) -> Result<Header> {
    let separator = separator(line);
    fields.split(line.trim_start(), separator);
    let mut header = Header { separator, columns: fields.len(), ..Header::default() };
    zone(&mut header, fields.get(0));
    let mut disks: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let (mut dropped, mut offered) = (0, Vec::new());
    for (place, path) in fields.iter().enumerate().skip(1) {
        let Some(column) = column(path) else { continue };
        if !is_selected(&column, selection) {
            if offered.len() < EXAMPLES {
                offered.push(text(path));
            }
            continue;
        }
        if header.wanted.len() >= COLUMNS_MAX {
            dropped += 1;
            continue;
        }
        let next = disks.len();
        let disk = *disks.entry((column.category, column.instance)).or_insert(next);
        let Column { layer, role, scale, .. } = column;
        header.wanted.push(Wanted { place, layer, role, scale, disk });
    }
    if dropped > 0 {
        skips.file(format!("{dropped} of the wanted columns beyond the first {COLUMNS_MAX}"));
    }
    header.disks = disks.len();
    let names: Vec<(usize, &str)> = disks.iter().map(|((_, instance), disk)| (*disk, *instance)).collect();
    keep_the_finest(&mut header, &names, skips);
    match header.wanted.is_empty() {
        true => Err(nothing_wanted(name, &header, &offered)),
        false => Ok(header),
    }
}

fn is_selected(column: &Column<'_>, selection: &Selection) -> bool {
    let has = |text: &str, part: &Option<String>| {
        part.as_ref().is_none_or(|part| text.to_lowercase().contains(&part.to_lowercase()))
    };
    // A VM's name does not appear in the names of its host's devices.
    let vm = column.layer == Layer::Host || has(column.vm(), &selection.vm);
    vm && has(column.instance, &selection.disk) && has(column.counter, &selection.counter)
}

/// Removes sums where their parts are present, and puts latencies after the counts that weight them.
fn keep_the_finest(header: &mut Header, names: &[(usize, &str)], skips: &mut Skips) {
    let has_parts = header.wanted.iter().any(|w| w.layer == Layer::Guest);
    let before = header.wanted.len();
    header.wanted.retain(|w| !has_parts || w.layer != Layer::GuestSum);
    if header.wanted.len() < before {
        skips.file(format!("{} columns that are sums of others", before - header.wanted.len()));
    }
    header.wanted.sort_by_key(|w| matches!(w.role, Role::ReadLatency | Role::WriteLatency));
    for (disk, name) in names {
        let mut of_disk = header.wanted.iter().filter(|w| w.disk == *disk);
        match of_disk.next().map(|w| w.layer) {
            Some(Layer::Host) => header.hosts.push(text(name)),
            Some(_) => header.guests.push(text(name)),
            None => {}
        }
    }
}

/// Reads the time zone: `(PDH-CSV 4.0) (SE Asia Standard Time)(-420)`.
fn zone(header: &mut Header, first: &str) {
    let mut parts = first.split('(').map(|part| part.trim_end().trim_end_matches(')'));
    let (Some(minutes), Some(zone)) = (parts.next_back(), parts.next_back()) else { return };
    const DAY_MINUTES: i64 = 24 * 60;
    header.bias_minutes = minutes.parse().ok().filter(|m: &i64| m.abs() <= DAY_MINUTES).unwrap_or(0);
    header.zone = text(zone);
}

fn nothing_wanted(name: &str, header: &Header, offered: &[String]) -> Error {
    let there = match offered {
        [] => "none of them counts reads or writes of a disk by a name known here (English ones)".into(),
        some => format!("there are {}", some.join(", ")),
    };
    Error::unsupported(name, format!("{} columns, and none that is wanted; {there}", header.columns))
}
