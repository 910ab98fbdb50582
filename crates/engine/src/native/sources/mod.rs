//! Sources: read-only images below the store. A disk made over a source shows the image until its blocks are written.
//! What was copied from the image, for all disks over it, is in the source's landing map: a running node of the lineage
//! that no VM has.

mod land;
mod read;
mod remove;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::volume::Volume;
use blk::{Error, Result, SECTOR};

pub use land::Turn;

pub(super) use read::{Resolved, SourceEdges, read_images};

use super::change::Op;
use super::key::Key;
use super::layout::{BLOCK, DEVICE_MAX};
use super::source::{SOURCE, SOURCE_BLOCKS_MAX, Source, SourceItem, check_name, device_of_key, source_key};
use super::store::Store;

impl Store {
    /// Returns the sources in the order of their numbers.
    pub fn sources(&self) -> Vec<Rc<Source>> {
        self.sources.borrow().values().cloned().collect()
    }

    /// Returns a source. `NotFound` for an unknown one.
    pub fn source(&self, device: u8) -> Result<Rc<Source>> {
        let found = self.sources.borrow().get(&device).cloned();
        found.ok_or_else(|| Error::not_found(self.path(), format!("no source {device}")))
    }

    /// Makes an image of `bytes` bytes a source, and returns its number. It is durable after the next flush; the image
    /// is attached separately. A source is removed when no state is over it any more; one that no disk was made over, at
    /// the next opening.
    ///
    /// # Errors
    /// `Invalid`: the size is no multiple of 512, or above 252 * 126^5 blocks. `Refused`: the store has 254 sources.
    pub async fn add_source(&self, name: &str, bytes: u64) -> Result<u8> {
        if bytes == 0 || !bytes.is_multiple_of(SECTOR) || bytes.div_ceil(BLOCK) > SOURCE_BLOCKS_MAX {
            let expected = format!("a multiple of {SECTOR} up to {}", SOURCE_BLOCKS_MAX * BLOCK);
            return Err(Error::invalid(name, format!("a source of {bytes} bytes, expected {expected}")));
        }
        check_name(name).map_err(|cause| Error::invalid(self.path(), cause))?;
        self.declare_sources().await?;
        let device = (1..=DEVICE_MAX).find(|device| !self.sources.borrow().contains_key(device));
        let Some(device) = device else {
            let cause = format!("it has {DEVICE_MAX} sources, and cannot have more");
            return Err(Error::refused(self.path(), cause));
        };
        let landing = self.new_node_id();
        let item = SourceItem { landing, bytes, landed: 0, name: name.to_string() };
        let make = Op::Create { node: landing, size_blocks: bytes.div_ceil(BLOCK) };
        self.change(&[make, Op::Put { key: source_key(device), value: item.encode() }])?;
        self.source(device)?.waits.set(true);
        Ok(device)
    }

    /// Returns the operation that makes a running node over a source. The disk has at least the source's size.
    pub fn create_over(&self, node: u64, size_blocks: u64, device: u8) -> Result<Op> {
        let source = self.source(device)?;
        let blocks = source.blocks();
        if size_blocks < blocks {
            let cause = format!("a disk of {size_blocks} blocks, its source {} has {blocks}", source.name);
            return Err(Error::invalid(self.path(), format!("{cause}; make the disk as large at least")));
        }
        Ok(Op::CreateOver { node, size_blocks, device, blocks })
    }

    /// Lets a source go that no disk was made over: it is removed in the background.
    pub fn give_up_source(&self, device: u8) {
        self.source_is_used(device);
        self.work.notify();
    }

    /// Returns the source that a node of the lineage is over, as `layer` names the node; None for an empty disk.
    pub fn source_below(&self, layer: &str) -> Option<Rc<Source>> {
        let node = layer.strip_prefix('n')?.parse().ok()?;
        let device = self.node(node).ok()?.device;
        self.sources.borrow().get(&device).cloned()
    }

    /// Gives a source its image, which must not change from here on.
    ///
    /// # Errors
    /// `Invalid`: the image has another size than the source.
    pub fn attach_source(&self, device: u8, image: Rc<dyn Volume>) -> Result<()> {
        let (source, found) = (self.source(device)?, image.info().size_bytes);
        if found != source.bytes {
            let cause = format!("its image has {found} bytes, expected {}", source.bytes);
            return Err(Error::invalid(format!("source {}", source.name), cause));
        }
        *source.image.borrow_mut() = Some(image);
        Ok(())
    }

    /// Declares in the superblock that the store has sources, so that an earlier program refuses it.
    async fn declare_sources(&self) -> Result<()> {
        self.declares_sources.set(true);
        if !self.superblock.get().has_sources() {
            self.checkpoint().await?;
        }
        Ok(())
    }

    /// Returns whether the source is still one of the store.
    fn has_source(&self, source: &Rc<Source>) -> bool {
        self.sources.borrow().get(&source.device).is_some_and(|now| Rc::ptr_eq(now, source))
    }

    /// Notes that a source may be removed as soon as no node is over it.
    pub(super) fn source_is_used(&self, device: u8) {
        if let Some(source) = self.sources.borrow().get(&device) {
            source.waits.set(false);
        }
    }

    /// Applies a change of an item to the sources in memory. The change was checked.
    pub(super) fn note_source(&self, key: Key, value: Option<&[u8]>) -> Result<()> {
        let (mut sources, device) = (self.sources.borrow_mut(), device_of_key(key, self.path())?);
        let Some(value) = value else {
            sources.remove(&device);
            return Ok(());
        };
        let item = SourceItem::decode(value, self.path())?;
        match sources.get(&device) {
            Some(source) => source.landed.set(item.landed),
            None => drop(sources.insert(device, Rc::new(Source::new(device, item)))),
        }
        Ok(())
    }

    /// Checks what a change does to sources. Others look at none.
    pub(super) fn check_sources(&self, ops: &[Op]) -> Result<(), String> {
        let is_source = |key: &Key| key.kind == SOURCE;
        let concerns = |op: &Op| match op {
            Op::CreateOver { .. } | Op::Drop { .. } => true,
            Op::Put { key, .. } | Op::Delete { key } => is_source(key),
            _ => false,
        };
        if !ops.iter().any(concerns) {
            return Ok(());
        }
        let now = self.sources.borrow();
        let mut after: BTreeMap<u8, SourceItem> =
            now.iter().map(|(device, source)| (*device, source.item())).collect();
        let mut dropped = BTreeSet::new();
        for op in ops {
            match op {
                Op::Put { key, value } if is_source(key) => self.check_put(ops, &mut after, *key, value)?,
                Op::Delete { key } if is_source(key) => self.check_delete(&mut after, *key, &dropped)?,
                Op::CreateOver { device, size_blocks, blocks, .. } => {
                    let found = after.get(device).map_or(0, |item| item.bytes.div_ceil(BLOCK));
                    if found == 0 || *blocks != found || found > *size_blocks {
                        return Err(format!("{op:?}: source {device} has {found} blocks"));
                    }
                }
                Op::Drop { node } => drop(dropped.insert(*node)),
                _ => {}
            }
        }
        match after.iter().find(|(_, item)| dropped.contains(&item.landing)) {
            Some((device, item)) => Err(format!("node {} has what landed of source {device}", item.landing)),
            None => Ok(()),
        }
    }

    fn check_put(
        &self,
        ops: &[Op],
        after: &mut BTreeMap<u8, SourceItem>,
        key: Key,
        value: &[u8],
    ) -> Result<(), String> {
        if !self.superblock.get().has_sources() {
            return Err("a source in a store without the feature bit for them".to_string());
        }
        let device = device_of_key(key, self.path()).map_err(|e| e.cause)?;
        let item = SourceItem::decode(value, self.path()).map_err(|e| e.cause)?;
        let same = |old: &SourceItem| {
            (old.landing, old.bytes, &old.name) == (item.landing, item.bytes, &item.name)
                && old.landed <= item.landed
        };
        let makes = |op: &Op| matches!(op, Op::Create { node, .. } if *node == item.landing);
        if !after.contains_key(&device) && !ops.iter().any(makes) {
            return Err(format!("source {device} begins without an empty landing map: {item:?}"));
        }
        if after.get(&device).is_some_and(|old| !same(old)) {
            return Err(format!("source {device} changes otherwise than by landing: {item:?}"));
        }
        after.insert(device, item);
        Ok(())
    }

    fn check_delete(
        &self,
        after: &mut BTreeMap<u8, SourceItem>,
        key: Key,
        dropped: &BTreeSet<u64>,
    ) -> Result<(), String> {
        let device = device_of_key(key, self.path()).map_err(|e| e.cause)?;
        after.remove(&device).ok_or_else(|| format!("source {device} is deleted, and is not there"))?;
        let lineage = self.lineage.borrow();
        let mut named = lineage.all().filter(|node| node.device == device && !node.dropped.get());
        match named.find(|node| !dropped.contains(&node.id)) {
            Some(node) => Err(format!("source {device} is deleted, and node {} is over it", node.id)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
