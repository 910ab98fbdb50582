//! Access to the world from outside a run: fixtures before it, evidence after it. No time passes and no event occurs.

use std::ops::Range;

use blk::Errno;
use blk::reactor::Handle;

use crate::content::PAGE;
use crate::dir::NodeId;
use crate::file::FileNode;
use crate::fs::{FileSystem, ROOT};
use crate::machine::Machine;
use crate::survival::View;
use crate::world::SimWorld;

/// Longest content that is returned in one piece: 1 GiB.
const READ_BYTES_MAX: u64 = 1 << 30;

fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".")
}

/// Returns the node of a path in one of the two views.
fn walk(fs: &FileSystem, path: &str, view: View) -> Option<NodeId> {
    components(path).try_fold(ROOT, |dir, name| fs.dir(dir).ok()?.names_in(view).get(name).copied())
}

impl Machine {
    /// Opens a directory such as that of a datastore, and creates it durably if it does not exist.
    pub(crate) fn open_root(&mut self, path: &str) -> Result<Handle, Errno> {
        let dir = match self.options.roots_must_exist {
            true => self.find_dirs(path)?,
            false => self.make_dirs(path)?,
        };
        Ok(self.add_open(dir, path, false, false))
    }

    fn find_dirs(&self, path: &str) -> Result<NodeId, Errno> {
        let dir = components(path).try_fold(ROOT, |dir, name| self.fs.lookup(dir, name))?;
        self.fs.dir(dir).map(|_| dir)
    }

    /// Stores bytes in a file, durably, and creates it and its directories if they do not exist. `sets_end`: the bytes
    /// are the last ones of the file.
    fn put(&mut self, path: &str, offset: u64, bytes: &[u8], sets_end: bool) -> Result<(), Errno> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.make_dirs(folder)?;
        let node = match self.fs.lookup(dir, name) {
            Err(Errno::ENOENT) => self.fs.create(dir, name, false, self.events)?,
            found => found?,
        };
        self.fs.sync_dir(dir, u64::MAX)?;
        let (file, space) = self.fs.file_mut(node)?;
        file.put(offset, bytes, space);
        if sets_end {
            file.set_len(offset + bytes.len() as u64, self.events, space)?;
            file.persist(u64::MAX);
        }
        Ok(())
    }

    /// Returns a file, None if there is none at the path.
    fn file(&self, path: &str, view: View) -> Option<&FileNode> {
        self.fs.file(walk(&self.fs, path, view)?).ok()
    }

    fn file_mut(&mut self, path: &str, view: View) -> Option<&mut FileNode> {
        let node = walk(&self.fs, path, view)?;
        self.fs.file_mut(node).ok().map(|(file, _)| file)
    }

    fn make_dirs(&mut self, path: &str) -> Result<NodeId, Errno> {
        let mut dir = ROOT;
        for name in components(path) {
            if name == ".." {
                return Err(Errno::EINVAL);
            }
            dir = match self.fs.lookup(dir, name) {
                Err(Errno::ENOENT) => {
                    let made = self.fs.create(dir, name, true, self.events)?;
                    self.fs.sync_dir(dir, u64::MAX)?;
                    made
                }
                found => found?,
            };
        }
        self.fs.dir(dir).map(|_| dir)
    }
}

/// Fixtures and evidence. Paths start at the root. The result is None for a missing file.
impl SimWorld {
    /// Returns the whole content, of at most 1 GiB.
    pub fn read_file(&self, path: &str, view: View) -> Option<Vec<u8>> {
        self.read_at(path, 0, self.file_size(path, view)?, view)
    }

    /// Returns at most `len` bytes; fewer at the end of the file.
    pub fn read_at(&self, path: &str, offset: u64, len: u64, view: View) -> Option<Vec<u8>> {
        assert!(len <= READ_BYTES_MAX, "{path}: {len} bytes asked for at once, at most {READ_BYTES_MAX}");
        let machine = self.machine.borrow();
        let file = machine.file(path, view)?;
        let mut bytes = vec![0; len as usize];
        let filled = match view {
            View::Current => file.read(offset, &mut bytes),
            View::Durable => file.read_durable(offset, &mut bytes),
        };
        bytes.truncate(filled);
        Some(bytes)
    }

    /// Returns the size in bytes.
    pub fn file_size(&self, path: &str, view: View) -> Option<u64> {
        self.machine.borrow().file(path, view).map(|file| match view {
            View::Current => file.size(),
            View::Durable => file.durable_size(),
        })
    }

    /// Returns the allocated space in bytes.
    pub fn allocated_bytes(&self, path: &str) -> Option<u64> {
        self.machine.borrow().file(path, View::Current).map(|file| file.allocated_pages() * PAGE)
    }

    /// Returns the names in a directory, sorted. Names of subdirectories end with a slash.
    pub fn list(&self, path: &str, view: View) -> Option<Vec<String>> {
        let fs = &self.machine.borrow().fs;
        let names = fs.dir(walk(fs, path, view)?).ok()?.names_in(view);
        let slash = |node| if fs.is_dir(node) { "/" } else { "" };
        Some(names.iter().map(|(name, &node)| format!("{name}{}", slash(node))).collect())
    }

    /// Replaces a file's content durably, and creates the file and its directories if they do not exist. Panics for an
    /// invalid path, because fixtures belong to the test.
    pub fn write_file(&self, path: &str, bytes: &[u8]) {
        let result = self.machine.borrow_mut().put(path, 0, bytes, true);
        result.unwrap_or_else(|errno| panic!("{path}: {errno}"));
    }

    /// Overwrites or extends a part of a file, durably. Panics like `write_file`.
    pub fn write_at(&self, path: &str, offset: u64, bytes: &[u8]) {
        let result = self.machine.borrow_mut().put(path, offset, bytes, false);
        result.unwrap_or_else(|errno| panic!("{path}: {errno}"));
    }

    /// Returns the space in use in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.machine.borrow().fs.space.used_pages * PAGE
    }

    /// Flips one durable bit below pending writes. Returns false if there is no durable byte.
    pub fn flip_bit(&self, path: &str, offset: u64, bit: u8) -> bool {
        let mut machine = self.machine.borrow_mut();
        machine.file_mut(path, View::Durable).is_some_and(|file| file.flip_bit(offset, bit))
    }

    /// Returns the byte ranges of a file that the medium cannot read, in order. A write makes them readable.
    pub fn unreadable(&self, path: &str) -> Vec<Range<u64>> {
        let machine = self.machine.borrow();
        machine.file(path, View::Current).map_or(Vec::new(), |file| file.unreadable.ranges())
    }

    /// Makes the sectors of a byte range unreadable. Returns false if there is no such file.
    pub fn make_unreadable(&self, path: &str, range: Range<u64>) -> bool {
        let mut machine = self.machine.borrow_mut();
        machine.file_mut(path, View::Current).map(|file| file.unreadable.put(&range)).is_some()
    }

    /// Makes the whole file readable again, as when a drive's retry succeeds. Returns false if there is no such file.
    pub fn heal(&self, path: &str) -> bool {
        let mut machine = self.machine.borrow_mut();
        machine.file_mut(path, View::Current).map(|file| file.unreadable.written(&(0..u64::MAX))).is_some()
    }
}
