//! Charts of several runs of one experiment.

use maud::{Markup, html};

use super::{COLOURS, Curve, Frame, Text, document, px, shortened};
use crate::figures::{self, Figures};
use crate::report::scale::Scale;
use crate::report::series::{BINS_MAX, extent, rate, thin};
use crate::report::side_by_side::{Column, median};
use crate::report::words;

/// Most lines on one chart that can still be told apart.
const OVERLAID_MAX: usize = 8;
/// Most bars of one phase.
const BARS_MAX: usize = 16;
const HEIGHT: f64 = 250.0;

/// Returns a colour class for each run; runs beyond the colours get dashes.
fn class(n: usize) -> String {
    format!("s{}{}", n % COLOURS, if n < COLOURS { "" } else { " dashed" })
}

/// Draws all guest I/O of each subject's first run on one axis. None for fewer than two subjects with samples.
pub(crate) fn overlay(columns: &[Column<'_>]) -> Option<Markup> {
    let sampled = columns.iter().filter(|column| !column.records[0].samples.is_empty());
    let sampled: Vec<_> = sampled.take(OVERLAID_MAX).collect();
    let curve = |(n, column): (usize, &&Column<'_>)| Curve {
        name: column.label.clone(),
        class: class(n) + " fine",
        pieces: thin(&column.records[0].samples, BINS_MAX / 2, |s| rate(s.reads.saturating_add(s.writes), s)),
    };
    let curves: Vec<_> = sampled.iter().enumerate().map(curve).collect();
    let extents = sampled.iter().map(|column| extent(column.records[0]));
    let (begin_us, end_us) = extents.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
    let y = Scale::linear(curves.iter().map(Curve::high).fold(0.0, f64::max));
    let has_rounds = columns.iter().any(|column| column.records.len() > 1);
    let title = "Guest IOPS over time, reads and writes together";
    let frame = Frame {
        title: if has_rounds { &format!("{title}: round 1") } else { title },
        unit: "I/Os per second",
        begin_us,
        end_us,
        y,
        tick: words::number,
        height: HEIGHT,
    };
    (curves.len() > 1).then(|| frame.draw(&curves, &html! {}, &html! {}))
}

/// Draws guest IOPS phase by phase, one bar per subject, the median of its runs. None for fewer than two subjects.
pub(crate) fn bars(columns: &[Column<'_>]) -> Option<Markup> {
    let shown = &columns[..columns.len().min(BARS_MAX)];
    let of = |column: &Column<'_>| column.records.iter().map(|r| figures::phases(r)).collect::<Vec<_>>();
    let runs: Vec<Vec<Vec<Figures>>> = shown.iter().map(of).collect();
    let mut phases: Vec<&'static str> = Vec::new();
    let all = runs.iter().flatten().flatten().filter(|f| f.iops().is_some_and(|iops| iops > 0.0));
    all.for_each(|f| {
        if !phases.contains(&f.name()) {
            phases.push(f.name());
        }
    });
    let in_run =
        |run: &Vec<Figures>, phase: &str| run.iter().find(|f| f.name() == phase).and_then(Figures::iops);
    let iops = |runs: &[Vec<Figures>], phase: &str| {
        median(runs.iter().filter_map(|run| in_run(run, phase)).collect())
    };
    let all = runs.iter().flat_map(|runs| phases.iter().filter_map(|phase| iops(runs, phase)));
    let y = Scale::linear(all.fold(0.0, f64::max));
    let names: Vec<_> =
        shown.iter().enumerate().map(|(n, column)| (column.label.clone(), class(n))).collect();
    let step = (super::WIDTH - super::LEFT - super::RIGHT) / phases.len().max(1) as f64;
    let inside = html! {
        (super::value_axis(&y, words::number, HEIGHT))
        @for (place, phase) in phases.iter().enumerate() {
            @let group = Group { left: super::LEFT + place as f64 * step, step, phase };
            (group.draw(&y, &runs.iter().map(|runs| iops(runs, phase)).collect::<Vec<_>>(), &names))
        }
    };
    let entries = names.iter().map(|(name, class)| (name.as_str(), class.as_str()));
    let title = "Guest IOPS by phase";
    (shown.len() > 1 && !phases.is_empty())
        .then(|| document(title, "I/Os per second", HEIGHT, entries, &inside))
}

/// The bars of one phase.
struct Group<'a> {
    left: f64,
    step: f64,
    phase: &'a str,
}

impl Group<'_> {
    fn draw(&self, y: &Scale, values: &[Option<f64>], names: &[(String, String)]) -> Markup {
        const MARGIN: f64 = 0.12;
        let each = self.step * (1.0 - 2.0 * MARGIN) / values.len() as f64;
        let bottom = super::TOP + HEIGHT;
        html! {
            @for (n, (value, (name, class))) in values.iter().zip(names).enumerate() {
                @if let Some(value) = value {
                    @let tall = y.place(*value) * HEIGHT;
                    @let x = self.left + self.step * MARGIN + n as f64 * each;
                    rect class={ "bar " (class) } x=(px(x)) y=(px(bottom - tall)) width=(px(each * 0.9)) height=(px(tall)) {
                        title { (Text(name)) ", " (self.phase) ": " (words::number(*value)) " IOPS" }
                    }
                    @if each > words::number(*value).len() as f64 * super::CHAR {
                        text class="tick" x=(px(x + each * 0.45)) y=(px(bottom - tall - 4.0)) text-anchor="middle" {
                            (words::number(*value))
                        }
                    }
                }
            }
            text class="key" x=(px(self.left + self.step / 2.0)) y=(px(bottom + 22.0)) text-anchor="middle" {
                (shortened(self.phase, (self.step / super::CHAR) as usize))
            }
        }
    }
}
