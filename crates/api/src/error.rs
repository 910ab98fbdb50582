//! Error type of all code above the engine: the daemon answers with it, and a command ends with it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kind of an error. It decides the exit code of a command and the HTTP status of an answer. The names are part of the
/// JSON contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The device, the kernel or the daemon failed the operation.
    Failed,
    /// No space on the datastore; nothing was changed.
    NoSpace,
    /// The process has no file descriptor left for the operation; nothing was changed.
    NoDescriptors,
    /// The operation was cancelled by the user or by shutdown.
    Cancelled,
    /// No daemon answers on this datastore.
    Unavailable,
    /// The operation has begun, and continues without its caller: a datastore does not answer.
    UnderWay,
    /// The caller has not said who it is, or not in a way that is known.
    Unidentified,
    /// The caller may not do this.
    Forbidden,
    /// The caller has sent too many requests.
    TooMany,
    /// The request cannot be read: a body that is no JSON, an unknown parameter of the path or the query.
    Malformed,
    /// The request can be read, and its values make no sense.
    Invalid,
    /// The request is valid, and declined for the stated reason.
    Refused,
    /// The request is valid, but this version does not support it.
    Unsupported,
    /// The name is taken.
    Exists,
    NotFound,
    /// The object is open elsewhere.
    Locked,
    /// Bytes on the datastore contradict themselves or their format.
    Damaged,
}

impl ErrorKind {
    /// Returns the exit code: 1 failed, 2 usage, 3 refused or not confirmed, 4 not found, 5 locked, 6 damage found.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Failed | Self::NoSpace | Self::Cancelled | Self::Unavailable | Self::UnderWay => 1,
            Self::Malformed | Self::Invalid => 2,
            Self::Refused | Self::Unsupported | Self::Exists | Self::NoDescriptors => 3,
            Self::Unidentified | Self::Forbidden | Self::TooMany => 3,
            Self::NotFound => 4,
            Self::Locked => 5,
            Self::Damaged => 6,
        }
    }

    pub fn http_status(self) -> u16 {
        match self {
            Self::Failed | Self::Damaged => 500,
            Self::Cancelled | Self::Refused | Self::Exists => 409,
            Self::Unavailable | Self::UnderWay | Self::NoDescriptors => 503,
            Self::Unidentified => 401,
            Self::Forbidden => 403,
            Self::TooMany => 429,
            Self::Malformed => 400,
            Self::Invalid => 422,
            Self::Unsupported => 501,
            Self::NotFound => 404,
            Self::Locked => 423,
            Self::NoSpace => 507,
        }
    }
}

/// An error: its kind, and a sentence that names the place, what was found and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Error {
    pub kind: ErrorKind,
    pub message: String,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Malformed, message)
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Refused, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// Returns the error of a path that could not be looked at: `NotFound` with the text `missing`, else `Failed`.
    pub fn at_path(shown: impl fmt::Display, missing: &str, cause: &std::io::Error) -> Self {
        match cause.kind() {
            std::io::ErrorKind::NotFound => Self::not_found(format!("{shown}: {missing}")),
            _ => Self::failed(format!("{shown}: {cause}")),
        }
    }

    pub fn exit_code(&self) -> u8 {
        self.kind.exit_code()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<blk::Error> for Error {
    fn from(error: blk::Error) -> Self {
        let kind = match error.kind {
            blk::ErrorKind::Io | blk::ErrorKind::Latched | blk::ErrorKind::LeaseLost => ErrorKind::Failed,
            blk::ErrorKind::NoSpace => ErrorKind::NoSpace,
            blk::ErrorKind::NoDescriptors => ErrorKind::NoDescriptors,
            blk::ErrorKind::NotFound => ErrorKind::NotFound,
            blk::ErrorKind::Exists => ErrorKind::Exists,
            blk::ErrorKind::Invalid => ErrorKind::Invalid,
            blk::ErrorKind::Damaged => ErrorKind::Damaged,
            blk::ErrorKind::Locked => ErrorKind::Locked,
            blk::ErrorKind::Refused => ErrorKind::Refused,
            blk::ErrorKind::Unsupported => ErrorKind::Unsupported,
            blk::ErrorKind::Cancelled => ErrorKind::Cancelled,
        };
        Self::new(kind, error.to_string())
    }
}

/// Body of every answer that is not a success, and output of `--json` when a command fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    pub error: ErrorFields,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorFields {
    pub kind: ErrorKind,
    pub message: String,
    pub exit_code: u8,
}

impl From<Error> for ErrorBody {
    fn from(error: Error) -> Self {
        let exit_code = error.exit_code();
        Self { error: ErrorFields { kind: error.kind, message: error.message, exit_code } }
    }
}

impl From<ErrorBody> for Error {
    fn from(body: ErrorBody) -> Self {
        Self::new(body.error.kind, body.error.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_the_documented_ones() {
        let expected = [
            (ErrorKind::Failed, 1),
            (ErrorKind::NoSpace, 1),
            (ErrorKind::Cancelled, 1),
            (ErrorKind::Unavailable, 1),
            (ErrorKind::Malformed, 2),
            (ErrorKind::Invalid, 2),
            (ErrorKind::Refused, 3),
            (ErrorKind::NoDescriptors, 3),
            (ErrorKind::Unsupported, 3),
            (ErrorKind::Unidentified, 3),
            (ErrorKind::Forbidden, 3),
            (ErrorKind::TooMany, 3),
            (ErrorKind::Exists, 3),
            (ErrorKind::NotFound, 4),
            (ErrorKind::Locked, 5),
            (ErrorKind::Damaged, 6),
        ];
        for (kind, code) in expected {
            assert_eq!(kind.exit_code(), code, "{kind:?}");
        }
    }

    #[test]
    fn engine_errors_keep_their_kind_and_place() {
        let error = Error::from(blk::Error::damaged("web/disk0.vmdk", "extent line 3 has no size"));
        assert_eq!(error.kind, ErrorKind::Damaged);
        assert_eq!(error.message, "web/disk0.vmdk: extent line 3 has no size");
    }

    #[test]
    fn the_json_body_round_trips() {
        let error = Error::refused("VM web has a client on disk0");
        let text = serde_json::to_string(&ErrorBody::from(error.clone())).unwrap();
        assert_eq!(
            text,
            r#"{"error":{"kind":"refused","message":"VM web has a client on disk0","exit_code":3}}"#
        );
        let back: ErrorBody = serde_json::from_str(&text).unwrap();
        assert_eq!(Error::from(back), error);
    }
}
