//! Seek times.

/// Time of a seek by its distance: `base_ns + stroke_ns * sqrt(distance)`. The arm accelerates for half the distance
/// and brakes for the other half. Distances are shares of the whole stroke, so that the capacity can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seek {
    pub base_ns: u64,
    pub stroke_ns: u64,
}

impl Seek {
    /// Returns the time of a seek over `share` of the stroke, above 0 and up to 1.
    pub fn time_ns(&self, share: f64) -> u64 {
        self.base_ns + (self.stroke_ns as f64 * share.sqrt()) as u64
    }

    /// Returns the mean over uniformly random pairs of positions in nanoseconds. Their distance has the density `2 * (1
    /// - d)`.
    pub fn mean_ns(&self) -> f64 {
        const STEPS: u32 = 10_000;
        let shares = (0..STEPS).map(|n| (f64::from(n) + 0.5) / f64::from(STEPS));
        shares.map(|d| 2.0 * (1.0 - d) * self.time_ns(d) as f64).sum::<f64>() / f64::from(STEPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quantum Atlas 10K (1999).
    const ATLAS: Seek = Seek { base_ns: 1_200_000, stroke_ns: 8_300_000 };

    /// Measured for DiskSim, by cylinders of 10,042, in milliseconds.
    #[test]
    fn a_root_curve_comes_near_what_was_measured_of_a_disk() {
        for (cylinders, ms) in [(1.0, 1.245), (475.0, 3.298), (4400.0, 6.357), (8400.0, 9.213)] {
            let found = ATLAS.time_ns(cylinders / 10_042.0) as f64 / 1e6;
            assert!((found / ms - 1.0).abs() < 0.1, "{cylinders} cylinders: {found} ms, measured {ms}");
        }
    }

    /// The mean of the root of a random distance is 8/15.
    #[test]
    fn the_mean_of_a_root_curve_is_its_closed_form() {
        let seek = Seek { base_ns: 250_000, stroke_ns: 6_300_000 };
        let closed = 250_000.0 + 6_300_000.0 * 8.0 / 15.0;
        assert!((seek.mean_ns() - closed).abs() < closed * 1e-3, "{} against {closed}", seek.mean_ns());
    }

    /// The data sheet's average seek of the Atlas 10K is 5.0 ms.
    #[test]
    fn the_mean_of_the_atlas_is_near_its_data_sheet() {
        let mean_ms = ATLAS.mean_ns() / 1e6;
        assert!((4.5..6.0).contains(&mean_ms), "{mean_ms} ms");
    }
}
