//! fio: its JSON output and its logs.

pub mod json;
pub mod log;
