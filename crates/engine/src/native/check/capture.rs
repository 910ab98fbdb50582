//! Reading of the state of the last checkpoint from the medium.

use std::collections::BTreeMap;

use blk::{Buf, Error, Result};

use super::report::{AffectedRange, Fault, Report};
use crate::native::catalogue::Catalogue;
use crate::native::change::Key;
use crate::native::layout::{BLOCK, Extent};
use crate::native::source::read_sources;
use crate::native::space::{GroupSummary, Marks, Retained};
use crate::native::store::Store;
use crate::native::stored::{NodeItem, decode_group, group_key, node_key};
use crate::native::superblock::{SLOT_BLOCKS, Superblock};
use crate::native::tree::{MapCache, Nodes};

/// Cache for pages of maps: those on the path to the walk's position, in the state and its base, and some more.
const CACHE_BYTES: usize = 1 << 20;

/// The state of the last checkpoint.
pub(super) struct Committed {
    pub name: String,
    pub superblock: Superblock,
    pub items: Items,
    /// Sources, by the nodes of their landing maps.
    pub landing: Landing,
    /// Blocks of the catalogue itself.
    pub catalogue: Vec<Extent>,
    /// A cache apart from the store's: the pages in the store's memory say nothing about the medium.
    pub nodes: Nodes,
    /// Items of nodes could not be read, so their blocks are unknown.
    pub lacks_nodes: bool,
    _retained: Retained,
}

/// Nodes by id.
type Items = BTreeMap<u64, NodeItem>;
/// Numbers of sources, by the nodes of their landing maps.
type Landing = BTreeMap<u64, u8>;
type CatalogueItems = BTreeMap<Key, Vec<u8>>;

impl Committed {
    /// Reads the state of the last checkpoint; None when too little of it is readable.
    pub(super) async fn capture(store: &Store, report: &mut Report) -> Result<Option<(Committed, Marks)>> {
        let _turn = store.checkpoint_turn.lock().await;
        let retained = store.space.retain(store.work.clone());
        let superblock = store.superblock.get();
        report.checkpoint = superblock.checkpoint;
        check_superblocks(store, &superblock, report).await;
        let Some((all, catalogue)) = read_catalogue(store, &superblock, report).await else {
            return Ok(None);
        };
        let (items, lacks_nodes) = read_nodes(store, &all, report);
        let landing = read_landing(store, &superblock, &all, &items, report);
        check_lineage(store, &superblock, &items, &landing, report);
        let summaries = read_summaries(store, &superblock, &all, report);
        let mut damaged = |group: u64, error: Error| {
            let extent = Extent { addr: store.geometry.group_start(group), len: store.geometry.group_blocks };
            report.add(Fault::Bitmap, error, Some(extent), Vec::new());
        };
        let marks = store.space.marks(&summaries, &mut damaged).await;
        let committed = Committed {
            name: store.path().to_string(),
            superblock,
            items,
            landing,
            catalogue,
            nodes: Nodes::new(store.file.clone(), store.id(), &MapCache::new(CACHE_BYTES)),
            lacks_nodes,
            _retained: retained,
        };
        report.states = committed.kept().map(|(id, _)| id).collect();
        Ok(Some((committed, marks)))
    }

    /// Returns the nodes that are not dropped; those of landing maps are no states of disks.
    pub(super) fn kept(&self) -> impl Iterator<Item = (u64, &NodeItem)> {
        let is_kept = |id: &u64, item: &NodeItem| !item.dropped && !self.landing.contains_key(id);
        self.items.iter().filter(move |(id, item)| is_kept(id, item)).map(|(id, item)| (*id, item))
    }
}

/// Checks both superblocks. Both are whole at any time: a store writes them in turn, and its opening has written each.
async fn check_superblocks(store: &Store, expected: &Superblock, report: &mut Report) {
    for (slot, block) in SLOT_BLOCKS.into_iter().enumerate() {
        let (page, result) = store.file.tables().read(block * BLOCK, Buf::alloc(BLOCK as usize)).await;
        let found = result.and_then(|()| Superblock::decode(&page, slot, store.path()));
        let error = match found {
            Ok(found) if slot == expected.slot() && found != *expected => {
                let (found, expected) = (found.checkpoint, expected.checkpoint);
                let cause = format!(
                    "superblock in block {block} is of checkpoint {found}, expected what was written for checkpoint \
                     {expected}"
                );
                Error::damaged(store.path(), cause)
            }
            Ok(_) => continue,
            Err(error) => error,
        };
        report.add(Fault::Superblock, error, Some(Extent { addr: block, len: 1 }), Vec::new());
    }
}

/// Reads the catalogue from the medium. If that is damaged, the store's own copy is used, provided it is of the same
/// checkpoint.
async fn read_catalogue(
    store: &Store,
    superblock: &Superblock,
    report: &mut Report,
) -> Option<(CatalogueItems, Vec<Extent>)> {
    match Catalogue::read(&store.file, superblock).await {
        Ok(read) => {
            for error in &read.damaged {
                report.add(Fault::Catalogue, error.clone(), None, Vec::new());
            }
            let extents = read.extents().collect();
            Some((read.items, extents))
        }
        Err(error) => {
            report.add(Fault::Catalogue, error, None, Vec::new());
            let own = store.catalogue.borrow();
            own.is_written().then(|| (own.items.clone(), own.extents().collect()))
        }
    }
}

fn read_nodes(store: &Store, all: &CatalogueItems, report: &mut Report) -> (Items, bool) {
    let mut items = Items::new();
    let mut lacks_nodes = false;
    for (key, bytes) in all.range(node_key(0)..=node_key(u64::MAX)) {
        match NodeItem::decode(bytes, store.path()) {
            Ok(item) => drop(items.insert(key.minor, item)),
            Err(error) => {
                lacks_nodes = true;
                let error = Error::damaged(error.place, format!("node {}: {}", key.minor, error.cause));
                report.add(Fault::Lineage, error, None, Vec::new());
            }
        }
    }
    (items, lacks_nodes)
}

/// Reads the sources, and checks that each has its landing map.
fn read_landing(
    store: &Store,
    superblock: &Superblock,
    all: &CatalogueItems,
    items: &Items,
    report: &mut Report,
) -> Landing {
    let sources = match read_sources(all, superblock, store.path()) {
        Ok(sources) => sources,
        Err(error) => {
            report.add(Fault::Lineage, error, None, Vec::new());
            return Landing::new();
        }
    };
    for (device, source) in &sources {
        let (node, name) = (source.landing, &source.name);
        if items.get(&node).is_none_or(|item| item.sealed != 0 || item.dropped || item.device != 0) {
            let cause = format!(
                "source {device} ({name}) has its landing map in node {node}, which is not a running one"
            );
            report.add(Fault::Lineage, Error::damaged(store.path(), cause), None, Vec::new());
        }
    }
    sources.values().map(|source| (source.landing, source.device)).collect()
}

fn check_lineage(
    store: &Store,
    superblock: &Superblock,
    items: &Items,
    landing: &Landing,
    report: &mut Report,
) {
    for (id, item) in items {
        let is_over = |device: u8| device == 0 || landing.values().any(|source| *source == device);
        let unknown = (!item.dropped && !is_over(item.device))
            .then(|| format!("is over source {}, which is not there", item.device));
        let Some(cause) = unknown.or_else(|| contradiction(superblock, items, *id, item)) else { continue };
        let error = Error::damaged(store.path(), format!("node {id} {cause}"));
        let affected = match item.dropped {
            true => Vec::new(),
            false => vec![AffectedRange { node: *id, bytes: 0..item.size_blocks.saturating_mul(BLOCK) }],
        };
        report.add(Fault::Lineage, error, None, affected);
    }
}

fn contradiction(superblock: &Superblock, items: &Items, id: u64, item: &NodeItem) -> Option<String> {
    let (sealed, generation) = (item.sealed, superblock.generation);
    if id >= superblock.next_node {
        return Some(format!("is there, expected ids below {}", superblock.next_node));
    }
    if sealed > generation {
        return Some(format!("was sealed in generation {sealed}, expected at most {generation}"));
    }
    if sealed == 0 && item.dropped {
        return Some("is dropped and not sealed".to_string());
    }
    if item.cursor > 0 && !item.dropped {
        return Some(format!("is freed up to block {}, and not dropped", item.cursor));
    }
    if item.parent == 0 {
        return None;
    }
    match items.get(&item.parent) {
        None => Some(format!("descends from node {}, which is not there", item.parent)),
        Some(parent) if parent.sealed == 0 => {
            Some(format!("descends from node {}, which still runs", item.parent))
        }
        Some(parent) if sealed != 0 && sealed < parent.sealed => Some(format!(
            "was sealed in generation {sealed}, before node {}, from which it descends, in {}",
            item.parent, parent.sealed
        )),
        Some(_) => None,
    }
}

fn read_summaries(
    store: &Store,
    superblock: &Superblock,
    all: &CatalogueItems,
    report: &mut Report,
) -> Vec<GroupSummary> {
    let mut read = |group: u64| {
        let Some(bytes) = all.get(&group_key(group)) else { return GroupSummary::default() };
        decode_group(bytes, store.path()).unwrap_or_else(|error| {
            report.add(Fault::Catalogue, error, None, Vec::new());
            GroupSummary::default()
        })
    };
    (0..superblock.groups).map(&mut read).collect()
}
