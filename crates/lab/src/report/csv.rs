//! Samples and rows as CSV with a header, one line each, for spreadsheets and scripts.

use blk::{Error, ErrorKind, Result};
use csv::Writer;

use super::words;
use crate::run::{Counters, LayerHost, Record, Spread};

const SAMPLE_HEADER: [&str; 24] = [
    "experiment",
    "subject",
    "hypothesis",
    "at_us",
    "interval_us",
    "reads",
    "writes",
    "read_bytes",
    "written_bytes",
    "read_mean_us",
    "read_p50_us",
    "read_p95_us",
    "read_p99_us",
    "read_max_us",
    "write_mean_us",
    "write_p50_us",
    "write_p95_us",
    "write_p99_us",
    "write_max_us",
    "host_reads",
    "host_writes",
    "host_table_reads",
    "host_table_writes",
    "gap_us",
];

const ROW_HEADER: [&str; 14] = [
    "experiment",
    "subject",
    "hypothesis",
    "default",
    "storage",
    "phase",
    "quantity",
    "published",
    "predicted",
    "error",
    "use",
    "band_low",
    "band_high",
    "note",
];

const LAYER_HEADER: [&str; 13] = [
    "experiment",
    "subject",
    "hypothesis",
    "phase",
    "label",
    "layer",
    "seconds",
    "reads",
    "writes",
    "table_reads",
    "table_writes",
    "read_bytes",
    "written_bytes",
];

/// Writes one line per interval. Host columns are empty where the I/O below the subject could not be observed.
pub fn samples(records: &[Record]) -> Result<String> {
    let mut out = Writer::from_writer(Vec::new());
    out.write_record(SAMPLE_HEADER).map_err(failed)?;
    for record in records {
        for sample in &record.samples {
            let mut line = names(record);
            line.extend(
                [sample.at_us, sample.interval_us, sample.reads, sample.writes].map(|n| n.to_string()),
            );
            line.extend([sample.read_bytes, sample.written_bytes].map(|n| n.to_string()));
            line.extend(spread(&sample.read_latency));
            line.extend(spread(&sample.write_latency));
            line.extend(host(sample.host.as_ref()));
            line.push(sample.gap_us.to_string());
            out.write_record(&line).map_err(failed)?;
        }
    }
    finish(out)
}

/// Writes one line for each layer of each phase, with the counts within the phase.
pub fn layers(records: &[Record]) -> Result<String> {
    let mut out = Writer::from_writer(Vec::new());
    out.write_record(LAYER_HEADER).map_err(failed)?;
    for record in records {
        for span in &record.phases {
            for LayerHost { layer, host } in &span.layers {
                let mut line = names(record);
                line.extend([words::phase(span.phase).into(), text(&span.label), words::layer(*layer)]);
                let seconds = span.end_us.saturating_sub(span.begin_us) as f64 / 1e6;
                line.push(seconds.to_string());
                let bytes = [host.read_bytes, host.written_bytes];
                let counts = [host.reads, host.writes, host.table_reads, host.table_writes];
                line.extend(counts.into_iter().chain(bytes).map(|n| n.to_string()));
                out.write_record(&line).map_err(failed)?;
            }
        }
    }
    finish(out)
}

/// Writes one line per figure, published and predicted. `error` is relative: 0.1 for 10 % too high.
pub fn rows(records: &[Record]) -> Result<String> {
    let mut out = Writer::from_writer(Vec::new());
    out.write_record(ROW_HEADER).map_err(failed)?;
    for group in super::comparisons(records) {
        for line in &group.lines {
            for (record, cell) in group.records.iter().zip(&line.cells) {
                let number = |value: Option<f64>| value.map(|v| v.to_string()).unwrap_or_default();
                let [_, subject, hypothesis] = names(record).try_into().unwrap_or_default();
                out.write_record([
                    text(line.experiment),
                    subject,
                    hypothesis,
                    record.rows.iter().any(|row| row.default).to_string(),
                    text(&record.storage),
                    words::phase(line.phase).into(),
                    key(line.quantity),
                    number(line.published),
                    number(cell.predicted),
                    number(cell.error),
                    words::r#use(line.r#use).into(),
                    number(cell.band.map(|(low, _)| low)),
                    number(cell.band.map(|(_, high)| high)),
                    text(&line.notes.join("; ")),
                ])
                .map_err(failed)?;
            }
        }
    }
    finish(out)
}

/// Returns the quantity's name in JSON, such as "reads_per_s".
fn key(quantity: crate::run::Quantity) -> String {
    serde_json::to_value(quantity).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

fn names(record: &Record) -> Vec<String> {
    vec![
        text(&record.experiment),
        text(&record.subject),
        text(record.hypothesis.as_deref().unwrap_or_default()),
    ]
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

fn failed(e: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, "CSV", e.to_string())
}

fn finish(out: Writer<Vec<u8>>) -> Result<String> {
    let bytes = out.into_inner().map_err(failed)?;
    String::from_utf8(bytes).map_err(failed)
}
