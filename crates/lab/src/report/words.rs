//! Quantities, phases and figures in words: the same on a page, in a workbook and on a terminal.

use serde::Serialize;

use crate::run::{ConstantSource, End, Phase, Quantity, Record, Use};

pub fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Prepare => "prepare",
        Phase::Baseline => "baseline",
        Phase::PrepareSnapshot => "prepare-snapshot",
        Phase::Snapshot => "snapshot",
        Phase::Commit => "commit",
        Phase::Drain => "drain",
        Phase::After => "after",
    }
}

pub(super) fn quantity(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::ReadsPerS => "guest reads/s",
        Quantity::WritesPerS => "guest writes/s",
        Quantity::Iops => "guest IOPS",
        Quantity::MbPerS => "guest MiB/s",
        Quantity::LatencyUs => "guest latency",
        Quantity::HostReadsPerS => "host reads/s",
        Quantity::HostWritesPerS => "host writes/s",
        Quantity::HostReadRatio => "host reads per guest read",
        Quantity::HostWriteRatio => "host writes per guest write",
        Quantity::StunUs => "stun",
        Quantity::PingsLost => "pings lost",
        Quantity::Seconds => "duration",
        Quantity::Converged => "converged",
        Quantity::HelperBytes => "helper delta",
        Quantity::HelperGrowth => "helper per helper before",
        Quantity::HostOfSnapshot => "host IOPS per those with snapshot",
        Quantity::StunSpanUs => "first to last stun",
        Quantity::StunGapUs => "between stuns",
    }
}

/// Returns what a published figure says of the model.
pub(super) fn kind(r#use: Use) -> &'static str {
    match r#use {
        Use::Baseline => "baseline",
        Use::Input => "input",
        Use::Implied => "implied",
        Use::Predict => "predicted",
        Use::Check => "not counted",
    }
}

/// Returns a figure's name: "snapshot guest reads/s", "commit stun 3".
pub fn figure(of: Phase, what: Quantity, stun: Option<u32>) -> String {
    let number = stun.map(|stun| format!(" {stun}")).unwrap_or_default();
    format!("{} {}{number}", phase(of), quantity(what))
}

/// Returns the name of an enum's value in JSON, such as "reads_per_s" or "virtual".
pub(super) fn json_name(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

pub(super) fn source(source: ConstantSource) -> &'static str {
    match source {
        ConstantSource::DataSheet => "data sheet",
        ConstantSource::Measured => "measured",
        ConstantSource::FittedToBaseline => "fitted to baseline",
        ConstantSource::Declared => "declared",
    }
}

pub(super) fn end(end: &End) -> String {
    match end {
        End::Complete => "complete".into(),
        End::Interrupted => "interrupted: what was sampled until then is shown".into(),
        End::Failed(why) => format!("failed: {why}"),
    }
}

/// Returns the name of a layer from the number of layers below it.
pub(super) fn layer(height: u32) -> String {
    if height == 0 { "base".into() } else { format!("delta {height}") }
}

/// Returns what distinguishes this record from the others of its experiment: "esx io-lock", "native".
pub(super) fn label(record: &Record) -> String {
    match &record.hypothesis {
        Some(hypothesis) => format!("{} {hypothesis}", record.subject),
        None => record.subject.clone(),
    }
}

/// Returns a value of `quantity`, with its unit where the quantity's name does not contain it.
pub(super) fn value(quantity: Quantity, value: f64) -> String {
    match quantity {
        Quantity::LatencyUs | Quantity::StunUs | Quantity::StunSpanUs | Quantity::StunGapUs => time(value),
        Quantity::Seconds => time(value * 1e6),
        Quantity::HelperBytes => bytes(value),
        Quantity::Converged if value == 0.0 => "no".into(),
        Quantity::Converged => "yes".into(),
        Quantity::HostReadRatio
        | Quantity::HostWriteRatio
        | Quantity::HostOfSnapshot
        | Quantity::HelperGrowth => format!("{value:.2}"),
        _ => number(value),
    }
}

/// Returns about three significant digits, with thousands separated.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs();
    if !value.is_finite() {
        return "-".into();
    }
    if value == 0.0 {
        return "0".into();
    }
    match magnitude {
        m if m >= 99.95 => grouped(value),
        m if m >= 9.995 => trim(format!("{value:.1}")),
        m if m >= 0.1 => trim(format!("{value:.2}")),
        m if m >= 0.001 => trim(format!("{value:.4}")),
        _ => format!("{value:.1e}"),
    }
}

/// Returns a constant with all its digits, because a person entered it.
pub(super) fn exact(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 { grouped(value) } else { format!("{value}") }
}

fn trim(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// Returns a whole number, with commas between thousands.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Returns a figure as `show` writes it, and "-" where there is none.
pub(super) fn or_dash(value: Option<f64>, show: fn(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), show)
}

/// Returns microseconds in a readable unit.
pub(super) fn time(us: f64) -> String {
    match us.abs() {
        0.0 => "0".into(),
        m if m < 999.5 => format!("{} us", number(us)),
        m if m < 999.5e3 => format!("{} ms", number(us / 1e3)),
        _ => format!("{} s", number(us / 1e6)),
    }
}

pub(super) fn bytes(value: f64) -> String {
    const KIB: f64 = 1024.0;
    match value.abs() {
        m if m < KIB => format!("{} B", number(value)),
        m if m < KIB.powi(2) => format!("{} KiB", number(value / KIB)),
        m if m < KIB.powi(3) => format!("{} MiB", number(value / KIB.powi(2))),
        _ => format!("{} GiB", number(value / KIB.powi(3))),
    }
}

/// Returns a share of a whole: "28 %", "7.5 %".
pub(super) fn share(fraction: f64) -> String {
    let percent = fraction * 100.0;
    let rounded = if percent.abs() < 9.95 { (percent * 10.0).round() / 10.0 } else { percent.round() };
    format!("{} %", number(rounded))
}

/// Returns what of a record is not as it was run: one sentence for each way in which it was scaled.
pub(super) fn scaling(record: &Record) -> Vec<String> {
    let factor = record.scale();
    let simulated = (factor > 1).then(|| {
        format!(
            "Simulated at 1/{factor} of the time. Times, durations and counts are given at full scale, and rates are the \
             same. Latencies, gaps and stuns are those of the small run; costs that do not depend on the size, as \
             those of a take, make a duration too long."
        )
    });
    let noted = record.notes.iter().filter(|note| factor == 1 && note.starts_with("Scaled:"));
    simulated.into_iter().chain(noted.cloned()).collect()
}

/// Returns a relative error: "-15 %".
pub(super) fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    match percent.abs() {
        m if m < 0.5 => "0 %".into(),
        m if m < 1e5 => format!("{percent:+.0} %"),
        _ => times(fraction),
    }
}

/// Returns an error as a multiple of the published figure: "x 3.6".
pub(super) fn times(fraction: f64) -> String {
    format!("x {}", number(fraction + 1.0))
}

/// Returns `text` without control characters, which XML and terminals would interpret.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Returns date and time in UTC; empty where the begin is unknown (0) or out of range.
pub(super) fn began(unix_us: i64) -> String {
    let at = jiff::Timestamp::from_microsecond(unix_us).ok().filter(|_| unix_us != 0);
    at.map(|at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()).unwrap_or_default()
}

/// Returns the part of a name that is safe in a file's name on any system.
pub(super) fn file_stem(name: &str) -> String {
    const CHARS_MAX: usize = 80;
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let stem: String = name.chars().take(CHARS_MAX).map(safe).collect();
    let stem = stem.trim_matches(['.', '-']);
    if stem.is_empty() { "run".into() } else { stem.into() }
}
