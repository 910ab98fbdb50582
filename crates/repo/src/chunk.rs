//! Chunks: what they are named, and where they are.

use blk::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::hex::{hex, unhex};
use crate::key::Keys;
use crate::names::PackName;

/// Name of a chunk's content: its BLAKE3 hash, keyed with a key of the repository.
pub(crate) type ChunkId = [u8; 32];

/// Where a chunk is, and what it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChunkRef {
    pub(crate) id: ChunkId,
    pub(crate) pack: PackName,
    /// Offset of the sealed bytes in the pack.
    pub(crate) offset: u32,
    /// Length of the sealed bytes.
    pub(crate) sealed_bytes: u32,
    /// Length of the content.
    pub(crate) bytes: u32,
}

/// Length of an encoded reference, in bytes.
pub(crate) const REF_BYTES: usize = 52;

impl ChunkRef {
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.id);
        for number in [self.pack.epoch, self.pack.number, self.offset, self.sealed_bytes, self.bytes] {
            into.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// Decodes [`REF_BYTES`] bytes.
    pub(crate) fn decode(bytes: &[u8]) -> ChunkRef {
        let number = |n: usize| {
            let at = 32 + 4 * n;
            u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
        };
        ChunkRef {
            id: bytes[..32].try_into().expect("32 bytes"),
            pack: PackName { epoch: number(0), number: number(1) },
            offset: number(2),
            sealed_bytes: number(3),
            bytes: number(4),
        }
    }

    /// Returns the range of the sealed bytes in the pack.
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        let begin = u64::from(self.offset);
        begin..begin + u64::from(self.sealed_bytes)
    }

    /// Opens the sealed bytes of this chunk.
    pub(crate) fn open(&self, keys: &Keys, sealed: &[u8]) -> Result<Vec<u8>> {
        let place = self.place();
        let content = keys.data.open(&place, &about(&self.id), sealed)?;
        if content.len() != self.bytes as usize {
            let found = format!("{} bytes, and the map states {}", content.len(), self.bytes);
            return Err(Error::damaged(place, found));
        }
        Ok(content)
    }

    pub(crate) fn place(&self) -> String {
        format!("{} at {}", crate::names::pack(self.pack), self.offset)
    }
}

impl std::fmt::Debug for ChunkRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "chunk {} ({})", &hex(&self.id)[..8], self.place())
    }
}

/// Text of a reference: the ID in hexadecimal digits, epoch and number of the pack, offset, sealed length, length.
#[derive(Serialize, Deserialize)]
struct RefText(String, u32, u32, u32, u32, u32);

impl Serialize for ChunkRef {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let pack = self.pack;
        RefText(hex(&self.id), pack.epoch, pack.number, self.offset, self.sealed_bytes, self.bytes)
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ChunkRef {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<ChunkRef, D::Error> {
        let RefText(id, epoch, number, offset, sealed_bytes, bytes) = RefText::deserialize(deserializer)?;
        let id = unhex(&id).ok_or_else(|| serde::de::Error::custom("an ID has 64 hexadecimal digits"))?;
        Ok(ChunkRef { id, pack: PackName { epoch, number }, offset, sealed_bytes, bytes })
    }
}

/// Returns what authenticates a chunk with its content: nothing but its ID, so that it may move.
fn about(id: &ChunkId) -> Vec<u8> {
    [&b"chunk"[..], id].concat()
}

/// Returns the name of a content.
pub(crate) fn id_of(keys: &Keys, content: &[u8]) -> ChunkId {
    *blake3::keyed_hash(&keys.names, content).as_bytes()
}

/// Seals a content whose name is `id`.
pub(crate) fn seal(keys: &Keys, id: &ChunkId, content: &[u8]) -> Result<Vec<u8>> {
    keys.data.seal(&about(id), content)
}
