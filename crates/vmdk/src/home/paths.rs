//! Paths as text: resolved, normalised, split and joined without I/O.

/// The path that `written` means in a file of `folder`: with single slashes, and without `.` and `..`. None where it begins
/// with a drive of Windows, or climbs above the root.
pub(super) fn resolve(folder: &str, written: &str) -> Option<String> {
    let written = written.replace('\\', "/");
    let drive = written.as_bytes().get(1) == Some(&b':') && written.as_bytes()[0].is_ascii_alphabetic();
    match written.starts_with('/') {
        _ if drive => None,
        true => normal(&written),
        false => normal(&format!("{folder}/{written}")),
    }
}

/// `path`, which is not from a file, with single slashes and without `.` and `..`.
pub(super) fn normal(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    let root = if path.starts_with('/') { "/" } else { "" };
    Some(format!("{root}{}", parts.join("/")))
}

/// Folder and name of a path that `resolve` made.
pub(super) fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some(parts) => parts,
        None => ("", path),
    }
}

pub(super) fn join(folder: &str, name: &str) -> String {
    format!("{}/{name}", folder.trim_end_matches('/'))
}

/// The last component of a path as written, whatever its separators.
pub(super) fn base_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}
