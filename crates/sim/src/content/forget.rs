//! Effects of a failed flush on unflushed writes.
//!
//! A kernel reports the error once. Some of the pages whose writing failed stay dirty, and a later flush makes them
//! durable. The kernel (or a device that lost its cache) forgets that the others were ever dirty: a later flush
//! succeeds without them. The page cache still shows their content until the page is evicted. With direct I/O there is
//! no such copy, and reads show the medium at once.

use super::{Content, EffectId};
use crate::rng::Rng;

impl Content {
    /// Simulates a failed flush that covers writes completed before `covers`: no later flush will make some of them
    /// durable.
    pub(crate) fn flush_failed(&mut self, covers: u64, page_cache: bool, rng: &mut Rng) {
        let completed = std::mem::take(&mut self.completed);
        for id in completed {
            let effect = &mut self.effects[id as usize];
            if effect.stamp >= covers || effect.change.is_some() || rng.coin() {
                self.completed.push_back(id);
                continue;
            }
            effect.forgotten = true;
            self.completed_bytes -= effect.data.as_ref().map_or(0, |data| data.len() as u64);
            self.forgotten.push(id);
        }
        if !page_cache {
            self.evict_all(rng);
        }
    }

    /// Returns whether reads may show content that is not on the medium and will not be written.
    pub(crate) fn has_forgotten(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// Evicts some pages, as a page cache does that needs memory.
    pub(crate) fn evict_some(&mut self, rng: &mut Rng) {
        let (gone, kept) = std::mem::take(&mut self.forgotten).into_iter().partition(|_| rng.coin());
        self.forgotten = kept;
        self.evict(gone, rng);
    }

    /// Evicts all clean pages: reads show the medium from now on.
    pub(crate) fn evict_all(&mut self, rng: &mut Rng) {
        let gone = std::mem::take(&mut self.forgotten);
        self.evict(gone, rng);
    }

    /// Evicts writes. A failed write may have reached the medium in part.
    fn evict(&mut self, gone: Vec<EffectId>, rng: &mut Rng) {
        for id in gone {
            let torn = rng.below(4) == 0;
            self.settle(id, &mut |sectors| if torn { sectors & rng.u64() as u8 } else { 0 });
        }
    }
}
