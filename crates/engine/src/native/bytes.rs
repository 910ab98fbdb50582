//! Encoding and checked decoding of little-endian fields of variable records.

use blk::{Error, Result};

use super::key::Key;

/// Appends fields to a record.
#[derive(Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Appends one byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    /// Appends 4 bytes, little-endian.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Appends 8 bytes, little-endian.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Appends 16 bytes, little-endian.
    pub fn u128(&mut self, value: u128) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Appends a length of 32 bits, then the bytes.
    pub fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.u32(value.len() as u32).0.extend_from_slice(value);
        self
    }

    /// Appends the 25 bytes of a key.
    pub fn key(&mut self, key: &Key) -> &mut Self {
        self.u8(key.kind).u128(key.major).u64(key.minor)
    }

    /// Returns the record.
    pub fn done(self) -> Vec<u8> {
        self.0
    }

    /// Returns the number of bytes so far.
    pub fn position(&self) -> usize {
        self.0.len()
    }
}

/// Reads fields of a record, and refuses what does not fit.
pub struct Reader<'a> {
    rest: &'a [u8],
    place: &'a str,
}

impl<'a> Reader<'a> {
    /// Begins at the first of `bytes`; `place` is that of errors, which are all `Damaged`.
    pub fn new(bytes: &'a [u8], place: &'a str) -> Reader<'a> {
        Reader { rest: bytes, place }
    }

    /// Returns whether every byte was read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads one byte; `what` names the field in errors.
    pub fn u8(&mut self, what: &str) -> Result<u8> {
        Ok(self.take(1, what)?[0])
    }

    /// Reads 4 bytes, little-endian.
    pub fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4, what)?.try_into().expect("four bytes")))
    }

    /// Reads 8 bytes, little-endian.
    pub fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8, what)?.try_into().expect("eight bytes")))
    }

    /// Reads a number of at most `max`.
    pub fn u32_up_to(&mut self, what: &str, max: u32) -> Result<u32> {
        let found = self.u32(what)?;
        self.check(what, found.into(), max.into()).map(|()| found)
    }

    /// Reads a number of at most `max`.
    pub fn u64_up_to(&mut self, what: &str, max: u64) -> Result<u64> {
        let found = self.u64(what)?;
        self.check(what, found, max).map(|()| found)
    }

    fn check(&self, what: &str, found: u64, max: u64) -> Result<()> {
        match found <= max {
            true => Ok(()),
            false => Err(Error::damaged(self.place, format!("{what} is {found}, expected at most {max}"))),
        }
    }

    /// Reads 16 bytes, little-endian.
    pub fn u128(&mut self, what: &str) -> Result<u128> {
        Ok(u128::from_le_bytes(self.take(16, what)?.try_into().expect("sixteen bytes")))
    }

    /// Reads a length of 32 bits, then the bytes.
    pub fn bytes(&mut self, what: &str) -> Result<&'a [u8]> {
        let len = self.u32(what)?;
        self.take(len as usize, what)
    }

    /// Reads a length of 32 bits, then UTF-8.
    pub fn text(&mut self, what: &str) -> Result<String> {
        let bytes = self.bytes(what)?;
        let text = std::str::from_utf8(bytes);
        Ok(text.map_err(|e| Error::damaged(self.place, format!("{what}: not UTF-8 ({e})")))?.to_string())
    }

    /// Reads a text of at most `max` bytes.
    pub fn text_up_to(&mut self, what: &str, max: usize) -> Result<String> {
        let text = self.text(what)?;
        self.check(&format!("length of the {what}"), text.len() as u64, max as u64).map(|()| text)
    }

    /// Reads the 25 bytes of a key.
    pub fn key(&mut self) -> Result<Key> {
        Ok(Key { kind: self.u8("kind of item")?, major: self.u128("key")?, minor: self.u64("key")? })
    }

    fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8]> {
        if len > self.rest.len() {
            let cause = format!("{what}: {} bytes left, expected {len}", self.rest.len());
            return Err(Error::damaged(self.place, cause));
        }
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(taken)
    }
}
