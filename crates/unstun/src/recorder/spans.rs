//! Sums of a record over spans of time.

use std::ops::Range;

use super::activity::Activity;
use super::series::Series;

/// What happened within a span.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sum {
    /// Time of the span that was observed.
    pub seconds: i64,
    pub activity: Activity,
}

impl Sum {
    pub(super) fn add(&mut self, other: &Sum) {
        self.seconds += other.seconds;
        self.activity.add(&other.activity);
    }
}

/// A span in seconds since 1970.
pub(crate) type Span = Range<i64>;

/// Returns the sums of consecutive spans of `step_s` seconds.
///
/// # Errors
/// Those of the file system.
pub(super) fn steps(series: &Series, span: &Span, step_s: i64) -> std::io::Result<Vec<Sum>> {
    let count = usize::try_from((span.end - span.start).div_euclid(step_s)).unwrap_or(0);
    let bounds = (0..=count as i64).map(|n| span.start + n * step_s);
    between(series, &bounds.collect::<Vec<_>>())
}

/// Returns the sum of each of many spans, which may overlap. The record is read once.
///
/// # Errors
/// Those of the file system.
pub(super) fn sums(series: &Series, spans: &[Span]) -> std::io::Result<Vec<Sum>> {
    let mut bounds: Vec<i64> = spans.iter().flat_map(|span| [span.start, span.end]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let parts = between(series, &bounds)?;
    let sum = |span: &Span| {
        let from = bounds.partition_point(|bound| *bound < span.start);
        let until = bounds.partition_point(|bound| *bound < span.end);
        let mut sum = Sum::default();
        parts.iter().take(until).skip(from).for_each(|part| sum.add(part));
        sum
    };
    Ok(spans.iter().map(sum).collect())
}

/// Returns the sums between consecutive bounds. An interval belongs to where it begins.
fn between(series: &Series, bounds: &[i64]) -> std::io::Result<Vec<Sum>> {
    let (Some(&first), Some(&last)) = (bounds.first(), bounds.last()) else { return Ok(Vec::new()) };
    let mut parts = vec![Sum::default(); bounds.len() - 1];
    series.read(first, last, |interval, row| {
        let after = bounds.partition_point(|bound| *bound <= interval.begin_s);
        let Some(part) = after.checked_sub(1).and_then(|at| parts.get_mut(at)) else { return };
        match row {
            None => part.seconds += interval.length_s,
            Some((_, activity)) => part.activity.add(activity),
        }
    })?;
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_may_overlap_and_a_part_that_was_not_observed_counts_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut series = Series::new(folder.path());
        for second in (100_i64..200).chain(300..400) {
            let activity = Activity { flushes: 1, longest_us: second.unsigned_abs(), ..Activity::default() };
            series.add(second, &[(0, activity)]).unwrap();
        }
        let spans = [100..400, 150..310, 0..100, 350..350, 399..1000];
        let found = sums(&series, &spans).unwrap();
        let found: Vec<_> =
            found.iter().map(|s| (s.seconds, s.activity.flushes, s.activity.longest_us)).collect();
        assert_eq!(found, [(200, 200, 399), (60, 60, 309), (0, 0, 0), (0, 0, 0), (1, 1, 399)]);
        let steps = steps(&series, &(150..350), 50).unwrap();
        assert_eq!(steps.iter().map(|s| s.seconds).collect::<Vec<_>>(), [50, 0, 0, 50]);
    }
}
