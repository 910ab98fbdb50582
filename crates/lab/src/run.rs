//! The result of a run: the data from which reports, comparisons and imports are made.
//!
//! One run is one protocol on one subject, measured in real or virtual time, or imported from another tool. Times in a
//! record are microseconds since the run began; those of a scaled run are at full scale. The fields, with units, are the JSON that `lab run --json` prints.

mod full_scale;
mod record;
mod row;

pub use full_scale::FullScale;
pub use record::{
    Beat, Clock, Constant, ConstantSource, Counters, End, Fact, LayerHost, Mark, PhaseSpan, Record, SCHEMA,
    Sample, Spread, Stun,
};
pub use row::{Bound, Phase, Quantity, Row, Use};
