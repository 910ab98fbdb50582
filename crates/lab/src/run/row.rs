use serde::{Deserialize, Serialize};

/// Parts of a protocol, in the words scripts rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The test file is written.
    Prepare,
    Baseline,
    /// The test file is written again, with the snapshot present.
    PrepareSnapshot,
    Snapshot,
    /// From the request until the end of the commit, under load.
    Commit,
    /// The load has stopped; the commit goes on.
    Drain,
    After,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    ReadsPerS,
    WritesPerS,
    Iops,
    MbPerS,
    LatencyUs,
    HostReadsPerS,
    HostWritesPerS,
    /// Host reads per guest read.
    HostReadRatio,
    HostWriteRatio,
    StunUs,
    PingsLost,
    Seconds,
    /// 1 or 0.
    Converged,
    HelperBytes,
}

/// What a published figure may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// The storage model is fitted to it, so its error says nothing.
    Baseline,
    /// Put into the model, so its error says nothing.
    Input,
    /// It has to come out of the mechanism.
    Predict,
    /// Qualitative, derived, or what came out without a model too: looked at, not counted.
    Check,
}

/// One figure, published, predicted or measured. One line of `reproduce`'s table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub experiment: String,
    pub phase: Phase,
    pub quantity: Quantity,
    pub published: Option<f64>,
    /// None: the run did not come that far.
    pub predicted: Option<f64>,
    pub r#use: Use,
    pub hypothesis: Option<String>,
    /// Of the frozen hypothesis.
    pub default: bool,
    /// Over an input nobody published: lowest and highest prediction.
    pub band: Option<(f64, f64)>,
    /// Slips of the source, how a derived figure was derived.
    pub note: String,
}

impl Row {
    /// A figure that was measured, beside nothing published.
    pub fn measured(experiment: &str, phase: Phase, quantity: Quantity, value: f64) -> Row {
        Row {
            experiment: experiment.to_string(),
            phase,
            quantity,
            published: None,
            predicted: Some(value),
            r#use: Use::Check,
            hypothesis: None,
            default: false,
            band: None,
            note: String::new(),
        }
    }
}
