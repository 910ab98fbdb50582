//! Compression and encryption of what a repository stores, and its opposite.
//!
//! Sealed bytes are a random nonce of 24 bytes, the ciphertext and a tag of 16 bytes (XChaCha20-Poly1305). The plaintext
//! has one byte for the compression, the length of the content as 4 bytes in little-endian order, and the content.

use blk::{Error, Result};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use ring::rand::{SecureRandom, SystemRandom};

/// Largest content, in bytes: a bound of memory for a length that an object states.
pub(crate) const CONTENT_BYTES_MAX: usize = 256 << 20;
const NONCE_BYTES: usize = 24;
/// Compression and length of the content.
const HEAD_BYTES: usize = 5;
const STORED: u8 = 0;
const ZSTD: u8 = 1;
/// Level of zstd: about 500 MB/s of one core at half the size, by the measurements in the crate's design.
const ZSTD_LEVEL: i32 = 1;

/// Fills an array with random bytes of the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let failed = |_| Error::new(blk::ErrorKind::Io, "", "the system gave no random bytes");
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// A key that seals and opens.
#[derive(Clone)]
pub(crate) struct Sealer(XChaCha20Poly1305);

impl Sealer {
    pub(crate) fn new(key: &[u8; 32]) -> Sealer {
        Sealer(XChaCha20Poly1305::new(key.into()))
    }

    /// Seals `content`. The same `about` is needed to open it, so that no object can take the place of another.
    pub(crate) fn seal(&self, about: &[u8], content: &[u8]) -> Result<Vec<u8>> {
        if content.len() > CONTENT_BYTES_MAX {
            let found = format!("{} bytes, expected at most {CONTENT_BYTES_MAX}", content.len());
            return Err(Error::invalid("", format!("the content has {found}")));
        }
        let plain = pack(content)?;
        let nonce: [u8; NONCE_BYTES] = random()?;
        let payload = Payload { msg: &plain, aad: about };
        let sealed = self.0.encrypt(&XNonce::from(nonce), payload);
        let sealed = sealed.map_err(|_| Error::invalid("", "the content is too large to encrypt"))?;
        Ok([&nonce[..], &sealed[..]].concat())
    }

    /// Opens sealed bytes of the object or chunk `place`.
    ///
    /// # Errors
    /// `Damaged`: the bytes were not sealed with this key for this purpose, or have changed.
    pub(crate) fn open(&self, place: &str, about: &[u8], sealed: &[u8]) -> Result<Vec<u8>> {
        let Some((nonce, body)) = sealed.split_at_checked(NONCE_BYTES) else {
            let found = format!("{} bytes, expected at least {NONCE_BYTES}", sealed.len());
            return Err(Error::damaged(place, found));
        };
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().expect("the length of a nonce");
        let opened = self.0.decrypt(&XNonce::from(nonce), Payload { msg: body, aad: about });
        let changed = |_| {
            Error::damaged(place, "the content fails its authentication: it has changed, or has another key")
        };
        unpack(place, &opened.map_err(changed)?)
    }
}

fn pack(content: &[u8]) -> Result<Vec<u8>> {
    let failed = |e| Error::invalid("", format!("compression: {e}"));
    let compressed = zstd::bulk::compress(content, ZSTD_LEVEL).map_err(failed)?;
    let (how, body) =
        if compressed.len() < content.len() { (ZSTD, &compressed[..]) } else { (STORED, content) };
    Ok([&[how][..], &(content.len() as u32).to_le_bytes(), body].concat())
}

fn unpack(place: &str, plain: &[u8]) -> Result<Vec<u8>> {
    let damaged = |cause: String| Error::damaged(place, cause);
    let Some((head, body)) = plain.split_at_checked(HEAD_BYTES) else {
        return Err(damaged(format!("{} bytes of content, expected a head of {HEAD_BYTES}", plain.len())));
    };
    let bytes = u32::from_le_bytes(head[1..].try_into().expect("4 bytes")) as usize;
    if bytes > CONTENT_BYTES_MAX {
        return Err(damaged(format!(
            "the content states {bytes} bytes, expected at most {CONTENT_BYTES_MAX}"
        )));
    }
    let content = match head[0] {
        STORED => body.to_vec(),
        ZSTD => zstd::bulk::decompress(body, bytes).map_err(|e| damaged(format!("zstd: {e}")))?,
        other => return Err(damaged(format!("compression {other}, expected {STORED} or {ZSTD}"))),
    };
    match content.len() == bytes {
        true => Ok(content),
        false => Err(damaged(format!("the content has {} bytes and states {bytes}", content.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_bytes_open_with_their_key_and_purpose_only() {
        let sealer = Sealer::new(&[7; 32]);
        for content in [&b""[..], &[0; 100_000], &b"short"[..]] {
            let sealed = sealer.seal(b"a", content).unwrap();
            // Nonce, head and tag.
            assert!(sealed.len() <= content.len() + NONCE_BYTES + HEAD_BYTES + 16);
            assert_eq!(sealer.open("x", b"a", &sealed).unwrap(), content);
            assert!(sealer.open("x", b"b", &sealed).is_err());
            assert!(Sealer::new(&[8; 32]).open("x", b"a", &sealed).is_err());
            for at in 0..sealed.len() {
                let mut bent = sealed.clone();
                bent[at] ^= 1;
                assert!(sealer.open("x", b"a", &bent).is_err(), "byte {at}");
            }
            assert!(sealer.open("x", b"a", &sealed[..sealed.len() - 1]).is_err());
        }
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let mut plain = pack(&[0; 5000]).unwrap();
        assert_eq!(unpack("x", &plain).unwrap(), vec![0; 5000]);
        for lie in [0_u32, 4999, 5001, u32::MAX] {
            plain[1..5].copy_from_slice(&lie.to_le_bytes());
            assert!(unpack("x", &plain).is_err(), "{lie}");
        }
        assert!(unpack("x", &[9, 0, 0, 0, 0]).is_err());
        assert!(unpack("x", &[0, 0]).is_err());
    }
}
