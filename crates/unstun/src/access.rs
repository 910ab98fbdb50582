//! Who may use the API, and for what: roles, the users of this host, tokens, and the audit.

pub(crate) mod audit;
pub(crate) mod authorize;
pub(crate) mod callers;
pub(crate) mod request_limit;
pub(crate) mod rights;
pub(crate) mod sessions;
pub(crate) mod syslog;
pub(crate) mod tokens;
pub(crate) mod users;
