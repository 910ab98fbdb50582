//! The program `unstun`: the daemon, its REST API, and the commands that talk to it.
//!
//! It is a library so that tests can examine the command line and the bodies of requests; `main.rs` only calls
//! `cli::main`. On purpose, it contains no block of a guest's data, no format, no policy of the engine, no simulator and
//! no lab (`unstun lab` and `unstun demo` run the program `unstun-lab`).

pub mod cli;
mod command;
mod daemon;
mod fatal;
mod log;
mod memory;
mod notify;
pub mod rest;
