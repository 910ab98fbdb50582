//! An entry of the log: an event with its number, its time, and the hash of the entry before it.

use blk::{Error, Result};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::hex::hex;
use crate::key::Keys;
use crate::names;
use crate::seal::random;

/// Hash of an entry's object, in hexadecimal digits.
pub(crate) type EntryHash = String;

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub number: u32,
    /// Hash of the entry before; empty for the first.
    pub previous: EntryHash,
    /// Random, so that a writer recognises its own entry after a lost answer.
    pub token: String,
    /// By the clock of the writer, in microseconds since 1970. It orders nothing.
    pub time_us: u64,
    /// Who wrote it, for people.
    pub writer: String,
    pub event: Event,
}

impl Entry {
    pub(crate) fn new_token() -> Result<String> {
        Ok(hex(&random::<16>()?))
    }

    pub(crate) fn seal(&self, keys: &Keys) -> Result<Bytes> {
        let text = serde_json::to_vec(self).expect("plain JSON");
        Ok(keys.data.seal(names::log(self.number).as_bytes(), &text)?.into())
    }

    /// Opens the entry `number`.
    pub(crate) fn open(keys: &Keys, number: u32, body: &[u8]) -> Result<Entry> {
        let place = names::log(number);
        let text = keys.data.open(&place, place.as_bytes(), body)?;
        let entry: Entry = serde_json::from_slice(&text).map_err(|e| {
            Error::unsupported(
                &place,
                format!("the entry is not understood ({e}); a later version of unstun may have written it"),
            )
        })?;
        match entry.number == number {
            true => Ok(entry),
            false => Err(Error::damaged(place, format!("the entry states the number {}", entry.number))),
        }
    }
}

/// Returns the hash by which the next entry names this one.
pub(crate) fn hash_of(body: &[u8]) -> EntryHash {
    blake3::hash(body).to_hex().to_string()
}
