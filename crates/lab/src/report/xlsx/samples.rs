//! The sheet of one run's samples, with its charts beside them.

use rust_xlsxwriter::{Chart, ChartType, Worksheet, XlsxError};

use super::sheet::{ROWS_MAX, Sheet};
use crate::report::series::{latency, rate};
use crate::report::words;
use crate::run::{Record, Sample, Spread};

const HEADS: &str = "\
at s,interval s,reads/s,writes/s,host reads/s,host writes/s,table reads/s,table writes/s,\
read mean ms,read 99 % ms,read max ms,write mean ms,write 99 % ms,write max ms,gap ms,phase";
/// Column of the charts, to the right of the figures.
const CHARTS_COLUMN: u16 = 17;
/// Rows that one chart covers.
const CHART_ROWS: u32 = 19;

pub(super) fn write(worksheet: &mut Worksheet, name: &str, record: &Record) -> Result<(), XlsxError> {
    let mut sheet = Sheet::new(worksheet, name, HEADS)?;
    for sample in record.samples.iter().take(ROWS_MAX as usize) {
        row(&mut sheet, record, sample)?;
    }
    let rows = sheet.rows();
    let title = |what: &str| format!("{what}: {}", words::plain(&words::label(record)));
    let charts = [
        lines(name, rows, &title("Guest I/Os per second"), &[2, 3], false),
        lines(name, rows, &title("Host I/Os per second"), &[4, 5, 6, 7], false),
        lines(name, rows, &title("Latency, ms"), &[9, 12, 10, 13], true),
    ];
    for (n, chart) in (0..).zip(&charts) {
        sheet.chart(1 + n * CHART_ROWS, CHARTS_COLUMN, chart)?;
    }
    sheet.finish(&[10.0; 15])
}

fn row(sheet: &mut Sheet<'_>, record: &Record, s: &Sample) -> Result<(), XlsxError> {
    let ms = |us: Option<f64>| us.map(|us| us / 1e3);
    sheet.numbers([s.at_us, s.interval_us].map(|us| Some(us as f64 / 1e6)))?;
    let host = s.host.as_ref();
    let guest = [Some(s.reads), Some(s.writes)];
    let below = [host.map(|h| h.reads), host.map(|h| h.writes)];
    let tables = [host.map(|h| h.table_reads), host.map(|h| h.table_writes)];
    let counts = guest.into_iter().chain(below).chain(tables);
    sheet.numbers(counts.map(|count| count.and_then(|count| rate(count, s))))?;
    for spread in [&s.read_latency, &s.write_latency] {
        let figures: [fn(&Spread) -> f64; 3] = [|l| l.mean_us, |l| l.p99_us, |l| l.max_us];
        sheet.numbers(figures.map(|figure| ms(latency(spread, figure))))?;
    }
    sheet.number(Some(s.gap_us as f64 / 1e3))?;
    let within = |at: u64| record.phases.iter().find(|p| (p.begin_us..p.end_us).contains(&at));
    sheet.text(within(s.at_us).map_or("", |span| words::phase(span.phase)))?;
    sheet.next();
    Ok(())
}

/// Returns a chart of columns over the time in the first column.
fn lines(name: &str, rows: u32, title: &str, columns: &[u16], log: bool) -> Chart {
    let mut chart = Chart::new(ChartType::ScatterStraight);
    for &column in columns {
        let series = chart.add_series();
        series.set_name((name, 0, column));
        series.set_categories((name, 1, 0, rows, 0)).set_values((name, 1, column, rows, column));
    }
    chart.title().set_name(title);
    chart.x_axis().set_name("seconds since the run began").set_min(0);
    if log {
        chart.y_axis().set_log_base(10);
    }
    chart.set_width(960).set_height(360);
    chart
}
