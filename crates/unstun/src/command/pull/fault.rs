//! Errors of files.

use std::path::Path;

use api::error::{Error, ErrorKind};

pub(super) fn failed(path: &Path, error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        std::io::ErrorKind::AlreadyExists => ErrorKind::Exists,
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Failed,
    };
    Error::new(kind, format!("{}: {error}", path.display()))
}
