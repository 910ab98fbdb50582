//! One run: its charts, and the table behind them.

use maud::{Markup, html};

use super::figure;
use crate::figures::{self, Figures, LayerFigures};
use crate::report::chart;
use crate::report::series::{self, BINS_MAX};
use crate::report::words;
use crate::run::{End, Record, Sample};

/// Most lines of the table of samples; the CSV has all.
const TABLE_LINES_MAX: usize = 240;
/// Most lines of the tables of stuns and of marks.
const EVENTS_MAX: usize = 200;

/// How the section of a run is shown.
pub(super) struct Shown {
    /// The page has other runs.
    pub is_named: bool,
    /// Other runs are more important.
    pub is_folded: bool,
    /// The run's graph is above, below the verdict.
    pub has_graph: bool,
    /// Number of the run among those of the same subject; None for the only one.
    pub round: Option<usize>,
}

/// Renders one run.
pub(super) fn section(record: &Record, shown: &Shown) -> Markup {
    let inside = html! {
        (charts(record, shown.has_graph))
        (phases(record))
        (by_layer(record))
        (events(record))
        (samples(record))
    };
    let name = html! {
        (words::label(record))
        @if let Some(round) = shown.round { ", round " (round) }
        @if !record.storage.is_empty() { " on " (record.storage) }
    };
    html! {
        @if shown.is_folded {
            details.run.bulk { summary { (name) } (ended(record)) (inside) }
        } @else {
            section.run { @if shown.is_named { h3.subject { (name) } } (ended(record)) (inside) }
        }
    }
}

fn ended(record: &Record) -> Markup {
    html! { @if record.end != End::Complete { p.warning { "This run did not end by itself: " (words::end(&record.end)) } } }
}

/// Returns the charts, and the place of the graph that a reader needs first: the guest's I/O, or the stuns of an idle
/// guest.
fn ordered(record: &Record) -> (Vec<(&'static str, Markup)>, usize) {
    let charts = chart::all_of(record);
    let first = if chart::is_loaded(record) { "guest-iops" } else { "stuns" };
    let place = charts.iter().position(|(name, _)| *name == first).unwrap_or(0);
    (charts, place)
}

/// Renders the first graph of a run. `is_named`: the page has other runs.
pub(super) fn graph(record: &Record, is_named: bool) -> Markup {
    let (mut charts, place) = ordered(record);
    html! {
        @if is_named { p.legend { (words::label(record)) ":" } }
        div.charts { @if place < charts.len() { (figure(Some(charts.swap_remove(place).1))) } }
        (legend(record))
    }
}

/// Renders the charts, without the one that is shown already.
fn charts(record: &Record, has_graph: bool) -> Markup {
    let (charts, first) = ordered(record);
    let left = charts.into_iter().enumerate().filter(|(place, _)| !has_graph || *place != first);
    html! {
        div.charts { @for (_, (_, chart)) in left { (figure(Some(chart))) } }
        @if !has_graph { (legend(record)) }
    }
}

fn legend(record: &Record) -> Markup {
    let each = record.samples.len().div_ceil(BINS_MAX);
    let interval = record.samples.first().map_or(0, |sample| sample.interval_us);
    html! {
        @if each > 1 {
            p.legend {
                "Each point of a line joins " (each) " intervals of " (words::time(interval as f64))
                ": the line is their mean, the band reaches from the lowest to the highest of them."
            }
        }
        @if chart::has_strip(record) {
            p.legend {
                @if !record.stuns.is_empty() { span.swatch.stun {} "stun (drawn at least a hair wide) " }
                @if record.beats.iter().any(|beat| beat.lost) { span.swatch.lost {} "heartbeat lost, below the chart" }
            }
        }
    }
}

fn phases(record: &Record) -> Markup {
    let figures = figures::phases_and_steps(record);
    html! {
        h4 { "Phase by phase" }
        div.scroll { table.dense {
            thead { tr {
                th scope="col" { "phase" }
                @for name in ["begins", "lasts", "reads/s", "writes/s", "MiB/s", "host reads/s", "host writes/s",
                    "table reads/s", "table writes/s", "mean latency", "99 %", "maximum", "stuns", "lost beats"] {
                    th.n scope="col" { (name) }
                }
            } }
            tbody { @for phase in &figures { (phase_row(phase)) } }
        } }
        p.legend { "99 %: the median of the intervals' own 99th percentiles, the worse of reads and writes. Rates leave out "
            "warm-ups and what is over at once, as a take is. Below a phase of several steps is each of them." }
    }
}

/// Renders the figures by layer; nothing where no layers are recorded.
fn by_layer(record: &Record) -> Markup {
    let layers = figures::layers(record);
    html! {
        @if !layers.is_empty() {
            details { summary { "Host I/O per layer" }
            div.scroll { table.dense {
                thead { tr {
                    th scope="col" { "phase" }
                    th scope="col" { "layer" }
                    @for name in ["reads/s", "writes/s", "table reads/s", "table writes/s", "MiB/s"] {
                        th.n scope="col" { (name) }
                    }
                } }
                tbody { @for layer in &layers { (layer_row(layer)) } }
            } }
            p.legend {
                "All disks together, over the whole phase. A layer counts at the height it has at the time; what belongs to no layer is "
                "in the host's figures alone."
            } }
        }
    }
}

fn layer_row(f: &LayerFigures) -> Markup {
    let cells = [f.reads_per_s, f.writes_per_s, f.table_reads_per_s, f.table_writes_per_s, f.mb_per_s];
    html! {
        tr {
            th scope="row" { (words::phase(f.phase)) @if !f.label.is_empty() { small { (f.label) } } }
            td { (words::layer(f.layer)) }
            @for cell in cells { td.n { (words::number(cell)) } }
        }
    }
}

fn phase_row(f: &Figures) -> Markup {
    let number = |value| words::or_dash(value, words::number);
    let time = |value| words::or_dash(value, words::time);
    let each = |ratio: Option<f64>| ratio.map(|ratio| format!("{ratio:.2} a guest's"));
    let alone = |text: String| (text, None);
    let load = [number(f.reads_per_s), number(f.writes_per_s), number(f.mb_per_s)];
    let host = [(f.host_reads_per_s, f.host_read_ratio), (f.host_writes_per_s, f.host_write_ratio)];
    let tables = [number(f.table_reads_per_s), number(f.table_writes_per_s)];
    let stuns = Some(f.stun_total_us as f64).filter(|_| f.stuns > 0);
    let beats = Some(f.beats_lost).filter(|_| f.beats > 0).map_or("-".into(), |lost| lost.to_string());
    let cells = [words::time(f.begin_us as f64), words::time(f.lasts_us as f64)].into_iter().chain(load);
    let cells = cells.map(alone).chain(host.map(|(rate, ratio)| (number(rate), each(ratio))));
    let cells = cells.chain(tables.map(alone)).chain([f.mean_us, f.p99_us, f.max_us].map(time).map(alone));
    let cells = cells.chain([
        (time(stuns), (f.stuns > 1).then(|| format!("{} of them", f.stuns))),
        (beats, (f.beats > 0).then(|| format!("of {}", f.beats))),
    ]);
    html! {
        tr {
            th scope="row" { @if let Some(step) = &f.step { small { (step) } } @else { (f.name()) } }
            @for (cell, more) in cells { td.n { (cell) @if let Some(more) = more { small { (more) } } } }
        }
    }
}

fn events(record: &Record) -> Markup {
    html! {
        @if !record.stuns.is_empty() {
            details { summary { "Stuns (" (record.stuns.len()) ")" }
                div.scroll { table {
                    thead { tr { th { "#" } th.n { "at" } th.n { "length" } th { "disk" } th { "cause" } } }
                    tbody { @for (n, stun) in record.stuns.iter().take(EVENTS_MAX).enumerate() {
                        tr {
                            td.n { (n + 1) }
                            td.n { (words::time(stun.at_us as f64)) }
                            td.n { (words::time(stun.stun_us as f64)) }
                            td { @if let Some(disk) = stun.disk { (disk) } @else { "all" } }
                            td { (stun.cause) }
                        }
                    } }
                } }
                (more(record.stuns.len()))
            }
        }
        @if !record.marks.is_empty() {
            details { summary { "Marks (" (record.marks.len()) ")" }
                ol.marks { @for mark in record.marks.iter().take(EVENTS_MAX) {
                    li { span.at { (words::time(mark.at_us as f64)) } " " (mark.text) }
                } }
                (more(record.marks.len()))
            }
        }
    }
}

fn more(count: usize) -> Markup {
    html! { @if count > EVENTS_MAX { p.legend { "The first " (EVENTS_MAX) " of " (count) "; the JSON has all." } } }
}

/// Renders the data of the charts as a table, for readers who cannot see them or need figures.
fn samples(record: &Record) -> Markup {
    if record.samples.is_empty() {
        return html! {};
    }
    let each = record.samples.len().div_ceil(TABLE_LINES_MAX);
    html! {
        details.bulk {
            summary { "Samples (" (record.samples.len()) @if each > 1 { ", " (each) " to a line" } ")" }
            div.scroll { table {
                thead { tr {
                    @for name in ["at", "reads/s", "writes/s", "host reads/s", "host writes/s", "read latency", "write latency", "gap"] {
                        th.n scope="col" { (name) }
                    }
                } }
                tbody { @for group in record.samples.chunks(each) { (sample_row(group)) } }
            } }
        }
    }
}

fn sample_row(group: &[Sample]) -> Markup {
    let mean = |value: &dyn Fn(&Sample) -> Option<f64>, show: fn(f64) -> String| {
        let bin = series::thin(group, 1, value).first().and_then(|piece| piece.first().copied());
        bin.map_or_else(|| "-".into(), |bin| show(bin.mean))
    };
    let gap = group.iter().map(|s| s.gap_us).max().unwrap_or(0);
    let cells = [
        words::time(group[0].at_us as f64),
        mean(&|s| series::rate(s.reads, s), words::number),
        mean(&|s| series::rate(s.writes, s), words::number),
        mean(&|s| series::rate(s.host?.reads, s), words::number),
        mean(&|s| series::rate(s.host?.writes, s), words::number),
        mean(&|s| series::latency(&s.read_latency, |l| l.mean_us), words::time),
        mean(&|s| series::latency(&s.write_latency, |l| l.mean_us), words::time),
        words::time(gap as f64),
    ];
    html! { tr { @for cell in &cells { td.n { (cell) } } } }
}
