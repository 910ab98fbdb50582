//! Access to the world from outside a run: fixtures before it, evidence after it. No time passes and no event occurs.

use std::ops::Range;

use blk::Errno;
use blk::reactor::Handle;

use crate::dir::NodeId;
use crate::fs::{FileSystem, ROOT};
use crate::machine::Machine;

/// Which content of the medium is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// The content that the running system sees.
    Current,
    /// The content after a cut that loses everything unflushed.
    Durable,
}

/// A bit that was flipped on purpose, so that a checker can distinguish injected damage from real damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    pub path: String,
    pub offset: u64,
    pub bit: u8,
}

/// Longest content that is returned in one piece: 1 GiB.
const READ_BYTES_MAX: u64 = 1 << 30;

fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".")
}

/// Returns the node of a path in one of the two views.
fn walk(fs: &FileSystem, path: &str, view: View) -> Option<NodeId> {
    components(path).try_fold(ROOT, |dir, name| {
        let dir = fs.dir(dir).ok()?;
        match view {
            View::Current => dir.get(name),
            View::Durable => dir.get_durable(name),
        }
    })
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

    pub(crate) fn read_at(&self, path: &str, offset: u64, len: u64, view: View) -> Option<Vec<u8>> {
        assert!(len <= READ_BYTES_MAX, "{path}: {len} bytes asked for at once, at most {READ_BYTES_MAX}");
        let file = self.fs.file(walk(&self.fs, path, view)?).ok()?;
        let mut bytes = vec![0; len as usize];
        let filled = match view {
            View::Current => file.read(offset, &mut bytes),
            View::Durable => file.read_durable(offset, &mut bytes),
        };
        bytes.truncate(filled);
        Some(bytes)
    }

    pub(crate) fn file_size(&self, path: &str, view: View) -> Option<u64> {
        let file = self.fs.file(walk(&self.fs, path, view)?).ok()?;
        Some(match view {
            View::Current => file.size(),
            View::Durable => file.durable_size(),
        })
    }

    pub(crate) fn allocated_bytes(&self, path: &str) -> Option<u64> {
        let file = self.fs.file(walk(&self.fs, path, View::Current)?).ok()?;
        Some(file.allocated_pages() * crate::content::PAGE)
    }

    pub(crate) fn list(&self, path: &str, view: View) -> Option<Vec<String>> {
        let dir = self.fs.dir(walk(&self.fs, path, view)?).ok()?;
        let names = match view {
            View::Current => dir.names(),
            View::Durable => dir.durable_names(),
        };
        let slash = |node| if self.fs.is_dir(node) { "/" } else { "" };
        Some(names.iter().map(|(name, &node)| format!("{name}{}", slash(node))).collect())
    }

    /// Writes bytes into a file, durably, and creates it and its directories if they do not exist.
    pub(crate) fn write_at(&mut self, path: &str, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.make_dirs(folder)?;
        let node = match self.fs.lookup(dir, name) {
            Err(Errno::ENOENT) => self.fs.create(dir, name, false, self.events)?,
            found => found?,
        };
        self.fs.sync_dir(dir, u64::MAX)?;
        let (file, space) = self.fs.file_mut(node)?;
        file.put(offset, bytes, space);
        Ok(())
    }

    /// Replaces the whole content, like `write_at`.
    pub(crate) fn write_file(&mut self, path: &str, bytes: &[u8]) -> Result<(), Errno> {
        self.write_at(path, 0, bytes)?;
        let node = walk(&self.fs, path, View::Current).ok_or(Errno::ENOENT)?;
        let (file, space) = self.fs.file_mut(node)?;
        file.set_len(bytes.len() as u64, self.events, space)?;
        file.persist(u64::MAX);
        Ok(())
    }

    pub(crate) fn flip_bit(&mut self, path: &str, offset: u64, bit: u8) -> bool {
        let Some(node) = walk(&self.fs, path, View::Durable) else { return false };
        self.fs.file_mut(node).is_ok_and(|(file, _)| file.flip_bit(offset, bit))
    }

    pub(crate) fn unreadable(&self, path: &str) -> Vec<Range<u64>> {
        let file = walk(&self.fs, path, View::Current).and_then(|node| self.fs.file(node).ok());
        file.map_or(Vec::new(), |file| file.unreadable.ranges())
    }

    pub(crate) fn make_unreadable(&mut self, path: &str, range: Range<u64>) -> bool {
        let Some(node) = walk(&self.fs, path, View::Current) else { return false };
        self.fs.file_mut(node).map(|(file, _)| file.unreadable.put(&range)).is_ok()
    }

    pub(crate) fn heal(&mut self, path: &str) -> bool {
        let Some(node) = walk(&self.fs, path, View::Current) else { return false };
        self.fs.file_mut(node).map(|(file, _)| file.unreadable.written(&(0..u64::MAX))).is_ok()
    }
}
