//! Cache of the descriptors in a home's own folders. The cost of a query then depends on the links concerned, not on
//! the size of the home.
//!
//! Invariant: a cached descriptor equals the one on disk. The home is locked while it is served, so no other program
//! writes its links. In the home these are the links with the VM's ID or without any ID. In an own folder that several
//! homes share, these are the links with the VM's ID, because each home writes only free names and links with its own
//! ID. Files that are not descriptors are cached as such in the home; in shared folders, only if a cached link names
//! them as its extent. Links of other VMs, and everything in folders that are only read or searched, are read each
//! time.
//!
//! A write forgets its files before and after it. `load` and a failed change forget everything, because the content of
//! the disk is then unknown.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::Result;

use super::paths::{base_name, join, normal, split};
use crate::descriptor::Descriptor;

/// What a file was when it was read.
#[derive(Clone)]
pub(super) enum CachedFile {
    Link(Rc<Descriptor>),
    /// No descriptor: an extent, or change tracking.
    NoLink,
}

#[derive(Default)]
pub(super) struct Cache {
    /// Entries by normalised path, so that each file has one path in its folder.
    known: RefCell<BTreeMap<String, CachedFile>>,
    /// Paths of the cached links' extents that are plain names beside them.
    extents: RefCell<BTreeSet<String>>,
    /// Number of times that something was forgotten. A file that was read while the number changed is not cached.
    age: Cell<u64>,
}

impl Cache {
    pub(super) fn get(&self, path: &str) -> Option<CachedFile> {
        self.known.borrow().get(path).cloned()
    }

    pub(super) fn age(&self) -> u64 {
        self.age.get()
    }

    /// Caches a file. `age` is the number from before the file was opened.
    pub(super) fn keep(&self, path: String, age: u64, known: CachedFile) {
        if age == self.age.get() && normal(&path).as_ref() == Some(&path) {
            if let CachedFile::Link(link) = &known {
                self.extents.borrow_mut().extend(extents(&path, link));
            }
            self.known.borrow_mut().insert(path, known);
        }
    }

    /// Returns whether a cached link in the same folder has its data in that file.
    pub(super) fn is_extent(&self, path: &str) -> bool {
        self.extents.borrow().contains(path)
    }

    pub(super) fn clear(&self) {
        self.known.borrow_mut().clear();
        self.extents.borrow_mut().clear();
        self.age.set(self.age.get() + 1);
    }

    /// Forgets files by their names alone, because a folder may be known by two paths.
    fn forget(&self, names: &BTreeSet<String>) {
        // An extent that another link names too is forgotten with this one, and is read again.
        let mut forgotten = self.extents.borrow_mut();
        self.known.borrow_mut().retain(|path, known| {
            let stays = !names.contains(base_name(path));
            if let (false, CachedFile::Link(link)) = (stays, known) {
                extents(path, link).for_each(|extent| _ = forgotten.remove(&extent));
            }
            stays
        });
        drop(forgotten);
        self.age.set(self.age.get() + 1);
    }

    /// Does `work`, which changes the files at `paths`.
    pub(super) async fn changing<'a, T>(
        &self,
        paths: impl IntoIterator<Item = &'a String>,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let names: BTreeSet<String> = paths.into_iter().map(|path| base_name(path).to_owned()).collect();
        // Also before the work, which may never be polled to its end.
        self.forget(&names);
        let result = work.await;
        match &result {
            Ok(_) => self.forget(&names),
            Err(_) => self.clear(),
        }
        result
    }
}

/// Returns the files beside the link at `path` that contain its data.
fn extents<'a>(path: &'a str, link: &'a Descriptor) -> impl Iterator<Item = String> + 'a {
    let plain = link.extents().iter().filter(|extent| !extent.file.contains('/'));
    plain.map(move |extent| join(split(path).0, &extent.file))
}
