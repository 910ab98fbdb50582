//! The programs and the REST API, without a client of another project: over an engine in memory, or none.

mod cli;
mod demo;
mod hints;
mod hostile_bytes;
mod install;
mod json;
mod rest;
#[path = "../clients/skip.rs"]
mod skip;
mod support;
mod up;
