//! What is seen of a run while it goes: samples per interval, gaps, heartbeats.

mod heartbeat;

pub use heartbeat::Heartbeat;
