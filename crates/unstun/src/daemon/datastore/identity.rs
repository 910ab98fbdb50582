//! ID of each datastore, which distinguishes it from an empty mount point, from its copies and from other datastores.
//! The ID of a folder is in a file, that of a device is its store's.

use std::path::Path;

use api::error::{Error, ErrorKind, Result};
use api::name::DatastoreName;
use blk::dir::OWN_FOLDER;
use blk::{Dir, Env, File};
use engine::native::superblock::Superblock;
use tracing::warn;

/// File in the `.unstun` folder of a datastore in a folder: its ID, as 32 hexadecimal digits.
const ID_NAME: &str = "datastore-id";
const ID_BYTES_MAX: u64 = 64;

/// ID of a datastore: 32 hexadecimal digits, of a device 16.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DatastoreId(String);

impl DatastoreId {
    pub(crate) fn parse(text: &str) -> Option<DatastoreId> {
        let is_id = matches!(text.len(), 16 | 32) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| DatastoreId(text.to_owned()))
    }

    pub(crate) fn of_store(id: u64) -> DatastoreId {
        DatastoreId(format!("{id:016x}"))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a path must have before anything is created there.
#[derive(Clone, Copy)]
pub(crate) enum Expected<'a> {
    /// Anything: the datastore is new to the daemon, or it is the main one.
    Any,
    /// The datastore that was added. Its ID is unknown if a version added it that had no IDs.
    Added(Option<&'a DatastoreId>),
}

impl Expected<'_> {
    /// Refuses a folder without the datastore that was added. Creates nothing.
    pub(crate) async fn check_folder(self, name: &DatastoreName, dir: &Dir) -> Result<()> {
        let Expected::Added(id) = self else { return Ok(()) };
        let own = match dir.open_dir(OWN_FOLDER, false).await {
            Err(e) if e.kind == blk::ErrorKind::NotFound => return Err(is_other(name, dir.path())),
            own => own?,
        };
        match id {
            Some(id) if read(&own).await?.as_ref() != Some(id) => Err(is_other(name, dir.path())),
            _ => Ok(()),
        }
    }

    /// Refuses a device with another store than the one that was added. The opening reports a device without one.
    pub(crate) async fn check_device(self, name: &DatastoreName, path: &Path, device: &File) -> Result<()> {
        let (Expected::Added(Some(id)), Ok(found)) = (self, Superblock::read(device).await) else {
            return Ok(());
        };
        match DatastoreId::of_store(found.newest.store_id) == *id {
            true => Ok(()),
            false => Err(is_other(name, &path.to_string_lossy())),
        }
    }
}

fn is_other(name: &DatastoreName, path: &str) -> Error {
    let cause =
        format!("{path} does not have the datastore {name} that was added; is its file system mounted?");
    let remedy = format!("If another datastore has replaced it, first run `unstun datastore remove {name}`");
    Error::new(ErrorKind::NotFound, format!("{cause} {remedy}"))
}

/// Returns the ID of the datastore with this `.unstun` folder. Makes one if it has none. None if that fails, for example
/// in a full datastore; the next start tries again.
pub(crate) async fn read_or_make(env: &Env, own: &Dir) -> blk::Result<Option<DatastoreId>> {
    if let Some(id) = read(own).await? {
        return Ok(Some(id));
    }
    let id = DatastoreId(format!("{:016x}{:016x}", env.random(), env.random()));
    match own.replace_file(ID_NAME, format!("{}\n", id.as_str()).as_bytes()).await {
        Ok(()) => Ok(Some(id)),
        Err(e) => {
            warn!("{}: the datastore has no ID yet: {e}", own.path_of(ID_NAME));
            Ok(None)
        }
    }
}

/// Returns the ID; None if there is no valid one.
async fn read(own: &Dir) -> blk::Result<Option<DatastoreId>> {
    match own.read_file(ID_NAME, ID_BYTES_MAX).await {
        Ok(bytes) => Ok(DatastoreId::parse(String::from_utf8_lossy(&bytes).trim_ascii())),
        Err(e) if e.kind == blk::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}
