//! The NBD server against bytes that do not follow the protocol.

mod hostile_bytes;
