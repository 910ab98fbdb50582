//! Samples and rows as CSV with a header, one line each, for spreadsheets and scripts.

use blk::{Error, ErrorKind, Result};
use csv::Writer;

use super::table::{Cell, Line};
use super::words;
use crate::run::{Counters, LayerHost, PhaseSpan, Record, Sample, Spread};

const SAMPLE_HEADER: &str = "\
experiment,subject,hypothesis,at_us,interval_us,reads,writes,read_bytes,written_bytes,\
read_mean_us,read_p50_us,read_p95_us,read_p99_us,read_max_us,write_mean_us,write_p50_us,\
write_p95_us,write_p99_us,write_max_us,host_reads,host_writes,host_table_reads,\
host_table_writes,gap_us";

const ROW_HEADER: &str = "\
experiment,subject,hypothesis,default,storage,phase,quantity,published,predicted,error,use,\
band_low,band_high,note";

const LAYER_HEADER: &str = "\
experiment,subject,hypothesis,phase,label,layer,seconds,reads,writes,table_reads,table_writes,\
read_bytes,written_bytes";

/// Writes one line per interval. Host columns are empty where the I/O below the subject could not be observed.
pub fn samples(records: &[Record]) -> Result<String> {
    let line = |record: &Record, s: &Sample| {
        let mut line = names(record);
        let counts = [s.at_us, s.interval_us, s.reads, s.writes, s.read_bytes, s.written_bytes];
        line.extend(counts.map(|n| n.to_string()));
        line.extend(spread(&s.read_latency));
        line.extend(spread(&s.write_latency));
        line.extend(host(s.host.as_ref()));
        line.push(s.gap_us.to_string());
        line
    };
    let lines = records.iter().flat_map(|record| record.samples.iter().map(move |s| line(record, s)));
    document(SAMPLE_HEADER, lines)
}

/// Writes one line for each layer of each phase, with the counts within the phase.
pub fn layers(records: &[Record]) -> Result<String> {
    let line = |record: &Record, span: &PhaseSpan, LayerHost { layer, host }: &LayerHost| {
        let mut line = names(record);
        line.extend([words::phase(span.phase).into(), text(&span.label), words::layer(*layer)]);
        line.push((span.lasts_us() as f64 / 1e6).to_string());
        let tables = [host.table_reads, host.table_writes];
        let counts = [[host.reads, host.writes], tables, [host.read_bytes, host.written_bytes]];
        line.extend(counts.concat().iter().map(u64::to_string));
        line
    };
    let spans = records.iter().flat_map(|record| record.phases.iter().map(move |span| (record, span)));
    let lines = spans.flat_map(|(record, span)| span.layers.iter().map(move |l| line(record, span, l)));
    document(LAYER_HEADER, lines)
}

/// Writes one line per figure, published and predicted. `error` is relative: 0.1 for 10 % too high.
pub fn rows(records: &[Record]) -> Result<String> {
    let mut lines = Vec::new();
    for group in super::comparisons(records) {
        for line in &group.lines {
            let cells = group.records.iter().zip(&line.cells);
            lines.extend(cells.map(|(record, cell)| row(record, line, cell)));
        }
    }
    document(ROW_HEADER, lines.into_iter())
}

fn row(record: &Record, line: &Line<'_>, cell: &Cell) -> Vec<String> {
    let number = |value: Option<f64>| value.map(|v| v.to_string()).unwrap_or_default();
    let mut names = names(record);
    names[0] = text(line.experiment);
    names.extend([
        record.rows.iter().any(|row| row.default).to_string(),
        text(&record.storage),
        words::phase(line.phase).into(),
        words::json_name(line.quantity),
        number(line.published),
        number(cell.predicted),
        number(cell.error),
        words::json_name(line.r#use),
        number(cell.band.map(|(low, _)| low)),
        number(cell.band.map(|(_, high)| high)),
        text(&line.notes.join("; ")),
    ]);
    names
}

fn names(record: &Record) -> Vec<String> {
    let hypothesis = record.hypothesis.as_deref().unwrap_or_default();
    [&record.experiment, &record.subject, hypothesis].map(text).into()
}

fn spread(s: &Spread) -> [String; 5] {
    [s.mean_us, s.p50_us, s.p95_us, s.p99_us, s.max_us].map(|us| format!("{us:.1}"))
}

fn host(counters: Option<&Counters>) -> [String; 4] {
    let Some(c) = counters else { return Default::default() };
    [c.reads, c.writes, c.table_reads, c.table_writes].map(|n| n.to_string())
}

/// Prevents spreadsheets from evaluating an untrusted name as a formula.
fn text(text: &str) -> String {
    let text = words::plain(text);
    if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text }
}

fn document(header: &str, lines: impl Iterator<Item = Vec<String>>) -> Result<String> {
    let failed = |e: String| Error::new(ErrorKind::Io, "CSV", e);
    let mut out = Writer::from_writer(format!("{header}\n").into_bytes());
    for line in lines {
        out.write_record(&line).map_err(|e| failed(e.to_string()))?;
    }
    let bytes = out.into_inner().map_err(|e| failed(e.to_string()))?;
    String::from_utf8(bytes).map_err(|e| failed(e.to_string()))
}
