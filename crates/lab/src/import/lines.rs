//! Lines of a file of unknown encoding and length: UTF-8 with or without a byte order mark, or UTF-16 as written by
//! Windows' shell.

use std::io::{self, BufRead, BufReader, Read};

/// Longest line: the header of 50,000 counters at 150 bytes each is 7.5 MB.
const LINE_BYTES_MAX: u64 = 32 << 20;
/// Bytes from which the format is detected.
const HEAD_BYTES: u64 = 64 << 10;

pub(super) struct Lines<'a> {
    head: String,
    input: Box<dyn BufRead + 'a>,
    bytes: Vec<u8>,
    line: String,
    number: u64,
    failure: Option<String>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(input: &'a mut dyn BufRead) -> io::Result<Self> {
        let mut first = Vec::new();
        (&mut *input).take(HEAD_BYTES).read_to_end(&mut first)?;
        let (mark, order) = encoding(&first);
        let rest = first.split_off(mark);
        let all = io::Cursor::new(rest.clone()).chain(input);
        let (head, input): (Vec<u8>, Box<dyn BufRead + 'a>) = match order {
            None => (rest, Box::new(all)),
            Some(order) => {
                let mut head = Vec::new();
                Utf16::new(rest.as_slice(), order).read_to_end(&mut head)?;
                (head, Box::new(BufReader::new(Utf16::new(all, order))))
            }
        };
        let head = String::from_utf8_lossy(&head).into_owned();
        Ok(Self { head, input, bytes: Vec::new(), line: String::new(), number: 0, failure: None })
    }

    /// Returns the first bytes as text; the last line may be cut.
    pub(super) fn head(&self) -> &str {
        &self.head
    }

    /// Returns the number of the line read last, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns why reading ended before the end of the file.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns the next line without its end, and its number. None at the end of the file, and after a read error.
    pub(super) fn next(&mut self) -> Option<(u64, &str)> {
        self.bytes.clear();
        let read = self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut self.bytes);
        match read {
            Ok(0) => return None,
            Ok(_) if self.bytes.len() as u64 == LINE_BYTES_MAX && self.bytes.last() != Some(&b'\n') => {
                self.number += 1;
                self.failure = Some(format!("a line longer than {LINE_BYTES_MAX} bytes"));
                return None;
            }
            Ok(_) => {}
            Err(e) => {
                self.failure = Some(e.to_string());
                return None;
            }
        }
        self.number += 1;
        self.line.clear();
        self.line.push_str(String::from_utf8_lossy(&self.bytes).trim_end_matches(['\r', '\n']));
        Some((self.number, &self.line))
    }

    /// Returns the rest of the file; None where it is longer than `bytes_max`.
    pub(super) fn rest(&mut self, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        self.input.by_ref().take(bytes_max + 1).read_to_end(&mut bytes)?;
        Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

/// Returns the length of the byte order mark, and the byte order of UTF-16.
fn encoding(first: &[u8]) -> (usize, Option<Order>) {
    match first {
        [0xef, 0xbb, 0xbf, ..] => (3, None),
        [0xff, 0xfe, ..] => (2, Some(Order::Little)),
        [0xfe, 0xff, ..] => (2, Some(Order::Big)),
        _ => (0, None),
    }
}

/// Decodes UTF-16 into UTF-8; an unpaired surrogate becomes the replacement character.
struct Utf16<R> {
    input: R,
    order: Order,
    ready: Vec<u8>,
    taken: usize,
    high: Option<u16>,
}

impl<R: Read> Utf16<R> {
    fn new(input: R, order: Order) -> Self {
        Self { input, order, ready: Vec::new(), taken: 0, high: None }
    }

    /// Decodes the next part; at the end of the input it leaves nothing to read.
    fn refill(&mut self) -> io::Result<()> {
        const BYTES: u64 = 16 << 10;
        let mut bytes = Vec::new();
        self.input.by_ref().take(BYTES).read_to_end(&mut bytes)?;
        let units = bytes.chunks_exact(2).map(|pair| match self.order {
            Order::Little => u16::from_le_bytes([pair[0], pair[1]]),
            Order::Big => u16::from_be_bytes([pair[0], pair[1]]),
        });
        let mut units: Vec<u16> = self.high.take().into_iter().chain(units).collect();
        let is_high = |unit: &u16| (0xd800..0xdc00).contains(unit);
        if !bytes.is_empty() && units.last().is_some_and(is_high) {
            self.high = units.pop();
        }
        let decoded = char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER));
        self.ready = decoded.collect::<String>().into_bytes();
        self.taken = 0;
        Ok(())
    }
}

impl<R: Read> Read for Utf16<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.ready.len() {
            self.refill()?;
        }
        let ready = &self.ready[self.taken..];
        let len = ready.len().min(out.len());
        out[..len].copy_from_slice(&ready[..len]);
        self.taken += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Vec<String> {
        let mut input = bytes;
        let mut lines = Lines::new(&mut input).unwrap();
        std::iter::from_fn(|| lines.next().map(|(_, line)| line.to_owned())).collect()
    }

    #[test]
    fn lines_of_any_encoding_are_the_same() {
        let text = "Reply\r\n\r\nS\u{fc}den \u{1f4be}\nlast";
        let lines = ["Reply", "", "S\u{fc}den \u{1f4be}", "last"];
        assert_eq!(all(text.as_bytes()), lines);
        assert_eq!(all(format!("\u{feff}{text}").as_bytes()), lines);
        let little: Vec<u8> = format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert_eq!(
            (all(&little), all(&big)),
            (lines.map(str::to_owned).into(), lines.map(str::to_owned).into())
        );
        assert_eq!(all(b"caf\xe9\n"), ["caf\u{fffd}"]);
        assert_eq!(all(&[0xff, 0xfe, 0x41]).len(), 0);
    }
}
