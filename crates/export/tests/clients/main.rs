//! The NBD server on a Unix socket: with well-known clients, with clients that misbehave, and with both at once. And the
//! client, with this server, with those of other projects, and with servers that misbehave.

mod bad_servers;
mod client;
mod contexts;
mod greedy;
mod interop;
mod many;
mod misbehaviour;
mod other_servers;
mod raw;
mod support;
