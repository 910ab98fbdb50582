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

/// Width of a character of a stun's label, which is bold.
const BOLD_CHAR: f64 = 7.1;
/// Height of the labels of stuns, below those of phases.
const LABELS_Y: f64 = super::TOP + 30.0;

/// Labels all stuns with their lengths. Labels that would overlap become one.
pub(super) fn stun_labels(frame: &Frame<'_>, stuns: &[Stun]) -> Markup {
    let mut sorted: Vec<&Stun> = stuns.iter().collect();
    sorted.sort_by_key(|stun| stun.at_us);
    let mut labels: Vec<StunLabel> = Vec::new();
    for stun in sorted {
        let (x, us) = (frame.x(stun.at_us as f64), stun.stun_us);
        let mut label = StunLabel { first: x, last: x, count: 1, longest_us: us, total_us: us };
        while let Some(before) = labels.pop_if(|before| before.end() > label.begin()) {
            label = before.joined(&label);
        }
        labels.push(label);
    }
    html! { @for label in &labels {
        text class="stun-label" x=(px(label.begin())) y=(px(LABELS_Y)) { (label.text()) }
    } }
}

/// The label of one stun, or of several that are too close for labels of their own.
struct StunLabel {
    first: f64,
    last: f64,
    count: usize,
    longest_us: u64,
    total_us: u64,
}

impl StunLabel {
    fn joined(self, next: &StunLabel) -> StunLabel {
        StunLabel {
            first: self.first,
            last: next.last.max(self.last),
            count: self.count + next.count,
            longest_us: self.longest_us.max(next.longest_us),
            total_us: self.total_us.saturating_add(next.total_us),
        }
    }

    fn text(&self) -> String {
        let (longest, total) = (words::time(self.longest_us as f64), words::time(self.total_us as f64));
        match self.count {
            1 => format!("stun {longest}"),
            count => format!("{count} stuns, longest {longest}, together {total}"),
        }
    }

    fn width(&self) -> f64 {
        self.text().chars().count() as f64 * BOLD_CHAR
    }

    /// Returns the left end: the label is centred on its stuns, within the box.
    fn begin(&self) -> f64 {
        let middle = (self.first + self.last) / 2.0;
        let most = super::WIDTH - super::RIGHT - self.width();
        (middle - self.width() / 2.0).min(most).max(super::LEFT)
    }

    fn end(&self) -> f64 {
        self.begin() + self.width()
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

/// Draws marks with their numbers; a number that would cover the one before is left out.
fn marks(frame: &Frame<'_>, marks: &[Mark]) -> Markup {
    if marks.len() > MARKS_MAX {
        return html! {};
    }
    let y = frame.bottom();
    let mut free = f64::NEG_INFINITY;
    let placed = marks.iter().enumerate().map(|(n, mark)| {
        let x = frame.x(mark.at_us as f64);
        let is_numbered = x >= free;
        free = if is_numbered { x + 2.5 * CHAR } else { free };
        (n, x, mark, is_numbered)
    });
    html! {
        @for (n, x, mark, is_numbered) in placed {
            g class="mark" {
                line x1=(px(x)) x2=(px(x)) y1=(px(super::TOP)) y2=(px(y)) {}
                @if is_numbered { text x=(px(x)) y=(px(y + 18.0)) text-anchor="middle" {
                    (n + 1) title { (Text(&mark.text)) }
                } }
            }
        }
    }
}

/// Returns whether the page needs a legend for stuns and lost heartbeats.
pub(crate) fn has_strip(record: &Record) -> bool {
    !record.stuns.is_empty() || record.beats.iter().any(|beat| beat.lost)
}
