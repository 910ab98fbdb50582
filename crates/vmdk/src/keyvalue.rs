//! `key = "value"` files: .vmx, .vmsd and their kin.
//!
//! The line grammar and the escapes are those of `lib/dict/dictll.c` in the published open-vm-tools:
//! blanks are spaces and tabs; a name holds no blank, `=` or `#`; a value is quoted, or bare without blank and `#`; the rest
//! of a line may be a `#` comment; bytes of a value that are `"`, `|`, 0x7F or a control character other than tab
//! are written `|hh` (two hex digits). Keys are compared without case. A UTF-8 byte-order mark is allowed.
//!
//! Lines we do not change are written back byte for byte, with those we do not understand among them.

use std::collections::BTreeMap;
use std::ops::Range;

use blk::{Error, Result};

use crate::steps;
use crate::text::{check_text, shown, utf8};

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// A parsed file. `file` is the name used in errors; nothing is opened here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValues {
    file: String,
    lines: Vec<Line>,
    newline: &'static [u8],
    index: Index,
}

/// Where each key stands, by the key in lower case. It follows from the lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Index(BTreeMap<String, Found>);

/// The lines of one key, by their numbers from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    first: usize,
    count: usize,
    /// The first line whose value is not that of `first`.
    other: Option<usize>,
}

impl Index {
    fn of(lines: &[Line]) -> Self {
        let mut index = Self::default();
        (0..lines.len()).for_each(|at| index.add(lines, at));
        index
    }

    /// Adds line `at`, which is the last of those that are known.
    fn add(&mut self, lines: &[Line], at: usize) {
        steps::count(1);
        let Some(entry) = &lines[at].entry else { return };
        let new = Found { first: at, count: 0, other: None };
        let found = self.0.entry(entry.key.to_ascii_lowercase()).or_insert(new);
        found.count += 1;
        let differs = || lines[found.first].entry.as_ref().is_none_or(|first| first.value != entry.value);
        if found.other.is_none() && differs() {
            found.other = Some(at);
        }
    }

    fn find(&self, key: &str) -> Option<Found> {
        steps::count(1);
        self.0.get(&key.to_ascii_lowercase()).copied()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    /// The whole line with its terminator, if it has one.
    raw: Vec<u8>,
    entry: Option<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    key: String,
    /// Escapes undone; in the encoding of the file.
    value: Vec<u8>,
}

impl KeyValues {
    pub fn new(file: &str) -> Self {
        Self { file: file.into(), lines: Vec::new(), newline: b"\n", index: Index::default() }
    }

    /// Never fails on content: a line that is no entry is kept and ignored. Fails on a length no such file has.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self> {
        check_text(file, bytes)?;
        let lines: Vec<Line> = bytes.split_inclusive(|b| *b == b'\n').map(Line::parse).collect();
        let crlf = lines.first().is_some_and(|line| line.raw.ends_with(b"\r\n"));
        let index = Index::of(&lines);
        Ok(Self { file: file.into(), lines, newline: if crlf { b"\r\n" } else { b"\n" }, index })
    }

    /// Returns a copy that errors call `file`.
    pub fn named(&self, file: &str) -> Self {
        Self { file: file.into(), ..self.clone() }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        self.lines.iter().flat_map(|line| line.raw.iter().copied()).collect()
    }

    pub fn file(&self) -> &str {
        &self.file
    }

    /// Every entry in file order: key as written, value as text.
    pub fn entries(&self) -> impl Iterator<Item = Result<(&str, &str)>> {
        self.lines.iter().filter_map(|line| line.entry.as_ref()).map(|entry| {
            let value = utf8(&self.file, &entry.key, &entry.value)?;
            Ok((entry.key.as_str(), value))
        })
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| line.entry.as_ref()).map(|entry| entry.key.as_str())
    }

    /// The value of `key`. Two lines that give one key different values are damage: readers would disagree on which counts.
    pub fn get(&self, key: &str) -> Result<Option<&str>> {
        let Some(found) = self.index.find(key) else { return Ok(None) };
        let first = utf8(&self.file, key, self.value_at(found.first))?;
        if let Some(other) = found.other {
            let other = shown(&String::from_utf8_lossy(self.value_at(other)));
            let cause =
                format!("{key} is given twice, as {} and as {other}; remove one of the lines", shown(first));
            return Err(Error::damaged(&self.file, cause));
        }
        Ok(Some(first))
    }

    /// Whether a line gives `key` a value, of whatever encoding.
    pub fn has(&self, key: &str) -> bool {
        self.index.find(key).is_some()
    }

    fn value_at(&self, line: usize) -> &[u8] {
        self.lines[line].entry.as_ref().map_or(&[], |entry| entry.value.as_slice())
    }

    /// TRUE and FALSE in any case, "1"/"0" and "yes"/"no" as VMware takes them too; `default` when absent.
    pub fn get_bool(&self, key: &str, default: bool) -> Result<bool> {
        let Some(value) = self.get(key)? else { return Ok(default) };
        match value.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "y" | "t" => Ok(true),
            "false" | "0" | "no" | "n" | "f" => Ok(false),
            "" => Ok(default),
            _ => Err(crate::text::wrong(&self.file, key, shown(value), "\"TRUE\" or \"FALSE\"")),
        }
    }

    /// Replaces the value in place, or appends a line. A key that already has this value keeps its line as it is.
    pub fn set(&mut self, key: &str, value: &str) {
        let Some(found) = self.index.find(key) else {
            let entry = [(key.to_owned(), value.to_owned())];
            return self.insert(self.lines.len(), entry);
        };
        let line = &mut self.lines[found.first];
        let differs = line.entry.as_ref().filter(|entry| entry.value != value.as_bytes());
        if let Some(written) = differs.map(|entry| entry.key.clone()) {
            *line = Line::entry(&written, value, self.newline);
        }
        if found.count > 1 {
            let mut number = 0..;
            let first = |number: Option<usize>| number == Some(found.first);
            self.retain(|line| first(number.next()) || !line.is_of(key));
        }
    }

    pub fn remove(&mut self, key: &str) {
        if self.has(key) {
            self.retain(|line| !line.is_of(key));
        }
    }

    fn retain(&mut self, keep: impl FnMut(&Line) -> bool) {
        self.lines.retain(keep);
        self.index = Index::of(&self.lines);
    }

    /// Removes the entries whose key satisfies `which`, and puts `entries` where the first of them was, or at the end.
    pub fn replace(
        &mut self,
        which: impl Fn(&str) -> bool,
        entries: impl IntoIterator<Item = (String, String)>,
    ) {
        let doomed = |line: &Line| line.entry.as_ref().is_some_and(|entry| which(&entry.key));
        let at = self.lines.iter().position(doomed).unwrap_or(self.lines.len());
        self.retain(|line| !doomed(line));
        self.insert(at, entries);
    }

    fn insert(&mut self, at: usize, entries: impl IntoIterator<Item = (String, String)>) {
        if let Some(before) = at.checked_sub(1).and_then(|i| self.lines.get_mut(i))
            && !before.raw.ends_with(b"\n")
        {
            before.raw.extend_from_slice(self.newline);
        }
        let lines = entries.into_iter().map(|(key, value)| Line::entry(&key, &value, self.newline));
        let lines: Vec<Line> = lines.collect();
        let (is_end, count) = (at == self.lines.len(), lines.len());
        self.lines.splice(at..at, lines);
        match is_end {
            true => (at..at + count).for_each(|at| self.index.add(&self.lines, at)),
            false => self.index = Index::of(&self.lines),
        }
    }
}

impl Line {
    fn parse(raw: &[u8]) -> Self {
        Self { raw: raw.to_vec(), entry: parse_entry(raw) }
    }

    fn entry(key: &str, value: &str, newline: &[u8]) -> Self {
        let mut raw = format!("{key} = \"").into_bytes();
        raw.extend_from_slice(escape(value).as_bytes());
        raw.push(b'"');
        raw.extend_from_slice(newline);
        Self { raw, entry: Some(Entry { key: key.into(), value: value.into() }) }
    }

    fn is_of(&self, key: &str) -> bool {
        steps::count(1);
        self.entry.as_ref().is_some_and(|entry| entry.key.eq_ignore_ascii_case(key))
    }
}

fn parse_entry(raw: &[u8]) -> Option<Entry> {
    let raw = raw.strip_prefix(BYTE_ORDER_MARK).unwrap_or(raw);
    let line = raw.strip_suffix(b"\n").unwrap_or(raw);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = skip_blanks(line);
    let key_len = line.iter().take_while(|b| !is_blank(**b) && **b != b'=' && **b != b'#').count();
    let (key, rest) = line.split_at(key_len);
    let rest = skip_blanks(skip_blanks(rest).strip_prefix(b"=")?);
    let (value, rest) = match rest.strip_prefix(b"\"") {
        Some(quoted) => {
            let end = quoted.iter().position(|b| *b == b'"')?;
            (&quoted[..end], &quoted[end + 1..])
        }
        None => rest.split_at(rest.iter().take_while(|b| !is_blank(**b) && **b != b'#').count()),
    };
    let rest = skip_blanks(rest);
    if key.is_empty() || !(rest.is_empty() || rest[0] == b'#') {
        return None;
    }
    let key = std::str::from_utf8(key).ok()?;
    Some(Entry { key: key.into(), value: unescape(value) })
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn skip_blanks(bytes: &[u8]) -> &[u8] {
    let blanks = bytes.iter().take_while(|b| is_blank(**b)).count();
    &bytes[blanks..]
}

fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        if c == '"' || c == '|' || (c.is_ascii_control() && c != '\t') {
            out.push_str(&format!("|{:02X}", c as u32));
        } else {
            out.push(c);
        }
    }
    out
}

/// A `|` that two hex digits do not follow stands for itself.
fn unescape(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut at = 0;
    while at < value.len() {
        match escaped_byte(value, at..at + 3) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(value[at]);
                at += 1;
            }
        }
    }
    out
}

fn escaped_byte(value: &[u8], range: Range<usize>) -> Option<u8> {
    let digits = value.get(range)?.strip_prefix(b"|")?;
    let digit = |b: u8| char::from(b).to_digit(16);
    u8::try_from(digit(digits[0])? * 16 + digit(digits[1])?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::{TEXT_BYTES_MAX, TEXT_LINES_MAX, count_lines};

    fn parse(text: &str) -> KeyValues {
        KeyValues::parse("web.vmx", text.as_bytes()).unwrap()
    }

    #[test]
    fn the_published_grammar() {
        let table = [
            ("a = \"b\"\n", Some(("a", "b"))),
            ("  a=b\r\n", Some(("a", "b"))),
            ("\u{feff}a = \"b\"", Some(("a", "b"))),
            ("a = \"b # c\" # comment", Some(("a", "b # c"))),
            ("a = # nothing", Some(("a", ""))),
            ("a = \"x|22y|7Cz|0A\"", Some(("a", "x\"y|z\n"))),
            ("a = \"50|\"", Some(("a", "50|"))),
            ("a = \"tab\tstays\"", Some(("a", "tab\tstays"))),
            ("# a = \"b\"", None),
            ("a = \"b", None),
            ("a = b c", None),
            ("a b = \"c\"", None),
            ("= \"c\"", None),
            ("nonsense", None),
            ("", None),
        ];
        for (line, expected) in table {
            let parsed = parse(line);
            let found = parsed.entries().next().map(|entry| entry.unwrap());
            assert_eq!(found, expected, "{line:?}");
            assert_eq!(parsed.to_bytes(), line.as_bytes());
        }
    }

    #[test]
    fn a_change_touches_its_own_line_only() {
        let mut file = parse("# top\r\nScsi0:0.FileName=\"a.vmdk\"  # mine\r\njunk line\r\nend = \"1\"");
        file.set("scsi0:0.filename", "b.vmdk");
        file.set("end", "1");
        file.set("new", "say \"hi\"");
        let expected = "# top\r\nScsi0:0.FileName = \"b.vmdk\"\r\njunk line\r\nend = \"1\"\r\nnew = \"say |22hi|22\"\r\n";
        assert_eq!(String::from_utf8(file.to_bytes()).unwrap(), expected);
        file.remove("NEW");
        assert_eq!(file.get("new").unwrap(), None);
    }

    #[test]
    fn contradicting_lines_are_damage() {
        let file = parse("a = \"1\"\nA = \"2\"\nb = \"3\"\nb = \"3\"\n");
        let error = file.get("a").unwrap_err().to_string();
        assert_eq!(error, "web.vmx: a is given twice, as \"1\" and as \"2\"; remove one of the lines");
        assert_eq!(file.get("b").unwrap(), Some("3"));
    }

    #[test]
    fn other_encodings_are_kept_but_not_read() {
        let bytes = b".encoding = \"windows-1252\"\nname = \"caf\xe9\"\n";
        let mut file = KeyValues::parse("x.vmx", bytes).unwrap();
        assert_eq!(file.get("name").unwrap_err().kind, blk::ErrorKind::Unsupported);
        file.set("other", "1");
        assert!(file.to_bytes().starts_with(bytes));
    }

    #[test]
    fn booleans() {
        let file = parse("a = \"True\"\nb = \"FALSE\"\nc = \"\"\nd = \"maybe\"\n");
        assert!(file.get_bool("a", false).unwrap());
        assert!(!file.get_bool("b", true).unwrap());
        assert!(file.get_bool("c", true).unwrap());
        assert!(!file.get_bool("absent", false).unwrap());
        assert!(file.get_bool("d", true).unwrap_err().to_string().contains("\"maybe\""));
    }

    /// As many lines and bytes as a file may have.
    fn largest() -> Vec<u8> {
        let slots = (0..600).map(|n| format!("scsi{}:{}.fileName = \"x\"\n", n / 64 % 4, n % 64));
        let mut text: String = slots.collect();
        let rest = TEXT_LINES_MAX - count_lines(text.as_bytes());
        text.extend((0..rest).map(|n| format!("key{n} = \"{:038}\"\n", n)));
        text.into_bytes()
    }

    #[test]
    fn what_is_too_long_is_refused_before_its_lines_are_kept() {
        let newlines = vec![b'\n'; TEXT_LINES_MAX + 1];
        let error = KeyValues::parse("a.vmx", &newlines).unwrap_err().to_string();
        assert_eq!(
            error,
            "a.vmx: the number of lines is 65537, expected at most 65536: this is not a text file of VMware's"
        );
        let long = vec![b'x'; TEXT_BYTES_MAX + 1];
        let error = KeyValues::parse("a.vmx", &long).unwrap_err().to_string();
        assert!(
            error.starts_with("a.vmx: the length in bytes is 4194305, expected at most 4194304"),
            "{error}"
        );
        assert_eq!(KeyValues::parse("a.vmx", &newlines[1..]).unwrap().lines.len(), TEXT_LINES_MAX);
    }

    #[test]
    fn a_question_costs_one_step_in_the_largest_file() {
        let text = largest();
        let mut file = KeyValues::parse("a.vmx", &text).unwrap();
        assert_eq!(steps::within(|| drop(KeyValues::parse("a.vmx", &text))), TEXT_LINES_MAX as u64);
        assert_eq!(steps::within(|| assert!(file.get("KEY60000").unwrap().is_some())), 1);
        assert_eq!(steps::within(|| assert!(file.get("none").unwrap().is_none())), 1);
        assert_eq!(steps::within(|| file.set("key60000", "other")), 1);
        assert_eq!(steps::within(|| file.set("new", "other")), 2);
        assert_eq!(steps::within(|| file.remove("none")), 1);
    }

    #[test]
    fn the_index_follows_every_change() {
        let mut file = parse("a = \"1\"\nB = \"2\"\na = \"1\"\nx\n");
        let check = |file: &KeyValues| assert_eq!(file.index, Index::of(&file.lines));
        file.set("A", "3");
        check(&file);
        assert_eq!(file.to_bytes(), b"a = \"3\"\nB = \"2\"\nx\n");
        file.replace(|key| key == "B", [("c".into(), "4".into()), ("d".into(), "5".into())]);
        check(&file);
        file.set("e", "6");
        check(&file);
        file.remove("C");
        check(&file);
        assert!(file.has("D") && !file.has("c"));
    }

    proptest! {
        #[test]
        fn any_value_survives(value in ".*", key in "[a-z][a-z0-9:.]{0,20}") {
            let mut file = KeyValues::new("x");
            file.set(&key, &value);
            let again = KeyValues::parse("x", &file.to_bytes()).unwrap();
            prop_assert_eq!(again.get(&key).unwrap(), Some(value.as_str()));
        }

        #[test]
        fn any_bytes_are_kept(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let file = KeyValues::parse("x", &bytes).unwrap();
            prop_assert_eq!(file.to_bytes(), bytes);
            let _ = file.entries().count();
        }
    }
}
