//! Marks on a chart other than its lines: phases, stuns, heartbeats, events.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::{CHAR, Frame, Text, px, shortened};
use crate::report::words;
use crate::run::{Mark, PhaseSpan, Record, Stun};

/// Least width of a stun: one millisecond in a run of minutes would be a thousandth of this wide.
const WIDTH_MIN: f64 = 1.2;
/// Most numbers below a chart that can still be told apart.
const MARKS_MAX: usize = 24;

/// Draws phases as shaded areas, with their names where they fit.
pub(super) fn phases(frame: &Frame<'_>, spans: &[PhaseSpan]) -> Markup {
    html! { @for span in spans { (phase(frame, span)) } }
}

fn phase(frame: &Frame<'_>, span: &PhaseSpan) -> Markup {
    const MARGIN: f64 = 8.0;
    let (x, end) = (frame.x(span.begin_us as f64), frame.x(span.end_us as f64));
    let (width, name) = (end - x, words::phase(span.phase));
    let label = if span.label.is_empty() { name } else { &span.label };
    let chars_max = ((width - MARGIN) / CHAR).max(0.0) as usize;
    let fitting = [label, name].into_iter().find(|text| text.chars().count() <= chars_max);
    let shown = fitting.map_or_else(|| shortened(name, chars_max), str::to_owned);
    html! {
        g class={ "phase " (name) } {
            rect x=(px(x)) y=(px(super::TOP)) width=(px(width.max(0.0))) height=(px(frame.height)) {
                title { (name) ": " (Text(label)) }
            }
            @if chars_max > 2 {
                text x=(px(x + MARGIN / 2.0)) y=(px(super::TOP + 14.0)) { (Text(&shown)) }
            }
        }
    }
}

/// Draws stuns over the whole height, each wide enough to be visible. Stuns at the same position are drawn once.
pub(super) fn stuns(frame: &Frame<'_>, stuns: &[Stun]) -> Markup {
    let mut taken = BTreeSet::new();
    let width = |s: &Stun| frame.x((s.at_us.saturating_add(s.stun_us)) as f64) - frame.x(s.at_us as f64);
    let shown =
        stuns.iter().filter(|s| width(s) > WIDTH_MIN || taken.insert(px(frame.x(s.at_us as f64).round())));
    html! {
        @for stun in shown {
            rect class="stun" x=(px(frame.x(stun.at_us as f64))) y=(px(super::TOP))
                width=(px(width(stun).max(WIDTH_MIN))) height=(px(frame.height)) {
                title { (stun_text(stun)) }
            }
        }
    }
}

pub(super) fn stun_text(stun: &Stun) -> String {
    let disk = stun.disk.map_or("all disks".into(), |disk| format!("disk {disk}"));
    let (length, at) = (words::time(stun.stun_us as f64), words::time(stun.at_us as f64));
    let cause =
        if stun.cause.is_empty() { String::new() } else { format!(", {}", words::plain(&stun.cause)) };
    format!("stun of {length} at {at}, {disk}{cause}")
}

/// Draws lost heartbeats as strokes below the box, and the numbers of marks.
pub(super) fn strip(frame: &Frame<'_>, record: &Record) -> Markup {
    let y = frame.bottom() + 2.0;
    let mut taken = BTreeSet::new();
    let lost = record.beats.iter().filter(|b| b.lost).map(|b| frame.x(b.at_us as f64));
    let lost: Vec<f64> = lost.filter(|x| taken.insert(px(x.round()))).collect();
    html! {
        @for x in lost {
            rect class="lost" x=(px(x - 1.0)) y=(px(y)) width="2" height="6" { title { "heartbeat lost" } }
        }
        (marks(frame, &record.marks))
    }
}

fn marks(frame: &Frame<'_>, marks: &[Mark]) -> Markup {
    if marks.len() > MARKS_MAX {
        return html! {};
    }
    let y = frame.bottom();
    html! {
        @for (n, mark) in marks.iter().enumerate() {
            @let x = frame.x(mark.at_us as f64);
            g class="mark" {
                line x1=(px(x)) x2=(px(x)) y1=(px(super::TOP)) y2=(px(y)) {}
                text x=(px(x)) y=(px(y + 18.0)) text-anchor="middle" {
                    (n + 1) title { (Text(&mark.text)) }
                }
            }
        }
    }
}

/// Returns whether the page needs a legend for stuns and lost heartbeats.
pub(crate) fn has_strip(record: &Record) -> bool {
    !record.stuns.is_empty() || record.beats.iter().any(|beat| beat.lost)
}
