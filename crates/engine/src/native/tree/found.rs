//! Map pages found in a file without a pointer to them, for a rebuild.

use super::entry::{PageTag, Root, TreeKind};
use super::node::{Node, PageFields};

/// A map page of a store at its own address, whose content is what its header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundPage {
    /// Addresses and checksums of the pages that it refers to.
    pub children: Vec<(u64, u64)>,
    pub tag: PageTag,
    pub is_places: bool,
    /// The page is a root of places, and the state has a root of backing blocks with the same tag and birth.
    pub paired: bool,
    /// The page was written as a root.
    pub is_root: bool,
    /// The tree that has the page as its root.
    pub as_root: Root,
}

impl FoundPage {
    /// Reads the block at `addr`. None if it is no map page of the store.
    pub(crate) fn read(store_id: u64, addr: u64, page: &[u8]) -> Option<FoundPage> {
        let fields = PageFields::of_page(store_id, addr, page)?;
        let node = Node::open("", store_id, &fields.spot, page).ok()?;
        let children = node.children().iter().filter(|child| child.is_page());
        Some(FoundPage {
            children: children.map(|child| (child.addr, child.checksum)).collect(),
            tag: fields.marks.tag,
            is_places: fields.marks.kind == TreeKind::Places,
            paired: fields.marks.paired,
            is_root: fields.marks.is_root && fields.spot.first == 0,
            as_root: Root { level: fields.spot.level, pointer: fields.spot.pointer },
        })
    }
}
