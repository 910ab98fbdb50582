//! Files of one VM in VMware's format, as a core has them open, and the folders that its home may use.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use blk::dir::OWN_FOLDER;
use blk::manifest::Manifest;
use blk::{Dir, Env, Result};
use vmdk::delta::Growth;
use vmdk::home::{FolderKind, Folders, Home, format_roots};

use crate::daemon::running::descriptors::{Descriptors, admit_layers};

/// File with the folders outside the home that may contain the VM's files.
pub(crate) const ROOTS_NAME: &str = "roots";

pub(crate) type Roots = Vec<(FolderKind, String)>;

/// How a home is opened, in plain values: any core can open it.
pub(crate) struct HomePlan {
    pub path: PathBuf,
    pub roots: Roots,
    pub ignore_content_ids: bool,
    pub write_sesparse: bool,
    /// Other homes that are searched for readers of the home's layers. They may be missing.
    pub others: Vec<PathBuf>,
}

/// Files of one VM.
pub(crate) struct HomeFiles {
    pub home: Rc<Home>,
    pub roots: RefCell<Roots>,
}

impl HomeFiles {
    /// Opens a home. `datastores` are the folders of the datastores, which are searched for readers of its layers.
    pub(crate) async fn open_planned(
        env: &Env,
        descriptors: &Rc<Descriptors>,
        plan: HomePlan,
        datastores: Vec<Dir>,
    ) -> Result<HomeFiles> {
        let dir = open_path(env, &plan.path).await?;
        let folders = open_folders(env, &plan.roots, datastores, &plan.others).await?;
        let mut home = Home::new(dir, folders, Growth::default());
        home.ignore_content_ids = plan.ignore_content_ids;
        home.set_write_sesparse(plan.write_sesparse);
        home.admit = Some(admit_layers(descriptors, &plan.path));
        Ok(HomeFiles { home: Rc::new(home), roots: RefCell::new(plan.roots) })
    }

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

/// What is known of a VM's new files.
pub(crate) struct MadeFiles {
    pub id: Option<u128>,
    /// Notices for the user.
    pub notices: Vec<String>,
}

impl MadeFiles {
    pub(crate) async fn of(home: &Home) -> Result<MadeFiles> {
        Ok(MadeFiles { id: home.id().await?, notices: home.take_notices() })
    }
}

/// Opens the folders for a home: its allowed roots, and the folders that are searched for readers of its layers. The
/// latter are the foreign roots, the datastores, and the homes outside them.
pub(crate) async fn open_folders(
    env: &Env,
    roots: &Roots,
    datastores: Vec<Dir>,
    others: &[PathBuf],
) -> Result<Folders> {
    let mut folders = Folders::default();
    for (kind, path) in roots {
        let dir = open_path(env, Path::new(path)).await?;
        match kind {
            FolderKind::Own => folders.own.push(dir),
            FolderKind::Foreign => {
                folders.search.push(dir.clone());
                folders.foreign.push(dir);
            }
        }
    }
    folders.search.extend(datastores);
    for other in others {
        folders.search.extend(open_other(env, other).await?);
    }
    Ok(folders)
}

/// Opens another home to search it for readers of layers. Returns None for a missing home, which contains none.
async fn open_other(env: &Env, home: &Path) -> Result<Option<Dir>> {
    match open_path(env, home).await {
        Err(e) if e.kind == blk::ErrorKind::NoDescriptors => Err(e),
        opened => Ok(opened.ok()),
    }
}

async fn open_path(env: &Env, path: &Path) -> Result<Dir> {
    env.open_path(&path.to_string_lossy()).await
}
