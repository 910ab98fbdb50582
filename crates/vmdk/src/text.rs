//! Common parts of the parsers of VMware's text files: limits, numbers, and errors that name file, field and values.
//!
//! All input is untrusted, so values in errors are shortened and escaped.

use blk::{Error, Result};

/// Longest text file that is read or written: a .vmsd with 255 snapshots of 60 disks has about 255 * 60 * 2 lines * 60
/// bytes = 1.8 MB, a descriptor of 31,000 2-GB extents (VMware's limit of 62 TB) about 1.9 MB. The limit is twice that.
pub(crate) const TEXT_BYTES_MAX: usize = 4 << 20;

/// Maximum number of lines of such a file: that .vmsd has 255 * (60 * 2 + 10) = 33,150, the descriptor 31,000 and its
/// header. The limit is about twice that. A parsed line takes at most 300 bytes in addition to its text, so a file
/// takes 20 MiB and three times its text.
pub(crate) const TEXT_LINES_MAX: usize = 1 << 16;

/// Maximum size of the texts of one folder together: 60 disks with 255 snapshots have 15,300 descriptors of 600 bytes,
/// 9 MB, and two large texts. The limit is about twice that.
pub(crate) const FOLDER_TEXT_BYTES_MAX: usize = 6 * TEXT_BYTES_MAX;

/// Maximum number of their lines: 15,300 descriptors of 20 lines are 306,000, and two large texts. With 300 bytes for
/// each line and three times the text, the parsed texts of a folder take at most 190 MiB.
pub(crate) const FOLDER_TEXT_LINES_MAX: usize = 6 * TEXT_LINES_MAX;

/// Maximum number of names in one folder: 15,300 links have two files each, and every snapshot has two more. The limit
/// is about twice that.
pub(crate) const FOLDER_NAMES_MAX: usize = 1 << 16;

/// Longest value quoted in an error message, in characters.
const SHOWN_CHARS_MAX: usize = 80;

/// Returns an untrusted value in the form for a message: escaped, shortened, in quotes.
pub(crate) fn shown(value: &str) -> String {
    let mut out: String = value.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if value.chars().nth(SHOWN_CHARS_MAX).is_some() {
        out.push_str("...");
    }
    format!("\"{out}\"")
}

/// Returns the error of a field whose value the format does not allow.
pub(crate) fn wrong(file: &str, field: &str, found: impl std::fmt::Display, expected: &str) -> Error {
    Error::damaged(file, format!("{field} is {found}, expected {expected}"))
}

/// Refuses a text of excessive size, before anything is allocated for its lines.
///
/// # Errors
/// `Damaged` if it is longer than [`TEXT_BYTES_MAX`], or has more lines than [`TEXT_LINES_MAX`].
pub(crate) fn check_text(file: &str, bytes: &[u8]) -> Result<()> {
    let lines = count_lines(bytes);
    for (field, found, most) in
        [("the length in bytes", bytes.len(), TEXT_BYTES_MAX), ("the number of lines", lines, TEXT_LINES_MAX)]
    {
        if found > most {
            let expected = format!("at most {most}: this is not a text file of VMware's");
            return Err(wrong(file, field, found, &expected));
        }
    }
    Ok(())
}

/// Refuses to write a text that could not be read again.
///
/// # Errors
/// `Refused` for a text that [`check_text`] refuses.
pub(crate) fn check_written(file: &str, bytes: &[u8]) -> Result<()> {
    let suffix = file.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    if !["vmx", "vmsd", "vmdk"].contains(&suffix.as_str()) {
        return Ok(());
    }
    check_text(file, bytes).map_err(|error| {
        let (found, _) = error.cause.split_once(": this is").unwrap_or((&error.cause, ""));
        Error::refused(file, format!("after this change {found}; commit or discard snapshots first"))
    })
}

/// Returns the number of lines. The last one needs no line end.
pub(crate) fn count_lines(bytes: &[u8]) -> usize {
    let ends = bytes.iter().filter(|byte| **byte == b'\n').count();
    ends + usize::from(bytes.last().is_some_and(|last| *last != b'\n'))
}

/// Total size of the texts of one folder, which bounds the memory that a folder can take.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct FolderTexts {
    bytes: usize,
    lines: usize,
}

impl FolderTexts {
    /// Adds a text that is about to be parsed.
    ///
    /// # Errors
    /// `Damaged`, for the file with which the folder exceeds the limit.
    pub(crate) fn add(&mut self, file: &str, bytes: &[u8]) -> Result<()> {
        self.add_size(file, bytes.len(), count_lines(bytes))
    }

    /// Adds a text by its length and its number of lines.
    ///
    /// # Errors
    /// Those of [`FolderTexts::add`].
    pub(crate) fn add_size(&mut self, file: &str, bytes: usize, lines: usize) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        self.lines = self.lines.saturating_add(lines);
        for (field, found, most) in [
            ("the length of the folder's texts in bytes", self.bytes, FOLDER_TEXT_BYTES_MAX),
            ("the number of lines of the folder's texts", self.lines, FOLDER_TEXT_LINES_MAX),
        ] {
            if found > most {
                let expected = format!("at most {most}; move files of other VMs into folders of their own");
                return Err(wrong(file, field, format!("{found} with this file"), &expected));
            }
        }
        Ok(())
    }
}

/// Refuses a folder with more names than a VM can have.
///
/// # Errors
/// `Refused` if there are more than [`FOLDER_NAMES_MAX`].
pub(crate) fn check_names(folder: &str, names: usize) -> Result<()> {
    if names <= FOLDER_NAMES_MAX {
        return Ok(());
    }
    let expected = format!("expected at most {FOLDER_NAMES_MAX}; move what is no VM's out of it");
    Err(Error::refused(folder, format!("the number of files is {names}, {expected}")))
}

/// Returns a value as text. Other encodings than UTF-8 are kept byte for byte, but not read.
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
    // `FromStr` of integers accepts a leading plus, which VMware's files never have.
    if plain.is_empty() || !plain.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong(file, field, shown(value), expected));
    }
    value.parse().map_err(|_| wrong(file, field, shown(value), expected))
}

/// Refuses a text that is too long to be listed. Its content is not shown.
pub(crate) fn check_bytes(file: &str, field: &str, value: &str, max: usize) -> Result<()> {
    match value.len() <= max {
        true => Ok(()),
        false => {
            Err(wrong(file, field, format!("{} bytes long", value.len()), &format!("at most {max} bytes")))
        }
    }
}

/// Reads a decimal number of at most `max`.
pub(crate) fn decimal_up_to<N: std::str::FromStr + PartialOrd + std::fmt::Display>(
    file: &str,
    field: &str,
    value: &str,
    max: N,
) -> Result<N> {
    let expected = format!("a number from 0 to {max}");
    let found: N = decimal(file, field, value, &expected)?;
    match found <= max {
        true => Ok(found),
        false => Err(wrong(file, field, found, &expected)),
    }
}

/// Returns `name` if it may become part of a file name and of a descriptor line, which has no escape for quotes.
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

/// 255 (NAME_MAX of Linux file systems) less the longest suffix that is added, rounded down:
/// "_59-999999-sesparse.vmdk".
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
