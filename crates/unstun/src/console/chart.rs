//! Charts of a VM's last half hour: requests per second and latency, with takes, commits and their stun on the time axis.

use std::fmt::Write as _;

use api::units::format_us;
use api::{Event, Operation, Store};
use maud::{Markup, html};

use crate::history::{INTERVAL, Point, SPAN};

const WIDTH: f32 = 640.0;
const HEIGHT: f32 = 170.0;
/// Space for the labels of the axes.
const LEFT: f32 = 58.0;
const BOTTOM: f32 = 22.0;
const TOP: f32 = 8.0;
/// Latencies in microseconds at the lower and the upper end of their axis, which is logarithmic.
const LATENCIES_US: (f32, f32) = (10.0, 10_000_000.0);

/// A curve, by its class in the style sheet, and its name.
#[derive(Clone, Copy)]
struct Curve {
    class: &'static str,
    name: &'static str,
    value: fn(&Point) -> Option<f32>,
}

const RATES: [Curve; 2] = [
    Curve { class: "guest", name: "guest", value: |point| Some(point.guest_s) },
    Curve { class: "device", name: "device", value: |point| Some(point.device_s) },
];
/// Of a native VM, whose files are the store's.
const STORE_RATES: [Curve; 2] = [
    RATES[0],
    Curve { class: "device", name: "device, of the whole store", value: |point| Some(point.device_s) },
];
const LATENCIES: [Curve; 2] = [
    Curve { class: "guest", name: "median", value: |point| point.median_us },
    Curve { class: "worst", name: "99 of 100", value: |point| point.p99_us },
];

/// The time that a chart shows.
#[derive(Clone, Copy)]
struct Times {
    /// Its right end.
    now_ms: i64,
    span_ms: i64,
}

impl Times {
    /// Returns the shortest of some spans that has all points.
    fn of(points: &[Point], now_ms: i64) -> Times {
        let whole_ms = i64::try_from(SPAN.as_millis()).expect("half an hour");
        let oldest_ms = points.first().map_or(0, |point| now_ms - point.at_ms);
        let spans_ms = [whole_ms / 10, whole_ms / 3];
        Times {
            now_ms,
            span_ms: spans_ms.into_iter().find(|&span_ms| span_ms >= oldest_ms).unwrap_or(whole_ms),
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn x_of(self, at_ms: i64) -> f32 {
        let part = 1.0 - (self.now_ms - at_ms) as f32 / self.span_ms as f32;
        LEFT + part * (WIDTH - LEFT)
    }

    /// Returns the times that have a label, in minutes before now.
    fn labels(self) -> [i64; 3] {
        let minutes = self.span_ms / 60_000;
        [minutes, minutes / 2, 0]
    }
}

/// An axis: marks with their labels, and the place of a value between 0 (below) and 1.
struct Axis {
    marks: Vec<(f32, String)>,
    place: Box<dyn Fn(f32) -> f32>,
}

/// Returns both charts. `now_ms` is their right end.
pub(super) fn charts(store: Store, points: &[Point], events: &[Event], now_ms: i64) -> Markup {
    if points.len() < 2 {
        return html! { p.quiet { "The charts begin a few seconds after the VM was opened." } };
    }
    let times = Times::of(points, now_ms);
    let highest = points.iter().map(|point| point.guest_s.max(point.device_s)).fold(10.0, f32::max);
    let latencies = points.iter().rev().find_map(|point| Some((point.median_us?, point.p99_us?)));
    let last = points[points.len() - 1];
    let (device, rates) = match store {
        Store::Redo => ("device", &RATES),
        Store::Native => ("the whole store's device", &STORE_RATES),
    };
    let rates_said =
        format!("Requests per second: guest {:.0}, {device} {:.0} now", last.guest_s, last.device_s);
    let latencies_said = latencies.map_or("Latency: no request".to_owned(), |(median, p99)| {
        format!(
            "Latency: median {}, 99 of 100 below {}, at the last request",
            shown_us(median),
            shown_us(p99)
        )
    });
    html! {
        div.charts {
            (chart(&rates_said, rates, &linear(highest), points, events, times))
            (chart(&latencies_said, &LATENCIES, &logarithmic(), points, events, times))
        }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn shown_us(us: f32) -> String {
    format_us(us as u64)
}

fn chart(
    said: &str,
    curves: &[Curve],
    axis: &Axis,
    points: &[Point],
    events: &[Event],
    times: Times,
) -> Markup {
    html! {
        figure {
            figcaption { (said) }
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(said) {
                @for (value, label) in &axis.marks {
                    @let y = y_of(axis, *value);
                    line.grid x1=(LEFT) x2=(WIDTH) y1=(y) y2=(y) {}
                    text x=(LEFT - 6.0) y=(y + 4.0) text-anchor="end" { (label) }
                }
                @for minutes in times.labels() {
                    @let x = times.x_of(times.now_ms - minutes * 60_000);
                    text x=(x.clamp(LEFT + 12.0, WIDTH - 14.0)) y=(HEIGHT - 6.0) text-anchor="middle" {
                        @if minutes == 0 { "now" } @else { "-" (minutes) " min" }
                    }
                }
                @for event in events { (mark(event, times)) }
                @for curve in curves {
                    path class=(curve.class) d=(path(curve, axis, points, times)) {}
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

/// Returns a path that is interrupted where there is no value, or no point for longer than two looks.
fn path(curve: &Curve, axis: &Axis, points: &[Point], times: Times) -> String {
    let (mut path, mut last) = (String::new(), None);
    for point in points {
        let x = times.x_of(point.at_ms);
        let Some(value) = (curve.value)(point).filter(|_| x >= LEFT) else {
            last = None;
            continue;
        };
        let goes_on = last.is_some_and(|last: i64| {
            u128::from((point.at_ms - last).unsigned_abs()) < 3 * INTERVAL.as_millis()
        });
        let step = if goes_on { 'L' } else { 'M' };
        let _ = write!(path, "{step}{x:.1} {:.1}", y_of(axis, value));
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
    use super::*;

    fn point(at_ms: i64, guest_s: f32, median_us: Option<f32>) -> Point {
        Point { at_ms, guest_s, device_s: guest_s, median_us, p99_us: median_us }
    }

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
        let now = 1_000_000_000;
        let points = [
            point(now - 20_000, 1.0, Some(100.0)),
            point(now - 15_000, 2.0, Some(100.0)),
            point(now - 10_000, 2.0, None),
            point(now - 5_000, 3.0, Some(100.0)),
            point(now - 3_600_000, 3.0, Some(100.0)),
        ];
        let times = Times::of(&points, now);
        assert_eq!(times.labels(), [3, 1, 0]);
        assert_eq!(path(&LATENCIES[0], &logarithmic(), &points, times).matches('M').count(), 2);
        assert_eq!(path(&RATES[0], &linear(10.0), &points, times).matches('M').count(), 1);
        assert_eq!(Times::of(&[point(now - 1_700_000, 1.0, None)], now).labels(), [30, 15, 0]);
    }
}
