//! IOmeter, 2006 and 1.1: configurations and results.

pub(super) mod config;
pub(super) mod results;
