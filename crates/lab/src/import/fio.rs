//! fio: its JSON output and its logs.

pub(super) mod json;
pub(super) mod log;
