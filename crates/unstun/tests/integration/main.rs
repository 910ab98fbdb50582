//! The programs and the REST API, without a client of another project.

mod cli;
mod demo;
mod hints;
mod hostile_bytes;
mod install;
mod json;
#[allow(dead_code, reason = "the tests with real clients use all of it")]
#[path = "../clients/nbd.rs"]
mod nbd;
mod rest;
#[path = "../clients/skip.rs"]
mod skip;
mod support;
mod up;
