//! How far a model is off on the storage that it was made of, and whether a prediction with it has a meaning.

use blk::{Error, Result};

use crate::storage::measured::{Load, Measured, asked};

/// A load with its measured rate and that of the model, in IOPS.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    pub load: Load,
    pub measured: f64,
    /// None: the model's run did not come to it.
    pub modelled: Option<f64>,
}

impl Point {
    /// Returns how many times as fast as the storage the model is.
    pub(crate) fn ratio(&self) -> Option<f64> {
        self.modelled
            .map(|modelled| modelled / self.measured)
            .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
    }

    /// Returns the factor by which the model is off, at least 1.
    fn off(&self) -> f64 {
        self.ratio().map_or(f64::INFINITY, |ratio| ratio.max(1.0 / ratio))
    }
}

/// How far a model is off, over the loads that it was fitted to and those that were held out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Accuracy {
    place: String,
    worst: Point,
    /// Factors of the time that everything takes, at least 1: the storage may be slower or faster than its model.
    pub slower_by: f64,
    pub faster_by: f64,
    /// Ratio of two measurements of one load, at least 1.
    pub noise: f64,
    /// Rate of the asked share of reads, as deep as a guest's driver goes.
    pub iops_max: f64,
}

impl Accuracy {
    /// Returns the accuracy of a model of these figures. `points` are all of them, with the model's rates.
    ///
    /// Errors: `Refused` where the model's run did not give a rate.
    pub(crate) fn new(
        place: &str,
        measured: &Measured,
        points: &[Point],
        read_percent: u8,
    ) -> Result<Accuracy> {
        let worst = points.iter().max_by(|a, b| a.off().total_cmp(&b.off()));
        let worst = *worst.filter(|worst| worst.off().is_finite()).ok_or_else(|| {
            let why = "the model of the measured figures does not run; measure again, with more --seconds";
            Error::refused(place, why)
        })?;
        let again = measured.again.iops / measured.of(measured.again.load).iops;
        let noise = again.max(1.0 / again);
        let most =
            |ratio: fn(f64) -> f64| points.iter().filter_map(Point::ratio).map(ratio).fold(noise, f64::max);
        Ok(Accuracy {
            place: place.into(),
            worst,
            slower_by: most(|ratio| ratio),
            faster_by: most(|ratio| 1.0 / ratio),
            noise,
            iops_max: measured.of(asked(read_percent)).iops,
        })
    }

    /// Refuses a prediction that has no meaning: beyond what was measured, or with a model that is off by more than
    /// `off_max` times.
    pub(crate) fn check(&self, iops: u32, off_max: f64) -> Result<()> {
        let refused = |cause: String| Err(Error::refused(&self.place, cause));
        let Accuracy { worst, noise, iops_max, .. } = self;
        if f64::from(iops) > *iops_max {
            return refused(format!(
                "{iops} I/Os a second are more than the {iops_max:.0} that it delivered of this mix at most, so no \
                 commit can be predicted; give a lower --iops"
            ));
        }
        if *noise > off_max {
            return refused(format!(
                "one load measured twice differs by x {noise:.1}, more than x {off_max}: the storage is too noisy. \
                 Measure while nothing else uses it, with more --seconds, or accept this with --accept-off"
            ));
        }
        if worst.off() > off_max {
            return refused(format!(
                "the model is off by x {:.1} ({}: {:.0} for {:.0} IOPS), more than x {off_max}. Measure while nothing \
                 else uses the storage, with more --seconds, write a model of your own, or accept this with \
                 --accept-off",
                worst.off(),
                worst.load.text(),
                worst.modelled.unwrap_or(0.0),
                worst.measured,
            ));
        }
        Ok(())
    }

    /// Returns the accuracy in words.
    pub(crate) fn text(&self) -> String {
        let Accuracy { worst, slower_by, faster_by, noise, .. } = self;
        format!(
            "The model is off by at most x {:.2} ({}); one load measured twice differs by x {noise:.2}.\n\
             In brackets: the answers if the storage is x {slower_by:.2} slower and x {faster_by:.2} faster than its model.",
            worst.off(),
            worst.load.text()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::measured::{Figure, loads};

    /// Returns storage of 1,000 IOPS at any load, of which `again` were measured the second time.
    fn storage(again: f64) -> Measured {
        let figure = |load| Figure { load, iops: 1_000.0, latency_us: 900.0 };
        let again = Figure { iops: again, ..figure(asked(70)) };
        let figures = loads(70).into_iter().map(figure).collect();
        Measured { figures, again, flush_us: 100.0, file_bytes: 1 << 30 }
    }

    /// Returns the accuracy of a model that is right but for two loads, with the ratios of these.
    fn accuracy(again: f64, ratios: [f64; 2]) -> Accuracy {
        let measured = storage(again);
        let ratio = |n: usize| ratios.get(n).copied().unwrap_or(1.0);
        let points = measured.figures.iter().enumerate();
        let points: Vec<Point> = points
            .map(|(n, f)| Point { load: f.load, measured: f.iops, modelled: Some(f.iops * ratio(n)) })
            .collect();
        Accuracy::new("here", &measured, &points, 70).unwrap()
    }

    #[test]
    fn the_band_is_as_wide_as_the_model_was_off() {
        let off = accuracy(1_000.0, [1.5, 0.8]);
        assert!((off.slower_by - 1.5).abs() < 1e-9 && (off.faster_by - 1.25).abs() < 1e-9, "{off:?}");
        let noisy = accuracy(500.0, [1.5, 0.8]);
        assert_eq!((noisy.slower_by, noisy.faster_by, noisy.noise), (2.0, 2.0, 2.0));
        assert!(
            off.text().contains("off by at most x 1.50 (4 KiB random reads, 1 under way)"),
            "{}",
            off.text()
        );
    }

    #[test]
    fn what_has_no_meaning_is_refused_with_what_to_do() {
        let why = |accuracy: Accuracy, iops| accuracy.check(iops, 4.0).unwrap_err().cause;
        accuracy(1_000.0, [4.0, 0.25]).check(1_000, 4.0).unwrap();
        assert!(why(accuracy(1_000.0, [1.0; 2]), 1_001).contains("more than the 1000 that it delivered"));
        assert!(why(accuracy(200.0, [1.0; 2]), 10).contains("twice differs by x 5.0"));
        assert!(
            why(accuracy(1_000.0, [1.0, 0.2]), 10).contains("off by x 5.0 (4 KiB random reads, 32 under way")
        );
        let measured = storage(1_000.0);
        let none = Point { load: asked(70), measured: 1_000.0, modelled: None };
        assert!(Accuracy::new("here", &measured, &[none], 70).unwrap_err().cause.contains("does not run"));
    }
}
