//! The NBD server on a Unix socket: with well-known clients, with clients that misbehave, and with both at once.

mod contexts;
mod greedy;
mod interop;
mod many;
mod misbehaviour;
mod raw;
mod support;
