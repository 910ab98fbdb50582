use serde::{Deserialize, Serialize};

/// Parts of a protocol; scripts rely on these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The test file is written.
    Prepare,
    Baseline,
    /// The test file is written again, with the snapshot present.
    PrepareSnapshot,
    Snapshot,
    /// From the request to the end of the commit, under load.
    Commit,
    /// The load has stopped; the commit continues.
    Drain,
    After,
}

impl Phase {
    /// All phases, in the order of a protocol.
    pub const ALL: [Phase; 7] = [
        Phase::Prepare,
        Phase::Baseline,
        Phase::PrepareSnapshot,
        Phase::Snapshot,
        Phase::Commit,
        Phase::Drain,
        Phase::After,
    ];
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
    /// The smallest ratio of a helper's size to that of the helper before it.
    HelperGrowth,
    /// Host I/Os a second, as a share of those with the snapshot before its commit.
    HostOfSnapshot,
    /// From the begin of the first stun to the end of the last.
    StunSpanUs,
    /// Median of the times between two stuns.
    StunGapUs,
}

/// What a published figure may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// The storage model is fitted to it, so its error has no meaning.
    Baseline,
    /// The figure is put into the model, so its error has no meaning.
    Input,
    /// The figure comes out of any storage, or of one constant that no baseline fixes (`lab sensitivity`), so its error
    /// says nothing of the mechanism.
    Implied,
    /// The mechanism has to produce it.
    Predict,
    /// Qualitative, or derived from what is counted elsewhere: shown, not counted.
    Check,
}

/// What a published figure says of a value that it does not give exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtMost,
    AtLeast,
}

/// One figure: published, predicted or measured. It is one line of `reproduce`'s table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub experiment: String,
    pub phase: Phase,
    pub quantity: Quantity,
    pub published: Option<f64>,
    /// None: the published figure is the value itself.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// Number of the stun within the phase, from 1; None: not a figure of one stun.
    #[serde(default)]
    pub stun: Option<u32>,
    /// None: the run did not reach it.
    pub predicted: Option<f64>,
    pub r#use: Use,
    pub hypothesis: Option<String>,
    /// The row belongs to the frozen hypothesis.
    pub default: bool,
    /// Lowest and highest prediction over the values of an input that is not published.
    pub band: Option<(f64, f64)>,
    /// Slips of the source, and how a derived figure was derived.
    pub note: String,
}

impl Row {
    /// Returns a measured figure that has no published one beside it.
    pub fn measured(experiment: &str, phase: Phase, quantity: Quantity, value: f64) -> Row {
        Row {
            experiment: experiment.to_string(),
            phase,
            quantity,
            published: None,
            bound: None,
            stun: None,
            predicted: Some(value),
            r#use: Use::Check,
            hypothesis: None,
            default: false,
            band: None,
            note: String::new(),
        }
    }
}
