//! Registers on file, of names with absolute paths: the homes outside a datastore, and the datastores that were added.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use api::error::{Error, ErrorKind, Result};
use api::name::VmName;
use blk::Dir;

/// Maximum size of a register in bytes: 1000 folders with paths of a kilobyte.
const REGISTER_BYTES_MAX: u64 = 1 << 20;

/// Register on file: one line `NAME /absolute/path` for each entry.
pub(crate) struct Register {
    own: Dir,
    file: &'static str,
    paths: RefCell<BTreeMap<String, PathBuf>>,
}

impl Register {
    pub(crate) async fn read(own: &Dir, file: &'static str) -> Result<Register> {
        let text = match own.read_file(file, REGISTER_BYTES_MAX).await {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) if e.kind == blk::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(e.into()),
        };
        let paths = parse(&own.path_of(file), &text)?;
        Ok(Register { own: own.clone(), file, paths: RefCell::new(paths) })
    }

    pub(crate) fn all(&self) -> BTreeMap<String, PathBuf> {
        self.paths.borrow().clone()
    }

    pub(crate) async fn add(&self, name: &str, home: &Path) -> blk::Result<()> {
        self.paths.borrow_mut().insert(name.to_string(), home.to_path_buf());
        self.write().await
    }

    pub(crate) async fn remove(&self, name: &str) -> blk::Result<()> {
        let Some(home) = self.paths.borrow_mut().remove(name) else { return Ok(()) };
        self.write().await.inspect_err(|_| {
            self.paths.borrow_mut().insert(name.to_owned(), home);
        })
    }

    async fn write(&self) -> blk::Result<()> {
        let lines: String =
            self.paths.borrow().iter().map(|(name, home)| format!("{name} {}\n", home.display())).collect();
        self.own.replace_file(self.file, lines.as_bytes()).await
    }
}

fn parse(place: &str, text: &str) -> Result<BTreeMap<String, PathBuf>> {
    let mut homes = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let wrong = || {
            let expected = "expected `NAME /absolute/path`";
            Error::new(ErrorKind::Damaged, format!("{place}: line {}: {line:?}, {expected}", at + 1))
        };
        let (name, home) = line.split_once(' ').ok_or_else(wrong)?;
        let name: VmName = name.parse().map_err(|_| wrong())?;
        // Only a datastore is an image of RBD.
        if !home.starts_with('/') && !home.starts_with(blk::rbd::PREFIX) {
            return Err(wrong());
        }
        homes.insert(name.to_string(), PathBuf::from(home));
    }
    Ok(homes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_reads_as_it_was_written() {
        let homes = parse("homes", "web /srv/my web\ndb /srv/db\n").unwrap();
        assert_eq!(homes["web"], Path::new("/srv/my web"));
        assert_eq!(homes.len(), 2);
        for text in ["web", "web srv", "../x /srv", " /srv"] {
            assert!(parse("homes", text).unwrap_err().message.starts_with("homes: line 1"), "{text}");
        }
    }
}
