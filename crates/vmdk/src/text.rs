//! Helpers shared by the readers of VMware's text files: limits, numbers, and errors that name file, field and values.
//!
//! Everything read here is untrusted, so values shown in an error are shortened and escaped.

use blk::{Error, Result};

/// Longest text file we read: a .vmsd with 255 snapshots of 60 disks is about 255 * 60 * 2 lines * 60 bytes = 1.8 MB,
/// a descriptor of 31,000 2-GB extents (the 62 TB limit of VMware) about 1.9 MB; eight times that is generous.
pub const TEXT_BYTES_MAX: usize = 16 << 20;

/// Longest value quoted in an error message, in characters.
const SHOWN_CHARS_MAX: usize = 80;

/// An untrusted value as it may appear in a message: escaped, shortened, in quotes.
pub(crate) fn shown(value: &str) -> String {
    let mut out: String = value.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if value.chars().nth(SHOWN_CHARS_MAX).is_some() {
        out.push_str("...");
    }
    format!("\"{out}\"")
}

/// The field holds something else than the format allows.
pub(crate) fn wrong(file: &str, field: &str, found: impl std::fmt::Display, expected: &str) -> Error {
    Error::damaged(file, format!("{field} is {found}, expected {expected}"))
}

pub(crate) fn check_text_length(file: &str, bytes: usize) -> Result<()> {
    if bytes > TEXT_BYTES_MAX {
        let cause =
            format!("{bytes} bytes long, expected at most {TEXT_BYTES_MAX}: this is not a VMware text file");
        return Err(Error::damaged(file, cause));
    }
    Ok(())
}

/// A value as text. Other encodings than UTF-8 are kept byte for byte, but not read.
pub(crate) fn utf8<'a>(file: &str, field: &str, bytes: &'a [u8]) -> Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|_| {
        let cause = format!("{field} is {}, which is not UTF-8", shown(&String::from_utf8_lossy(bytes)));
        Error::unsupported(
            file,
            format!("{cause}; convert the file with iconv and set its encoding to UTF-8"),
        )
    })
}

pub(crate) fn decimal<N: std::str::FromStr>(
    file: &str,
    field: &str,
    value: &str,
    expected: &str,
) -> Result<N> {
    let plain = value.strip_prefix('-').unwrap_or(value);
    // `FromStr` of the integers takes a leading plus; VMware's files never have one.
    if plain.is_empty() || !plain.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong(file, field, shown(value), expected));
    }
    value.parse().map_err(|_| wrong(file, field, shown(value), expected))
}

/// `name` if it may become part of a file name and of a descriptor line, which has no escape for quotes.
pub(crate) fn check_name(place: &str, what: &str, name: &str) -> Result<()> {
    let fault = if name.is_empty() {
        "is empty"
    } else if name.len() > NAME_BYTES_MAX {
        "is longer than 200 bytes"
    } else if name.starts_with('.') || name.starts_with('-') || name.trim() != name {
        "begins with a dot or a dash, or has a blank at an end"
    } else if name.chars().any(|c| c.is_control() || "/\\\"|:*?<>".contains(c)) {
        "holds a control character or one of / \\ \" | : * ? < >"
    } else {
        return Ok(());
    };
    Err(Error::invalid(place, format!("{what} {} {fault}, expected a plain file name", shown(name))))
}

/// 255 (NAME_MAX of Linux file systems) less the longest suffix we add, rounded down: "_59-999999-sesparse.vmdk".
pub(crate) const NAME_BYTES_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_shortens_and_escapes() {
        assert_eq!(shown("a\n\"b"), "\"a\\n\\\"b\"");
        assert!(shown(&"x".repeat(500)).len() < 100);
    }

    #[test]
    fn decimal_is_strict() {
        assert_eq!(decimal::<i32>("f", "n", "-5", "a number").unwrap(), -5);
        for bad in ["", "-", "+5", "5 ", "0x5", "4294967296"] {
            let e = decimal::<u32>("f", "n", bad, "a number").unwrap_err();
            assert!(e.to_string().starts_with("f: n is"), "{e}");
        }
    }

    #[test]
    fn names_that_cannot_be_files_are_refused() {
        for good in ["web", "Web Server 2", "w_1", "a.b"] {
            check_name("vm", "name", good).unwrap();
        }
        for bad in ["", ".", "..", ".x", "-x", "a/b", "a\"b", "a\nb", " a", "a|b", &"x".repeat(201)] {
            assert_eq!(check_name("vm", "name", bad).unwrap_err().kind, blk::ErrorKind::Invalid, "{bad:?}");
        }
    }
}
