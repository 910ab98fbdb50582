//! Charts of a VM: requests per second and latency, with takes, commits and their stun on the time axis.

use std::fmt::Write as _;

use api::units::format_us;
use api::{Event, Load, Operation, Recorded, Store};
use maud::{Markup, html};

const WIDTH: f32 = 640.0;
const HEIGHT: f32 = 170.0;
/// Space for the labels of the axes.
const LEFT: f32 = 58.0;
const BOTTOM: f32 = 22.0;
const TOP: f32 = 8.0;
/// Latencies in microseconds at the lower and the upper end of their axis, which is logarithmic.
const LATENCIES_US: (f32, f32) = (10.0, 10_000_000.0);

/// A time that the charts can show, up to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChartSpan {
    /// Its word in the page's address.
    pub word: &'static str,
    pub length_s: i64,
    pub step_s: u64,
    /// Labels of the begin and of the middle.
    labels: [&'static str; 2],
}

pub(super) const SPANS: [ChartSpan; 6] = [
    ChartSpan { word: "5min", length_s: 300, step_s: 1, labels: ["-5 min", "-150 s"] },
    ChartSpan { word: "30min", length_s: 1800, step_s: 5, labels: ["-30 min", "-15 min"] },
    ChartSpan { word: "6h", length_s: 21_600, step_s: 60, labels: ["-6 h", "-3 h"] },
    ChartSpan { word: "1d", length_s: 86_400, step_s: 300, labels: ["-24 h", "-12 h"] },
    ChartSpan { word: "7d", length_s: 604_800, step_s: 1800, labels: ["-7 days", "-84 h"] },
    ChartSpan { word: "30d", length_s: 2_592_000, step_s: 7200, labels: ["-30 days", "-15 days"] },
];

impl ChartSpan {
    /// Returns the span of a word in an address; for another one the first.
    pub(super) fn of(word: Option<&str>) -> ChartSpan {
        SPANS.into_iter().find(|span| Some(span.word) == word).unwrap_or(SPANS[0])
    }
}

/// A curve, by its class in the style sheet, and its name.
#[derive(Clone, Copy)]
struct Curve {
    class: &'static str,
    name: &'static str,
    value: fn(&Load) -> Option<f64>,
}

const RATES: [Curve; 2] = [
    Curve { class: "guest", name: "guest", value: |load| Some(load.guest_s()) },
    Curve { class: "device", name: "device", value: |load| Some(load.host_s()) },
];
/// Of a native VM, whose files are the store's.
const STORE_RATES: [Curve; 2] = [RATES[0], Curve { name: "device, of the whole store", ..RATES[1] }];
#[allow(clippy::cast_precision_loss)]
const LATENCIES: [Curve; 3] = [
    Curve { class: "guest", name: "median", value: Load::median_us },
    Curve { class: "worst", name: "99 of 100", value: Load::p99_us },
    Curve {
        class: "longest",
        name: "slowest",
        value: |load| (load.longest_us > 0).then_some(load.longest_us as f64),
    },
];

/// The time that a chart shows.
#[derive(Clone, Copy)]
struct Times {
    /// Its right end.
    until_ms: i64,
    span: ChartSpan,
}

impl Times {
    #[allow(clippy::cast_precision_loss)]
    fn x_of(self, at_ms: i64) -> f32 {
        let part = 1.0 - (self.until_ms - at_ms) as f32 / (self.span.length_s * 1000) as f32;
        LEFT + part * (WIDTH - LEFT)
    }
}

/// An axis: marks with their labels, and the place of a value between 0 (below) and 1.
struct Axis {
    marks: Vec<(f32, String)>,
    place: Box<dyn Fn(f32) -> f32>,
}

/// A point: the middle of a step that was observed.
struct Point<'a> {
    at_ms: i64,
    load: &'a Load,
}

/// Returns both charts of a span. `until_ms` is their right end.
pub(super) fn charts(recorded: &Recorded, span: ChartSpan, until_ms: i64, events: &[Event]) -> Markup {
    let step_ms = i64::try_from(recorded.step_s * 1000).unwrap_or(i64::MAX);
    let place = |at: usize| recorded.from.as_millisecond() + step_ms * at as i64 + step_ms / 2;
    let points: Vec<Point<'_>> = recorded
        .steps
        .iter()
        .enumerate()
        .filter(|(_, load)| load.observed_s > 0)
        .map(|(at, load)| Point { at_ms: place(at), load })
        .collect();
    html! {
        nav.spans aria-label="Time of the charts" {
            @for one in SPANS {
                a href=(format!("?span={}", one.word)) aria-current=[(one == span).then_some("true")] { (one.word) } " "
            }
        }
        @if let [.., last] = points.as_slice() {
            (both(recorded.store, last.load, &points, events, Times { until_ms, span }, step_ms))
        } @else { p.quiet { "Nothing is recorded of this time. The record begins a second after a VM was opened." } }
    }
}

#[allow(clippy::cast_possible_truncation)]
fn both(
    store: Store,
    last: &Load,
    points: &[Point<'_>],
    events: &[Event],
    times: Times,
    step_ms: i64,
) -> Markup {
    let highest =
        points.iter().map(|point| point.load.guest_s().max(point.load.host_s())).fold(10.0, f64::max);
    let (device, rates) = match store {
        Store::Redo => ("device", &RATES),
        Store::Native => ("the whole store's device", &STORE_RATES),
    };
    let rates_said =
        format!("Requests per second: guest {:.0}, {device} {:.0} now", last.guest_s(), last.host_s());
    let latest = points.iter().rev().find_map(|point| Some((point.load.median_us()?, point.load.p99_us()?)));
    let latencies_said = latest.map_or("Latency: no request".to_owned(), |(median, p99)| {
        let (median, p99) = (shown_us(median), shown_us(p99));
        format!("Latency: median {median}, 99 of 100 below {p99}, at the last request")
    });
    html! {
        div.charts {
            (chart(&rates_said, rates, &linear(highest as f32), points, events, times, step_ms))
            (chart(&latencies_said, &LATENCIES, &logarithmic(), points, events, times, step_ms))
        }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn shown_us(us: f64) -> String {
    format_us(us as u64)
}

fn chart(
    said: &str,
    curves: &[Curve],
    axis: &Axis,
    points: &[Point<'_>],
    events: &[Event],
    times: Times,
    step_ms: i64,
) -> Markup {
    let [begin, middle] = times.span.labels;
    let labels = [(LEFT + 12.0, begin), ((LEFT + WIDTH) / 2.0, middle), (WIDTH - 14.0, "now")];
    html! {
        figure {
            figcaption { (said) }
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(said) {
                @for (value, label) in &axis.marks {
                    @let y = y_of(axis, *value);
                    line.grid x1=(LEFT) x2=(WIDTH) y1=(y) y2=(y) {}
                    text x=(LEFT - 6.0) y=(y + 4.0) text-anchor="end" { (label) }
                }
                @for (x, label) in labels {
                    text x=(x) y=(HEIGHT - 6.0) text-anchor="middle" { (label) }
                }
                @for event in events { (mark(event, times)) }
                @for curve in curves {
                    path class=(curve.class) d=(path(curve, axis, points, times, step_ms)) {}
                }
            }
            p.legend {
                @for curve in curves { span class=(curve.class) { (curve.name) } " " }
                span.mark { "take, commit, revert" }
            }
        }
    }
}

fn y_of(axis: &Axis, value: f32) -> f32 {
    let place = (axis.place)(value).clamp(0.0, 1.0);
    TOP + (1.0 - place) * (HEIGHT - BOTTOM - TOP)
}

/// Returns a path that is interrupted where there is no value, or no step was observed.
#[allow(clippy::cast_possible_truncation)]
fn path(curve: &Curve, axis: &Axis, points: &[Point<'_>], times: Times, step_ms: i64) -> String {
    let (mut path, mut last) = (String::new(), None);
    for point in points {
        let x = times.x_of(point.at_ms);
        let Some(value) = (curve.value)(point.load).filter(|_| x >= LEFT) else {
            last = None;
            continue;
        };
        let step = if last.is_some_and(|last| point.at_ms - last <= step_ms) { 'L' } else { 'M' };
        let _ = write!(path, "{step}{x:.1} {:.1}", y_of(axis, value as f32));
        last = Some(point.at_ms);
    }
    path
}

/// Returns the mark of an event that holds back requests or moves blocks.
fn mark(event: &Event, times: Times) -> Markup {
    let x = times.x_of(event.time.as_millisecond());
    let is_shown = event.stun_us > 0 || matches!(event.operation, Operation::CommitStart | Operation::Commit);
    if x < LEFT || !is_shown {
        return html! {};
    }
    let stun = if event.stun_us > 0 { format!(", stun {}", format_us(event.stun_us)) } else { String::new() };
    let said = format!("{} {}{stun}", event.operation.as_str(), event.snapshot.as_deref().unwrap_or(""));
    html! { line.mark x1=(x) x2=(x) y1=(TOP) y2=(HEIGHT - BOTTOM) { title { (said) } } }
}

/// Returns an axis from 0 to a round number that is not below `highest`.
fn linear(highest: f32) -> Axis {
    let step = 10f32.powf(highest.log10().floor());
    let top =
        [1.0, 2.0, 5.0, 10.0].map(|n| n * step).into_iter().find(|&top| top >= highest).unwrap_or(highest);
    let marks = [0.0, top / 2.0, top].map(|value| (value, format!("{value:.0}"))).to_vec();
    Axis { marks, place: Box::new(move |value| value / top) }
}

fn logarithmic() -> Axis {
    let (low, high) = LATENCIES_US;
    let marks = [(10.0, "10 us"), (1e3, "1 ms"), (1e5, "100 ms"), (1e7, "10 s")];
    let marks = marks.map(|(value, label)| (value, label.to_owned())).to_vec();
    Axis { marks, place: Box::new(move |value| (value.max(low) / low).log10() / (high / low).log10()) }
}

#[cfg(test)]
mod tests {
    use api::Latency;

    use super::*;

    #[test]
    fn axes_end_at_round_numbers_and_latencies_have_their_place() {
        for (highest, top) in [(10.0, 10.0), (11.0, 20.0), (4321.0, 5000.0), (70_000.0, 100_000.0)] {
            assert_eq!(linear(highest).marks[2].0, top);
        }
        let axis = logarithmic();
        assert!((y_of(&axis, 10.0) - (HEIGHT - BOTTOM)).abs() < 0.1);
        assert!((y_of(&axis, 1e7) - TOP).abs() < 0.1);
        assert_eq!(y_of(&axis, 0.0), y_of(&axis, 10.0));
    }

    #[test]
    fn a_curve_is_interrupted_where_nothing_is_known() {
        let until_ms = 1_000_000_000;
        let busy = |reads_s, median_us: Option<f64>| {
            let latency = median_us.map(|median_us| Latency { mean_us: 0.0, median_us, p99_us: 0.0 });
            Load { observed_s: 5, reads_s, latency, ..Load::default() }
        };
        let loads = [busy(1.0, Some(100.0)), busy(2.0, Some(100.0)), busy(2.0, None), busy(3.0, Some(100.0))];
        let points: Vec<_> = [-20_000, -15_000, -10_000, -5000]
            .into_iter()
            .zip(&loads)
            .map(|(at, load)| Point { at_ms: until_ms + at, load })
            .collect();
        let times = Times { until_ms, span: ChartSpan::of(Some("30min")) };
        let count = |curve, axis: &Axis, points: &[Point<'_>]| {
            path(curve, axis, points, times, 5000).matches('M').count()
        };
        assert_eq!(count(&LATENCIES[0], &logarithmic(), &points), 2);
        assert_eq!(count(&RATES[0], &linear(10.0), &points), 1);
        // A step is missing.
        let mut apart = points;
        apart.remove(1);
        assert_eq!(count(&RATES[0], &linear(10.0), &apart), 2);
    }

    #[test]
    fn every_span_has_steps_that_are_round() {
        for span in SPANS {
            assert_eq!(span.length_s % span.step_s.cast_signed(), 0, "{}", span.word);
            assert_eq!(ChartSpan::of(Some(span.word)), span);
        }
        assert_eq!(ChartSpan::of(Some("x")), SPANS[0]);
    }
}
