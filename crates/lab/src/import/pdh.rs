//! Performance counters as Windows' performance monitor and `esxtop -b` write them: one very long header, then one line
//! per interval.

mod column;
mod header;
mod row;

use blk::Result;
use header::{EXAMPLES, Header, Series, header};
use row::{Row, Rows};

use super::fields::Fields;
use super::{Lines, Selection, Skips, base};
use crate::run::{Fact, Record};

pub(super) fn read(
    name: &str,
    lines: &mut Lines<'_>,
    selection: &Selection,
    skips: &mut Skips,
) -> Result<Vec<Record>> {
    let mut fields = Fields::default();
    let (_, first) = lines.next().unwrap_or_default();
    let header = header(name, first, selection, &mut fields, skips)?;
    let mut rows = Rows::new(header.series.len());
    while let Some((number, line)) = lines.next() {
        if line.trim().is_empty() {
            continue;
        }
        fields.split(line, header.separator);
        if fields.len() < header.columns {
            skips.at(number, format!("cut after {} of {} columns", fields.len(), header.columns));
        }
        rows.add(Row::new(&fields, &header, number, skips), number, skips);
    }
    let mut records: Vec<Record> = header.series.iter().map(|series| head(name, &header, series)).collect();
    rows.into_records(&mut records, header.bias_minutes, skips);
    records.retain(|record| !record.samples.is_empty());
    Ok(records)
}

/// Returns the record of a series, without its samples.
fn head(name: &str, header: &Header, series: &Series) -> Record {
    let list = |names: &[String]| {
        let more = names.len().saturating_sub(EXAMPLES);
        let shown = names.iter().take(EXAMPLES).cloned().collect::<Vec<_>>().join(", ");
        if more > 0 { format!("{shown} and {more} more") } else { shown }
    };
    let mut record = base::record(name, "Performance counters");
    record.subject = if series.name.is_empty() { record.subject } else { series.name.clone() };
    if series.is_vm {
        record.machine.push(base::vm(&series.name));
    }
    record.machine.push(Fact { name: "time zone".into(), value: header.zone.clone() });
    record.machine.push(Fact { name: "disks".into(), value: list(&series.guests) });
    if !series.hosts.is_empty() {
        record.machine.push(Fact { name: "below them".into(), value: list(&series.hosts) });
    }
    let (wanted, columns, disks) = (series.columns, header.columns, series.guests.len() + series.hosts.len());
    record.notes.push(format!("{wanted} of {columns} columns are read, summed up over {disks} disks."));
    record.notes.push("Counters are means of their interval: there are no percentiles.".into());
    record
}
