//! Space used by states, computed from the differences between them as they are now.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::Result;

use super::diff_base::{DiffRange, diff_ranges};
use super::difference::item_now;
use super::layout::BLOCK;
use super::lineage::{Lineage, Node};
use super::store::Store;
use super::tree::{Roots, WalkItem};
use super::unmerged::State;

/// Space of a store, in bytes. `grown` is the sum of `used`, `waiting`, `held` and `free`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreUsage {
    /// Length of the file that is divided into groups, without their bitmap pages.
    pub grown: u64,
    /// Data and metadata in use.
    pub used: u64,
    /// Freed, and reusable as soon as that is durable.
    pub waiting: u64,
    /// Free, but being written or punched.
    pub held: u64,
    /// Can be placed now.
    pub free: u64,
    /// The part of `free` that is kept for snapshots, checkpoints and reclaim.
    pub reserve: u64,
    /// Number of redirects in memory that no checkpoint has merged yet.
    pub pending_runs: u64,
}

/// Numbers of blocks that are given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct BlockCounts {
    data: u64,
    maps: u64,
}

/// What waits for a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CountFor {
    Request,
    /// The count pauses for guests between its steps, unless they need the space.
    Job,
}

/// A state whose space is given back, and the remaining state that shows the rest of its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReclaimedNode {
    node: u64,
    successor: Option<u64>,
    diff_ranges: Vec<DiffRange>,
}

/// States that are removed, and the states that remain of them.
struct Removal<'a> {
    lineage: &'a Lineage,
    gone: &'a dyn Fn(u64) -> bool,
    /// For each removed node: the only node that remains of it and its descendants. None: nothing remains.
    remaining: BTreeMap<u64, Option<u64>>,
}

impl Removal<'_> {
    /// Returns the nodes that remain of a node's children and their descendants: none, one, or more (cut to two).
    fn successors(&mut self, id: u64) -> Vec<u64> {
        let mut successors = Vec::new();
        for child in self.lineage.children(id) {
            successors.extend(self.remaining_of(child));
            if successors.len() > 1 {
                break;
            }
        }
        successors
    }

    /// Returns what remains of a node. A removed node stays, hidden, while it has two or more children. Without
    /// recursion, because chains are long.
    fn remaining_of(&mut self, id: u64) -> Option<u64> {
        if !(self.gone)(id) {
            return Some(id);
        }
        if let Some(remaining) = self.remaining.get(&id) {
            return *remaining;
        }
        let mut path = vec![id];
        self.remaining.insert(id, None);
        while let Some(at) = path.last().copied() {
            let children = self.lineage.children(at);
            let open =
                children.iter().find(|child| (self.gone)(**child) && !self.remaining.contains_key(child));
            if let Some(open) = open {
                self.remaining.insert(*open, None);
                path.push(*open);
                continue;
            }
            let remaining = children.iter().filter_map(|child| match (self.gone)(*child) {
                true => self.remaining[child],
                false => Some(*child),
            });
            let remaining: Vec<u64> = remaining.take(2).collect();
            self.remaining
                .insert(at, if remaining.len() > 1 { Some(at) } else { remaining.first().copied() });
            path.pop();
        }
        self.remaining[&id]
    }
}

impl Store {
    /// Returns the bytes that are given back when all of `nodes` are dropped. Blocks that only several of them show
    /// count once.
    pub async fn exclusive_bytes(&self, nodes: &[u64]) -> Result<u64> {
        self.exclusive(nodes, CountFor::Request).await
    }

    /// Like `exclusive_bytes`, for a job: the count pauses for guests.
    pub async fn exclusive_bytes_for_job(&self, nodes: &[u64]) -> Result<u64> {
        self.exclusive(nodes, CountFor::Job).await
    }

    async fn exclusive(&self, nodes: &[u64], count_for: CountFor) -> Result<u64> {
        let held = self.held(nodes, count_for).await?;
        Ok((held.data + held.maps) * BLOCK)
    }

    /// Returns the bytes of a node's disk that come from its nearest ancestor outside of `own`: what a clone shares
    /// with its source.
    pub async fn shared_with_others(&self, node: u64, own: &BTreeSet<u64>) -> Result<u64> {
        let Some(base) = self.base_of(node, own) else { return Ok(0) };
        let (node, base) = (self.node(node)?, self.node(base)?);
        let _retained = self.space.retain(self.work.clone());
        let mut replaced = BlockCounts::default();
        self.add_held(State::Node(&base), State::Node(&node), &DiffRange::ALL, &mut replaced).await?;
        Ok(self.mapped_blocks(&base).await?.saturating_sub(replaced.data) * BLOCK)
    }

    /// Returns the number of data blocks of a state as it is now, backing blocks included.
    async fn mapped_blocks(&self, node: &Node) -> Result<u64> {
        let roots = node.current_view().trees_below();
        let (tree, now) = (State::Trees(roots), State::Node(node));
        let (mut added, mut removed) = (BlockCounts::default(), BlockCounts::default());
        self.add_held(now, tree, &DiffRange::ALL, &mut added).await?;
        self.add_held(tree, now, &DiffRange::ALL, &mut removed).await?;
        Ok((roots.blocks() + added.data).saturating_sub(removed.data))
    }

    /// Returns the bytes that were written in one of `nodes` and are also shown by others: what clones read.
    pub async fn bytes_read_by_others(&self, nodes: &BTreeSet<u64>) -> Result<u64> {
        let parents = self.with_parents(nodes);
        if !self.is_read_by_others(&parents) {
            return Ok(0);
        }
        let _retained = self.space.retain(self.work.clone());
        let written = self.added_in(parents.keys()).await?;
        let all: Vec<u64> = nodes.iter().copied().collect();
        Ok(written.saturating_sub(self.held(&all, CountFor::Request).await?.data) * BLOCK)
    }

    fn is_read_by_others(&self, parents: &BTreeMap<u64, u64>) -> bool {
        let lineage = self.lineage.borrow();
        parents.keys().any(|id| lineage.children(*id).iter().any(|child| !parents.contains_key(child)))
    }

    /// Returns each of `nodes` that exists, and its hidden ancestors, with their parents.
    fn with_parents(&self, nodes: &BTreeSet<u64>) -> BTreeMap<u64, u64> {
        let lineage = self.lineage.borrow();
        let mut parents = BTreeMap::new();
        for id in nodes {
            let mut at = lineage.get(*id);
            while let Some(node) = at.filter(|node| !parents.contains_key(&node.id)) {
                parents.insert(node.id, node.parent.get());
                at = lineage.get(node.parent.get()).filter(|parent| parent.dropped.get());
            }
        }
        parents
    }

    /// Returns the number of data blocks that each state has and its base does not. The caller retains the space.
    async fn added_in(&self, nodes: impl Iterator<Item = &u64>) -> Result<u64> {
        let of = |id: u64| self.node(id).ok();
        let parts: Vec<_> = nodes
            .flat_map(|id| self.diff_ranges_now(*id).into_iter().map(move |range| (*id, range)))
            .map(|(id, range)| (of(id), range.base_node.and_then(of), range))
            .collect();
        let mut written = BlockCounts::default();
        for (node, base, range) in &parts {
            self.add_held(state_of(node.as_ref()), state_of(base.as_ref()), range, &mut written).await?;
        }
        Ok(written.data)
    }

    /// Returns the pieces of a state that count, over their bases as they are now.
    pub(super) fn diff_ranges_now(&self, node: u64) -> Vec<DiffRange> {
        let lineage = self.lineage.borrow();
        diff_ranges(node, &|id| lineage.get(id).map(|node| item_now(&node)))
    }

    fn base_of(&self, node: u64, own: &BTreeSet<u64>) -> Option<u64> {
        let lineage = self.lineage.borrow();
        let mut seen = BTreeSet::new();
        let mut at = lineage.get(node)?;
        while seen.insert(at.id) {
            at = lineage.get(at.parent.get())?;
            if !at.dropped.get() && !own.contains(&at.id) {
                return Some(at.id);
            }
        }
        None
    }

    /// Returns the space of the store, from the counters in memory.
    pub fn store_usage(&self) -> StoreUsage {
        let totals = self.space.totals();
        StoreUsage {
            grown: totals.grown * BLOCK,
            used: totals.used * BLOCK,
            waiting: totals.waiting * BLOCK,
            held: totals.held * BLOCK,
            free: (totals.free_data + totals.free_meta) * BLOCK,
            reserve: totals.reserve * BLOCK,
            pending_runs: self.pending_runs() as u64,
        }
    }

    /// Sets how much free space is kept ready for first writes after a snapshot: it is zero-written ahead while guests
    /// are idle, and not given back to the file system. Without it, only little is made ready, as guests need it.
    pub fn keep_ready(&self, bytes: u64) {
        if self.space.keep_ready(bytes / BLOCK) {
            self.work.notify();
        }
    }

    /// Returns those of `nodes` whose space can be given back and has not been yet.
    pub fn left_to_reclaim(&self, nodes: &[u64]) -> Vec<u64> {
        let lineage = self.lineage.borrow();
        let ready = |id: &&u64| lineage.is_reclaimable(**id);
        nodes.iter().filter(ready).copied().collect()
    }

    #[cfg(test)]
    pub(super) async fn held_data(&self, nodes: &[u64]) -> Result<u64> {
        Ok(self.held(nodes, CountFor::Request).await?.data)
    }

    async fn held(&self, nodes: &[u64], count_for: CountFor) -> Result<BlockCounts> {
        let dropped: BTreeSet<u64> = nodes.iter().copied().collect();
        let _retained = self.space.retain(self.work.clone());
        let of = |id: u64| self.node(id).ok();
        let parts: Vec<_> = self
            .reclaimable_nodes(&dropped)
            .into_iter()
            .map(|part| (of(part.node), part.successor.and_then(of), part.diff_ranges))
            .collect();
        let mut held = BlockCounts::default();
        for (node, successor, diff_ranges) in &parts {
            let states = (state_of(node.as_ref()), state_of(successor.as_ref()));
            for range in diff_ranges {
                self.add_held_for(count_for, states, range, &mut held).await?;
            }
        }
        Ok(held)
    }

    /// Returns the states whose space is given back when `dropped` are removed.
    fn reclaimable_nodes(&self, dropped: &BTreeSet<u64>) -> Vec<ReclaimedNode> {
        let lineage = self.lineage.borrow();
        let is_gone = |id: u64| lineage.get(id).is_none_or(|node| node.dropped.get());
        let goes = |id: u64| dropped.contains(&id) || is_gone(id);
        let mut now = Removal { lineage: &lineage, gone: &is_gone, remaining: BTreeMap::new() };
        let mut then = Removal { lineage: &lineage, gone: &goes, remaining: BTreeMap::new() };
        let mut all: BTreeSet<u64> =
            dropped.iter().copied().filter(|id| lineage.get(*id).is_some()).collect();
        // Hidden nodes may have stayed because of the states that are removed now.
        let mut seen = BTreeSet::new();
        for id in all.clone() {
            let parent =
                |id: u64| lineage.get(lineage.get(id)?.parent.get()).filter(|node| node.dropped.get());
            let mut at = parent(id);
            while let Some(node) = at.filter(|node| seen.insert(node.id)) {
                if now.successors(node.id).len() > 1 {
                    all.insert(node.id);
                }
                at = parent(node.id);
            }
        }
        let mut parts = Vec::new();
        for node in all {
            let successors = then.successors(node);
            if successors.len() < 2 {
                parts.push(ReclaimedNode {
                    node,
                    successor: successors.first().copied(),
                    diff_ranges: self.diff_ranges_now(node),
                });
            }
        }
        parts
    }

    async fn add_held(
        &self,
        state: State<'_>,
        successor: State<'_>,
        range: &DiffRange,
        held: &mut BlockCounts,
    ) -> Result<()> {
        self.add_held_for(CountFor::Request, (state, successor), range, held).await
    }

    async fn add_held_for(
        &self,
        count_for: CountFor,
        states: (State<'_>, State<'_>),
        range: &DiffRange,
        held: &mut BlockCounts,
    ) -> Result<()> {
        let mut from = range.start;
        while from < range.end {
            let mut add = |found: WalkItem| match found {
                WalkItem::Data(data) if data.birth > range.since => held.data += data.len,
                WalkItem::Page { birth, .. } if birth > range.since => held.maps += 1,
                _ => {}
            };
            let began_ns = self.env.now_ns();
            from = self.gone_now(states, from..range.end, &mut add).await?;
            match count_for {
                CountFor::Request => self.env.sleep_us(0).await,
                CountFor::Job => self.yield_to_guests(began_ns).await,
            }
        }
        Ok(())
    }
}

/// Returns one side of a comparison; a node that does not exist has nothing.
fn state_of(node: Option<&Rc<Node>>) -> State<'_> {
    node.map_or(State::Trees(Roots::default()), |node| State::Node(node))
}

#[cfg(test)]
mod tests {
    use blk::Env;
    use sim::SimWorld;

    use super::super::StoreOptions;
    use super::super::change::Op;
    use super::super::tests::{disk, fill, open_store, open_store_with, run};
    use super::*;

    fn in_world(test: impl AsyncFnOnce(Env) + 'static) {
        let world = SimWorld::new(1, sim::Options::default());
        run(&world, |env| async move { test(env).await });
    }

    /// Node 1 is a child of 2, which is a child of 3; node 4 is a branch of 3.
    async fn family(env: &Env) -> Rc<Store> {
        let store = open_store(env).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: 100_000 }]).unwrap();
        let base = disk(&store, 1);
        fill(&base, 0, 100, 1).await;
        store.change(&[Op::Take { running: 1, sealed: 3 }]).unwrap();
        fill(&base, 0, 40, 2).await;
        store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
        fill(&base, 20, 30, 3).await;
        store.change(&[Op::Branch { from: 3, node: 4 }]).unwrap();
        fill(&disk(&store, 4), 500, 10, 4).await;
        store
    }

    /// Drops and reclaims the nodes, and returns the bytes that became free.
    async fn drop_and_reclaim(store: &Rc<Store>, nodes: &[u64]) -> u64 {
        store.checkpoint().await.unwrap();
        let before = store.store_usage().used;
        let ops: Vec<Op> = nodes.iter().map(|node| Op::Drop { node: *node }).collect();
        store.change(&ops).unwrap();
        while store.has_to_reclaim() {
            store.progress.wait().await;
        }
        before - store.store_usage().used
    }

    #[test]
    fn exclusive_and_shared_bytes_of_states_are_counted() {
        in_world(async |env| {
            let store = family(&env).await;
            assert_eq!(store.held_data(&[1]).await.unwrap(), 30);
            assert_eq!(store.held_data(&[2]).await.unwrap(), 20, "0..20 node 1 still shows");
            assert_eq!(store.held_data(&[3]).await.unwrap(), 0, "two rest on it");
            assert_eq!(store.held_data(&[4]).await.unwrap(), 10);
            assert_eq!(store.held_data(&[1, 2]).await.unwrap(), 70);
            assert_eq!(
                store.held_data(&[3, 4]).await.unwrap(),
                10 + 40,
                "node 2 still shows 40..100, and not 0..40"
            );
            assert_eq!(store.held_data(&[2, 3, 4, 4, 77]).await.unwrap(), 10 + 50 + 20);
            assert_eq!(store.held_data(&[1, 2, 3, 4]).await.unwrap(), 100 + 40 + 30 + 10);
            let own = BTreeSet::from([1, 2]);
            assert_eq!(store.shared_with_others(1, &own).await.unwrap(), 50 * BLOCK);
            assert_eq!(store.shared_with_others(1, &BTreeSet::from([1, 2, 3])).await.unwrap(), 0);
            let lent = store.bytes_read_by_others(&BTreeSet::from([1, 2, 3])).await.unwrap();
            assert_eq!(lent, 100 * BLOCK, "node 4 shows all of node 3");
            assert_eq!(store.bytes_read_by_others(&BTreeSet::from([1, 2, 3, 4])).await.unwrap(), 0);
            store.close().await.unwrap();
        });
    }

    #[test]
    fn the_previewed_bytes_equal_the_freed_bytes() {
        for nodes in [&[2][..], &[4], &[3, 4], &[1, 2], &[2, 3, 4], &[1, 2, 3, 4]] {
            in_world(async move |env| {
                let store = family(&env).await;
                // Only merged pages of maps count.
                store.checkpoint().await.unwrap();
                let foretold = store.exclusive_bytes(nodes).await.unwrap();
                assert_eq!(drop_and_reclaim(&store, nodes).await, foretold, "{nodes:?}");
                store.close().await.unwrap();
            });
        }
    }

    #[test]
    fn a_state_of_which_a_part_is_given_back_is_counted_from_there_on() {
        in_world(async |env| {
            let options = StoreOptions { reserve_blocks: 64, reclaim_pages: 4, ..StoreOptions::default() };
            let store = open_store_with(&env, options).await.unwrap();
            store.change(&[Op::Create { node: 1, size_blocks: 100_000 }]).unwrap();
            let base = disk(&store, 1);
            for block in (0..25_000).step_by(250) {
                fill(&base, block, 4, 1).await;
            }
            store.change(&[Op::Take { running: 1, sealed: 3 }]).unwrap();
            for block in (0..25_000).step_by(250) {
                fill(&base, block, 1, 2).await;
            }
            store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
            store.change(&[Op::Branch { from: 2, node: 4 }]).unwrap();
            store.checkpoint().await.unwrap();
            store.change(&[Op::Drop { node: 3 }]).unwrap();
            let cursor = || store.node(3).map_or(u64::MAX, |node| node.cursor.get());
            while cursor() < 5000 {
                store.progress.wait().await;
            }
            store.hold_back(&[3], true);
            assert!(cursor() < 20_000, "all of it was given back");
            // The blocks that were given back get other contents.
            while store.store_usage().waiting > 0 {
                store.progress.wait().await;
            }
            let free = store.store_usage().free / BLOCK;
            for block in 0..free + 1000 {
                fill(&disk(&store, 4), 30_000 + block, 1, 3).await;
            }
            let lent = store.bytes_read_by_others(&BTreeSet::from([2])).await.unwrap() / BLOCK;
            assert!((400..500).contains(&lent), "{lent} blocks");
            assert_eq!(store.written_in(&[2]).await.unwrap(), 100 * BLOCK);
            store.hold_back(&[3], false);
            while store.has_to_reclaim() {
                store.progress.wait().await;
            }
            assert_eq!(store.bytes_read_by_others(&BTreeSet::from([2])).await.unwrap(), 400 * BLOCK);
            store.close().await.unwrap();
        });
    }

    #[test]
    fn a_hidden_state_is_freed_when_one_descendant_remains() {
        in_world(async |env| {
            let store = family(&env).await;
            assert_eq!(drop_and_reclaim(&store, &[3]).await, 0);
            store.checkpoint().await.unwrap();
            let foretold = store.exclusive_bytes(&[4]).await.unwrap();
            assert_eq!(store.held_data(&[4]).await.unwrap(), 10 + 40);
            assert_eq!(drop_and_reclaim(&store, &[4]).await, foretold);
            store.close().await.unwrap();
        });
    }
}
