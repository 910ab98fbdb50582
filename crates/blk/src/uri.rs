//! Percent-encoding of URIs (RFC 3986).

use std::fmt::Write as _;

/// Escapes `text` for a URI. RFC 3986's unreserved characters, '/' and '@' stay as they are.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/@".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// Decodes the percent-encoding of a URI. None where the result is not UTF-8.
pub fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = tail;
            continue;
        }
        let hex = std::str::from_utf8(tail.get(..2)?).ok()?;
        if !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(hex, 16).ok()?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_round_trips() {
        for text in ["", "web/disk0@x", "a b%41&?#", "\u{e4}\u{1f4be}", "%"] {
            assert_eq!(unescape(&escape(text)).as_deref(), Some(text));
        }
        assert_eq!(escape("a b"), "a%20b");
        for wrong in ["%", "%4", "%zz", "%ff", "%+1"] {
            assert_eq!(unescape(wrong), None, "{wrong}");
        }
    }
}
