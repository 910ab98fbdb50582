//! Lookups of blocks: the fast path of every guest request, and the slower one when a page is missing from the cache.

use std::ops::Range;
use std::rc::Rc;

use blk::Result;

use super::IOS_AT_ONCE;
use super::cache::{CachedPages, Nodes};
use super::entry::{Mapped, Root, Spot, push_span, span};
use super::node::Node;

/// Result of the path from the root to a block.
enum CachedPath<'a> {
    Leaf(&'a Node),
    NoPage(Stretch),
    Missing,
}

/// Blocks without a page, from the one looked up to `end`: a hole, or blocks of a device.
struct Stretch {
    end: u64,
    word: u64,
}

impl Stretch {
    const BEHIND_ALL: Stretch = Stretch { end: u64::MAX, word: 0 };

    fn of(spot: &Spot, block: u64) -> Stretch {
        Stretch { end: spot.end(), word: spot.word_at(block) }
    }
}

impl CachedPages<'_> {
    fn cached_path(&self, root: Option<&Root>, block: u64) -> CachedPath<'_> {
        let Some(root) = root.filter(|root| block < span(root.level)) else {
            return CachedPath::NoPage(Stretch::BEHIND_ALL);
        };
        let mut spot = root.spot();
        while spot.pointer.is_page() {
            let Some(node) = self.get(&spot) else { return CachedPath::Missing };
            if spot.level == 0 {
                return CachedPath::Leaf(node);
            }
            spot = node.child_at(block);
        }
        CachedPath::NoPage(Stretch::of(&spot, block))
    }
}

/// Result of a path that stops at the parent of leaves at the latest, so that leaves can be read together.
enum ReadPath {
    Node(Rc<Node>),
    NoPage(Stretch),
}

impl Nodes {
    /// Appends the runs of `blocks`, holes included, without I/O. Returns false when a page is missing; `out` is
    /// unchanged then.
    pub fn lookup_cached(&self, root: Option<&Root>, blocks: Range<u64>, out: &mut Vec<Mapped>) -> bool {
        let pages = self.cached();
        let mark = out.len();
        let mut at = blocks.start;
        while at < blocks.end {
            let end = match pages.cached_path(root, at) {
                CachedPath::Leaf(node) => {
                    let end = node.spot.end().min(blocks.end);
                    node.push_runs(at..end, mark, out);
                    end
                }
                CachedPath::NoPage(Stretch { end, word }) => {
                    push_span(out, mark, at..end.min(blocks.end), word);
                    end
                }
                CachedPath::Missing => {
                    out.truncate(mark);
                    return false;
                }
            };
            at = end;
        }
        true
    }

    /// Appends the runs of `blocks`, holes included.
    ///
    /// # Errors
    /// `Damaged`: a page does not match its parent. Errors of the medium. `out` is unchanged then.
    pub async fn lookup(&self, root: Option<&Root>, blocks: Range<u64>, out: &mut Vec<Mapped>) -> Result<()> {
        if self.lookup_cached(root, blocks.clone(), out) {
            return Ok(());
        }
        let mark = out.len();
        let result = self.lookup_reading(root, blocks, mark, out).await;
        if result.is_err() {
            out.truncate(mark);
        }
        result
    }

    async fn lookup_reading(
        &self,
        root: Option<&Root>,
        blocks: Range<u64>,
        mark: usize,
        out: &mut Vec<Mapped>,
    ) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            match self.read_path(root, at).await? {
                ReadPath::NoPage(Stretch { end, word }) => {
                    push_span(out, mark, at..end.min(blocks.end), word);
                    at = end;
                }
                ReadPath::Node(node) => {
                    let end = node.spot.end().min(blocks.end);
                    self.push_below(&node, at..end, mark, out).await?;
                    at = end;
                }
            }
        }
        Ok(())
    }

    async fn read_path(&self, root: Option<&Root>, block: u64) -> Result<ReadPath> {
        let Some(root) = root.filter(|root| block < span(root.level)) else {
            return Ok(ReadPath::NoPage(Stretch::BEHIND_ALL));
        };
        let mut spot = root.spot();
        while spot.pointer.is_page() {
            let node = self.load(&spot).await?;
            if spot.level <= 1 {
                return Ok(ReadPath::Node(node));
            }
            spot = node.child_at(block);
        }
        Ok(ReadPath::NoPage(Stretch::of(&spot, block)))
    }

    /// Appends the runs below `node`, which is a leaf or the parent of leaves and covers `blocks`.
    async fn push_below(
        &self,
        node: &Node,
        blocks: Range<u64>,
        mark: usize,
        out: &mut Vec<Mapped>,
    ) -> Result<()> {
        if node.spot.level == 0 {
            node.push_runs(blocks, mark, out);
            return Ok(());
        }
        let mut at = blocks.start;
        while at < blocks.end {
            let ahead: Vec<Spot> =
                leaves(at, blocks.end).take(IOS_AT_ONCE).map(|block| node.child_at(block)).collect();
            for (spot, leaf) in ahead.iter().zip(self.load_all(&ahead, true).await?) {
                let end = spot.end().min(blocks.end);
                match leaf {
                    Some(leaf) => leaf.push_runs(at..end, mark, out),
                    None => push_span(out, mark, at..end, spot.word_at(at)),
                }
                at = end;
            }
        }
        Ok(())
    }
}

/// Returns one block of each leaf between `from` and `to`.
fn leaves(from: u64, to: u64) -> impl Iterator<Item = u64> {
    (from / span(0)..to.div_ceil(span(0))).map(move |leaf| (leaf * span(0)).max(from))
}
