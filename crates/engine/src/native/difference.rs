//! Differences between two states, for incremental backups. Their trees are read as far as they differ.

use std::ops::Range;

use blk::{Error, Result};

use super::layout::BLOCK;
use super::lineage::Node;
use super::space::Retained;
use super::store::Store;
use super::stored::NodeItem;
use super::tree::differences;

/// Pages of each map compared before other tasks get a turn: some 100 us when all of them are in memory.
pub(super) const PAGES_AT_ONCE: usize = 128;

impl Store {
    /// Returns the byte ranges from `start` on (a multiple of 4096) in which `to` differs from `from` (None: an empty
    /// disk), ascending and apart from each other, and the end of the part that was compared: the end of `to`'s disk if
    /// no part follows. Everything outside of the ranges reads the same in both. A running state includes all that was
    /// written before the call.
    ///
    /// Reads about `pages` pages of each map, so that neither the answer nor its time grows with the disk: a page has
    /// 252 blocks, and at most 126 ranges. Over several calls a running state is compared as of several moments, each
    /// later than the one before.
    pub async fn differences(
        &self,
        from: Option<u64>,
        to: u64,
        start: u64,
        pages: usize,
    ) -> Result<(Vec<Range<u64>>, u64)> {
        if !start.is_multiple_of(BLOCK) {
            let cause = format!("differences from byte {start} on, expected a multiple of {BLOCK}");
            return Err(Error::invalid(self.path(), cause));
        }
        let nodes: Vec<u64> = from.into_iter().chain([to]).collect();
        let (items, _retained) = self.merged_items(&nodes).await?;
        let new = items[items.len() - 1];
        let old = from.and(items.first()).and_then(|item| item.root);
        let (mut ranges, mut done, end) = (Vec::new(), start / BLOCK, new.size_blocks);
        let (old, new) = (old.as_ref(), new.root.as_ref());
        for step in (0..pages.max(1)).step_by(PAGES_AT_ONCE) {
            let budget = PAGES_AT_ONCE.min(pages - step);
            if done >= end {
                break;
            }
            let mut add = |blocks: Range<u64>| join(&mut ranges, blocks.start * BLOCK..blocks.end * BLOCK);
            done = differences(&self.nodes, old, new, done, end, budget, &mut add).await?;
            self.env.sleep_us(0).await;
        }
        Ok((ranges, done * BLOCK))
    }

    /// Returns the items of the nodes, with trees that include all that was written before the call. The blocks that
    /// they refer to stay unchanged while `Retained` exists.
    pub(super) async fn merged_items(&self, nodes: &[u64]) -> Result<(Vec<NodeItem>, Retained)> {
        let retained = self.space.retain(self.work.clone());
        let mut is_fresh = self.are_merged(nodes)?;
        loop {
            let nodes: Vec<_> = nodes.iter().map(|id| self.node(*id)).collect::<Result<_>>()?;
            if is_fresh && nodes.iter().all(|node| node.root().is_some()) {
                return Ok((nodes.iter().map(|node| item_now(node)).collect(), retained));
            }
            drop(nodes);
            // Guests go on: their writes from now on need not be included.
            self.checkpoint().await?;
            is_fresh = true;
        }
    }

    /// Returns whether all writes to the nodes are in their trees.
    fn are_merged(&self, nodes: &[u64]) -> Result<bool> {
        let nodes: Vec<_> = nodes.iter().map(|id| self.node(*id)).collect::<Result<_>>()?;
        Ok(nodes.iter().all(|node| node.active.borrow().is_empty() && node.root().is_some()))
    }
}

/// Returns the item of a node in its present state, with its tree of the last checkpoint, if it has one.
pub(super) fn item_now(node: &Node) -> NodeItem {
    NodeItem {
        parent: node.parent.get(),
        sealed: node.sealed.get(),
        size_blocks: node.size_blocks.get(),
        dropped: node.dropped.get(),
        cursor: node.cursor.get(),
        root: node.root().flatten(),
    }
}

/// Appends a range, or joins it to the last one; `next` begins at or behind the end of the last.
fn join(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::rc::Rc;

    use blk::volume::Volume;
    use blk::{Buf, Env};
    use sim::SimWorld;

    use super::super::NativeDisk;
    use super::super::change::Op;
    use super::super::tests::{disk, fill, open_store, run};
    use super::*;

    const SIZE_BLOCKS: u64 = 20_000;

    async fn content(disk: &Rc<NativeDisk>) -> Vec<u8> {
        let (buf, result) = disk.clone().read(0, Buf::alloc((SIZE_BLOCKS * BLOCK) as usize)).await;
        result.unwrap();
        buf.chunks_exact(BLOCK as usize).map(|block| block[0]).collect()
    }

    /// Returns the blocks of all parts of an answer, each once.
    async fn all(store: &Store, from: Option<u64>, to: u64, pages: usize) -> BTreeSet<u64> {
        let (mut found, mut start) = (BTreeSet::new(), 0);
        while start < SIZE_BLOCKS * BLOCK {
            let (ranges, end) = store.differences(from, to, start, pages).await.unwrap();
            assert!(end > start && ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
            assert!(ranges.iter().all(|range| range.start >= start && range.end <= end));
            found.extend(ranges.into_iter().flat_map(|range| range.start / BLOCK..range.end / BLOCK));
            start = end;
        }
        found
    }

    async fn three_states(env: &Env) -> Rc<Store> {
        let store = open_store(env).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: SIZE_BLOCKS }]).unwrap();
        let base = disk(&store, 1);
        for n in 0..60 {
            fill(&base, n * 331 % 19_000, 5, 1 + n as u8).await;
        }
        store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
        for n in 0..30 {
            fill(&base, n * 977 % 19_000, 2, 100 + n as u8).await;
        }
        base.clone().discard(331 * BLOCK..340 * BLOCK).await.unwrap();
        store.change(&[Op::Branch { from: 2, node: 3 }]).unwrap();
        fill(&disk(&store, 3), 19_990, 10, 99).await;
        store
    }

    #[test]
    fn differences_are_exactly_the_blocks_that_read_differently() {
        run(&SimWorld::new(1, sim::Options::default()), |env| async move {
            let store = three_states(&env).await;
            for (from, to) in [(1, 2), (2, 1), (2, 3), (1, 3), (3, 3)] {
                let (old, new) = (content(&disk(&store, from)).await, content(&disk(&store, to)).await);
                let expected: BTreeSet<u64> =
                    (0..SIZE_BLOCKS).filter(|block| old[*block as usize] != new[*block as usize]).collect();
                for pages in [1, 3, 1000] {
                    assert_eq!(all(&store, Some(from), to, pages).await, expected, "{from} to {to}");
                }
            }
            let mapped = content(&disk(&store, 2)).await.iter().filter(|byte| **byte != 0).count();
            assert_eq!(all(&store, None, 2, 2).await.len(), mapped);
            let odd = store.differences(None, 2, 100, 10).await.unwrap_err();
            assert_eq!(odd.kind, blk::ErrorKind::Invalid);
            store.close().await.unwrap();
        });
    }

    #[test]
    fn differences_of_a_running_state_include_its_latest_writes() {
        run(&SimWorld::new(1, sim::Options::default()), |env| async move {
            let store = three_states(&env).await;
            let before = all(&store, Some(2), 1, 1000).await;
            fill(&disk(&store, 1), 19_500, 1, 7).await;
            let after = all(&store, Some(2), 1, 1000).await;
            assert_eq!(after.difference(&before).copied().collect::<Vec<_>>(), [19_500]);
            let checkpoints = store.checkpoints.get();
            all(&store, Some(2), 1, 1).await;
            assert_eq!(store.checkpoints.get(), checkpoints, "nothing was written since");
            store.close().await.unwrap();
        });
    }
}
