//! The vhost-user front end against a client without a guest: well-behaved, hostile, and with a server that dies.

mod bytes;
mod client;
mod hostile;
mod limits;
mod recovery;
mod requests;
mod server;
