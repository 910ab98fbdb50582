//! Files of one VM in VMware's format, and the folders that its home may use.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use api::WhenFull;
use blk::dir::OWN_FOLDER;
use blk::manifest::Manifest;
use blk::{Dir, Result};
use vmdk::home::{FolderKind, Home, format_roots, parse_roots};

use crate::daemon::vm::settings::write_when_full;

/// File with the folders outside the home that may contain the VM's files.
const ROOTS_NAME: &str = "roots";
/// File that exists if the user wants wrong content IDs to be ignored.
const IGNORE_CONTENT_IDS_NAME: &str = "ignore-content-ids";
/// Maximum size in bytes of the file with the folders: 256 folders, with paths of up to 4096 bytes.
const ROOTS_BYTES_MAX: u64 = 2 << 20;

pub(crate) type Roots = Vec<(FolderKind, String)>;

/// Settings in a home's `.unstun` folder that say how to open the home.
pub(crate) struct Terms {
    pub roots: Roots,
    pub ignore_content_ids: bool,
}

/// Files of one VM.
pub(crate) struct HomeFiles {
    pub home: Rc<Home>,
    pub roots: RefCell<Roots>,
}

impl HomeFiles {
    pub(crate) fn dir(&self) -> &Dir {
        self.home.dir()
    }

    pub(crate) fn manifest(&self) -> Rc<dyn Manifest> {
        self.home.clone()
    }

    /// Returns the VM's ID, and writes nothing.
    pub(crate) async fn id(&self) -> Result<Option<u128>> {
        self.home.id().await
    }

    pub(crate) async fn remove_made_elsewhere(&self, id: u128) -> Result<()> {
        self.home.remove_made_elsewhere(id).await
    }

    pub(crate) fn take_notices(&self) -> Vec<String> {
        self.home.take_notices()
    }

    /// Returns the number of snapshots that VMware's .vmsn is kept with.
    pub(crate) async fn machine_states(&self) -> Result<u64> {
        self.home.machine_states().await
    }

    pub(crate) async fn snapshot_dir(&self) -> Result<Option<PathBuf>> {
        let folder = self.home.snapshot_folder().await?;
        Ok(folder.map(|folder| Path::new(self.dir().path()).join(folder)))
    }

    /// Sets the folder for the deltas of later takes; `None` puts them beside their parents again. The folder must be
    /// one of the home's own folders.
    pub(crate) async fn set_snapshot_dir(&self, folder: Option<&str>) -> Result<()> {
        self.home.set_snapshot_folder(folder).await
    }

    pub(crate) fn has_own_folder(&self, folder: &str) -> bool {
        let roots = self.roots.borrow();
        folder == self.dir().path()
            || roots.iter().any(|(kind, path)| *kind == FolderKind::Own && path == folder)
    }

    /// Adds a folder to the home's own folders, durably for later openings of the home.
    pub(crate) async fn add_own_folder(&self, folder: &str) -> Result<()> {
        let mut roots = self.roots.borrow().clone();
        roots.push((FolderKind::Own, folder.to_owned()));
        let text = format_roots(&roots)?;
        self.dir().open_dir(OWN_FOLDER, true).await?.replace_file(ROOTS_NAME, &text).await?;
        *self.roots.borrow_mut() = roots;
        Ok(())
    }

    /// Returns the folders that a clone of this VM reads from.
    pub(crate) fn readable(&self) -> Vec<String> {
        let roots = self.roots.borrow();
        let home = std::iter::once(self.dir().path().to_owned());
        home.chain(roots.iter().map(|(_, path)| path.clone())).collect()
    }
}

impl Terms {
    pub(crate) async fn read(own: &Dir) -> Result<Terms> {
        let roots = match own.read_file(ROOTS_NAME, ROOTS_BYTES_MAX).await {
            Ok(bytes) => parse_roots(&own.path_of(ROOTS_NAME), &bytes)?,
            Err(e) if e.kind == blk::ErrorKind::NotFound => Roots::new(),
            Err(e) => return Err(e),
        };
        let ignore_content_ids = own.list().await?.iter().any(|name| name == IGNORE_CONTENT_IDS_NAME);
        Ok(Terms { roots, ignore_content_ids })
    }

    pub(crate) async fn write(&self, own: &Dir, when_full: WhenFull) -> Result<()> {
        write_when_full(own, when_full).await?;
        if self.ignore_content_ids {
            own.replace_file(IGNORE_CONTENT_IDS_NAME, b"by the user's word\n").await?;
        }
        own.replace_file(ROOTS_NAME, &format_roots(&self.roots)?).await
    }
}
