//! The states of disks in the map pages of a store that has no catalogue.
//!
//! A map page is in use if the bitmap of the last valid checkpoint says so; stale pages of older checkpoints, of dropped
//! nodes and of checkpoints that never became valid are not. A root in use is that of a state. If pages in use are damaged
//! and may have been roots, it is unknown which of a node's states is the newest one.

use std::collections::HashSet;

use blk::{Buf, File, Result};

use super::super::layout::{BLOCK, Geometry};
use super::super::space::{BlockSet, GroupState, find_bitmap, groups_within};
use super::super::superblock::Superblock;
use super::super::tree::{FoundPage, PageTag, Root, Roots};
use super::copy::Found;

/// A state of a disk, without name and size.
pub(super) struct State {
    pub tag: PageTag,
    pub birth: u64,
    pub roots: Roots,
    /// The state is the node's newest one at the last valid checkpoint.
    pub is_newest: bool,
    /// The root of the backing blocks is damaged, so it is unknown which sectors are at their places.
    pub is_lost: bool,
}

/// What the bitmaps of the last valid checkpoint say.
pub(super) struct InUse {
    used: BlockSet,
    groups: Vec<GroupState>,
    geometry: Geometry,
}

impl InUse {
    /// Reads the bitmaps from the copy.
    pub(super) async fn read(file: &File, superblock: &Superblock, found: &Found) -> Result<InUse> {
        let geometry = superblock.geometry();
        let count = superblock.groups.min(groups_within(&geometry, file.size().await?));
        let mut used = BlockSet::new(geometry);
        used.grow(count);
        let mut groups = Vec::new();
        for group in 0..count {
            let start = geometry.group_start(group);
            let (slots, read) = file.read(start * BLOCK, Buf::alloc(2 * BLOCK as usize)).await;
            read?;
            let (a, b) = slots.split_at(BLOCK as usize);
            let became_valid = |checkpoint| superblock.became_valid(checkpoint);
            groups.push(match found.is_unreadable(start, 2) {
                true => GroupState::Unknown,
                false => find_bitmap(&geometry, group, [a, b], became_valid, &mut used),
            });
        }
        Ok(InUse { used, groups, geometry })
    }

    fn group_of(&self, addr: u64) -> Option<&GroupState> {
        self.groups.get(usize::try_from(self.geometry.group_of(addr)?).ok()?)
    }

    /// Returns whether a block may have the data that an intact map page has there.
    pub(super) fn may_be_data(&self, addr: u64) -> bool {
        match self.group_of(addr) {
            Some(GroupState::Known { meta }) => !meta && self.used.contains(addr),
            Some(GroupState::Unknown) => true,
            None => false,
        }
    }

    /// Returns whether the block is a page of metadata in use; None if that is unknown.
    fn is_page(&self, addr: u64) -> Option<bool> {
        match self.group_of(addr) {
            Some(GroupState::Known { meta }) => Some(*meta && self.used.contains(addr)),
            Some(GroupState::Unknown) => None,
            None => Some(false),
        }
    }

    /// Returns the pages of metadata in use, as far as they are known.
    fn pages(&self) -> impl Iterator<Item = u64> {
        let is_meta = |(_, state): &(usize, &GroupState)| matches!(state, GroupState::Known { meta: true });
        let groups = self.groups.iter().enumerate().filter(is_meta);
        groups.flat_map(|(group, _)| self.used.of_group(group as u64))
    }

    /// Overwrites the map pages of the copy that are not in use, so that no walk takes them for those of a state.
    pub(super) async fn erase_stale(&self, file: &File, found: &Found) -> Result<()> {
        for addr in found.maps.keys().filter(|addr| self.is_page(**addr) == Some(false)) {
            if matches!(self.group_of(*addr), Some(GroupState::Known { meta: true })) {
                file.write(addr * BLOCK, Buf::zeroed(BLOCK as usize)).await?;
            }
        }
        Ok(())
    }
}

/// Returns the states, and whether it is known which of a node's states is its newest. `trusts_all`: a planted defect takes
/// all map pages for pages in use.
pub(super) fn find_states(
    superblock: &Superblock,
    in_use: &InUse,
    found: &Found,
    trusts_all: bool,
) -> (Vec<State>, bool) {
    let id = superblock.store_id;
    let page_of = |addr: u64| found.maps.get(&addr).filter(|(store, _)| *store == id).map(|(_, page)| page);
    let pages: Vec<u64> = match trusts_all {
        true => found.maps.keys().copied().collect(),
        false => in_use.pages().collect(),
    };
    let maps: Vec<&FoundPage> = pages.iter().filter_map(|addr| page_of(*addr)).collect();
    let referred: HashSet<(u64, u64)> = maps.iter().flat_map(|page| page.children.iter().copied()).collect();
    let referred_addrs: HashSet<u64> = referred.iter().map(|(addr, _)| *addr).collect();
    let is_catalogue = |addr: &u64| found.catalogue.get(addr) == Some(&id);
    let of_catalogue = pages.iter().filter(|addr| is_catalogue(addr)).count();
    let unknown =
        |addr: &&u64| page_of(**addr).is_none() && !is_catalogue(addr) && !referred_addrs.contains(*addr);
    let unknown = pages.iter().filter(unknown).count();
    let groups_known = in_use.groups.iter().all(|group| matches!(group, GroupState::Known { .. }));
    // Each page in use that is no map page is one of the catalogue, whose number of pages is known.
    let is_exact = groups_known && (unknown + of_catalogue) as u64 == superblock.catalogue_pages;
    let is_exact = is_exact || trusts_all;
    let is_free_root = |page: &&&FoundPage| {
        let pointer = page.as_root.pointer;
        page.is_root && page.tag.node != 0 && !referred.contains(&(pointer.addr, pointer.checksum))
    };
    let roots: Vec<&&FoundPage> = maps.iter().filter(is_free_root).collect();
    let mut states: Vec<State> =
        roots.iter().filter(|root| root.is_places).map(|root| state_of(root, &roots)).collect();
    states.sort_by_key(|state| (state.tag, state.birth));
    for at in 0..states.len() {
        let is_last = states.get(at + 1).is_none_or(|next| next.tag.node != states[at].tag.node);
        states[at].is_newest = is_exact && is_last;
    }
    (states, is_exact)
}

fn state_of(places: &FoundPage, roots: &[&&FoundPage]) -> State {
    let birth = places.as_root.pointer.birth;
    let is_pair = |root: &&&&FoundPage| {
        !root.is_places && root.tag == places.tag && root.as_root.pointer.birth == birth
    };
    let backings: Option<Root> =
        roots.iter().find(is_pair).filter(|_| places.paired).map(|root| root.as_root);
    State {
        tag: places.tag,
        birth,
        is_newest: false,
        is_lost: places.paired && backings.is_none(),
        roots: Roots { places: Some(places.as_root), backings },
    }
}
