//! The charts of one run.

use maud::{Markup, html};

use super::{Curve, Frame, Text, marks, px};
use crate::report::scale::Scale;
use crate::report::series::{BINS_MAX, Pieces, extent, latency as known, rate, thin};
use crate::report::words;
use crate::run::{Counters, Record, Sample, Spread};

const TALL: f64 = 250.0;
const LOW: f64 = 170.0;

fn curve(name: &str, class: &str, pieces: Pieces) -> Option<Curve> {
    (!pieces.is_empty()).then(|| Curve { name: name.into(), class: class.into(), pieces })
}

fn over_time(record: &Record, title: &str, unit: &str, height: f64, curves: &[Curve]) -> Option<Markup> {
    let high = curves.iter().map(Curve::high).fold(0.0, f64::max);
    let (begin_us, end_us) = extent(record);
    let y = Scale::linear(high);
    let frame = Frame { title, unit, begin_us, end_us, y, tick: words::number, height };
    (!curves.is_empty()).then(|| with_marks(&frame, record, curves))
}

fn with_marks(frame: &Frame<'_>, record: &Record, curves: &[Curve]) -> Markup {
    let below = html! { (marks::phases(frame, &record.phases)) (marks::stuns(frame, &record.stuns)) };
    let above = html! { (marks::strip(frame, record)) (marks::stun_labels(frame, &record.stuns)) };
    frame.draw(curves, &below, &above)
}

/// Returns whether the guest did any I/O.
pub(crate) fn is_loaded(record: &Record) -> bool {
    record.samples.iter().any(|sample| sample.reads > 0 || sample.writes > 0)
}

/// Draws the guest's completed reads and writes. None for an idle guest.
fn guest(record: &Record) -> Option<Markup> {
    if !is_loaded(record) {
        return None;
    }
    let line = |count: fn(&Sample) -> u64| thin(&record.samples, BINS_MAX, |s| rate(count(s), s));
    let curves = [curve("reads", "s0", line(|s| s.reads)), curve("writes", "s1", line(|s| s.writes))];
    let curves: Vec<_> = curves.into_iter().flatten().collect();
    over_time(record, "Guest IOPS", "I/Os per second", TALL, &curves)
}

/// Draws the I/O of the storage below. Tables are drawn separately, where they were counted.
fn host(record: &Record) -> Option<Markup> {
    let line =
        |count: fn(&Counters) -> u64| thin(&record.samples, BINS_MAX, |s| rate(count(s.host.as_ref()?), s));
    let any = |count: fn(&Counters) -> u64| {
        record.samples.iter().filter_map(|s| s.host.as_ref()).any(|host| count(host) > 0)
    };
    let tables = |name, class, count| if any(count) { curve(name, class, line(count)) } else { None };
    let curves = [
        curve("reads", "s0", line(|c| c.reads)),
        curve("writes", "s1", line(|c| c.writes)),
        tables("of them table reads", "s2 thin", |c| c.table_reads),
        tables("of them table writes", "s3 thin", |c| c.table_writes),
    ];
    let curves: Vec<_> = curves.into_iter().flatten().collect();
    over_time(record, "Host IOPS: what reached the storage", "I/Os per second", TALL, &curves)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Reads,
    Writes,
}

/// Draws percentiles over time; means alone where an import has no percentiles.
fn latency(record: &Record, side: Side) -> Option<Markup> {
    let spread = |s: &Sample| match side {
        Side::Reads => s.read_latency,
        Side::Writes => s.write_latency,
    };
    let line = |figure: fn(&Spread) -> f64| thin(&record.samples, BINS_MAX, |s| known(&spread(s), figure));
    let curves = [
        curve("median", "s0", line(|s| s.p50_us)),
        curve("95 %", "s4", line(|s| s.p95_us)),
        curve("99 %", "s1", line(|s| s.p99_us)),
        curve("maximum", "s5 thin", line(|s| s.max_us)),
    ];
    let mut curves: Vec<_> = curves.into_iter().flatten().collect();
    if curves.len() < 2 {
        curves.extend(curve("mean", "s2", line(|s| s.mean_us)));
    }
    let title = match side {
        Side::Reads => "Read latency",
        Side::Writes => "Write latency",
    };
    on_decades(record, title, &curves)
}

fn on_decades(record: &Record, title: &str, curves: &[Curve]) -> Option<Markup> {
    let low = curves.iter().map(Curve::low).fold(f64::INFINITY, f64::min);
    let high = curves.iter().map(Curve::high).fold(0.0, f64::max);
    let (begin_us, end_us) = extent(record);
    let y = Scale::log(low, high);
    let frame = Frame { title, unit: "log scale", begin_us, end_us, y, tick: words::time, height: LOW };
    (!curves.is_empty()).then(|| with_marks(&frame, record, curves))
}

/// Draws the longest time without a completion in each interval: the effect of stuns, freezes and slow storage on
/// applications.
fn gaps(record: &Record) -> Option<Markup> {
    let pieces = thin(&record.samples, BINS_MAX, |s| Some(s.gap_us as f64).filter(|us| *us > 0.0));
    let curves: Vec<_> = curve("longest gap", "s6", pieces).into_iter().collect();
    on_decades(record, "Longest time without a completion, I/O under way", &curves)
}

/// Most bars that can still be told apart.
const STUN_BARS_MAX: usize = 120;

/// Width of the label of a stun: "1.22 s", and a space.
const LABEL: f64 = 46.0;

/// Draws the length of each stun, in order. None for fewer than three, which a table shows better.
fn stuns(record: &Record) -> Option<Markup> {
    let stuns = record.stuns.get(..record.stuns.len().min(STUN_BARS_MAX)).filter(|s| s.len() > 2)?;
    let high = stuns.iter().map(|s| s.stun_us).max().unwrap_or(0);
    // A fifth above the highest bar is space for its label.
    let y = Scale::linear(high as f64 * 1.2);
    let step = (super::WIDTH - super::LEFT - super::RIGHT) / stuns.len() as f64;
    let inside = html! {
        (super::value_axis(&y, words::time, LOW))
        @for (n, stun) in stuns.iter().enumerate() {
            @let tall = y.place(stun.stun_us as f64) * LOW;
            @let x = super::LEFT + (n as f64 + 0.15) * step;
            @let bottom = super::TOP + LOW;
            rect class="bar s5" x=(px(x)) y=(px(bottom - tall)) width=(px(step * 0.7)) height=(px(tall)) {
                title { (marks::stun_text(stun)) }
            }
            @if step > LABEL || stun.stun_us == high {
                text class="tick" x=(px(x + step * 0.35)) y=(px(bottom - tall - 4.0)) text-anchor="middle" {
                    (words::time(stun.stun_us as f64))
                }
            }
            @if stuns.len() <= 30 {
                text class="tick" x=(px(x + step * 0.35)) y=(px(bottom + 18.0)) text-anchor="middle" { (n + 1) }
            }
        }
        text class="axis" x=(px(super::WIDTH / 2.0)) y=(px(super::TOP + LOW + 42.0)) text-anchor="middle" {
            "stuns in their order"
        }
    };
    let title = match record.stuns.len() - stuns.len() {
        0 => "Stuns".to_owned(),
        more => format!("Stuns: the first {}, {more} more", stuns.len()),
    };
    Some(super::document(&title, "length", LOW, std::iter::empty(), &inside))
}

/// Returns all charts of a run, with names for files.
pub(crate) fn all_of(record: &Record) -> Vec<(&'static str, Markup)> {
    let charts = [
        ("guest-iops", guest(record)),
        ("host-iops", host(record)),
        ("read-latency", latency(record, Side::Reads)),
        ("write-latency", latency(record, Side::Writes)),
        ("gaps", gaps(record)),
        ("stuns", stuns(record)),
    ];
    charts.into_iter().filter_map(|(name, chart)| Some((name, chart?))).chain(beats_alone(record)).collect()
}

/// Draws the strip of an idle guest, which has pings or stuns alone.
fn beats_alone(record: &Record) -> Option<(&'static str, Markup)> {
    const STRIP: f64 = 40.0;
    if is_loaded(record) || (record.beats.is_empty() && record.stuns.is_empty()) {
        return None;
    }
    let (begin_us, end_us) = extent(record);
    let y = Scale::linear(1.0);
    let frame = Frame {
        title: "Heartbeats and stuns",
        unit: "",
        begin_us,
        end_us,
        y,
        tick: |_| String::new(),
        height: STRIP,
    };
    let beats = html! {
        @for beat in thinned(&record.beats) {
            @let class = if beat.lost { "lost" } else { "answered" };
            rect class=(class) x=(px(frame.x(beat.at_us as f64) - 1.0)) y=(px(super::TOP + 4.0)) width="2" height="32" {
                title { (Text(class)) " at " (words::time(beat.at_us as f64)) }
            }
        }
    };
    let below =
        html! { (marks::phases(&frame, &record.phases)) (marks::stuns(&frame, &record.stuns)) (beats) };
    let above = html! { (marks::strip(&frame, record)) (marks::stun_labels(&frame, &record.stuns)) };
    Some(("beats", frame.draw(&[], &below, &above)))
}

/// Returns all lost beats, and as many others as a chart can show.
fn thinned(beats: &[crate::run::Beat]) -> impl Iterator<Item = &crate::run::Beat> {
    let each = beats.len().div_ceil(BINS_MAX).max(1);
    beats.iter().enumerate().filter(move |(n, beat)| beat.lost || n % each == 0).map(|(_, beat)| beat)
}
