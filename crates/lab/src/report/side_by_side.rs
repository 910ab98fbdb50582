//! Runs side by side: the figures of each phase, one line per figure and one column per subject. Several runs of one
//! subject are rounds: their median, with the range where there are at least two.

use super::words;
use crate::figures::{Figures, phases};
use crate::run::{Phase, Record};

/// One figure of one phase, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FigureLine {
    pub phase: &'static str,
    pub figure: &'static str,
    /// One value per column, in the order of the columns.
    pub values: Vec<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    /// "-" where no run has the figure.
    pub median: String,
    /// Lowest and highest; None for one run.
    pub range: Option<(String, String)>,
}

/// The runs with one label, in their order.
#[derive(Debug, Clone)]
pub(super) struct Column<'a> {
    pub label: String,
    pub records: Vec<&'a Record>,
}

/// Returns the runs by label, in the order of each one's first run.
pub(super) fn columns<'a>(records: &[&'a Record]) -> Vec<Column<'a>> {
    let mut columns: Vec<Column<'a>> = Vec::new();
    for record in records {
        let label = words::label(record);
        match columns.iter_mut().find(|column| column.label == label) {
            Some(column) => column.records.push(record),
            None => columns.push(Column { label, records: vec![record] }),
        }
    }
    columns
}

/// Returns the median of values in any order.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let above = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { above } else { (values[middle - 1] + above) / 2.0 })
}

/// Computes a figure of one phase from those of all phases of its run.
type Figure = fn(&Figures, &[Figures]) -> Option<f64>;

/// Writes a figure.
type Show = fn(f64) -> String;

const FIGURES: [(&str, Figure, Show); 9] = [
    ("guest IOPS", |f, _| f.iops().filter(|iops| *iops > 0.0), words::number),
    ("of its baseline", of_baseline, words::share),
    ("latency, 99 %", |f, _| f.p99_us, words::time),
    ("host reads a guest read", |f, _| f.host_read_ratio, ratio),
    ("host writes a guest write", |f, _| f.host_write_ratio, ratio),
    ("longest gap", |f, _| Some(f.gap_us as f64).filter(|us| *us > 0.0), words::time),
    ("stuns together", |f, _| (f.stuns > 0).then_some(f.stun_total_us as f64), words::time),
    ("heartbeats lost", |f, _| (f.beats_lost > 0).then_some(f.beats_lost as f64), words::number),
    ("duration", |f, _| Some(f.lasts_us as f64), words::time),
];

fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

/// Returns the share of the same stack's rate without a snapshot. Phases that write the test file have none: their load
/// differs from the baseline's.
fn of_baseline(f: &Figures, all: &[Figures]) -> Option<f64> {
    let baseline = all.iter().find(|f| f.phase == Some(Phase::Baseline))?;
    let baseline = baseline.iops().filter(|iops| *iops > 0.0)?;
    let other = [Phase::Prepare, Phase::PrepareSnapshot, Phase::Baseline];
    let is_same_load = f.phase.is_some_and(|phase| !other.contains(&phase));
    Some(f.iops().filter(|iops| *iops > 0.0 && is_same_load)? / baseline)
}

/// Returns the lines. Phases are in the order of the first run that has them; lines without any value are left out.
pub(super) fn figure_lines(columns: &[Column<'_>]) -> Vec<FigureLine> {
    let all: Vec<Vec<Vec<Figures>>> =
        columns.iter().map(|column| column.records.iter().map(|record| phases(record)).collect()).collect();
    let mut names: Vec<&'static str> = Vec::new();
    all.iter().flatten().flatten().for_each(|f| {
        if !names.contains(&f.name()) {
            names.push(f.name());
        }
    });
    let mut lines = Vec::new();
    for phase in names {
        for (figure, value, show) in FIGURES {
            let of = |run: &Vec<Figures>| run.iter().find(|f| f.name() == phase).and_then(|f| value(f, run));
            let values: Vec<Vec<f64>> = all.iter().map(|runs| runs.iter().filter_map(of).collect()).collect();
            if values.iter().any(|values| !values.is_empty()) {
                let values = values.into_iter().map(|values| Value::of(values, show)).collect();
                lines.push(FigureLine { phase, figure, values });
            }
        }
    }
    lines
}

impl Value {
    fn of(values: Vec<f64>, show: Show) -> Value {
        let lowest = values.iter().copied().reduce(f64::min);
        let highest = values.iter().copied().reduce(f64::max);
        let range = lowest.zip(highest).filter(|_| values.len() > 1);
        Value {
            range: range.map(|(low, high)| (show(low), show(high))),
            median: words::or_dash(median(values), show),
        }
    }
}
