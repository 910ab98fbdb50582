//! The file system: directories, files and space, and the lifetime of nodes.
//!
//! A node exists while it has a name, an open handle (or an operation under way), or a name that a power cut could
//! restore. Its space is counted while it has a name or a handle, as on a real file system.

use blk::Errno;
use blk::reactor::Space;

use crate::content::PAGE;
use crate::device::{Piece, Placement, ZoneId};
use crate::dir::{Change, DirNode, NodeId};
use crate::file::{FileNode, FsSpace};
use crate::options::ContentMode;
use crate::rng::Rng;
use crate::survival::Survival;

const EPERM: Errno = Errno(1);
pub(crate) const EBADF: Errno = Errno(9);
pub(crate) const ENOTDIR: Errno = Errno(20);
pub(crate) const EISDIR: Errno = Errno(21);
const ENOTEMPTY: Errno = Errno(39);

pub(crate) const ROOT: NodeId = 0;
/// Space when no capacity is set: 1 PiB.
const UNLIMITED_BYTES: u64 = 1 << 50;

enum Body {
    File(Box<FileNode>),
    Dir(DirNode),
}

struct Node {
    body: Body,
    /// Number of visible names.
    links: u32,
    /// Number of handles and operations under way.
    opens: u32,
    /// Number of durable names and pending links.
    pins: u32,
    locked: bool,
    /// Zone of its extents.
    zone: ZoneId,
}

pub(crate) struct FileSystem {
    nodes: Vec<Option<Node>>,
    free: Vec<NodeId>,
    pub space: FsSpace,
    mode: ContentMode,
    /// None if everything is on one device without positions.
    placement: Option<Placement>,
}

impl FileSystem {
    pub(crate) fn new(
        capacity_bytes: Option<u64>,
        mode: ContentMode,
        placement: Option<Placement>,
    ) -> FileSystem {
        let space =
            FsSpace { capacity_pages: capacity_bytes.unwrap_or(UNLIMITED_BYTES) / PAGE, used_pages: 0 };
        let mut fs = FileSystem { nodes: Vec::new(), free: Vec::new(), space, mode, placement };
        let root = fs.add(Body::Dir(DirNode::default()), 0);
        assert_eq!(root, ROOT);
        fs.node_mut(ROOT).links = 1;
        fs
    }

    pub(crate) fn set_capacity(&mut self, bytes: Option<u64>) {
        self.space.capacity_pages = bytes.unwrap_or(UNLIMITED_BYTES) / PAGE;
    }

    pub(crate) fn space(&self) -> Space {
        let free_pages = self.space.capacity_pages.saturating_sub(self.space.used_pages);
        Space {
            total_bytes: self.space.capacity_pages * PAGE,
            free_bytes: free_pages * PAGE,
            freeing_bytes: 0,
        }
    }

    fn add(&mut self, body: Body, zone: ZoneId) -> NodeId {
        let node = Some(Node { body, links: 0, opens: 0, pins: 0, locked: false, zone });
        if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = node;
            return id;
        }
        self.nodes.push(node);
        u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 files")
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id as usize].as_ref().expect("a referenced node lives")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id as usize].as_mut().expect("a referenced node lives")
    }

    pub(crate) fn file(&self, id: NodeId) -> Result<&FileNode, Errno> {
        match &self.node(id).body {
            Body::File(file) => Ok(file),
            Body::Dir(_) => Err(EISDIR),
        }
    }

    /// Returns the file, and the file system's space, which its changes use.
    pub(crate) fn file_mut(&mut self, id: NodeId) -> Result<(&mut FileNode, &mut FsSpace), Errno> {
        match &mut self.nodes[id as usize].as_mut().expect("a referenced node lives").body {
            Body::File(file) => Ok((file, &mut self.space)),
            Body::Dir(_) => Err(EISDIR),
        }
    }

    pub(crate) fn dir(&self, id: NodeId) -> Result<&DirNode, Errno> {
        match &self.node(id).body {
            Body::Dir(dir) => Ok(dir),
            Body::File(_) => Err(ENOTDIR),
        }
    }

    fn dir_mut(&mut self, id: NodeId) -> Result<&mut DirNode, Errno> {
        match &mut self.node_mut(id).body {
            Body::Dir(dir) => Ok(dir),
            Body::File(_) => Err(ENOTDIR),
        }
    }

    pub(crate) fn is_dir(&self, id: NodeId) -> bool {
        matches!(self.node(id).body, Body::Dir(_))
    }

    /// Returns the location of a file's range. Only for devices with positions.
    pub(crate) fn locate(&mut self, id: NodeId, offset: u64, len: u64, out: &mut Vec<Piece>) {
        let node = self.nodes[id as usize].as_mut().expect("a referenced node lives");
        if let (Body::File(file), Some(placement)) = (&mut node.body, &mut self.placement) {
            placement.locate(node.zone, &mut file.layout, offset, len, out);
        }
    }

    /// Places a range before its first use.
    pub(crate) fn reserve_place(&mut self, id: NodeId, offset: u64, len: u64) {
        let node = self.nodes[id as usize].as_mut().expect("a referenced node lives");
        if let (Body::File(file), Some(placement)) = (&mut node.body, &mut self.placement) {
            placement.reserve(node.zone, &mut file.layout, offset, len);
        }
    }

    /// Returns the unit of a file or directory.
    pub(crate) fn unit(&self, id: NodeId) -> u32 {
        self.placement.as_ref().map_or(0, |placement| placement.unit(self.node(id).zone))
    }

    pub(crate) fn lookup(&self, dir: NodeId, name: &str) -> Result<NodeId, Errno> {
        self.dir(dir)?.get(name).ok_or(Errno::ENOENT)
    }

    /// Creates a file or directory under a free name.
    pub(crate) fn create(
        &mut self,
        dir: NodeId,
        name: &str,
        folder: bool,
        stamp: u64,
    ) -> Result<NodeId, Errno> {
        if self.dir(dir)?.get(name).is_some() {
            return Err(Errno::EEXIST);
        }
        if self.node(dir).links == 0 {
            return Err(Errno::ENOENT);
        }
        let file = || Body::File(Box::new(FileNode::new(self.mode)));
        let body = if folder { Body::Dir(DirNode::default()) } else { file() };
        let above = self.node(dir).zone;
        let zone = self.placement.as_ref().map_or(above, |placement| placement.zone(name, above));
        let node = self.add(body, zone);
        self.node_mut(node).links = 1;
        self.node_mut(node).pins = 1;
        let change = Change::Link { name: name.to_string(), node };
        self.dir_mut(dir)?.change(change, stamp);
        Ok(node)
    }

    /// Gives a file a second name.
    pub(crate) fn link(
        &mut self,
        dir: NodeId,
        from: &str,
        to_dir: NodeId,
        to: &str,
        stamp: u64,
    ) -> Result<(), Errno> {
        let node = self.lookup(dir, from)?;
        if self.is_dir(node) {
            return Err(EPERM);
        }
        if self.dir(to_dir)?.get(to).is_some() {
            return Err(Errno::EEXIST);
        }
        self.node_mut(node).links += 1;
        self.node_mut(node).pins += 1;
        self.dir_mut(to_dir)?.change(Change::Link { name: to.to_string(), node }, stamp);
        Ok(())
    }

    pub(crate) fn rename(&mut self, dir: NodeId, from: &str, to: &str, stamp: u64) -> Result<(), Errno> {
        let node = self.lookup(dir, from)?;
        if from == to {
            return Ok(());
        }
        if let Ok(replaced) = self.lookup(dir, to) {
            self.check_replace(node, replaced)?;
        }
        let change = Change::Rename { from: from.to_string(), to: to.to_string() };
        self.change_names(dir, change, stamp)
    }

    fn check_replace(&self, node: NodeId, replaced: NodeId) -> Result<(), Errno> {
        match (self.is_dir(node), self.is_dir(replaced)) {
            (false, true) => Err(EISDIR),
            (true, false) => Err(ENOTDIR),
            (true, true) => self.check_empty(replaced),
            (false, false) => Ok(()),
        }
    }

    fn check_empty(&self, dir: NodeId) -> Result<(), Errno> {
        if self.dir(dir)?.names().is_empty() { Ok(()) } else { Err(ENOTEMPTY) }
    }

    pub(crate) fn unlink(&mut self, dir: NodeId, name: &str, stamp: u64) -> Result<(), Errno> {
        if self.is_dir(self.lookup(dir, name)?) {
            return Err(EISDIR);
        }
        self.change_names(dir, Change::Unlink { name: name.to_string() }, stamp)
    }

    pub(crate) fn remove_dir(&mut self, dir: NodeId, name: &str, stamp: u64) -> Result<(), Errno> {
        self.check_empty(self.lookup(dir, name)?)?;
        self.change_names(dir, Change::Unlink { name: name.to_string() }, stamp)
    }

    fn change_names(&mut self, dir: NodeId, change: Change, stamp: u64) -> Result<(), Errno> {
        if let Some(nameless) = self.dir_mut(dir)?.change(change, stamp) {
            self.release(nameless, |node| node.links -= 1);
        }
        Ok(())
    }

    pub(crate) fn sync_dir(&mut self, dir: NodeId, covers: u64) -> Result<(), Errno> {
        for nameless in self.dir_mut(dir)?.persist(covers) {
            self.release(nameless, |node| node.pins -= 1);
        }
        Ok(())
    }

    pub(crate) fn open(&mut self, id: NodeId) {
        self.node_mut(id).opens += 1;
    }

    pub(crate) fn close(&mut self, id: NodeId) {
        self.release(id, |node| node.opens -= 1);
    }

    /// Takes the node's lock; there is one for each node.
    pub(crate) fn lock(&mut self, id: NodeId) -> Result<(), Errno> {
        let node = self.node_mut(id);
        if std::mem::replace(&mut node.locked, true) { Err(Errno::EAGAIN) } else { Ok(()) }
    }

    pub(crate) fn unlock(&mut self, id: NodeId) {
        self.node_mut(id).locked = false;
    }

    /// Removes one reference. Frees the space, and then the node, when nothing uses them.
    fn release(&mut self, id: NodeId, take: impl FnOnce(&mut Node)) {
        let node = self.node_mut(id);
        let counted = node.links + node.opens > 0;
        take(node);
        let (counts, pinned) = (node.links + node.opens > 0, node.pins > 0);
        if counted && !counts {
            self.space.used_pages -= self.allocated_pages(id);
        }
        if !counts && !pinned {
            self.remove(id);
        }
    }

    fn allocated_pages(&self, id: NodeId) -> u64 {
        self.file(id).map_or(0, FileNode::allocated_pages)
    }

    fn remove(&mut self, id: NodeId) {
        let node = self.nodes[id as usize].take().expect("a referenced node lives");
        self.free.push(id);
        if let (Body::File(file), Some(placement)) = (&node.body, &mut self.placement) {
            placement.give_back(node.zone, &file.layout);
        }
        if let Body::Dir(dir) = node.body {
            let orphans: Vec<NodeId> = dir.pinned().collect();
            orphans.into_iter().for_each(|orphan| self.release(orphan, |node| node.pins -= 1));
        }
    }

    /// Removes handles and locks after the end of a process; the medium is unchanged.
    pub(crate) fn drop_handles(&mut self) {
        for id in 0..self.nodes.len() as NodeId {
            let Some(node) = &mut self.nodes[id as usize] else { continue };
            node.locked = false;
            if std::mem::take(&mut node.opens) > 0 && node.links == 0 {
                node.opens = 1;
                self.close(id);
            }
        }
    }

    /// Simulates a loss of power. Operations under way have been decided before.
    pub(crate) fn cut(&mut self, survival: &Survival, rng: &mut Rng) {
        for node in self.nodes.iter_mut().flatten() {
            match &mut node.body {
                Body::File(file) => file.cut(survival, rng),
                Body::Dir(dir) => dir.cut(survival, rng),
            }
        }
        self.recount();
    }

    /// Keeps the nodes that the root reaches, and recounts references and space.
    fn recount(&mut self) {
        for node in self.nodes.iter_mut().flatten() {
            (node.links, node.opens, node.pins, node.locked) = (0, 0, 0, false);
        }
        let mut reached = vec![ROOT];
        self.node_mut(ROOT).links = 1;
        while let Some(dir) = reached.pop() {
            let Body::Dir(dir) = &self.node(dir).body else { continue };
            let children: Vec<NodeId> = dir.names().values().copied().collect();
            for child in children {
                let node = self.node_mut(child);
                node.links += 1;
                node.pins += 1;
                reached.push(child);
            }
        }
        self.sweep();
    }

    fn sweep(&mut self) {
        self.space.used_pages = 0;
        for id in 0..self.nodes.len() as NodeId {
            let Some(node) = &self.nodes[id as usize] else { continue };
            if node.links == 0 {
                self.nodes[id as usize] = None;
                self.free.push(id);
            } else {
                self.space.used_pages += self.allocated_pages(id);
            }
        }
    }
}
