//! The states of disks in the map pages of a store that has no catalogue.
//!
//! A map page is in use if the bitmap of the last valid checkpoint says so; stale pages of older checkpoints, of dropped
//! nodes and of checkpoints that never became valid are not. A root in use is that of a state. If pages in use are damaged
//! and may have been roots, it is unknown which of a node's states is the newest one.

use std::collections::HashSet;

use super::super::superblock::Superblock;
use super::super::tree::{FoundPage, PageTag, Root, Roots};
use super::copy::Found;
use super::in_use::InUse;

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
    // Each page in use that is no map page is one of the catalogue, whose number of pages is known.
    let is_exact = in_use.is_known() && (unknown + of_catalogue) as u64 == superblock.catalogue_pages;
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
