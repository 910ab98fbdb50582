//! Removal of sources that no state is over any more, with what landed of them.

use std::rc::Rc;

use blk::Result;

use super::super::change::Op;
use super::super::source::{Source, source_key};
use super::super::store::Store;

impl Store {
    /// Removes the sources that no node is over, dropped nodes that still have space included. A source that was just
    /// added stays.
    pub(in super::super) async fn remove_sources(&self) -> Result<()> {
        for source in self.sources() {
            if !self.is_unused(&source) {
                continue;
            }
            // What is being read belongs to nodes that are gone, and ends with what it began with.
            let (reads, writes) = (self.reads.drain(), self.writes.drain());
            reads.await;
            writes.await;
            let (node, key) = (source.landing, source_key(source.device));
            if self.is_unused(&source) {
                match self.change(&[Op::Drop { node }, Op::Delete { key }]) {
                    // The checkpoint that makes room is made by the caller.
                    Err(e) if e.is_no_space() => {}
                    changed => {
                        changed?;
                        source.detach();
                    }
                }
            }
        }
        Ok(())
    }

    fn is_unused(&self, source: &Rc<Source>) -> bool {
        !source.waits.get() && self.has_source(source) && !self.lineage.borrow().is_over(source.device)
    }
}
