//! A chart as SVG: its box, axes, legend and lines. Colours are classes of `chart.css`, so that a page may be light or
//! dark. Units are those of the viewBox; text is laid out as if every character were `CHAR` wide.

mod compared;
mod marks;
mod of_record;

use maud::{Markup, PreEscaped, Render, html};

pub(super) use compared::{bars, overlay};
pub(super) use marks::has_strip;
pub(super) use of_record::{all_of, is_loaded};

use super::scale::{Scale, time_ticks};
use super::series::{Bin, Pieces};
use super::words::plain;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 14.0;
/// Height above the box, for title and legend.
const TOP: f64 = 58.0;
/// Height below the box, for the strip of stuns and beats, the axis labels and the axis name.
const BOTTOM: f64 = 58.0;
const CHAR: f64 = 6.6;
/// Number of colours that `chart.css` has for series. Further series repeat them, dashed.
pub(super) const COLOURS: usize = 8;

/// Untrusted text within SVG, which is XML and has no control characters.
struct Text<'a>(&'a str);

impl Render for Text<'_> {
    fn render(&self) -> Markup {
        let text = plain(self.0);
        html! { (text) }
    }
}

/// Formats a coordinate; a tenth of a unit is too small to be visible.
fn px(value: f64) -> String {
    let value = (value * 10.0).round() / 10.0;
    if value.is_finite() { format!("{value}") } else { "0".into() }
}

pub(super) struct Curve {
    pub name: String,
    /// Classes of `chart.css`: "s0 mean".
    pub class: String,
    pub pieces: Pieces,
}

impl Curve {
    fn high(&self) -> f64 {
        self.pieces.iter().flatten().fold(0.0, |high, bin| high.max(bin.high))
    }

    fn low(&self) -> f64 {
        self.pieces.iter().flatten().fold(f64::INFINITY, |low, bin| low.min(bin.low))
    }
}

/// The box of one chart, over time.
pub(super) struct Frame<'a> {
    pub title: &'a str,
    /// The quantity of the value axis.
    pub unit: &'a str,
    pub begin_us: u64,
    pub end_us: u64,
    pub y: Scale,
    pub tick: fn(f64) -> String,
    /// Height of the box alone.
    pub height: f64,
}

impl Frame<'_> {
    fn x(&self, us: f64) -> f64 {
        let span = self.end_us.saturating_sub(self.begin_us).max(1) as f64;
        LEFT + ((us - self.begin_us as f64) / span).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        TOP + (1.0 - self.y.place(value)) * self.height
    }

    fn bottom(&self) -> f64 {
        TOP + self.height
    }

    /// Draws the chart, with `below` under the curves and `above` over them.
    fn draw(&self, curves: &[Curve], below: &Markup, above: &Markup) -> Markup {
        let entries = curves.iter().map(|c| (c.name.as_str(), c.class.as_str()));
        let inside = html! {
            (below) (self.value_axis()) (self.time_axis())
            @for curve in curves { (self.curve(curve)) }
            (above)
        };
        document(self.title, self.unit, self.height, entries, &inside)
    }

    fn value_axis(&self) -> Markup {
        value_axis(&self.y, self.tick, self.height)
    }

    fn time_axis(&self) -> Markup {
        let ticks = time_ticks(self.begin_us, self.end_us);
        html! {
            @for (at, label) in &ticks {
                @let x = px(self.x(*at as f64));
                line class="grid" x1=(x) x2=(x) y1=(px(TOP)) y2=(px(self.bottom())) {}
                text class="tick" x=(x) y=(px(self.bottom() + 30.0)) text-anchor="middle" { (label) }
            }
            text class="axis" x=(px((LEFT + WIDTH - RIGHT) / 2.0)) y=(px(self.bottom() + 50.0)) text-anchor="middle" {
                "time since the run began"
            }
        }
    }

    /// Draws the means as a line. Where samples were joined, a band behind it spans their minima and maxima.
    fn curve(&self, curve: &Curve) -> Markup {
        html! {
            g class=(curve.class) {
                @for piece in &curve.pieces {
                    @if piece.iter().any(|bin| bin.low < bin.high) { path class="band" d=(self.band(piece)) {} }
                    path class="line" d=(self.line(piece)) {}
                }
            }
        }
    }

    /// Returns the points of a line. A lone interval is drawn over its length, so that it is visible.
    fn line(&self, piece: &[Bin]) -> String {
        let point = |x: f64, bin: &Bin| format!("{},{}", px(self.x(x)), px(self.y(bin.mean)));
        match piece {
            [bin] => format!("M{}L{}", point(bin.begin_us as f64, bin), point(bin.end_us as f64, bin)),
            bins => path(bins.iter().map(|bin| point(bin.middle_us(), bin))),
        }
    }

    fn band(&self, piece: &[Bin]) -> String {
        let point = |bin: &Bin, value: f64| format!("{},{}", px(self.x(bin.middle_us())), px(self.y(value)));
        let there = piece.iter().map(|bin| point(bin, bin.high));
        let back = piece.iter().rev().map(|bin| point(bin, bin.low));
        path(there.chain(back)) + "Z"
    }
}

fn path(points: impl Iterator<Item = String>) -> String {
    points.enumerate().map(|(n, point)| format!("{}{point}", if n == 0 { 'M' } else { 'L' })).collect()
}

fn value_axis(scale: &Scale, tick: fn(f64) -> String, height: f64) -> Markup {
    html! {
        @for value in scale.ticks() {
            @let y = TOP + (1.0 - scale.place(value)) * height;
            line class="grid" x1=(px(LEFT)) x2=(px(WIDTH - RIGHT)) y1=(px(y)) y2=(px(y)) {}
            text class="tick" x=(px(LEFT - 8.0)) y=(px(y + 4.0)) text-anchor="end" { (tick(value)) }
        }
    }
}

/// Draws title, name of the value axis, legend and box.
fn document<'a>(
    title: &str,
    unit: &str,
    height: f64,
    entries: impl Iterator<Item = (&'a str, &'a str)>,
    inside: &Markup,
) -> Markup {
    let (whole, bottom) = (TOP + height + BOTTOM, TOP + height);
    let middle = px(TOP + height / 2.0);
    let view = format!("0 0 {} {}", px(WIDTH), px(whole));
    html! {
        svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox=(view) role="img" aria-label=(Text(title)) {
            text class="title" x=(px(LEFT)) y="20" { (Text(title)) }
            text class="axis" transform={ "translate(16," (middle) ") rotate(-90)" } text-anchor="middle" { (unit) }
            (legend(entries))
            (inside)
            line class="base" x1=(px(LEFT)) x2=(px(WIDTH - RIGHT)) y1=(px(bottom)) y2=(px(bottom)) {}
        }
    }
}

/// Draws the legend in one row. The table below the chart has the entries that do not fit.
fn legend<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> Markup {
    const SWATCH: f64 = 26.0;
    const NAME_CHARS_MAX: usize = 40;
    let mut x = LEFT;
    let mut placed = Vec::new();
    for (name, class) in entries {
        let name = shortened(name, NAME_CHARS_MAX);
        let next = x + SWATCH + name.chars().count() as f64 * CHAR + 18.0;
        if next > WIDTH {
            break;
        }
        placed.push((x, name, class));
        x = next;
    }
    html! {
        @for (x, name, class) in &placed {
            g class=(class) {
                line class="line" x1=(px(*x)) x2=(px(x + 20.0)) y1="37" y2="37" {}
                text class="key" x=(px(x + SWATCH)) y="41" { (Text(name)) }
            }
        }
    }
}

fn shortened(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.into();
    }
    let kept: String = text.chars().take(chars_max.saturating_sub(1)).collect();
    kept + "\u{2026}"
}

/// Returns the drawing with its colours, for a file of its own.
pub(super) fn standalone(drawing: &Markup) -> String {
    const STYLE: &str = include_str!("chart.css");
    let head = format!("<style>{STYLE}</style>");
    let drawing = drawing.clone().into_string();
    let inner = drawing.find('>').map_or(0, |n| n + 1);
    let (open, rest) = drawing.split_at(inner);
    PreEscaped(format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{open}{head}{rest}\n")).into_string()
}
