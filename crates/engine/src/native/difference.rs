//! Differences between two states, for incremental backups. Their trees are read as far as they differ; what no
//! checkpoint has merged yet is in memory.

use std::ops::Range;

use blk::{Error, Result};

use super::layout::BLOCK;
use super::lineage::Node;
use super::store::Store;
use super::stored::NodeItem;
use super::tree::Roots;
use super::unmerged::{PAGES_AT_ONCE, State};

impl Store {
    /// Returns the byte ranges from `start` on (a multiple of 4096) in which `to` differs from `from` (None: an empty
    /// disk), ascending and apart from each other, and the end of the part that was compared: the end of `to`'s disk if
    /// no part follows. Everything outside of the ranges reads the same in both. A running state includes all that was
    /// written before the call.
    ///
    /// Reads about `pages` pages of each map, so that neither the answer nor its time grows with the disk: a page has
    /// 252 blocks, and at most 126 ranges. A running state is compared as of several moments, each later than the one
    /// before.
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
        let (old, new) = (from.map(|id| self.node(id)).transpose()?, self.node(to)?);
        let states =
            (old.as_ref().map_or(State::Trees(Roots::default()), |old| State::Node(old)), State::Node(&new));
        let _retained = self.space.retain(self.work.clone());
        let (mut ranges, mut done, end) = (Vec::new(), start / BLOCK, new.size_blocks.get());
        for step in (0..pages.max(1)).step_by(PAGES_AT_ONCE) {
            if done >= end {
                break;
            }
            let (found, to) = self.differences_now(states, done..end, pages.max(1) - step).await?;
            found.iter().for_each(|blocks| join(&mut ranges, blocks.start * BLOCK..blocks.end * BLOCK));
            done = to;
            self.env.sleep_us(0).await;
        }
        Ok((ranges, done * BLOCK))
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
        device: node.device,
        roots: node.roots().unwrap_or_default(),
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
