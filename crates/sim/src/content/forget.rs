//! What becomes of unflushed writes when a flush fails.
//!
//! A kernel reports the error once. Of the pages whose writing failed some stay dirty, and a later flush makes them
//! durable; of the others the kernel (or a device that lost its cache) forgets that they were ever dirty. A later flush
//! succeeds without them. Through the page cache their content is still read, until the page is evicted; with direct I/O
//! there is no such copy, and reads show the medium at once.

use super::{Content, EffectId};
use crate::rng::Rng;

impl Content {
    /// A flush failed that covers what completed before `covers`: some of that will never be durable by a flush.
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

    /// Whether reads may show something that is on no medium and will not be.
    pub(crate) fn has_forgotten(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// The page cache may need its memory for something else.
    pub(crate) fn evict_some(&mut self, rng: &mut Rng) {
        let (gone, kept) = std::mem::take(&mut self.forgotten).into_iter().partition(|_| rng.coin());
        self.forgotten = kept;
        self.evict(gone, rng);
    }

    /// The page cache forgets its clean pages: reads show the medium from now on.
    pub(crate) fn evict_all(&mut self, rng: &mut Rng) {
        let gone = std::mem::take(&mut self.forgotten);
        self.evict(gone, rng);
    }

    /// The write that failed may have reached the medium in part.
    fn evict(&mut self, gone: Vec<EffectId>, rng: &mut Rng) {
        for id in gone {
            let torn = rng.below(4) == 0;
            self.settle(id, &mut |sectors| if torn { sectors & rng.u64() as u8 } else { 0 });
        }
    }
}
