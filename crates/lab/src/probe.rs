//! Observations during a run: counts and latencies per interval, gaps, heartbeats.

mod heartbeat;
mod meter;

pub use heartbeat::Heartbeat;
pub use meter::{Meter, Totals};
