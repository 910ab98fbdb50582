//! Previews of what a revert or a discard would throw away. They are immediate: they wait for no checkpoint, and read a
//! bounded number of pages.

use std::rc::Rc;

use blk::Result;

use super::layout::BLOCK;
use super::lineage::Node;
use super::store::Store;
use super::table::Table;
use super::tree::{Roots, WalkItem, gone};
use super::view::View;

/// Most pages of maps read for one state over one base: the byte count of larger states need not be exact. A state has
/// several bases only while an ancestor is being given back.
const PAGES_MAX: usize = 512;

impl Store {
    /// Returns the bytes written in `nodes` since the states they descend from: those redirected since the last
    /// checkpoint, and the differences between the trees in at most `PAGES_MAX` pages of each base. A block that is in both counts
    /// twice.
    pub async fn written_in(&self, nodes: &[u64]) -> Result<u64> {
        let mut blocks = 0;
        for id in nodes {
            if let Ok(node) = self.node(*id) {
                blocks += self.written(&node).await?;
            }
        }
        Ok(blocks * BLOCK)
    }

    async fn written(&self, node: &Node) -> Result<u64> {
        let _retained = self.space.retain(self.work.clone());
        let active = node.active.borrow().mapped();
        let (pending, roots) = merged_below(node.current_view(), node.parent.get());
        let (since, mut merged) = (node.since.get(), 0);
        let mut add = |found: WalkItem| {
            if let WalkItem::Data(data) = found
                && data.birth > since
            {
                merged += data.len;
            }
        };
        for range in self.diff_ranges_now(node.id) {
            let base = range.base_node.and_then(|base| self.lineage.borrow().get(base));
            let base = base.map(|base| base.current_view().trees_below()).unwrap_or_default();
            let (own, base) = (roots.places.as_ref(), base.places.as_ref());
            gone(&self.nodes, own, base, range.start, range.end, PAGES_MAX, &mut add).await?;
        }
        Ok(active + pending + merged)
    }
}

/// Returns the number of blocks in the tables above the nearest trees that belong to a node over `parent`, and these
/// trees.
fn merged_below(view: Rc<View>, parent: u64) -> (u64, Roots) {
    let (mut blocks, mut at) = (0, view);
    loop {
        if let Some(roots) = at.roots() {
            return (blocks, roots);
        }
        if at.parent == parent {
            blocks += at.with_table(Table::mapped).unwrap_or(0);
        }
        at = at.below().expect("a view without a tree has one below it");
    }
}
