//! IOmeter, 2006 and 1.1: configurations and results.

pub mod config;
pub mod results;
