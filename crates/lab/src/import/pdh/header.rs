//! The first line: time zone, and the columns to read, each as part of a series.

use std::collections::{BTreeMap, BTreeSet};

use blk::{Error, Result};

use super::column::{Column, Layer, Owner, Role, column};
use crate::import::fields::Fields;
use crate::import::{SERIES_MAX, Selection, Skips, text};

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
    /// Index into the series of the header.
    pub series: usize,
}

/// Columns that are added up, and become one record: those of a VM, of a computer, or of the devices of a host.
pub(super) struct Series {
    /// Name of the VM, or of the machine.
    pub name: String,
    pub is_vm: bool,
    pub columns: usize,
    pub guests: Vec<String>,
    pub hosts: Vec<String>,
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
    pub series: Vec<Series>,
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
    let paths = fields.iter().enumerate().skip(1);
    let all: Vec<Place<'_>> = paths.filter_map(|(place, path)| Some((place, column(path)?))).collect();
    let mut chosen: Vec<Place<'_>> =
        all.iter().copied().filter(|(_, column)| is_selected(column, selection)).collect();
    if chosen.is_empty() {
        let offered: Vec<String> =
            all.iter().take(EXAMPLES).map(|(place, _)| text(fields.get(*place))).collect();
        return Err(nothing_wanted(name, &header, &offered));
    }
    drop_repeated(&mut chosen, skips);
    keep_the_finest(&mut chosen, skips);
    let sole = sole_owners(&all);
    drop_shared_devices(&mut chosen, selection, &sole, skips);
    group(&mut header, &chosen, &sole, skips);
    Ok(header)
}

/// A column, and its place in the line.
type Place<'a> = (usize, Column<'a>);

fn is_selected(column: &Column<'_>, selection: &Selection) -> bool {
    let has = |text: &str, part: &Option<String>| {
        part.as_ref().is_none_or(|part| text.to_lowercase().contains(&part.to_lowercase()))
    };
    // A VM's name does not appear in the names of its host's devices.
    let vm = column.layer == Layer::Host || has(column.vm(), &selection.vm);
    vm && has(column.instance, &selection.disk) && has(column.counter, &selection.counter)
}

/// Keeps the first of several columns of one name, as tools that join files write them: both have the same I/O.
fn drop_repeated(chosen: &mut Vec<Place<'_>>, skips: &mut Skips) {
    let before = chosen.len();
    let mut seen = BTreeSet::new();
    chosen.retain(|(_, c)| seen.insert((c.machine, c.category, c.instance, c.counter)));
    if chosen.len() < before {
        skips.file(format!("{} columns that repeat another, and are not added to it", before - chosen.len()));
    }
}

/// Removes sums where their parts are present.
fn keep_the_finest(chosen: &mut Vec<Place<'_>>, skips: &mut Skips) {
    let before = chosen.len();
    let parts: BTreeSet<(&str, Owner<'_>)> = guests(chosen).map(|c| (c.machine, c.owner().bare())).collect();
    chosen.retain(|(_, c)| c.layer != Layer::GuestSum || !parts.contains(&(c.machine, c.owner().bare())));
    if chosen.len() < before {
        skips.file(format!("{} columns that are sums of others", before - chosen.len()));
    }
}

fn guests<'a>(columns: &[Place<'a>]) -> impl Iterator<Item = Column<'a>> {
    columns.iter().map(|(_, column)| *column).filter(|column| column.layer == Layer::Guest)
}

/// Returns, for each machine, its only VM or itself; None where it has several. The devices below several VMs belong to
/// none of them.
fn sole_owners<'a>(all: &[Place<'a>]) -> BTreeMap<&'a str, Option<Owner<'a>>> {
    let named: BTreeSet<(&str, Owner<'_>)> = guests(all).map(|c| (c.machine, c.owner())).collect();
    let bare: BTreeSet<(&str, Owner<'_>)> = named.iter().map(|(m, owner)| (*m, owner.bare())).collect();
    let sums = all.iter().map(|(_, c)| c).filter(|c| c.layer == Layer::GuestSum);
    let sums = sums.filter(|c| !bare.contains(&(c.machine, c.owner().bare())));
    let sums: BTreeSet<_> = sums.map(|c| (c.machine, c.owner())).collect();
    let mut sole = BTreeMap::new();
    for (machine, owner) in named.into_iter().chain(sums) {
        sole.entry(machine).and_modify(|only| *only = None).or_insert(Some(owner));
    }
    sole
}

/// Removes the devices of a host where one of its VMs is selected: they have the I/O of the others too.
fn drop_shared_devices(
    chosen: &mut Vec<Place<'_>>,
    selection: &Selection,
    sole: &BTreeMap<&str, Option<Owner<'_>>>,
    skips: &mut Skips,
) {
    let before = chosen.len();
    let is_shared = |c: &Column<'_>| c.layer == Layer::Host && sole.get(c.machine) == Some(&None);
    chosen.retain(|(_, c)| selection.vm.is_none() || !is_shared(c));
    if chosen.len() < before {
        let left = before - chosen.len();
        skips.file(format!(
            "{left} columns of devices that other VMs use too; without --vm they are a series"
        ));
    }
}

/// Assigns the columns to disks and series. Latencies come after the counts that weight them.
fn group<'a>(
    header: &mut Header,
    chosen: &[Place<'a>],
    sole: &BTreeMap<&'a str, Option<Owner<'a>>>,
    skips: &mut Skips,
) {
    let mut disks: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
    let mut places: BTreeMap<(&str, Owner<'_>), usize> = BTreeMap::new();
    let (mut dropped, mut unnamed) = (0, BTreeSet::new());
    for (place, column) in chosen {
        let Column { machine, category, instance, layer, role, scale, .. } = *column;
        let only = sole.get(machine).copied().flatten().filter(|_| layer == Layer::Host);
        let key = (machine, only.unwrap_or(column.owner()));
        if header.wanted.len() >= COLUMNS_MAX {
            dropped += 1;
            continue;
        }
        if !places.contains_key(&key) && places.len() >= SERIES_MAX {
            unnamed.insert(key);
            continue;
        }
        let series = *places.entry(key).or_insert_with(|| {
            header.series.push(new_series(key));
            header.series.len() - 1
        });
        let next = disks.len();
        let disk = *disks.entry((machine, category, instance)).or_insert_with(|| {
            let Series { guests, hosts, .. } = &mut header.series[series];
            if layer == Layer::Host { hosts } else { guests }.push(text(instance));
            next
        });
        header.series[series].columns += 1;
        header.wanted.push(Wanted { place: *place, layer, role, scale, disk, series });
    }
    header.disks = disks.len();
    header.wanted.sort_by_key(|w| matches!(w.role, Role::ReadLatency | Role::WriteLatency));
    if dropped > 0 {
        skips.file(format!("{dropped} of the wanted columns beyond the first {COLUMNS_MAX}"));
    }
    if !unnamed.is_empty() {
        let more = unnamed.len();
        skips.file(format!("{more} VMs beyond the first {SERIES_MAX}; --vm PART selects others"));
    }
}

fn new_series((machine, owner): (&str, Owner<'_>)) -> Series {
    let (name, is_vm) = match owner {
        Owner::Vm(name) => (text(name), true),
        Owner::Computer => (text(machine), false),
        Owner::Host => (format!("devices of {}", text(machine)), false),
    };
    Series { name, is_vm, columns: 0, guests: Vec::new(), hosts: Vec::new() }
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
