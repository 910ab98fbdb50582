//! Axes: the position of a value, and the values that are labelled.

/// Maps values to positions: `place` returns 0 at the low end and 1 at the high one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scale {
    Linear {
        high: f64,
        step: f64,
    },
    /// Logarithmic; the ends are whole powers of ten.
    Log {
        low: f64,
        high: f64,
    },
}

/// Approximate number of intervals on a value axis.
const STEPS: f64 = 5.0;
/// Most labels on a time axis: each is up to 60 units wide on a chart of 800.
const TIME_TICKS_MAX: u64 = 12;

impl Scale {
    /// Returns a scale from 0 to a round number not below `high`.
    pub(super) fn linear(high: f64) -> Self {
        let high = if high.is_finite() && high > 0.0 { high } else { 1.0 };
        let step = round_step(high / STEPS);
        Self::Linear { high: (high / step).ceil() * step, step }
    }

    /// Returns a scale over all decades between `low` and `high`, both positive.
    pub(super) fn log(low: f64, high: f64) -> Self {
        let low = 10f64.powf(low.max(1e-3).log10().floor());
        let high = 10f64.powf(high.max(low).min(1e18).log10().ceil());
        Self::Log { low, high: high.max(low * 10.0) }
    }

    pub(super) fn place(&self, value: f64) -> f64 {
        let place = match *self {
            Self::Linear { high, .. } => value / high,
            Self::Log { low, high } => (value.max(low) / low).log10() / (high / low).log10(),
        };
        place.clamp(0.0, 1.0)
    }

    pub(super) fn ticks(&self) -> Vec<f64> {
        match *self {
            Self::Linear { high, step } => {
                let count = (high / step).round() as u32;
                (0..=count).map(|n| f64::from(n) * step).collect()
            }
            Self::Log { low, high } => {
                let decades = (high / low).log10().round() as i32;
                (0..=decades).map(|n| low * 10f64.powi(n)).collect()
            }
        }
    }
}

/// Returns 1, 2 or 5 times a power of ten, not below `about`.
fn round_step(about: f64) -> f64 {
    let power = 10f64.powf(about.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= about).unwrap_or(about)
}

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Possible distances between two labels: a unit in microseconds, and multiples of it, in the usual divisions of time.
const TIME_STEPS: [(u64, &[u64]); 6] = [
    (1, &[1, 10, 100]),
    (1_000, &[1, 2, 5, 10, 20, 50, 100, 200, 500]),
    (SECOND, &[1, 2, 5, 10, 20]),
    (MINUTE, &[1, 2, 5, 10, 30]),
    (HOUR, &[1, 3, 6]),
    (DAY, &[1, 7]),
];

/// Returns times and their labels within `begin..=end`, microseconds.
pub(super) fn time_ticks(begin: u64, end: u64) -> Vec<(u64, String)> {
    let span = end.saturating_sub(begin).max(1);
    let mut steps = TIME_STEPS.into_iter().flat_map(|(unit, counts)| counts.iter().map(move |n| n * unit));
    let step = steps.find(|step| span / step <= TIME_TICKS_MAX);
    let step = step.unwrap_or_else(|| (span / TIME_TICKS_MAX).next_multiple_of(7 * DAY));
    let first = begin.div_ceil(step);
    (first..=end / step).map(|n| (n * step, time_label(n * step, step))).collect()
}

fn time_label(at: u64, step: u64) -> String {
    match step {
        _ if at == 0 => "0".into(),
        s if s < 1_000 => format!("{at} us"),
        s if s < SECOND => format!("{} ms", at / 1_000),
        s if s < MINUTE => format!("{} s", at / SECOND),
        s if s < HOUR => format!("{} min", at / MINUTE),
        s if s < DAY => format!("{} h", at / HOUR),
        _ => format!("{} d", at / DAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_on_round_numbers_above_what_they_hold() {
        for (high, top) in [(0.0, 1.0), (510.0, 600.0), (1.0, 1.0), (93_000.0, 100_000.0), (0.03, 0.03)] {
            let scale = Scale::linear(high);
            let ticks = scale.ticks();
            let last = ticks[ticks.len() - 1];
            assert!((last - top).abs() < top * 1e-9, "{high}: {ticks:?}");
            assert!(ticks.len() <= 7, "{ticks:?}");
        }
        let scale = Scale::log(150.0, 2_100_000.0);
        assert_eq!(scale.ticks().first(), Some(&100.0));
        assert_eq!(scale.place(100.0), 0.0);
        assert_eq!(scale.place(1e7), 1.0);
        assert!((scale.place(1e4) - 0.4).abs() < 1e-9);
    }

    #[test]
    fn any_length_of_time_has_a_handful_of_labels() {
        for span in
            [1, 7, 950, 12_345, 3 * SECOND, 980 * SECOND, 5 * HOUR, 40 * DAY, 4_000 * DAY, u64::MAX / 2]
        {
            let ticks = time_ticks(0, span);
            assert!((1..=TIME_TICKS_MAX as usize + 1).contains(&ticks.len()), "{span}: {ticks:?}");
        }
        let labels: Vec<_> = time_ticks(0, 980 * SECOND).into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels[..3], ["0", "2 min", "4 min"]);
    }
}
