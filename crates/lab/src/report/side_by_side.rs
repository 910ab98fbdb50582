//! Runs side by side: the figures of each phase, one line per figure and one column per run.

use super::words;
use crate::figures::{Figures, phases};
use crate::run::{Phase, Record};

/// One figure of one phase, as text; "-" where a run does not have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FigureLine {
    pub phase: &'static str,
    pub figure: &'static str,
    /// One value per record, in the order of the records.
    pub values: Vec<String>,
}

type Value = fn(&Figures, &[Figures]) -> Option<String>;

const FIGURES: [(&str, Value); 9] = [
    ("guest IOPS", |f, _| f.iops().filter(|iops| *iops > 0.0).map(words::number)),
    ("of its baseline", |f, all| of_baseline(f, all)),
    ("latency, 99 %", |f, _| f.p99_us.map(words::time)),
    ("host reads a guest read", |f, _| f.host_read_ratio.map(|ratio| format!("{ratio:.2}"))),
    ("host writes a guest write", |f, _| f.host_write_ratio.map(|ratio| format!("{ratio:.2}"))),
    ("longest gap", |f, _| Some(f.gap_us).filter(|us| *us > 0).map(|us| words::time(us as f64))),
    ("stuns together", |f, _| (f.stuns > 0).then(|| words::time(f.stun_total_us as f64))),
    ("heartbeats lost", |f, _| (f.beats_lost > 0).then(|| f.beats_lost.to_string())),
    ("duration", |f, _| Some(words::time(f.lasts_us as f64))),
];

/// Returns the share of the same stack's rate without a snapshot. Phases that write the test file have none: their load
/// differs from the baseline's.
fn of_baseline(f: &Figures, all: &[Figures]) -> Option<String> {
    let baseline = all.iter().find(|f| f.phase == Some(Phase::Baseline))?;
    let baseline = baseline.iops().filter(|iops| *iops > 0.0)?;
    let other = [Phase::Prepare, Phase::PrepareSnapshot, Phase::Baseline];
    let is_same_load = f.phase.is_some_and(|phase| !other.contains(&phase));
    let share = f.iops().filter(|iops| *iops > 0.0 && is_same_load)? / baseline;
    Some(format!("{:.0} %", share * 100.0))
}

/// Returns the lines. Phases are in the order of the first run that has them; lines without any value are left out.
pub(super) fn figure_lines(records: &[&Record]) -> Vec<FigureLine> {
    let all: Vec<Vec<Figures>> = records.iter().map(|record| phases(record)).collect();
    let mut names: Vec<&'static str> = Vec::new();
    all.iter().flatten().for_each(|f| {
        if !names.contains(&f.name()) {
            names.push(f.name());
        }
    });
    let mut lines = Vec::new();
    for phase in names {
        for (figure, value) in FIGURES {
            let of = |run: &Vec<Figures>| run.iter().find(|f| f.name() == phase).and_then(|f| value(f, run));
            let values: Vec<Option<String>> = all.iter().map(of).collect();
            if values.iter().any(Option::is_some) {
                let values = values.into_iter().map(|v| v.unwrap_or_else(|| "-".into())).collect();
                lines.push(FigureLine { phase, figure, values });
            }
        }
    }
    lines
}
