//! A protocol, carried out on a subject: load, takes and commits at their times, and what was measured meanwhile.

mod protocol;

pub use protocol::{Action, Protocol, Step};
