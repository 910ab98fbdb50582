//! The one binary of unstun: the daemon, its REST API, and the commands that talk to it.
//!
//! A library so that tests can serve the API over an engine of their own; `main.rs` only calls `cli::main`.
//! Absent on purpose: any block of a guest's data (the demo is a client like any other), any format, any policy of
//! the engine.

pub mod api;
pub mod cli;
pub mod client;
pub mod command;
pub mod control;
pub mod daemon;
pub mod datastore;
pub mod demo;
pub mod error;
mod fatal;
pub mod listen;
pub mod log;
pub mod memory;
pub mod name;
pub mod notify;
pub mod output;
pub mod rest;
pub mod units;
