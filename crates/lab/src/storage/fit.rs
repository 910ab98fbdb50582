//! Fits one constant to a baseline figure, by bisection.
//!
//! At most two constants of a model may be fitted, and no more than an experiment has baseline figures. Only the
//! baseline influences a fit.

use std::ops::Range;

use blk::{Error, Result};

use super::StorageModel;
use crate::run::ConstantSource;

/// Most constants of one model that may be fitted.
pub const FITTED_MAX: usize = 2;
/// Most halvings: 2^-40 of the range is below the resolution of any figure.
const STEPS_MAX: u32 = 40;

/// Returns the model with `constant` chosen from `range` (in its own unit) so that `measure` comes within `tolerance`
/// (a share) of `target`. `measure` must rise or fall throughout; its values at the ends show which.
///
/// Errors: `NotFound`, `Refused` for a third constant, `Invalid` where the target is not between the ends or no positive
/// number, and those of `measure`, whose figures must be numbers.
pub fn fit(
    model: &StorageModel,
    constant: &str,
    range: Range<f64>,
    target: f64,
    tolerance: f64,
    measure: impl FnMut(&StorageModel) -> Result<f64>,
) -> Result<StorageModel> {
    let already =
        model.constants().iter().any(|c| c.name == constant && c.source == ConstantSource::FittedToBaseline);
    if !already && model.fitted() >= FITTED_MAX {
        let cause = format!("{} constants are fitted already, at most {FITTED_MAX} may be", model.fitted());
        return Err(Error::refused(&model.name, cause));
    }
    if !(target.is_finite() && target > 0.0) {
        return Err(Error::invalid(&model.name, format!("{constant} cannot be fitted to {target}")));
    }
    let mut measure = numeric(&model.name, measure);
    let note = format!("fitted to {target} of the baseline");
    let at = |value| model.with(constant, value, ConstantSource::FittedToBaseline, &note);
    let near = |found: f64| (found / target - 1.0).abs() <= tolerance;
    let (mut low, mut high) = (range.start, range.end);
    let (first, last) = (measure(&at(low)?)?, measure(&at(high)?)?);
    for (value, found) in [(low, first), (high, last)] {
        if near(found) {
            return at(value);
        }
    }
    if (first < target) == (last < target) {
        let cause =
            format!("{constant} from {low} to {high} gives {first} to {last}; {target} is not between");
        return Err(Error::invalid(&model.name, cause));
    }
    let rises = first < last;
    for _ in 0..STEPS_MAX {
        let middle = (low + high) / 2.0;
        let found = measure(&at(middle)?)?;
        if near(found) {
            return at(middle);
        }
        if (found < target) == rises { low = middle } else { high = middle }
    }
    at((low + high) / 2.0)
}

/// Returns `measure` with an error in place of a figure that is no number, with which every comparison would be false.
fn numeric(
    name: &str,
    mut measure: impl FnMut(&StorageModel) -> Result<f64>,
) -> impl FnMut(&StorageModel) -> Result<f64> {
    move |model| match measure(model)? {
        found if found.is_finite() => Ok(found),
        found => Err(Error::invalid(name, format!("a trial gave {found} for the figure to fit to"))),
    }
}

#[cfg(test)]
mod tests {
    use blk::ErrorKind;

    use super::*;

    fn pair() -> StorageModel {
        StorageModel::named("sas-10k-pair").expect("ships")
    }

    /// Returns the reads a second of one reader, in virtual time.
    fn reads_per_s(model: &StorageModel) -> Result<f64> {
        const READS: u64 = 300;
        let options = sim::Options {
            storage: Some(model.storage()),
            content: sim::ContentMode::Absent,
            ..sim::Options::default()
        };
        let world = sim::SimWorld::new(1, options);
        world.run(|env| async move {
            let file = env.open_root("/").unwrap().create_new("disk").await.unwrap();
            file.allocate(0, 4 << 30).await.unwrap();
            for _ in 0..READS {
                let at = env.random() % (1 << 20) * 4096;
                file.read(at, blk::Buf::alloc(4096)).await.1.unwrap();
            }
        });
        Ok(READS as f64 * 1e9 / world.now_ns() as f64)
    }

    #[test]
    fn a_constant_meets_a_figure_and_says_that_it_was_fitted() {
        let fitted = fit(&pair(), "member.overhead", 0.05..8.0, 150.0, 0.01, reads_per_s).unwrap();
        assert!((reads_per_s(&fitted).unwrap() / 150.0 - 1.0).abs() <= 0.01);
        let constant = fitted.constants().iter().find(|c| c.name == "member.overhead").unwrap();
        assert_eq!(constant.source, ConstantSource::FittedToBaseline);
        assert!((0.05..8.0).contains(&constant.value) && constant.note.contains("150"));
        assert_eq!((pair().fitted(), fitted.fitted()), (0, 1));
    }

    #[test]
    fn what_cannot_be_fitted_is_refused() {
        let kind = |result: Result<StorageModel>| result.unwrap_err().kind;
        let never = |_: &StorageModel| -> Result<f64> { unreachable!("refused before") };
        assert_eq!(kind(fit(&pair(), "member.colour", 0.0..1.0, 1.0, 0.1, never)), ErrorKind::NotFound);
        assert_eq!(kind(fit(&pair(), "members", 0.0..2.0, 1.0, 0.1, never)), ErrorKind::Invalid);
        let flat = |_: &StorageModel| Ok(5.0);
        assert_eq!(kind(fit(&pair(), "member.overhead", 0.1..1.0, 9.0, 0.1, flat)), ErrorKind::Invalid);
        let source = ConstantSource::FittedToBaseline;
        let two = pair().with("member.overhead", 0.2, source, "").unwrap();
        let two = two.with("member.seek_base", 0.3, source, "").unwrap();
        assert_eq!(kind(fit(&two, "member.switch", 0.1..0.2, 1.0, 0.1, never)), ErrorKind::Refused);
    }

    #[test]
    fn what_is_no_number_is_told() {
        let fit = |target, found: f64| {
            fit(&pair(), "member.overhead", 0.1..1.0, target, 0.1, |_| Ok(found)).unwrap_err().cause
        };
        assert!(fit(9.0, f64::NAN).contains("a trial gave NaN"));
        assert!(fit(0.0, 5.0).contains("cannot be fitted to 0") && fit(f64::NAN, 5.0).contains("NaN"));
    }
}
