//! Access to the folders of a VM's files. All paths in files are resolved here.
//!
//! Names inside VMware's files are untrusted. They are resolved as text against the folder of the file that contains
//! them. The result must be in the home, or in or below a folder that the caller opened; each component below it is
//! then opened separately. Anything else is refused by name.

use std::cell::Cell;

use blk::dir::OWN_FOLDER;
use blk::manifest::LayerName;
use blk::{Dir, Error, Result};

use super::cache::Cache;
use super::paths::{join, normal, resolve, split};
use crate::descriptor::Descriptor;
use crate::text::{shown, wrong};

/// Maximum number of folders that one home may use besides its own: lines of a file that a person can still read.
pub(super) const ROOTS_MAX: usize = 256;

/// Permitted operations in a folder outside of the home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderKind {
    /// Layers are created, written and removed.
    Own,
    /// Layers are read.
    Foreign,
}

/// Folders that the caller opened for a home. Their paths must be absolute, and the same as in VMware's files.
#[derive(Clone, Default)]
pub struct Folders {
    /// Further own folders: layers in them are created, written and removed.
    pub own: Vec<Dir>,
    /// Folders whose files are read, never written and never removed.
    pub foreign: Vec<Dir>,
    /// Folders that are searched, with their subfolders, for readers of this home's layers. Nothing in them is opened
    /// for a guest.
    pub search: Vec<Dir>,
}

/// Formats the record of a home's folders: one line `own /path` or `foreign /path` for each.
pub fn format_roots(roots: &[(FolderKind, String)]) -> Result<Vec<u8>> {
    let mut text = String::new();
    for (kind, path) in roots {
        if !path.starts_with('/') || path.contains(char::is_control) {
            let cause =
                format!("the folder {}, expected an absolute path without control characters", shown(path));
            return Err(Error::invalid("roots", cause));
        }
        let word = if *kind == FolderKind::Own { "own" } else { "foreign" };
        text.push_str(&format!("{word} {path}\n"));
    }
    Ok(text.into_bytes())
}

/// Parses the text of `format_roots`; skips blank lines and `#` comments. `file` is the name in errors.
pub fn parse_roots(file: &str, bytes: &[u8]) -> Result<Vec<(FolderKind, String)>> {
    let mut roots = Vec::new();
    let text = crate::text::utf8(file, "the text", bytes)?;
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let kind = match line.split_once(' ') {
            Some(("own", path)) if path.starts_with('/') => (FolderKind::Own, path),
            Some(("foreign", path)) if path.starts_with('/') => (FolderKind::Foreign, path),
            _ => {
                let field = format!("line {}", index + 1);
                return Err(wrong(file, &field, shown(line), "\"own /path\" or \"foreign /path\""));
            }
        };
        if roots.len() == ROOTS_MAX {
            return Err(wrong(file, "the number of folders", "more than 256", "at most 256"));
        }
        roots.push((kind.0, kind.1.to_owned()));
    }
    Ok(roots)
}

pub(super) fn outside(place: &str, written: &str) -> Error {
    let cause = format!("it names {}, which is outside this VM's folders", shown(written));
    // Not every command has that option: a conversion opens one folder.
    let remedy = "import the VM with --allow-root DIR for its folder, or copy the disk from its export";
    Error::refused(place, format!("{cause}, and nothing there is opened; {remedy}"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Own,
    Foreign,
    Search,
}

/// A folder to which the gate gives access.
#[derive(Clone)]
pub(super) struct Folder {
    pub path: String,
    pub dir: Dir,
    pub role: Role,
}

/// A file in such a folder.
pub(super) struct LayerFile {
    pub folder: Folder,
    pub name: String,
    /// Name of the layer in the home: `LayerName`.
    pub layer: LayerName,
}

impl LayerFile {
    pub(super) fn is_foreign(&self) -> bool {
        self.folder.role != Role::Own
    }
}

/// Gives access to the home's folder and to those of the caller.
pub(super) struct FolderSet {
    /// The home is the first.
    roots: Vec<Folder>,
    /// The VM's ID, once it was read.
    pub id: Cell<Option<u128>>,
    /// SEsparse deltas of other programs are written too, because the user admits it.
    pub write_sesparse: Cell<bool>,
    pub cache: Cache,
}

impl FolderSet {
    pub(super) fn new(home: Dir, folders: Folders) -> Self {
        let mut roots = Vec::new();
        let ranked =
            [(Role::Own, folders.own), (Role::Foreign, folders.foreign), (Role::Search, folders.search)];
        let given = ranked.into_iter().flat_map(|(role, dirs)| dirs.into_iter().map(move |dir| (role, dir)));
        for (role, dir) in [(Role::Own, home)].into_iter().chain(given) {
            let path = normal(dir.path()).unwrap_or_else(|| dir.path().to_owned());
            // The home remains the home, even if the caller also passed it as another kind.
            let is_home = roots.first().is_some_and(|home: &Folder| home.path == path);
            if !(is_home && role != Role::Search) {
                roots.push(Folder { path, dir, role });
            }
        }
        Self { roots, id: Cell::default(), write_sesparse: Cell::default(), cache: Cache::default() }
    }

    pub(super) fn home(&self) -> &Folder {
        &self.roots[0]
    }

    /// Returns the home and the folders in which it may write, without folders below them.
    pub(super) fn own(&self) -> impl Iterator<Item = &Folder> {
        self.roots.iter().filter(|root| root.role == Role::Own)
    }

    pub(super) fn search(&self) -> impl Iterator<Item = &Folder> {
        self.roots.iter().filter(|root| root.role == Role::Search)
    }

    pub(super) fn layer_name(&self, path: &str) -> LayerName {
        match split(path) {
            (folder, name) if folder == self.home().path => name.into(),
            _ => path.into(),
        }
    }

    pub(super) fn path_of(&self, layer: &str) -> String {
        if layer.contains('/') { layer.to_owned() } else { join(&self.home().path, layer) }
    }

    /// Returns the deepest root that contains `folder`. If one path was given twice, the stricter kind applies.
    fn root_of(&self, folder: &str, ranks: &[Role]) -> Option<&Folder> {
        let holds = |root: &&Folder| {
            let below = folder.strip_prefix(root.path.trim_end_matches('/'));
            ranks.contains(&root.role) && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let hidden = folder.split('/').any(|part| part == OWN_FOLDER);
        let roots = self.roots.iter().filter(|_| !hidden).filter(holds);
        roots.max_by_key(|root| (root.path.len(), root.role))
    }

    /// Returns whether the file at `path` may be opened.
    pub(super) fn permits(&self, path: &str) -> bool {
        self.root_of(split(path).0, &[Role::Own, Role::Foreign]).is_some()
    }

    pub(super) fn role_of(&self, layer: &str) -> Option<Role> {
        let path = self.path_of(layer);
        self.root_of(split(&path).0, &[Role::Own, Role::Foreign]).map(|root| root.role)
    }

    /// Returns whether the path is in or below the home's folder, which no other VM uses.
    pub(super) fn is_at_home(&self, path: &str) -> bool {
        let root = self.root_of(split(path).0, &[Role::Own, Role::Foreign]);
        root.is_some_and(|root| root.role == Role::Own && root.path == self.home().path)
    }

    /// Returns whether another VM made this link.
    pub(super) fn is_anothers(&self, link: &Descriptor) -> bool {
        link.owner().zip(self.id.get()).is_some_and(|(owner, id)| owner != id)
    }

    /// Opens the folder at `path`; `NotFound` if there is none.
    pub(super) async fn folder(&self, path: &str) -> Result<Folder> {
        self.enter(path, &[Role::Own, Role::Foreign]).await
    }

    /// Opens a folder like `folder`, also one that the home may only search.
    pub(super) async fn look(&self, path: &str) -> Result<Folder> {
        self.enter(path, &[Role::Own, Role::Foreign, Role::Search]).await
    }

    pub(super) fn sees(&self, path: &str) -> bool {
        self.root_of(split(path).0, &[Role::Own, Role::Foreign, Role::Search]).is_some()
    }

    async fn enter(&self, path: &str, ranks: &[Role]) -> Result<Folder> {
        let root = self.root_of(path, ranks).ok_or_else(|| outside(&self.home().path, path))?;
        let mut dir = root.dir.clone();
        let below = &path[root.path.trim_end_matches('/').len()..];
        for part in below.split('/').filter(|part| !part.is_empty()) {
            dir = dir.open_dir(part, false).await?;
        }
        Ok(Folder { path: path.into(), dir, role: root.role })
    }

    /// Returns the folder of a layer, and its file in it.
    pub(super) async fn place(&self, layer: &str) -> Result<LayerFile> {
        let path = self.path_of(layer);
        let (folder, name) = split(&path);
        let folder = self.folder(folder).await?;
        Ok(LayerFile { folder, name: name.into(), layer: self.layer_name(&path) })
    }

    /// Opens an own folder that the user named. Relative paths start at the home.
    pub(super) async fn own_folder(&self, place: &str, written: &str) -> Result<Folder> {
        let path = resolve(&self.home().path, written).ok_or_else(|| outside(place, written))?;
        if self.root_of(&path, &[Role::Own, Role::Foreign]).is_none() {
            return Err(outside(place, written));
        }
        let folder = self.folder(&path).await?;
        if folder.role != Role::Own {
            let cause = format!("it names {}, a folder this VM only reads from", shown(written));
            return Err(Error::refused(place, format!("{cause}; choose one that is its own")));
        }
        Ok(folder)
    }
}
