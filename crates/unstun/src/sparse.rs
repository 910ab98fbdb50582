//! Data and zeros in the content of a disk, for sparse files.

use std::ops::Range;

/// Unit of holes in bytes: a block of the usual file systems.
const UNIT: usize = 4096;

/// Splits bytes into runs, each with whether it has data. A run without data is all zeros. Runs begin at multiples of 4 KiB from
/// the start of `bytes`.
pub(crate) fn runs(bytes: &[u8]) -> Vec<(Range<usize>, bool)> {
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    for (at, unit) in (0..).step_by(UNIT).zip(bytes.chunks(UNIT)) {
        let has_data = unit.iter().any(|&byte| byte != 0);
        match runs.last_mut() {
            Some((run, same)) if *same == has_data => run.end += unit.len(),
            _ => runs.push((at..at + unit.len(), has_data)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_everything_once() {
        let content =
            [vec![0; UNIT], vec![1; UNIT], vec![0; UNIT - 1], vec![1], vec![0; 2 * UNIT + 100]].concat();
        let unit = |from, to| from * UNIT..to * UNIT;
        let rest = 3 * UNIT..content.len();
        assert_eq!(runs(&content), [(unit(0, 1), false), (unit(1, 3), true), (rest, false)]);
        assert_eq!(runs(&[]), []);
    }
}
