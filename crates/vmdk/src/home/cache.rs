//! The descriptors of a home's own folders as they were last read, so that a lookup reads the files that it concerns and not
//! the whole home.
//!
//! Invariant: what is kept is what the disk says. The home is locked while it is served, so no other program writes its links: in the
//! home they are those that name it as their VM, or none; in an own folder that other homes share, those that name it, for each
//! home writes under free names and only what carries its id. Other files are kept as being no descriptors in the home, and in
//! shared folders where a kept link names them as its extent. Links of others and everything in folders that are only read
//! from, or searched, are read each time.
//!
//! A write of ours forgets its files before and after. `load`, and a change that failed, forget everything: it is unknown then
//! what the disk says.

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
    /// An extent, change tracking: no descriptor.
    NoLink,
}

#[derive(Default)]
pub(super) struct Cache {
    /// By path; only normal ones, so that each file has one in its folder.
    known: RefCell<BTreeMap<String, CachedFile>>,
    /// Paths of the extents of the links that are kept, as plain names beside them say them.
    extents: RefCell<BTreeSet<String>>,
    /// Counts the times something was forgotten: what was read across one is not kept.
    age: Cell<u64>,
}

impl Cache {
    pub(super) fn get(&self, path: &str) -> Option<CachedFile> {
        self.known.borrow().get(path).cloned()
    }

    pub(super) fn age(&self) -> u64 {
        self.age.get()
    }

    /// `age` is from before the file was opened.
    pub(super) fn keep(&self, path: String, age: u64, known: CachedFile) {
        if age == self.age.get() && normal(&path).as_ref() == Some(&path) {
            if let CachedFile::Link(link) = &known {
                self.extents.borrow_mut().extend(extents(&path, link));
            }
            self.known.borrow_mut().insert(path, known);
        }
    }

    /// Whether a kept link in the same folder has its data in that file.
    pub(super) fn is_extent(&self, path: &str) -> bool {
        self.extents.borrow().contains(path)
    }

    pub(super) fn clear(&self) {
        self.known.borrow_mut().clear();
        self.extents.borrow_mut().clear();
        self.age.set(self.age.get() + 1);
    }

    /// By their names alone: a folder may be known by two paths.
    fn forget(&self, names: &BTreeSet<String>) {
        // An extent that another link names too is forgotten with this one: then its file is looked at again.
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
        // Before as well: the work may never be polled to its end.
        self.forget(&names);
        let result = work.await;
        match &result {
            Ok(_) => self.forget(&names),
            Err(_) => self.clear(),
        }
        result
    }
}

/// The files beside the link at `path` that hold its data.
fn extents<'a>(path: &'a str, link: &'a Descriptor) -> impl Iterator<Item = String> + 'a {
    let plain = link.extents().iter().filter(|extent| !extent.file.contains('/'));
    plain.map(move |extent| join(split(path).0, &extent.file))
}
