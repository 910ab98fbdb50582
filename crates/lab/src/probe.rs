//! What is seen of a run while it goes: counts and latencies per interval, gaps, heartbeats.

mod heartbeat;
mod meter;

pub use heartbeat::Heartbeat;
pub use meter::{Meter, Totals};
