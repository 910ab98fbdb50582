//! Files of `key = "value"` lines: .vmx, .vmsd and similar.
//!
//! The line grammar and the escapes are those of `lib/dict/dictll.c` in the published open-vm-tools. Blanks are spaces
//! and tabs. A name contains no blank, `=` or `#`. A value is quoted, or bare without blank and `#`. The rest of a line
//! may be a `#` comment. Bytes of a value that are `"`, `|`, 0x7F or a control character other than tab are written
//! `|hh` (two hex digits). Keys are compared without case. A UTF-8 byte-order mark is allowed.
//!
//! Unchanged lines are written back byte for byte, including those that this parser does not understand.

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

/// Lines of each key, by the key in lower case. Derived from the lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Index(BTreeMap<String, KeyLines>);

/// The lines of one key, by their numbers from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeyLines {
    first: usize,
    /// All later lines of the key.
    repeats: Vec<usize>,
    /// The first line with another value than that of `first`.
    other: Option<usize>,
}

impl Index {
    fn of(lines: &[Line]) -> Self {
        let mut index = Self::default();
        (0..lines.len()).for_each(|at| index.add(lines, at));
        index
    }

    /// Adds line `at`, which must be the last one.
    fn add(&mut self, lines: &[Line], at: usize) {
        steps::count(1);
        let Some(entry) = &lines[at].entry else { return };
        let new = KeyLines { first: at, repeats: Vec::new(), other: None };
        let found = self.0.entry(entry.key.to_ascii_lowercase()).or_insert(new);
        let differs = || lines[found.first].entry.as_ref().is_none_or(|first| first.value != entry.value);
        if found.other.is_none() && differs() {
            found.other = Some(at);
        }
        if at != found.first {
            found.repeats.push(at);
        }
    }

    fn find(&self, key: &str) -> Option<&KeyLines> {
        steps::count(1);
        self.0.get(&key.to_ascii_lowercase())
    }

    /// Makes the first line of `key` its only one. Returns that line and the others.
    fn make_single(&mut self, key: &str) -> Option<(usize, Vec<usize>)> {
        steps::count(1);
        let found = self.0.get_mut(&key.to_ascii_lowercase())?;
        found.other = None;
        Some((found.first, std::mem::take(&mut found.repeats)))
    }

    /// Removes `key`. Returns all its lines.
    fn remove(&mut self, key: &str) -> Vec<usize> {
        steps::count(1);
        let found = self.0.remove(&key.to_ascii_lowercase());
        found.map_or_else(Vec::new, |found| [vec![found.first], found.repeats].concat())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Line {
    /// The whole line with its terminator, if it has one. Empty for a removed line, so that the other lines keep their
    /// numbers.
    raw: Vec<u8>,
    entry: Option<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    key: String,
    /// The value without escapes, in the encoding of the file.
    value: Vec<u8>,
}

impl KeyValues {
    pub fn new(file: &str) -> Self {
        Self { file: file.into(), lines: Vec::new(), newline: b"\n", index: Index::default() }
    }

    /// Parses a file. Never fails on content: a line that is not an entry is kept and ignored. Fails for a file of
    /// excessive length.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self> {
        check_text(file, bytes)?;
        let lines: Vec<Line> = bytes.split_inclusive(|b| *b == b'\n').map(Line::parse).collect();
        let crlf = lines.first().is_some_and(|line| line.raw.ends_with(b"\r\n"));
        let index = Index::of(&lines);
        Ok(Self { file: file.into(), lines, newline: if crlf { b"\r\n" } else { b"\n" }, index })
    }

    /// Returns a copy that has the name `file` in errors.
    pub fn named(&self, file: &str) -> Self {
        Self { file: file.into(), ..self.clone() }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        self.lines.iter().flat_map(|line| line.raw.iter().copied()).collect()
    }

    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns every entry in file order: key as written, value as text.
    pub fn entries(&self) -> impl Iterator<Item = Result<(&str, &str)>> {
        steps::count(self.lines.len() as u64);
        self.lines.iter().filter_map(|line| line.entry.as_ref()).map(|entry| {
            let value = utf8(&self.file, &entry.key, &entry.value)?;
            Ok((entry.key.as_str(), value))
        })
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        steps::count(self.lines.len() as u64);
        self.lines.iter().filter_map(|line| line.entry.as_ref()).map(|entry| entry.key.as_str())
    }

    /// Returns the value of `key`. Two lines with different values are damage, because readers would disagree on which
    /// counts.
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

    /// Returns whether a line gives `key` a value, in any encoding.
    pub fn has(&self, key: &str) -> bool {
        self.index.find(key).is_some()
    }

    fn value_at(&self, line: usize) -> &[u8] {
        self.lines[line].entry.as_ref().map_or(&[], |entry| entry.value.as_slice())
    }

    /// Returns a boolean: TRUE and FALSE in any case, "1"/"0" and "yes"/"no", as VMware accepts; `default` if absent.
    pub fn get_bool(&self, key: &str, default: bool) -> Result<bool> {
        let Some(value) = self.get(key)? else { return Ok(default) };
        match value.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "y" | "t" => Ok(true),
            "false" | "0" | "no" | "n" | "f" => Ok(false),
            "" => Ok(default),
            _ => Err(crate::text::wrong(&self.file, key, shown(value), "\"TRUE\" or \"FALSE\"")),
        }
    }

    /// Replaces the value in its line, or appends a line. A key that has this value already keeps its line unchanged.
    pub fn set(&mut self, key: &str, value: &str) {
        let Some((first, repeats)) = self.index.make_single(key) else {
            let entry = [(key.to_owned(), value.to_owned())];
            return self.insert(self.lines.len(), entry);
        };
        let line = &mut self.lines[first];
        let differs = line.entry.as_ref().filter(|entry| entry.value != value.as_bytes());
        if let Some(written) = differs.map(|entry| entry.key.clone()) {
            *line = Line::entry(&written, value, self.newline);
        }
        self.take_out(&repeats);
    }

    pub fn remove(&mut self, key: &str) {
        let lines = self.index.remove(key);
        self.take_out(&lines);
    }

    fn take_out(&mut self, lines: &[usize]) {
        lines.iter().for_each(|at| self.lines[*at] = Line::default());
    }

    /// Removes the entries whose key satisfies `which`, and inserts `entries` at the first of them, or at the end.
    pub fn replace(
        &mut self,
        which: impl Fn(&str) -> bool,
        entries: impl IntoIterator<Item = (String, String)>,
    ) {
        let doomed = |line: &Line| line.entry.as_ref().is_some_and(|entry| which(&entry.key));
        let at = self.lines.iter().position(doomed).unwrap_or(self.lines.len());
        self.lines.retain(|line| !doomed(line));
        self.index = Index::of(&self.lines);
        self.insert(at, entries);
    }

    fn insert(&mut self, at: usize, entries: impl IntoIterator<Item = (String, String)>) {
        if let Some(before) = self.lines[..at].iter_mut().rev().find(|line| !line.raw.is_empty())
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

/// Decodes escapes. A `|` without two hex digits stands for itself.
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
#[path = "keyvalue_tests.rs"]
mod tests;
