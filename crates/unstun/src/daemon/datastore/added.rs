//! Record of the datastores that were added to the daemon: their names and paths, and the ID that each had.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::name::DatastoreName;
use blk::Dir;
use tracing::warn;

use crate::daemon::datastore::Datastore;
use crate::daemon::datastore::identity::{DatastoreId, Expected};
use crate::daemon::register::Register;
use crate::daemon::state::Daemon;

/// File in the main datastore's `.unstun` folder: one line `NAME /absolute/path` for each of the other datastores.
const PATHS_NAME: &str = "datastores";
/// File beside it: one line `ID /absolute/path` for each of them whose ID is known. A line whose path is not in the other
/// file means nothing.
const IDS_NAME: &str = "datastore-ids";

/// Datastore on record.
pub(crate) struct AddedDatastore {
    pub name: DatastoreName,
    pub path: PathBuf,
    pub id: Option<DatastoreId>,
}

pub(crate) struct Added {
    paths: Register,
    ids: Register,
}

impl Added {
    pub(crate) async fn read(own: &Dir) -> Result<Added> {
        Ok(Added { paths: Register::read(own, PATHS_NAME).await?, ids: Register::read(own, IDS_NAME).await? })
    }

    pub(crate) fn all(&self) -> Result<Vec<AddedDatastore>> {
        let ids = self.ids.all();
        let datastore = |(name, path): (String, PathBuf)| {
            let id = ids.iter().find(|(_, of)| **of == path).and_then(|(id, _)| DatastoreId::parse(id));
            Ok(AddedDatastore { name: name.parse().map_err(Error::invalid)?, path, id })
        };
        self.paths.all().into_iter().map(datastore).collect()
    }

    /// Durably records a datastore. The ID is first: a datastore on record never has the ID of a former one at its path.
    pub(crate) async fn put(
        &self,
        name: &DatastoreName,
        path: &Path,
        id: Option<&DatastoreId>,
    ) -> blk::Result<()> {
        for (former, _) in self.ids.all().into_iter().filter(|(_, of)| of == path) {
            if id.is_none_or(|id| id.as_str() != former) {
                self.ids.remove(&former).await?;
            }
        }
        if let Some(id) = id {
            self.ids.add(id.as_str(), path).await?;
        }
        self.paths.add(name.as_str(), path).await
    }

    pub(crate) async fn remove(&self, name: &DatastoreName) -> blk::Result<()> {
        let Some(path) = self.paths.all().remove(name.as_str()) else { return Ok(()) };
        self.paths.remove(name.as_str()).await?;
        for (id, _) in self.ids.all().into_iter().filter(|(_, of)| *of == path) {
            // A line that stays means nothing.
            let _ = self.ids.remove(&id).await;
        }
        Ok(())
    }
}

/// Returns what a path must have for a datastore of this name to be added. A datastore on record that is not served may
/// be opened again, also where it was moved to.
///
/// # Errors
/// `Exists`: the path belongs to another datastore on record.
pub(crate) fn expected<'a>(
    all: &'a [AddedDatastore],
    name: &DatastoreName,
    path: &Path,
) -> Result<Expected<'a>> {
    if let Some(other) = all.iter().find(|other| other.path == path && other.name != *name) {
        let (path, other) = (path.display(), &other.name);
        let remedy = format!(
            "`unstun datastore add {other}={path}` serves it under that name, `unstun datastore remove {other}` forgets it"
        );
        return Err(Error::new(
            ErrorKind::Exists,
            format!("{path} is datastore {other} of this daemon; {remedy}"),
        ));
    }
    match all.iter().find(|known| known.name == *name) {
        Some(known) if known.path == path || known.id.is_some() => Ok(Expected::Added(known.id.as_ref())),
        _ => Ok(Expected::Any),
    }
}

impl Daemon {
    /// Records the ID of a datastore that a version without IDs added.
    pub(crate) async fn record_id(&self, datastore: &Datastore) {
        let record = async {
            let added = Added::read(&self.main.own).await?;
            let known = added.all()?.into_iter().find(|known| known.name == datastore.name);
            if known.is_some_and(|known| known.id.is_none()) && datastore.id.is_some() {
                added.put(&datastore.name, &datastore.path, datastore.id.as_ref()).await?;
            }
            Ok::<(), Error>(())
        };
        if let Err(e) = record.await {
            warn!("datastore {}: its ID cannot be recorded: {e}; the next start tries again", datastore.name);
        }
    }

    /// Refuses a copy of another datastore: it has the same VMs, and its exports would have the same names. A copy is not
    /// served in the place of the other one either.
    pub(crate) fn refuse_twin(&self, datastore: &Datastore, all: &[AddedDatastore]) -> Result<()> {
        let refuse = |other: &DatastoreName, remedy: String| {
            let cause = format!("is a copy of datastore {other}, with the same VMs");
            Err(Error::refused(format!("{}: {cause}; {remedy}", datastore.path.display())))
        };
        if let Some(other) = self.datastores().iter().find(|other| datastore.is_twin(other)) {
            return match Rc::ptr_eq(other, &self.main) {
                true => refuse(&other.name, "the daemon serves the main datastore".to_owned()),
                false => refuse(&other.name, format!("first run `unstun datastore remove {}`", other.name)),
            };
        }
        let is_twin = |other: &&AddedDatastore| other.name != datastore.name && other.id == datastore.id;
        match all.iter().find(is_twin).filter(|_| datastore.id.is_some()) {
            None => Ok(()),
            Some(AddedDatastore { name, path, .. }) => {
                let (own, path) = (datastore.path.display(), path.display());
                let remedy = format!(
                    "which is in {path} and is not served now. If that one was moved here, run `unstun datastore add \
                     {name}={own}`; if it is lost, first run `unstun datastore remove {name}`"
                );
                refuse(name, remedy)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str, path: &str, id: Option<&str>) -> AddedDatastore {
        let id = id.map(|id| DatastoreId::parse(id).unwrap());
        AddedDatastore { name: name.parse().unwrap(), path: path.into(), id }
    }

    #[test]
    fn a_name_on_record_is_of_the_datastore_that_had_it() {
        let id = "0123456789abcdef0123456789abcdef";
        let all = [known("a", "/a", Some(id)), known("old", "/old", None)];
        let of = |name: &str, path: &str| expected(&all, &name.parse().unwrap(), Path::new(path));
        for (name, path) in [("a", "/a"), ("a", "/moved")] {
            assert!(
                matches!(of(name, path), Ok(Expected::Added(Some(found))) if found.as_str() == id),
                "{path}"
            );
        }
        assert!(matches!(of("old", "/old"), Ok(Expected::Added(None))));
        for (name, path) in [("old", "/moved"), ("new", "/new")] {
            assert!(matches!(of(name, path), Ok(Expected::Any)), "{path}");
        }
        assert!(of("b", "/a").is_err_and(|e| e.kind == ErrorKind::Exists));
    }
}
