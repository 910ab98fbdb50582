//! The manifest (`.mf`) of an OVA: the hash of each of its files.

use std::collections::BTreeMap;
use std::fmt;

use blk::{Error, Result};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

use crate::text::{check_text, shown, utf8, wrong};

/// Algorithms that a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-1, of OVF 1.
    Sha1,
    /// SHA-256, the usual one.
    Sha256,
    /// SHA-512.
    Sha512,
}

const ALGORITHMS: [(&str, Algorithm, usize); 3] =
    [("SHA1", Algorithm::Sha1, 20), ("SHA256", Algorithm::Sha256, 32), ("SHA512", Algorithm::Sha512, 64)];

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = ALGORITHMS.iter().find(|(_, algorithm, _)| algorithm == self);
        f.write_str(own.map_or("", |(name, ..)| name))
    }
}

/// The hash of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hash {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Hexadecimal digits, in lower case.
    pub digits: String,
}

/// A parsed manifest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manifest(BTreeMap<String, Hash>);

impl Manifest {
    /// Parses a manifest: lines `SHA256(NAME)= DIGITS`. `file` is its name in errors.
    ///
    /// # Errors
    /// `Damaged` for any other line, and for a name that is there twice.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Manifest> {
        check_text(file, bytes)?;
        let text = utf8(file, "the manifest", bytes)?;
        let mut hashes = BTreeMap::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let field = format!("line {}", index + 1);
            let Some((name, hash)) = parse_line(line.trim()) else {
                let expected = "`SHA256(NAME)= DIGITS`, with SHA1, SHA256 or SHA512 and all of its digits";
                return Err(wrong(file, &field, shown(line), expected));
            };
            if hashes.insert(name.to_owned(), hash).is_some() {
                return Err(wrong(
                    file,
                    &field,
                    format!("another hash of {}", shown(name)),
                    "one for each file",
                ));
            }
        }
        Ok(Manifest(hashes))
    }

    /// Returns the hash of the file `name`, if it has one.
    pub fn hash_of(&self, name: &str) -> Option<&Hash> {
        self.0.get(name)
    }

    /// Returns the files with their hashes, by name.
    pub fn hashes(&self) -> impl Iterator<Item = (&str, &Hash)> {
        self.0.iter().map(|(name, hash)| (name.as_str(), hash))
    }
}

fn parse_line(line: &str) -> Option<(&str, Hash)> {
    // The name may have parentheses of its own, and the digits have no equals sign.
    let (head, digits) = line.rsplit_once('=')?;
    let (word, name) = head.trim_end().strip_suffix(')')?.split_once('(')?;
    let word = word.trim().replace('-', "");
    let (_, algorithm, bytes) = ALGORITHMS.iter().find(|(own, ..)| own.eq_ignore_ascii_case(&word))?;
    let digits = digits.trim();
    let sound = digits.len() == bytes * 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hash = Hash { algorithm: *algorithm, digits: digits.to_ascii_lowercase() };
    (sound && !name.is_empty()).then(|| (name.trim_start_matches("./"), hash))
}

/// The hash of a file under way.
pub(crate) enum Hasher {
    Sha1(Sha1),
    Sha256(Sha256),
    Sha512(Box<Sha512>),
}

impl Hasher {
    pub(crate) fn new(algorithm: Algorithm) -> Hasher {
        match algorithm {
            Algorithm::Sha1 => Hasher::Sha1(Sha1::new()),
            Algorithm::Sha256 => Hasher::Sha256(Sha256::new()),
            Algorithm::Sha512 => Hasher::Sha512(Box::default()),
        }
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha1(hasher) => hasher.update(bytes),
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Sha512(hasher) => hasher.update(bytes),
        }
    }

    /// Compares the hash with that of the manifest.
    pub(crate) fn check(self, place: &str, expected: &Hash) -> Result<()> {
        let digits = match self {
            Hasher::Sha1(hasher) => digits(&hasher.finalize()),
            Hasher::Sha256(hasher) => digits(&hasher.finalize()),
            Hasher::Sha512(hasher) => digits(&hasher.finalize()),
        };
        if digits == expected.digits {
            return Ok(());
        }
        let cause = format!("its {} is {digits}, expected {}", expected.algorithm, expected.digits);
        let remedy = "as the manifest says: the file was damaged or changed after the export; copy, download or export it again";
        Err(Error::damaged(place, format!("{cause}, {remedy}")))
    }
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
