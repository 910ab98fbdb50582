//! Reports of the front end to the operator.

use blk::Error;

use crate::sessions::ConnectionFailure;

/// Receives reports for the operator. Every method returns at once.
pub trait Observer {
    /// Called with every connection that is refused or ends by an error, and with every failed accept.
    fn connection_failed(&self, _failure: &ConnectionFailure) {}

    /// Called with every request that fails.
    fn request_failed(&self, _peer: &str, _export: &str, _error: &Error) {}
}

impl Observer for () {}
