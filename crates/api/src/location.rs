//! Selection of a command's datastore, and the sockets of a datastore's daemon.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blk::dir::OWN_FOLDER;

use crate::error::{Error, ErrorKind, Result};
use crate::listen::{self, NbdListen};
use crate::name::DatastoreName;

pub(crate) const LOCAL_DEFAULT: &str = "unstun-data";
pub(crate) const SYSTEM_DEFAULT: &str = "/var/lib/unstun";
/// File in the own folder of a datastore that was added to another one's daemon. Its line names the folder of that
/// other datastore, whose socket answers for both.
pub const SERVED_BY_NAME: &str = "served-by";
/// Name of a datastore whose folder's name is not a valid datastore name.
const NAMELESS: &str = "main";

/// Returns $UNSTUN_DATASTORE. An empty variable counts as unset: shells make it easy to pass one.
pub fn variable() -> Option<PathBuf> {
    std::env::var_os("UNSTUN_DATASTORE").filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the name of the datastore's folder as the datastore's name, if it is a valid one.
pub fn name_of(root: &Path) -> Result<DatastoreName, String> {
    root.file_name().unwrap_or_default().to_string_lossy().parse()
}

/// An existing folder, as an absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datastore {
    root: PathBuf,
}

impl Datastore {
    /// Returns the datastore of a client command; never creates one. `named` is --datastore or $UNSTUN_DATASTORE.
    pub fn for_client(named: Option<&Path>) -> Result<Self> {
        match named {
            Some(path) => Self::open(path, "as named"),
            None if Path::new(LOCAL_DEFAULT).is_dir() => Self::open_local("found here"),
            None => Self::open(Path::new(SYSTEM_DEFAULT), "the default").map_err(|e| match e.kind {
                ErrorKind::NotFound => Error::not_found(format!(
                    "no datastore here: neither ./{LOCAL_DEFAULT} nor {SYSTEM_DEFAULT} exists. `unstun up` creates \
                     ./{LOCAL_DEFAULT} and serves it; --datastore DIR or $UNSTUN_DATASTORE names another"
                )),
                _ => e,
            }),
        }
    }

    /// Returns the datastore of `up`; creates ./unstun-data when none is named. A named folder must exist unless
    /// `create` is set, so that `up` does not take an unmounted file system for an empty datastore.
    pub fn for_daemon(named: Option<&Path>, create: bool) -> Result<Self> {
        let path = named.unwrap_or(Path::new(LOCAL_DEFAULT));
        if named.is_none() || create {
            std::fs::create_dir_all(path)
                .map_err(|e| Error::failed(format!("creating datastore {}: {e}", path.display())))?;
        }
        if named.is_none() {
            return Self::open_local("created here");
        }
        Self::open(path, "as named").map_err(|e| match e.kind {
            ErrorKind::NotFound => Error::not_found(format!(
                "{e}; mount it, or create an empty one there: `unstun up --datastore {} --create`",
                path.display()
            )),
            _ => e,
        })
    }

    /// Opens the datastore in the current directory, which the user did not name. It must belong to the user or to
    /// root, because the command trusts its sockets and writes its files.
    fn open_local(how: &str) -> Result<Self> {
        let local = Path::new(LOCAL_DEFAULT);
        let failed = |e: std::io::Error| Error::failed(format!("./{LOCAL_DEFAULT}: {e}"));
        let user = rustix::process::geteuid().as_raw();
        for found in [local.symlink_metadata().map_err(failed)?, local.metadata().map_err(failed)?] {
            refuse_foreign_owner(found.uid(), user)?;
        }
        Self::open(local, how)
    }

    fn open(path: &Path, how: &str) -> Result<Self> {
        let shown = format!("datastore {} ({how})", path.display());
        let root = path.canonicalize().map_err(|e| Error::at_path(&shown, "no such folder", &e))?;
        if !root.is_dir() {
            return Err(Error::invalid(format!("{shown}: expected a folder")));
        }
        Ok(Self { root })
    }

    pub fn name(&self) -> DatastoreName {
        name_of(&self.root).unwrap_or_else(|_| NAMELESS.parse().expect("a sound name"))
    }

    /// Returns the datastore whose daemon serves this one: itself, unless it was added to another.
    pub fn served_by(&self) -> Self {
        let line = std::fs::read_to_string(self.own_folder().join(SERVED_BY_NAME));
        line.map_or_else(|_| self.clone(), |line| Self { root: PathBuf::from(line.trim_end()) })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn own_folder(&self) -> PathBuf {
        self.root.join(OWN_FOLDER)
    }

    pub fn api_socket(&self) -> PathBuf {
        self.own_folder().join("api.sock")
    }

    /// Returns the address at which `up` serves NBD without --nbd.
    pub fn default_nbd(&self) -> Result<NbdListen> {
        let path = self.own_folder().join("nbd.sock");
        listen::check_socket_path(&path)
            .map_err(|e| Error::new(ErrorKind::Invalid, format!("{e}; see --nbd")))?;
        Ok(NbdListen::Unix(path))
    }
}

fn refuse_foreign_owner(owner: u32, user: u32) -> Result<()> {
    if owner == user || owner == 0 {
        return Ok(());
    }
    let cause = format!("./{LOCAL_DEFAULT} belongs to user {owner}, and this is user {user}");
    Err(Error::refused(format!("{cause}; if you trust it, name it: --datastore ./{LOCAL_DEFAULT}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_datastore_has_to_exist_for_everyone() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("nowhere");
        for result in [Datastore::for_client(Some(&missing)), Datastore::for_daemon(Some(&missing), false)] {
            let error = result.unwrap_err();
            assert_eq!(error.kind, ErrorKind::NotFound);
            assert!(error.message.contains(missing.to_str().unwrap()), "{error}");
        }
        assert!(!missing.exists());
        assert!(Datastore::for_daemon(Some(&missing), true).is_ok(), "--create");
    }

    #[test]
    fn a_folder_of_another_user_is_not_taken_unasked() {
        assert!(refuse_foreign_owner(1000, 1000).is_ok());
        assert!(refuse_foreign_owner(0, 1000).is_ok());
        for (owner, user) in [(1000, 0), (1001, 1000)] {
            let error = refuse_foreign_owner(owner, user).unwrap_err();
            assert!(error.message.contains("--datastore ./unstun-data"), "{error}");
        }
    }

    #[test]
    fn a_file_is_not_a_datastore() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(Datastore::for_client(Some(file.path())).unwrap_err().kind, ErrorKind::Invalid);
    }

    #[test]
    fn sockets_live_in_our_own_folder() {
        let dir = tempfile::tempdir().unwrap();
        let datastore = Datastore::for_client(Some(dir.path())).unwrap();
        assert!(datastore.root().is_absolute());
        assert!(datastore.api_socket().ends_with(".unstun/api.sock"));
        assert!(
            matches!(datastore.default_nbd(), Ok(NbdListen::Unix(path)) if path.ends_with(".unstun/nbd.sock"))
        );
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(120));
        std::fs::create_dir(&long).unwrap();
        let error = Datastore::for_daemon(Some(&long), false).unwrap().default_nbd().unwrap_err();
        assert!(error.message.contains("at most 107"), "{error}");
    }
}
