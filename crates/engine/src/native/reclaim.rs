//! Reclaim of the space that only a dropped state used.
//!
//! It runs inside checkpoints, a piece in each, on the trees of that checkpoint. The freed blocks and the position
//! reached (the cursor) become durable together, so a crash neither repeats nor forgets anything. A dropped node with
//! one child is compared with that child: blocks that were born after the node's parent was sealed and that the child
//! does not show are free. A dropped node with two or more children stays, hidden, until at most one is left.

use blk::{ErrorKind, Result};

use super::layout::Extent;
use super::store::Store;
use super::stored::NodeItem;
use super::tree::{Roots, WalkItem, gone_from_both};
use crate::options::Defect;

/// The end of every disk.
const ALL: u64 = u64::MAX;

impl Store {
    /// Returns whether there is space to give back now.
    pub fn has_to_reclaim(&self) -> bool {
        self.next_to_reclaim().is_some()
    }

    /// Returns the dropped nodes whose space has not been given back, hidden ones with several children included.
    pub fn dropped_nodes(&self) -> Vec<u64> {
        self.lineage.borrow().dropped()
    }

    /// Returns the number of blocks given back by this process.
    pub fn reclaimed_blocks(&self) -> u64 {
        self.reclaimed_blocks.get()
    }

    /// Holds back the reclaim of these nodes, or resumes it.
    pub fn hold_back(&self, nodes: &[u64], held: bool) {
        let mut held_back = self.held_back.borrow_mut();
        for node in nodes {
            match held {
                true => held_back.insert(*node),
                false => held_back.remove(node),
            };
        }
        if !held {
            // Nodes with damaged pages are tried again.
            self.unreclaimable.borrow_mut().retain(|node, _| !nodes.contains(node));
        }
        self.work.notify();
    }

    fn next_to_reclaim(&self) -> Option<u64> {
        self.lineage.borrow().next_to_reclaim(&self.held_back.borrow())
    }

    /// Runs one step within a checkpoint. Returns the number of blocks that it freed.
    pub(super) async fn reclaim_step(&self) -> Result<u64> {
        let (mut freed, mut budget) = (0, self.options.reclaim_pages);
        while let Some(id) = self.next_to_reclaim()
            && budget > 0
        {
            let Some(item) = self.ready_item(id) else { break };
            budget = budget.saturating_sub(1);
            match self.reclaim_piece(id, item, &mut budget, &mut freed).await {
                Ok(()) => {}
                // A damaged page of a state that nothing refers to hurts no other state.
                Err(e) if matches!(e.kind, ErrorKind::Damaged | ErrorKind::Io) => self.leave_damaged(id, e),
                Err(e) => return Err(e),
            }
        }
        Ok(freed)
    }

    /// Returns the node's item if, at this checkpoint's freeze, it was dropped and had at most one child.
    fn ready_item(&self, id: u64) -> Option<NodeItem> {
        let stored = self.stored.borrow();
        stored.get(id).filter(|item| item.dropped && stored.children(id).len() <= 1).copied()
    }

    async fn reclaim_piece(
        &self,
        id: u64,
        item: NodeItem,
        budget: &mut usize,
        blocks: &mut u64,
    ) -> Result<()> {
        let (child, since) = {
            let stored = self.stored.borrow();
            let child = stored.children(id).first().and_then(|child| stored.get(*child).copied());
            (child.map(|child| child.roots).unwrap_or_default(), stored.sealed(item.parent))
        };
        let ignores = |defect| self.options.defects.has(defect);
        let child = Roots {
            places: child.places.filter(|_| !ignores(Defect::IgnoreSuccessor)),
            backings: child.backings.filter(|_| !ignores(Defect::ForgetBackings)),
        };
        let mut freed = Vec::new();
        let early = self.options.defects.has(Defect::WrongBirth);
        let is_own = |birth: u64| birth > since || (early && birth == since && since > 0);
        let mut visit = |gone: WalkItem| match gone {
            WalkItem::Data(data) if is_own(data.birth) => {
                freed.push(Extent { addr: data.addr, len: data.len });
            }
            WalkItem::Page { addr, birth, .. } if is_own(birth) => {
                self.nodes.forget(addr);
                freed.push(Extent { addr, len: 1 });
            }
            _ => {}
        };
        let loads = self.nodes.loads();
        let rest = item.cursor..ALL;
        let cursor = gone_from_both(&self.nodes, &item.roots, &child, rest, *budget, &mut visit).await?;
        *budget = budget.saturating_sub((self.nodes.loads() - loads) as usize);
        *blocks += freed.iter().map(|extent| extent.len).sum::<u64>();
        self.freed.borrow_mut().append(&mut freed);
        self.advance(id, item, cursor);
        Ok(())
    }

    fn advance(&self, id: u64, item: NodeItem, cursor: u64) {
        let (mut stored, mut lineage) = (self.stored.borrow_mut(), self.lineage.borrow_mut());
        if cursor == ALL {
            stored.remove(id);
            lineage.remove(id);
            self.changed_nodes.borrow_mut().remove(&id);
            return;
        }
        stored.set(id, NodeItem { cursor, ..item });
        lineage.reclaimed_to(id, cursor);
    }

    fn leave_damaged(&self, id: u64, cause: blk::Error) {
        self.held_back.borrow_mut().insert(id);
        self.unreclaimable.borrow_mut().insert(id, cause.clone());
        self.damage.borrow_mut().push(cause);
        self.progress.notify();
    }

    /// Returns why the space of one of the nodes cannot be given back.
    pub fn reclaim_error(&self, nodes: &[u64]) -> Option<blk::Error> {
        let unreclaimable = self.unreclaimable.borrow();
        nodes.iter().find_map(|node| unreclaimable.get(node).cloned())
    }
}
