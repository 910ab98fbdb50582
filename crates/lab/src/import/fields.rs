//! One line of separated values.

use csv_core::{ReadFieldResult, Reader, ReaderBuilder};

/// The fields of a line, unquoted, one after the other in one buffer.
#[derive(Debug, Default)]
pub(super) struct Fields {
    text: Vec<u8>,
    ends: Vec<usize>,
}

/// Most fields of a line: ten times those of the largest host seen.
const FIELDS_MAX: usize = 500_000;

impl Fields {
    /// Splits `line` and replaces the previous line's fields. An unclosed quote ends with the line.
    pub(super) fn split(&mut self, line: &str, separator: u8) {
        let mut reader: Reader = ReaderBuilder::new().delimiter(separator).build();
        self.ends.clear();
        self.text.clear();
        self.text.resize(line.len(), 0);
        let (mut input, mut len) = (line.as_bytes(), 0);
        while self.ends.len() < FIELDS_MAX {
            let (result, read, written) = reader.read_field(input, &mut self.text[len..]);
            input = &input[read..];
            len += written;
            match result {
                ReadFieldResult::InputEmpty | ReadFieldResult::OutputFull => {}
                ReadFieldResult::Field { record_end } => {
                    self.ends.push(len);
                    if record_end {
                        break;
                    }
                }
                ReadFieldResult::End => break,
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns a field; empty where the line is too short, such as after a cut.
    pub(super) fn get(&self, n: usize) -> &str {
        let begin = n.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied());
        let range = begin.zip(self.ends.get(n)).map(|(begin, end)| begin..*end);
        let bytes = range.and_then(|range| self.text.get(range)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default().trim()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|n| self.get(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_separators() {
        let mut fields = Fields::default();
        let mut split = |line, separator| {
            fields.split(line, separator);
            fields.iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(split("\"a, b\",\"c \"\"d\"\"\",,e", b','), ["a, b", "c \"d\"", "", "e"]);
        assert_eq!(split("1\t2,5\t", b'\t'), ["1", "2,5", ""]);
        assert_eq!(split("\"cut, here", b','), ["cut, here"]);
        assert!(split("", b',').is_empty());
        assert_eq!(fields.get(7), "");
    }
}
