//! Pages of a map: 256 references to chunks, or to pages one level below.

use blk::{Error, Result};

use crate::chunk::{ChunkRef, REF_BYTES};

/// References of a page.
pub(crate) const FANOUT: usize = 256;
/// Levels of a map. With chunks of 64 KiB a page of each level covers 16 MiB, 4 GiB, 1 TiB and 256 TiB.
pub(crate) const LEVELS: usize = 4;
/// Bytes before the references: the level, three zeros, and a bit for each reference that is there.
const HEAD_BYTES: usize = 4 + FANOUT / 8;

/// References of a page; None for zeros.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Page {
    pub refs: Box<[Option<ChunkRef>; FANOUT]>,
}

impl Page {
    pub(crate) fn empty() -> Page {
        Page { refs: Box::new([None; FANOUT]) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.refs.iter().all(Option::is_none)
    }

    pub(crate) fn encode(&self, level: usize) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        bytes[0] = level as u8;
        for (n, reference) in self.refs.iter().enumerate() {
            if let Some(reference) = reference {
                bytes[4 + n / 8] |= 1 << (n % 8);
                reference.encode(&mut bytes);
            }
        }
        bytes
    }

    /// Decodes a page of `level`, which is a chunk at `place`.
    pub(crate) fn decode(place: &str, level: usize, bytes: &[u8]) -> Result<Page> {
        let damaged = |cause: String| Error::damaged(place, format!("page of a map: {cause}"));
        let Some((head, mut rest)) = bytes.split_at_checked(HEAD_BYTES) else {
            return Err(damaged(format!("{} bytes, expected at least {HEAD_BYTES}", bytes.len())));
        };
        if usize::from(head[0]) != level {
            return Err(damaged(format!("level {}, expected {level}", head[0])));
        }
        let count: usize = head[4..].iter().map(|bits| bits.count_ones() as usize).sum();
        if rest.len() != count * REF_BYTES {
            return Err(damaged(format!("{} bytes for {count} references of {REF_BYTES}", rest.len())));
        }
        let mut page = Page::empty();
        for (n, reference) in page.refs.iter_mut().enumerate() {
            if head[4 + n / 8] & 1 << (n % 8) != 0 {
                *reference = Some(ChunkRef::decode(&rest[..REF_BYTES]));
                rest = &rest[REF_BYTES..];
            }
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::PackName;

    #[test]
    fn pages_are_read_as_written_and_others_are_refused() {
        let mut page = Page::empty();
        for n in [0_u32, 9, 255] {
            let pack = PackName { epoch: n, number: 1 };
            page.refs[n as usize] =
                Some(ChunkRef { id: [n as u8; 32], pack, offset: 5, sealed_bytes: 6, bytes: 7 });
        }
        let bytes = page.encode(2);
        assert!(Page::decode("x", 2, &bytes).unwrap() == page);
        assert!(Page::decode("x", 1, &bytes).is_err());
        assert!(Page::decode("x", 2, &bytes[..bytes.len() - 1]).is_err());
        assert!(Page::decode("x", 2, &[]).is_err());
    }
}
