//! What a run leaves behind: everything that reports, comparisons and imports are made from.
//!
//! One run is one protocol on one subject, measured in real or virtual time, or imported from somebody's own tools. Times
//! in a record are microseconds since the run began. The fields, with units, are the JSON that `lab run --json` prints.

mod record;
mod row;

pub use record::{
    Beat, Clock, Constant, ConstantSource, Counters, End, Fact, LayerHost, Mark, PhaseSpan, Record, SCHEMA,
    Sample, Spread, Stun,
};
pub use row::{Phase, Quantity, Row, Use};
