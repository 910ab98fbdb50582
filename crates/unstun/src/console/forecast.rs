//! The free space of a datastore in the last days, and the day on which it is full at the present rate.

use std::fmt::Write as _;

use api::units::format_bytes;
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};

use crate::alarms::Trend;

const WIDTH: f32 = 640.0;
const HEIGHT: f32 = 170.0;
/// Space for the labels of the axes.
const LEFT: f32 = 74.0;
const BOTTOM: f32 = 22.0;
const TOP: f32 = 8.0;
const DAY_S: f64 = 86_400.0;
/// Days before now that the chart shows: those of the samples.
const DAYS_BEFORE: f64 = 3.0;
/// Range of the days after now that the chart shows.
const DAYS_AFTER: (f64, f64) = (3.0, 30.0);

/// Returns when the datastore is full at the rate of the last days.
pub(super) fn sentence(trend: &Trend, now: Timestamp) -> String {
    match (trend.shrinks_bytes_s, trend.days_left) {
        (None, _) => "unknown: a forecast needs six hours of observation".to_owned(),
        (Some(_), None) => "it does not become fuller".to_owned(),
        (Some(bytes_s), Some(days)) => {
            let rate = format_bytes(whole(bytes_s * DAY_S));
            format!("free space shrinks by {rate} a day; full {}", day_of(days, now))
        }
    }
}

/// Returns the day that is so many days after now, as a part of a sentence.
fn day_of(days: f64, now: Timestamp) -> String {
    let seconds = i64::try_from(whole(days * DAY_S)).unwrap_or(i64::MAX);
    match now.checked_add(SignedDuration::from_secs(seconds)) {
        Ok(day) => format!("on {} (in {days:.1} days)", day.strftime("%Y-%m-%d")),
        Err(_) => "in more than a thousand years".to_owned(),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(value: f64) -> u64 {
    value as u64
}

/// Places of a chart that ends so many days after now.
struct Scale {
    now_s: i64,
    days_after: f64,
    total_bytes: u64,
}

#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
impl Scale {
    fn x(&self, days: f64) -> f32 {
        let part = (days + DAYS_BEFORE) / (DAYS_BEFORE + self.days_after);
        LEFT + part.clamp(0.0, 1.0) as f32 * (WIDTH - LEFT)
    }

    fn y(&self, free_bytes: f64) -> f32 {
        let part = (free_bytes / self.total_bytes.max(1) as f64).clamp(0.0, 1.0) as f32;
        TOP + (1.0 - part) * (HEIGHT - BOTTOM - TOP)
    }

    fn measured(&self, trend: &Trend) -> String {
        let mut path = String::new();
        for (unix_s, free_bytes) in &trend.samples {
            let days = (unix_s - self.now_s) as f64 / DAY_S;
            let step = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{step}{:.1} {:.1}", self.x(days), self.y(*free_bytes as f64));
        }
        path
    }

    /// Returns the line from now to the end of the chart, or to the day on which nothing is free.
    fn expected(&self, trend: &Trend) -> String {
        let Some(bytes_s) = trend.shrinks_bytes_s else { return String::new() };
        let free = trend.free_bytes as f64;
        let days = trend.days_left.unwrap_or(self.days_after).min(self.days_after);
        let end = free - bytes_s * days * DAY_S;
        format!("M{:.1} {:.1}L{:.1} {:.1}", self.x(0.0), self.y(free), self.x(days), self.y(end))
    }
}

/// Returns the chart; nothing while there are too few samples for a line.
pub(super) fn chart(name: &str, trend: &Trend, total_bytes: u64, now: Timestamp) -> Markup {
    let (least, most) = DAYS_AFTER;
    let days_after = trend.days_left.map_or(least, |days| (days * 1.1).clamp(least, most)).ceil();
    let scale = Scale { now_s: now.as_second(), days_after, total_bytes };
    let said = format!("Free space of {name}: {}", sentence(trend, now));
    let labels = [
        (-DAYS_BEFORE, "start", "-3 days".to_owned()),
        (0.0, "middle", "now".to_owned()),
        (days_after, "end", format!("+{days_after:.0} days")),
    ];
    html! {
        @if trend.samples.len() > 1 {
            div.charts.single {
                figure {
                    figcaption { (said) }
                    svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(said) {
                        @for bytes in [0, total_bytes / 2, total_bytes] {
                            @let y = scale.y(bytes as f64);
                            line.grid x1=(LEFT) x2=(WIDTH) y1=(y) y2=(y) {}
                            text x=(LEFT - 6.0) y=(y + 4.0) text-anchor="end" { (format_bytes(bytes)) }
                        }
                        @for (days, anchor, label) in &labels {
                            text x=(scale.x(*days)) y=(HEIGHT - 6.0) text-anchor=(anchor) { (label) }
                        }
                        line.mark x1=(scale.x(0.0)) x2=(scale.x(0.0)) y1=(TOP) y2=(HEIGHT - BOTTOM) {}
                        path.guest d=(scale.measured(trend)) {}
                        path.device d=(scale.expected(trend)) {}
                    }
                    p.legend { span.guest { "free" } " " @if trend.shrinks_bytes_s.is_some() { span.device { "at the present rate" } } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn trend(shrinks_bytes_s: Option<f64>, days_left: Option<f64>) -> Trend {
        let samples = (0..10).map(|n| (n * 1800, GIB * (100 - n as u64))).collect();
        Trend { samples, free_bytes: 90 * GIB, shrinks_bytes_s, days_left }
    }

    #[test]
    fn the_sentence_has_the_day_and_the_line_ends_there() {
        let now: Timestamp = "2026-11-27T12:00:00Z".parse().unwrap();
        let falls = trend(Some(GIB as f64 * 9.0 / DAY_S), Some(10.0));
        assert_eq!(
            sentence(&falls, now),
            "free space shrinks by 9 GiB a day; full on 2026-12-07 (in 10.0 days)"
        );
        let scale = Scale { now_s: 18_000, days_after: 11.0, total_bytes: 100 * GIB };
        let end = format!("L{:.1} {:.1}", scale.x(10.0), HEIGHT - BOTTOM);
        assert!(scale.expected(&falls).ends_with(&end), "{}", scale.expected(&falls));
        assert_eq!(scale.measured(&falls).matches('L').count(), 9);
        assert!(sentence(&trend(None, None), now).starts_with("unknown"));
        assert_eq!(sentence(&trend(Some(-1.0), None), now), "it does not become fuller");
        assert!(sentence(&trend(Some(1.0), Some(1e9)), now).contains("thousand years"));
        assert_eq!(scale.expected(&trend(None, None)), "");
    }
}
