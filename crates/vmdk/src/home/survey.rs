//! Listings of a home's folders for one operation. Each folder is listed at most once.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::manifest::LayerName;
use blk::{ErrorKind, Result};

use super::folders::{FolderSet, outside};
use super::paths::{base_name, join, normal, resolve, split};
use crate::text::{check_names, shown, wrong};

/// Target of a path in one of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Located {
    pub layer: LayerName,
    pub exists: bool,
}

/// Paths as written, resolved.
pub(super) struct Resolved(BTreeMap<String, Result<Located>>);

impl Resolved {
    pub(super) fn get(&self, written: &str) -> Result<Located> {
        match self.0.get(written) {
            Some(found) => found.clone(),
            // Names of unstun, such as those of layers just made, need no resolution.
            None => Ok(Located { layer: written.into(), exists: true }),
        }
    }
}

pub(super) struct Survey<'a> {
    pub folders: &'a FolderSet,
    listed: RefCell<BTreeMap<String, Rc<BTreeSet<String>>>>,
}

impl<'a> Survey<'a> {
    pub(super) fn new(folders: &'a FolderSet) -> Self {
        Self { folders, listed: RefCell::default() }
    }

    /// Returns the names in the folder at `path`; those of folders end with a slash. Empty if the folder does not
    /// exist.
    pub(super) async fn names(&self, path: &str) -> Result<Rc<BTreeSet<String>>> {
        if let Some(names) = self.listed.borrow().get(path) {
            return Ok(names.clone());
        }
        let names = match self.folders.look(path).await {
            Ok(folder) => folder.dir.list().await?,
            Err(e) if e.kind == ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        let names: Rc<BTreeSet<String>> = Rc::new(names.into_iter().collect());
        self.listed.borrow_mut().insert(path.into(), names.clone());
        Ok(names)
    }

    pub(super) async fn home(&self) -> Result<Rc<BTreeSet<String>>> {
        self.own_names(&self.folders.home().path).await
    }

    /// Returns the names like `names`, for a folder whose links belong to the VM.
    ///
    /// # Errors
    /// `Refused` if there are more names than a VM's folders have.
    pub(super) async fn own_names(&self, path: &str) -> Result<Rc<BTreeSet<String>>> {
        let names = self.names(path).await?;
        check_names(path, names.len()).map(|()| names)
    }

    /// Returns whether there is a file at `path`, to which the gate must have access.
    pub(super) async fn has(&self, path: &str) -> Result<bool> {
        let (folder, name) = split(path);
        Ok(self.names(folder).await?.contains(name))
    }

    pub(super) async fn has_layer(&self, layer: &str) -> Result<bool> {
        self.has(&self.folders.path_of(layer)).await
    }

    /// Resolves `written` in the file at the path `file`. Folders are moved, so the file is searched in this order: as
    /// written; beside the file that names it; in a sibling of that file's folder (reference/vmware-formats 1.4).
    pub(super) async fn locate(&self, file: &str, written: &str) -> Result<Located> {
        let mut found = self.locate_all(file, written).await?;
        Ok(found.swap_remove(0))
    }

    /// Returns every file that `written` may mean, the most likely first: at least one, which may not exist.
    pub(super) async fn locate_all(&self, file: &str, written: &str) -> Result<Vec<Located>> {
        let candidates = candidates(file, written)?;
        let mut found = Vec::new();
        for path in &candidates {
            if self.folders.permits(path) && self.has(path).await? {
                found.push(Located { layer: self.folders.layer_name(path), exists: true });
            }
        }
        if !found.is_empty() {
            return Ok(found);
        }
        match as_written(file, written).filter(|path| self.folders.permits(path)) {
            Some(path) => Ok(vec![Located { layer: self.folders.layer_name(&path), exists: false }]),
            None => Err(outside(file, written)),
        }
    }

    /// Returns the first candidate that exists, also in folders where nothing is opened.
    pub(super) async fn glimpse(&self, file: &str, written: &str) -> Result<Option<LayerName>> {
        for path in &candidates(file, written)? {
            if self.folders.sees(path) && self.has(path).await? {
                return Ok(Some(self.folders.layer_name(path)));
            }
        }
        Ok(None)
    }

    pub(super) async fn resolve<'b>(
        &self,
        file: &str,
        written: impl IntoIterator<Item = &'b str>,
    ) -> Result<Resolved> {
        let mut found = BTreeMap::new();
        for path in written {
            if found.contains_key(path) {
                continue;
            }
            let located = match self.locate(file, path).await {
                Err(e) if !matches!(e.kind, ErrorKind::Refused | ErrorKind::Damaged) => return Err(e),
                located => located,
            };
            found.insert(path.to_owned(), located);
        }
        Ok(Resolved(found))
    }
}

fn as_written(file: &str, written: &str) -> Option<String> {
    resolve(split(&normal(file)?).0, written)
}

fn candidates(file: &str, written: &str) -> Result<Vec<String>> {
    let name = base_name(written);
    if name.is_empty() || name == "." || name == ".." || name.contains('\0') {
        return Err(wrong(file, "a path in it", shown(written), "the name of a file"));
    }
    let path = normal(file).unwrap_or_default();
    let folder = split(&path).0;
    let mut found: Vec<String> = as_written(file, written).into_iter().collect();
    found.push(join(folder, name));
    let mut parts = written.rsplit(['/', '\\']).skip(1);
    if let Some(last) = parts.next().filter(|last| !last.is_empty() && *last != "." && *last != "..") {
        found.extend(resolve(split(folder).0, &format!("{last}/{name}")));
    }
    let mut seen = BTreeSet::new();
    found.retain(|path| seen.insert(path.clone()));
    Ok(found)
}
