//! How much space states hold, and where two of them differ: answers from the trees, read as far as they differ.

use std::ops::Range;

use blk::Result;

use super::layout::BLOCK;
use super::lineage::Node;
use super::store::Store;
use super::tree::{Gone, Root, differences, gone};

impl Store {
    /// The tree of a node, with everything written so far in it.
    async fn merged_root(&self, node: &Node) -> Result<Option<Root>> {
        loop {
            let view = node.current_view();
            if node.active.borrow().is_empty()
                && let Some(root) = view.root()
            {
                return Ok(root);
            }
            self.checkpoint().await?;
            // Guests go on: what they wrote meanwhile is no part of the answer.
            if let Some(root) = node.root() {
                return Ok(root);
            }
        }
    }

    /// Bytes that come back if each of `nodes` is dropped alone.
    pub async fn held_only_by(&self, nodes: &[u64]) -> Result<u64> {
        let mut blocks = 0;
        for id in nodes {
            let Ok(node) = self.node(*id) else { continue };
            let children = self.lineage.borrow().children(*id);
            if children.len() > 1 {
                continue;
            }
            let old = self.merged_root(&node).await?;
            let new = match children.first().and_then(|child| self.node(*child).ok()) {
                Some(child) => self.merged_root(&child).await?,
                None => None,
            };
            let _admitted = self.reads.enter();
            let since = node.since.get();
            let mut add = |found: Gone| match found {
                Gone::Data(data) if data.birth > since => blocks += data.len,
                Gone::Node { birth, .. } if birth > since => blocks += 1,
                _ => {}
            };
            gone(&self.nodes, old.as_ref(), new.as_ref(), 0, u64::MAX, usize::MAX, &mut add).await?;
        }
        Ok(blocks * BLOCK)
    }

    /// Of `nodes`, those whose space can come back and has not.
    pub fn left_to_reclaim(&self, nodes: &[u64]) -> Vec<u64> {
        let lineage = self.lineage.borrow();
        let ready = |id: &&u64| lineage.is_reclaimable(**id);
        nodes.iter().filter(ready).copied().collect()
    }

    /// Ranges of bytes from `start` on in which `to` differs from `from` (None: from nothing), and up to where this
    /// answers. Reads about `pages` pages of each.
    pub async fn differences(
        &self,
        from: Option<u64>,
        to: u64,
        start: u64,
        pages: usize,
    ) -> Result<(Vec<Range<u64>>, u64)> {
        let old = match from {
            Some(from) => self.merged_root(&*self.node(from)?).await?,
            None => None,
        };
        let node = self.node(to)?;
        let new = self.merged_root(&node).await?;
        let _admitted = self.reads.enter();
        let mut ranges = Vec::new();
        let mut add = |blocks: Range<u64>| ranges.push(blocks.start * BLOCK..blocks.end * BLOCK);
        let blocks = start / BLOCK..node.size_blocks.get();
        let end =
            differences(&self.nodes, old.as_ref(), new.as_ref(), blocks.start, blocks.end, pages, &mut add)
                .await?;
        Ok((ranges, end.saturating_mul(BLOCK)))
    }
}
