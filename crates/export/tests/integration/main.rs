//! The NBD server against bytes that are no protocol at all.

mod hostile_bytes;
