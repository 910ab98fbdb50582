//! What the source articles say, sentence by sentence: each a figure of an experiment, or the reason why it is not scored.

use blk::{Error, Result};
use serde::Deserialize;

use super::{Experiment, Part, Published};
use crate::run::{Phase, Quantity};

/// One sentence of an article, in this project's words.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Number of the article, "000" to "005".
    pub article: String,
    pub said: String,
    /// None: no experiment is about it.
    pub experiment: Option<String>,
    /// Phase and quantity of its figure.
    pub phase: Option<Phase>,
    pub quantity: Option<Quantity>,
    pub part: Option<Part>,
    pub span: Option<String>,
    /// Begin of the cell's note, where several cells differ in nothing else.
    pub about: Option<String>,
    /// The claim is about each of the phase's stuns.
    #[serde(default)]
    pub series: bool,
    /// The reason why there is no figure.
    pub why: Option<String>,
    /// Where the claim was read.
    pub basis: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    claim: Vec<Claim>,
}

/// Returns all claims, in the order of the articles. Errors: `Invalid`, for a file that is not well formed.
pub fn claims() -> Result<Vec<Claim>> {
    let text = include_str!("../../../../experiments/claims.toml");
    let file: File =
        toml::from_str(text).map_err(|e| Error::invalid("claims.toml", e.message().to_string()))?;
    Ok(file.claim)
}

impl Claim {
    /// Returns whether the cell holds this claim.
    pub fn is_of(&self, experiment: &Experiment, cell: &Published) -> bool {
        self.experiment.as_ref() == Some(&experiment.name)
            && self.phase == Some(cell.phase)
            && self.quantity == Some(cell.quantity)
            && self.part == cell.part
            && self.span.as_ref().is_none_or(|span| cell.span.as_ref() == Some(span))
            && self.about.as_ref().is_none_or(|about| cell.note.starts_with(about.as_str()))
            && self.series == cell.stun.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::shipped;

    #[test]
    fn every_claim_is_a_figure_or_says_why_not() {
        let experiments = shipped().unwrap();
        for claim in claims().unwrap() {
            let known = experiments.iter().find(|e| Some(&e.name) == claim.experiment.as_ref());
            assert!(claim.experiment.is_none() || known.is_some(), "{claim:?}");
            let cells = known.map_or(&[][..], |e| &e.published);
            let has_cell = cells.iter().any(|cell| claim.is_of(known.unwrap(), cell));
            assert!(has_cell != claim.why.is_some(), "a figure, or a reason why not: {claim:?}");
        }
    }

    #[test]
    fn every_published_figure_is_claimed() {
        let claims = claims().unwrap();
        for experiment in shipped().unwrap() {
            for cell in experiment.published.iter().filter(|cell| cell.value.is_some()) {
                let is_claimed = claims.iter().any(|claim| claim.is_of(&experiment, cell));
                assert!(is_claimed, "{}: {:?} {:?}", experiment.name, cell.phase, cell.quantity);
            }
        }
    }
}
