//! Observations during a run: counts and latencies per interval, gaps, heartbeats.

mod heartbeat;
mod meter;

pub(crate) use heartbeat::Heartbeat;
pub(crate) use meter::{Meter, Totals};
