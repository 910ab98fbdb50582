//! One workbook: figures, phases, constants, stuns, and a sheet of samples with native charts for each run.

mod samples;
mod sheet;

use blk::{Error, ErrorKind, Result};
use rust_xlsxwriter::{Chart, ChartType, DocProperties, ExcelDateTime, Workbook, Worksheet, XlsxError};
use sheet::Sheet;

use super::table::{Comparison, Line, comparisons};
use super::words;
use crate::figures::{layers, phases_and_steps};
use crate::run::Record;

/// Most runs with a sheet of samples. A workbook of all hypotheses of all experiments would take more than a minute to
/// open; the JSON and CSV have the other runs.
pub const SAMPLE_SHEETS_MAX: usize = 24;

/// Writes the workbook. The same records give the same bytes.
pub fn workbook(records: &[Record]) -> Result<Vec<u8>> {
    build(records).map_err(|e| Error::new(ErrorKind::Io, "workbook", e.to_string()))
}

fn build(records: &[Record]) -> Result<Vec<u8>, XlsxError> {
    let mut workbook = Workbook::new();
    workbook.set_properties(&properties(records)?);
    let groups = comparisons(records);
    overview(workbook.add_worksheet(), records)?;
    published(workbook.add_worksheet(), &groups)?;
    phases(workbook.add_worksheet(), records)?;
    by_layer(workbook.add_worksheet(), records)?;
    stuns(workbook.add_worksheet(), records)?;
    constants(workbook.add_worksheet(), records)?;
    for (n, record) in records.iter().enumerate().take(SAMPLE_SHEETS_MAX) {
        if !record.samples.is_empty() {
            samples::write(workbook.add_worksheet(), &sheet_of(n), record)?;
        }
    }
    workbook.save_to_buffer()
}

/// Returns a generated sheet name. Names from records are untrusted and long, and may contain characters of formulas.
fn sheet_of(n: usize) -> String {
    format!("Run {}", n + 1)
}

/// Sets a date that depends only on the records; otherwise the crate would write today's.
fn properties(records: &[Record]) -> Result<DocProperties, XlsxError> {
    let began = records.first().map_or(0, |record| record.began_unix_us) / 1_000_000;
    let created = ExcelDateTime::from_timestamp(began).or_else(|_| ExcelDateTime::from_timestamp(0))?;
    Ok(DocProperties::new().set_title("What a snapshot costs").set_creation_datetime(&created))
}

fn overview(worksheet: &mut Worksheet, records: &[Record]) -> Result<(), XlsxError> {
    let heads = "sheet,experiment,title,subject,hypothesis,storage,clock,seed,began,end,source,\
        command,model,verdict,times multiplied by";
    let mut sheet = Sheet::new(worksheet, "Runs", heads)?;
    for (n, record) in records.iter().enumerate() {
        let has_sheet = n < SAMPLE_SHEETS_MAX && !record.samples.is_empty();
        sheet.text(&if has_sheet { sheet_of(n) } else { String::new() })?;
        let hypothesis = record.hypothesis.as_deref().unwrap_or_default();
        sheet.texts([&*record.experiment, &record.title, &record.subject, hypothesis, &record.storage])?;
        sheet.text(&words::json_name(record.clock))?;
        sheet.text(&record.seed.to_string())?;
        sheet.text(&words::began(record.began_unix_us))?;
        sheet.text(&words::end(&record.end))?;
        sheet.texts([&*record.source, &record.command, &record.model])?;
        sheet.text(&super::verdict::text(record).join(" "))?;
        sheet.number(Some(record.scale() as f64))?;
        sheet.next();
    }
    sheet.finish(&[8.0, 22.0, 40.0, 10.0, 10.0, 18.0, 28.0, 10.0, 22.0, 14.0, 40.0, 60.0, 36.0, 80.0, 10.0])
}

fn published(worksheet: &mut Worksheet, groups: &[Comparison<'_>]) -> Result<(), XlsxError> {
    let heads = "experiment,phase,figure,kind,subject,published,predicted,error,within 25 %,band low,\
        band high,note";
    let mut sheet = Sheet::new(worksheet, "Figures", heads)?;
    for group in groups {
        for line in &group.lines {
            figure(&mut sheet, group, line)?;
        }
    }
    sheet.finish(&[22.0, 16.0, 28.0, 10.0, 14.0, 12.0, 12.0, 9.0, 11.0, 12.0, 12.0, 70.0])
}

fn figure(sheet: &mut Sheet<'_>, group: &Comparison<'_>, line: &Line<'_>) -> Result<(), XlsxError> {
    for (record, cell) in group.records.iter().zip(&line.cells) {
        sheet.texts([line.experiment, words::phase(line.phase), words::quantity(line.quantity)])?;
        sheet.text(words::kind(line.r#use))?;
        sheet.text(&words::label(record))?;
        sheet.numbers([line.published, cell.predicted])?;
        sheet.percent(cell.error)?;
        sheet.text(line.counted(cell).map_or("", |within| if within { "yes" } else { "no" }))?;
        sheet.numbers([cell.band.map(|(low, _)| low), cell.band.map(|(_, high)| high)])?;
        sheet.text(&line.notes.join("; "))?;
        sheet.next();
    }
    Ok(())
}

fn phases(worksheet: &mut Worksheet, records: &[Record]) -> Result<(), XlsxError> {
    let heads = "run,phase,step,begins s,lasts s,reads/s,writes/s,MiB/s,host reads/s,host writes/s,\
        table reads/s,table writes/s,mean ms,99 % ms,max ms,stuns,stunned ms,lost beats,\
        longest stun ms,gap ms,host reads a guest read,host writes a guest write,samples";
    let mut sheet = Sheet::new(worksheet, "Phases", heads)?;
    for record in records {
        for f in phases_and_steps(record) {
            sheet.texts([&*words::label(record), f.name(), f.step.as_deref().unwrap_or_default()])?;
            sheet.numbers([f.begin_us, f.lasts_us].map(|us| Some(us as f64 / 1e6)))?;
            sheet.numbers([f.reads_per_s, f.writes_per_s, f.mb_per_s])?;
            sheet.numbers([f.host_reads_per_s, f.host_writes_per_s])?;
            sheet.numbers([f.table_reads_per_s, f.table_writes_per_s])?;
            sheet.numbers([f.mean_us, f.p99_us, f.max_us].map(|us| us.map(|us| us / 1e3)))?;
            sheet.numbers([f.stuns as f64, f.stun_total_us as f64 / 1e3, f.beats_lost as f64].map(Some))?;
            sheet.numbers([f.stun_longest_us, f.gap_us].map(|us| Some(us as f64 / 1e3)))?;
            sheet.numbers([f.host_read_ratio, f.host_write_ratio, Some(f.samples as f64)])?;
            sheet.next();
        }
    }
    if sheet.rows() > 0 {
        sheet.chart(1, 24, &phase_chart(sheet.rows()))?;
    }
    sheet.finish(&[16.0, 18.0, 30.0])
}

fn by_layer(worksheet: &mut Worksheet, records: &[Record]) -> Result<(), XlsxError> {
    let heads = "run,phase,label,layer,reads/s,writes/s,table reads/s,table writes/s,MiB/s";
    let mut sheet = Sheet::new(worksheet, "Layers", heads)?;
    for record in records {
        for f in layers(record) {
            sheet.text(&words::label(record))?;
            for text in [words::phase(f.phase), &f.label, &words::layer(f.layer)] {
                sheet.text(text)?;
            }
            let tables = [f.table_reads_per_s, f.table_writes_per_s];
            let values = [f.reads_per_s, f.writes_per_s].into_iter().chain(tables).chain([f.mb_per_s]);
            sheet.numbers(values.map(Some))?;
            sheet.next();
        }
    }
    sheet.finish(&[16.0, 18.0, 30.0])
}

/// Returns a chart of guest reads and writes, with a group of bars for each phase of each run.
fn phase_chart(rows: u32) -> Chart {
    let mut chart = Chart::new(ChartType::Column);
    for column in [5, 6] {
        let series = chart.add_series();
        series.set_name(("Phases", 0, column));
        series.set_categories(("Phases", 1, 0, rows, 2)).set_values(("Phases", 1, column, rows, column));
    }
    chart.title().set_name("Guest I/Os per second");
    chart.set_width(900).set_height(380);
    chart
}

fn stuns(worksheet: &mut Worksheet, records: &[Record]) -> Result<(), XlsxError> {
    let mut sheet = Sheet::new(worksheet, "Stuns", "run,at s,stun ms,disk,cause")?;
    for record in records {
        for stun in &record.stuns {
            if sheet.is_full() {
                break;
            }
            sheet.text(&words::label(record))?;
            sheet.numbers([stun.at_us as f64 / 1e6, stun.stun_us as f64 / 1e3].map(Some))?;
            sheet.text(&stun.disk.map_or("all".into(), |disk| disk.to_string()))?;
            sheet.text(&stun.cause)?;
            sheet.next();
        }
    }
    if sheet.rows() > 0 {
        let mut chart = Chart::new(ChartType::Column);
        chart.add_series().set_name("stun, ms").set_values(("Stuns", 1, 2, sheet.rows(), 2));
        chart.title().set_name("Stuns in their order, ms");
        sheet.chart(1, 6, &chart)?;
    }
    sheet.finish(&[16.0, 12.0, 12.0, 8.0, 40.0])
}

fn constants(worksheet: &mut Worksheet, records: &[Record]) -> Result<(), XlsxError> {
    let mut sheet = Sheet::new(worksheet, "Constants", "run,kind,name,value,unit,source,note")?;
    for record in records {
        let label = words::label(record);
        for c in &record.constants {
            sheet.texts([label.as_str(), "constant", &c.name])?;
            sheet.number(Some(c.value))?;
            sheet.texts([c.unit.as_str(), words::source(c.source), &c.note])?;
            sheet.next();
        }
        let facts = record.machine.iter().map(|f| ("machine", f.name.as_str(), f.value.as_str()));
        let left_out = record.left_out.iter().map(|text| ("left out", "", text.as_str()));
        let notes = record.notes.iter().map(|text| ("note", "", text.as_str()));
        for (kind, name, text) in facts.chain(left_out).chain(notes) {
            sheet.texts([label.as_str(), kind, name, "", "", "", text])?;
            sheet.next();
        }
    }
    sheet.finish(&[16.0, 10.0, 30.0, 12.0, 8.0, 18.0, 80.0])
}
