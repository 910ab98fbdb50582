//! Registers on file: names and folders of homes outside of a datastore, datastores that were added, and closed homes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use api::error::{Error, ErrorKind, Result};
use api::name::VmName;
use blk::dir::OWN_FOLDER;
use blk::{Dir, Env};

use crate::daemon::datastore::Home;
use crate::daemon::vm::formats::{exists, open_path};

/// File in the datastore's `.unstun` folder: the homes outside the datastore.
pub(crate) const REGISTRY_NAME: &str = "homes";
/// File in a home's `.unstun` folder that exists while the VM is closed.
pub(crate) const CLOSED_NAME: &str = "closed";
/// File in a home's `.unstun` folder that exists if the folder became a home in place. Its files belonged to the user
/// before.
pub(crate) const ADOPTED_NAME: &str = "adopted";
/// Maximum size of a register in bytes: 1000 folders with paths of a kilobyte.
const REGISTRY_BYTES_MAX: u64 = 1 << 20;

/// Register on file: one line `NAME /absolute/path` for each folder.
pub(crate) struct Registry {
    own: Dir,
    file: &'static str,
    homes: RefCell<BTreeMap<String, PathBuf>>,
}

impl Registry {
    pub(crate) async fn read(own: &Dir, file: &'static str) -> Result<Registry> {
        let text = match own.read_file(file, REGISTRY_BYTES_MAX).await {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) if e.kind == blk::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(e.into()),
        };
        let homes = parse(&own.path_of(file), &text)?;
        Ok(Registry { own: own.clone(), file, homes: RefCell::new(homes) })
    }

    pub(crate) fn all(&self) -> BTreeMap<String, PathBuf> {
        self.homes.borrow().clone()
    }

    pub(crate) async fn add(&self, name: &str, home: &Path) -> blk::Result<()> {
        self.homes.borrow_mut().insert(name.to_string(), home.to_path_buf());
        self.write().await
    }

    pub(crate) async fn remove(&self, name: &str) -> blk::Result<()> {
        let Some(home) = self.homes.borrow_mut().remove(name) else { return Ok(()) };
        self.write().await.inspect_err(|_| {
            self.homes.borrow_mut().insert(name.to_owned(), home);
        })
    }

    async fn write(&self) -> blk::Result<()> {
        let lines: String =
            self.homes.borrow().iter().map(|(name, home)| format!("{name} {}\n", home.display())).collect();
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
        if !home.starts_with('/') {
            return Err(wrong());
        }
        homes.insert(name.to_string(), PathBuf::from(home));
    }
    Ok(homes)
}

/// Returns whether the home is an imported folder. A home outside the datastore always is.
pub(crate) async fn is_adopted(home: &Home) -> blk::Result<bool> {
    if !home.datastore.contains(&home.path) {
        return Ok(true);
    }
    let own = async {
        open_path(home.datastore.dir.env(), &home.path).await?.open_dir(OWN_FOLDER, false).await?.list().await
    };
    match own.await {
        Ok(names) => Ok(names.iter().any(|name| name == ADOPTED_NAME)),
        Err(e) if e.kind == blk::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

pub(crate) async fn is_closed(env: &Env, home: &Path) -> bool {
    exists(env, home.join(OWN_FOLDER).join(CLOSED_NAME)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_reads_as_it_was_written() {
        let homes = parse("homes", "web /srv/my web\ndb /srv/db\n").unwrap();
        assert_eq!(homes["web"], Path::new("/srv/my web"));
        assert_eq!(homes.len(), 2);
        for text in ["web", "web srv", "../x /srv", " /srv"] {
            assert!(parse("homes", text).unwrap_err().message.starts_with("homes: line 1"), "{text}");
        }
    }
}
