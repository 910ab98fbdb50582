//! How long the arm takes.

/// Time of a seek by its distance. Distances are shares of the whole stroke, so that capacity can change.
#[derive(Debug, Clone, PartialEq)]
pub enum Seek {
    /// `base_ns + stroke_ns * sqrt(distance)`: the arm accelerates half the way and brakes the other half.
    Root { base_ns: u64, stroke_ns: u64 },
    /// Measured points (share of the stroke, ns) in ascending order; between two of them linear in the root of the
    /// distance, which is what short seeks follow. Before the first and after the last as those.
    Points(Vec<(f64, u64)>),
}

impl Seek {
    /// `share` of the stroke, above 0 and up to 1.
    pub fn time_ns(&self, share: f64) -> u64 {
        match self {
            Seek::Root { base_ns, stroke_ns } => base_ns + (*stroke_ns as f64 * share.sqrt()) as u64,
            Seek::Points(points) => between(points, share),
        }
    }

    /// Mean over uniformly random pairs of positions, whose distance has the density `2 * (1 - d)`. Nanoseconds.
    pub fn mean_ns(&self) -> f64 {
        const STEPS: u32 = 10_000;
        let shares = (0..STEPS).map(|n| (f64::from(n) + 0.5) / f64::from(STEPS));
        shares.map(|d| 2.0 * (1.0 - d) * self.time_ns(d) as f64).sum::<f64>() / f64::from(STEPS)
    }
}

fn between(points: &[(f64, u64)], share: f64) -> u64 {
    let after = points.partition_point(|(at, _)| *at <= share);
    let (Some(low), high) = (points.get(after.saturating_sub(1)), points.get(after)) else { return 0 };
    let Some(high) = high.filter(|_| after > 0) else { return low.1 };
    let (from, to) = (low.0.sqrt(), high.0.sqrt());
    let part = (share.sqrt() - from) / (to - from);
    (low.1 as f64 + part * (high.1 as f64 - low.1 as f64)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quantum Atlas 10K (1999) as measured for DiskSim: cylinders of 10,042, milliseconds.
    fn atlas() -> Seek {
        let points = [(1.0, 1.245), (475.0, 3.298), (4400.0, 6.357), (8400.0, 9.213)];
        Seek::Points(points.map(|(cylinders, ms)| (cylinders / 10_042.0, (ms * 1e6) as u64)).to_vec())
    }

    #[test]
    fn measured_points_come_out_and_nothing_goes_down_between_them() {
        let seek = atlas();
        for (cylinders, ms) in [(1.0, 1.245), (475.0, 3.298), (4400.0, 6.357), (8400.0, 9.213)] {
            let found = seek.time_ns(cylinders / 10_042.0) as f64 / 1e6;
            assert!((found - ms).abs() < 0.001, "{cylinders} cylinders: {found} ms, measured {ms}");
        }
        let times: Vec<u64> = (1..=100).map(|n| seek.time_ns(f64::from(n) / 100.0)).collect();
        assert!(times.is_sorted());
        assert_eq!(seek.time_ns(1e-9), 1_245_000);
        assert_eq!(seek.time_ns(1.0), 9_213_000);
    }

    /// The mean of the root of a random distance is 8/15.
    #[test]
    fn the_mean_of_a_root_curve_is_its_closed_form() {
        let seek = Seek::Root { base_ns: 250_000, stroke_ns: 6_300_000 };
        let closed = 250_000.0 + 6_300_000.0 * 8.0 / 15.0;
        assert!((seek.mean_ns() - closed).abs() < closed * 1e-3, "{} against {closed}", seek.mean_ns());
    }

    /// The data sheet's average seek of the Atlas 10K is 5.0 ms.
    #[test]
    fn the_mean_of_the_atlas_is_near_its_data_sheet() {
        let mean_ms = atlas().mean_ns() / 1e6;
        assert!((4.5..6.0).contains(&mean_ms), "{mean_ms} ms");
    }
}
