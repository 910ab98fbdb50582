//! Return of freed space to the file system, one wholly free MiB at a time.

use std::rc::Rc;

use blk::{ErrorKind, Result};

use super::group::{BlockState, CHUNK};
use super::state::{GroupSet, State};
use super::{Extent, Space};
use crate::native::layout::BLOCK;

impl Space {
    /// Punches up to `chunks` wholly free MiB of data groups in which blocks were freed since the last punch, one after
    /// another. None of their blocks is placed meanwhile. Returns the bytes given back; 0: there is nothing to punch, or
    /// all of it is kept ready.
    pub(crate) async fn punch(self: &Rc<Self>, chunks: usize) -> Result<u64> {
        let mut bytes = 0;
        for _ in 0..chunks {
            if self.state.borrow().free_written() <= self.ready_blocks.get() {
                break;
            }
            let space = self.clone();
            // The punch is a task of its own: a caller that is dropped must not leave a punch under way in blocks that
            // are placed.
            match self.env.spawn(async move { space.punch_next().await }).join().await? {
                0 => break,
                punched => bytes += punched,
            }
        }
        Ok(bytes)
    }

    async fn punch_next(&self) -> Result<u64> {
        let mut from = 0;
        loop {
            let group = self.state.borrow().set(GroupSet::Freed).next(from, true);
            let Some(group) = group.filter(|_| !self.never_punches.get()) else { return Ok(0) };
            from = group + 1;
            self.load(group).await?;
            let chunk = self.state.borrow_mut().hold_chunk(group);
            if let Some(chunk) = chunk {
                return self.punch_chunk(chunk).await;
            }
        }
    }

    async fn punch_chunk(&self, chunk: Extent) -> Result<u64> {
        let punched = self.file.give_back(chunk.addr * BLOCK, chunk.len * BLOCK).await;
        self.state.borrow_mut().shift(chunk, BlockState::Held, BlockState::Free);
        self.eased.notify();
        match punched {
            Ok(()) => {
                self.state.borrow_mut().note_punched(chunk);
                Ok(chunk.len * BLOCK)
            }
            Err(e) if e.kind == ErrorKind::Unsupported => {
                self.never_punches.set(true);
                Ok(0)
            }
            Err(e) => Err(e),
        }
    }
}

impl State {
    /// Holds the next wholly free chunk of a group with freed chunks. A chunk that is not wholly free is dropped from
    /// the set: the free that completes it adds it again. A group with held blocks is left for later.
    fn hold_chunk(&mut self, group: usize) -> Option<Extent> {
        if self.groups[group].count(BlockState::Held) > 0 || !self.is_loaded(group) || self.groups[group].meta
        {
            return None;
        }
        let mut found = None;
        while found.is_none() && self.groups[group].freed_chunks != 0 {
            let chunk = self.groups[group].freed_chunks.trailing_zeros() as usize;
            self.groups[group].freed_chunks &= !(1 << chunk);
            let blocks = chunk * CHUNK..(chunk + 1) * CHUNK;
            let free = blocks.end <= self.group_blocks()
                && self.groups[group].maps().is(blocks.clone(), BlockState::Free);
            found = free.then_some(blocks);
        }
        self.refresh(group);
        let blocks = found?;
        self.shift_blocks(group, blocks.clone(), BlockState::Free, BlockState::Held);
        Some(self.extent(group, blocks))
    }
}
