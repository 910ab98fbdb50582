//! Keys of a repository: one random master key, wrapped with a key file or a passphrase as often as wanted.

use argon2::{Algorithm, Argon2, Params, Version};
use blk::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures_util::future::try_join_all;
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use serde::{Deserialize, Serialize};

use crate::hex::{hex, unhex};
use crate::names;
use crate::objects::{Objects, Put};
use crate::seal::{Sealer, random};

/// Begin of a key file; 64 hexadecimal digits follow.
const KEY_FILE_MARK: &str = "unstun-repository-key-1 ";
/// Parameters of argon2id for new keys: 64 MiB, 3 passes, 1 lane.
const ARGON2: Kdf = Kdf::Argon2id { memory_kib: 64 << 10, passes: 3, lanes: 1 };
/// Largest parameters that a stored key may state: 1 GiB, 16 passes, 16 lanes.
const ARGON2_MAX: (u32, u32, u32) = (1 << 20, 16, 16);

/// What opens a repository. It is never part of a message.
pub enum Secret {
    /// The key in a key file.
    Key([u8; 32]),
    /// A passphrase.
    Passphrase(String),
}

impl Secret {
    /// Reads the text of a key file, which is at `place`.
    pub fn key_file(place: &str, text: &str) -> Result<Secret> {
        let key = text.trim().strip_prefix(KEY_FILE_MARK).and_then(|digits| unhex(digits.trim()));
        let wrong = || {
            let expected = format!("expected one line of {KEY_FILE_MARK:?} and 64 hexadecimal digits");
            Error::invalid(place, format!("this is no key file of a repository: {expected}"))
        };
        key.map(Secret::Key).ok_or_else(wrong)
    }
}

/// Returns the text of a new key file.
pub fn new_key_file() -> Result<String> {
    Ok(format!("{KEY_FILE_MARK}{}\n", hex(&random::<32>()?)))
}

/// Keys that the master key gives.
#[derive(Clone)]
pub(crate) struct Keys {
    /// Key of the hash that names chunks.
    pub names: [u8; 32],
    /// Seals chunks, entries and all else; each with its own purpose.
    pub data: Sealer,
    master: [u8; 32],
}

impl Keys {
    pub(crate) fn new() -> Result<Keys> {
        Ok(Keys::of(random()?))
    }

    fn of(master: [u8; 32]) -> Keys {
        let names = derive(&master, b"", b"unstun repository 1 names");
        let data = Sealer::new(&derive(&master, b"", b"unstun repository 1 data"));
        Keys { names, data, master }
    }
}

/// Derives a key by HKDF-SHA256.
fn derive(key: &[u8], salt: &[u8], purpose: &[u8]) -> [u8; 32] {
    struct Length;
    impl KeyType for Length {
        fn len(&self) -> usize {
            32
        }
    }
    let mut derived = [0; 32];
    let info = [purpose];
    let secret = Salt::new(HKDF_SHA256, salt).extract(key);
    let filled = secret.expand(&info, Length).and_then(|okm| okm.fill(&mut derived));
    filled.expect("32 bytes are a length of HKDF-SHA256");
    derived
}

/// How a secret becomes the key that wraps the master key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kdf", rename_all = "kebab-case", deny_unknown_fields)]
enum Kdf {
    /// For a key file: HKDF-SHA256.
    HkdfSha256,
    /// For a passphrase.
    Argon2id { memory_kib: u32, passes: u32, lanes: u32 },
}

/// A wrapped master key, as an object's JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Wrapped {
    derivation: Kdf,
    salt: String,
    /// Sealed master key, in hexadecimal digits.
    master: String,
    label: String,
    made_us: u64,
}

/// A key of a repository, as users see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySummary {
    /// Name of the key in the repository.
    pub id: String,
    /// Whether a passphrase opens it; otherwise a key file.
    pub is_passphrase: bool,
    /// What its maker called it.
    pub label: String,
    /// When it was made, in microseconds since 1970.
    pub made_us: u64,
    /// Whether it is the one that opened the repository now.
    pub is_in_use: bool,
}

impl Kdf {
    fn of(secret: &Secret) -> Kdf {
        match secret {
            Secret::Key(_) => Kdf::HkdfSha256,
            Secret::Passphrase(_) => ARGON2,
        }
    }

    /// Returns the wrapping key; None if the secret is of the other kind.
    fn wrapping_key(self, place: &str, secret: &Secret, salt: &[u8; 32]) -> Result<Option<[u8; 32]>> {
        match (self, secret) {
            (Kdf::HkdfSha256, Secret::Key(key)) => {
                Ok(Some(derive(key, salt, b"unstun repository 1 key file")))
            }
            (Kdf::Argon2id { memory_kib, passes, lanes }, Secret::Passphrase(text)) => {
                let found = (memory_kib, passes, lanes);
                if memory_kib > ARGON2_MAX.0 || passes > ARGON2_MAX.1 || lanes > ARGON2_MAX.2 {
                    return Err(Error::damaged(
                        place,
                        format!("argon2id with {found:?} exceeds {ARGON2_MAX:?}"),
                    ));
                }
                let wrong = |e| Error::damaged(place, format!("argon2id with {found:?}: {e}"));
                let params = Params::new(memory_kib, passes, lanes, Some(32)).map_err(wrong)?;
                let mut key = [0; 32];
                let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
                argon2.hash_password_into(text.as_bytes(), salt, &mut key).map_err(wrong)?;
                Ok(Some(key))
            }
            _ => Ok(None),
        }
    }
}

/// Returns what authenticates a wrapped key: the repository that it opens.
fn about(repository: &str) -> Vec<u8> {
    [b"key of ", repository.as_bytes()].concat()
}

/// Adds a key that opens the repository with `secret`.
pub(crate) async fn add(
    objects: &dyn Objects,
    repository: &str,
    keys: &Keys,
    secret: &Secret,
    label: &str,
    now_us: u64,
) -> Result<String> {
    let (kdf, salt) = (Kdf::of(secret), random::<32>()?);
    let id = hex(&random::<8>()?);
    let name = format!("{}{id}", names::KEYS);
    let key = kdf.wrapping_key(&name, secret, &salt)?.expect("the derivation of this secret");
    let master = Sealer::new(&key).seal(&about(repository), &keys.master)?;
    let wrapped = Wrapped {
        derivation: kdf,
        salt: hex(&salt),
        master: hex(&master),
        label: label.to_owned(),
        made_us: now_us,
    };
    let text = serde_json::to_vec_pretty(&wrapped).expect("plain JSON");
    let text = Bytes::from(text);
    // One that exists is this one, if the answer to its creation was lost.
    if objects.put_new(&name, text.clone()).await? == Put::Exists && objects.get(&name).await? != text {
        return Err(Error::new(ErrorKind::Exists, name, "a key of this random name exists; try again"));
    }
    Ok(id)
}

async fn read_all(objects: &dyn Objects) -> Result<Vec<(String, Wrapped)>> {
    let listed = objects.list(names::KEYS).await?;
    let read = |name: String| async move {
        let body = match objects.get(&name).await {
            Ok(body) => body,
            // A list may be old.
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        // One that is damaged opens nothing, and the others do.
        let wrapped = serde_json::from_slice(&body).ok();
        Ok(wrapped.map(|wrapped| (name.trim_start_matches(names::KEYS).to_owned(), wrapped)))
    };
    let all = try_join_all(listed.into_iter().map(|object| read(object.name))).await?;
    Ok(all.into_iter().flatten().collect())
}

/// Returns the keys of a repository, and the ID of the one that opened it.
///
/// # Errors
/// `Refused`: no key opens with this secret.
pub(crate) async fn open(objects: &dyn Objects, repository: &str, secret: &Secret) -> Result<(Keys, String)> {
    let wrapped = read_all(objects).await?;
    for (id, wrapped) in &wrapped {
        if let Ok(Some(keys)) = unwrap(id, repository, wrapped, secret) {
            return Ok((keys, id.clone()));
        }
    }
    let kind = match secret {
        Secret::Key(_) => "key file",
        Secret::Passphrase(_) => "passphrase",
    };
    let labels: Vec<_> = wrapped.iter().map(|(id, wrapped)| format!("{id} ({})", wrapped.label)).collect();
    let cause = format!("this {kind} opens none of the repository's keys: {}", labels.join(", "));
    Err(Error::refused(objects.place(), cause))
}

fn unwrap(id: &str, repository: &str, wrapped: &Wrapped, secret: &Secret) -> Result<Option<Keys>> {
    let place = format!("{}{id}", names::KEYS);
    let damaged = |field: &str| Error::damaged(&place, format!("{field}: expected hexadecimal digits"));
    let salt = unhex::<32>(&wrapped.salt).ok_or_else(|| damaged("salt"))?;
    let sealed = from_hex(&wrapped.master).ok_or_else(|| damaged("master"))?;
    let Some(key) = wrapped.derivation.wrapping_key(&place, secret, &salt)? else {
        return Ok(None);
    };
    // A key that does not open is another administrator's.
    let Ok(master) = Sealer::new(&key).open(&place, &about(repository), &sealed) else {
        return Ok(None);
    };
    let master = <[u8; 32]>::try_from(master);
    Ok(Some(Keys::of(master.map_err(|_| Error::damaged(&place, "the master key has not 32 bytes"))?)))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

/// Returns the keys with which the repository can be opened.
pub(crate) async fn list(objects: &dyn Objects, in_use: &str) -> Result<Vec<KeySummary>> {
    let summary = |(id, wrapped): (String, Wrapped)| KeySummary {
        is_in_use: id == in_use,
        id,
        is_passphrase: wrapped.derivation != Kdf::HkdfSha256,
        label: wrapped.label,
        made_us: wrapped.made_us,
    };
    Ok(read_all(objects).await?.into_iter().map(summary).collect())
}

/// Removes a key. The last one and the one in use stay.
pub(crate) async fn remove(objects: &dyn Objects, in_use: &str, id: &str) -> Result<()> {
    let name = format!("{}{id}", names::KEYS);
    if id == in_use {
        return Err(Error::refused(
            name,
            "this key opened the repository now; open it with the key that is to stay, and remove this one then",
        ));
    }
    if !objects.list(names::KEYS).await?.iter().any(|object| object.name == name) {
        return Err(Error::not_found(name, "no key has this ID"));
    }
    objects.delete(&name).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_is_read_as_written() {
        let text = new_key_file().unwrap();
        assert!(matches!(Secret::key_file("f", &text), Ok(Secret::Key(_))));
        for wrong in ["", "unstun-repository-key-1 12", &text[1..], "hello"] {
            let refused = Secret::key_file("f", wrong).err().unwrap();
            assert!(refused.to_string().contains("no key file"), "{refused}");
        }
    }

    #[test]
    fn keys_of_one_master_key_are_the_same() {
        let (a, b) = (Keys::of([1; 32]), Keys::of([1; 32]));
        assert_eq!(a.names, b.names);
        assert_ne!(a.names, Keys::of([2; 32]).names);
        assert_ne!(a.names, a.master);
    }
}
