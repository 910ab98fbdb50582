//! Growth of a delta's file ahead of the guest's writes, and the header's unclean mark and free pointer.

use std::rc::Rc;

use blk::{Buf, ErrorKind, Result, SECTOR};

use super::Core;
use super::format::Format;
use super::space::PAGE_SECTORS;

impl<F: Format> Core<F> {
    /// Waits until space up to sector `end` is ready. `NoSpace` changes nothing.
    ///
    /// A separate task does the work: a caller that is dropped must not leave an unattended write of zeros under way,
    /// because its sectors would be allocated.
    pub(super) async fn make_ready(self: &Rc<Self>, end: u64) -> Result<()> {
        while self.state.borrow().space.ready_end() < end {
            let core = self.clone();
            self.env.spawn(async move { core.grow_chunk(end, false).await }).join().await?;
        }
        Ok(())
    }

    /// Reserves the space outside of the data that first writes up to sector `end` need. `NoSpace` changes nothing.
    pub(super) async fn reserve_records(&self, end: u64) -> Result<()> {
        let Some(reservation) = self.state.borrow().header.to_reserve(end) else { return Ok(()) };
        for (offset, len) in &reservation.ranges {
            match self.file().allocate(*offset, *len).await {
                // A file system without reservation: the flush allocates, or fails.
                Err(e) if e.kind == ErrorKind::Unsupported => break,
                reserved => reserved?,
            }
        }
        self.state.borrow_mut().header.note_reserved(&reservation);
        Ok(())
    }

    /// Keeps at least half a step of space ready, in the background.
    pub(super) fn grow_ahead(self: &Rc<Self>) {
        let low = self.growth.step_sectors() / 2;
        if self.state.borrow().space.ready_sectors() >= low || self.growing_ahead.replace(true) {
            return;
        }
        let core = self.clone();
        self.env.spawn_detached(Box::pin(async move {
            core.grow_step().await;
            core.growing_ahead.set(false);
        }));
    }

    /// Prepares a step. An error is ignored here: a first write that needs the space will get and report it.
    async fn grow_step(&self) {
        let step = self.growth.step_sectors();
        while self.growing_ahead.get() {
            let end = {
                let state = self.state.borrow();
                if state.space.ready_sectors() >= step {
                    return;
                }
                state.space.ready_end() + 1
            };
            if end + step >= self.limit_sector || self.grow_chunk(end, true).await.is_err() {
                return;
            }
        }
    }

    /// Prepares the next chunk, unless another caller has prepared space up to `end` meanwhile. Work `ahead` of need
    /// stops when a seal has cancelled it.
    async fn grow_chunk(&self, end: u64, ahead: bool) -> Result<()> {
        let _turn = self.growth_turn.lock().await;
        let ready_end = self.state.borrow().space.ready_end();
        if ready_end >= end || (ahead && !self.growing_ahead.get()) {
            return Ok(());
        }
        self.reserve(ready_end, end, ahead).await?;
        let allocated_end = self.state.borrow().space.allocated_end();
        let chunk_end = (ready_end + self.growth.chunk_sectors()).min(allocated_end);
        let zeros = Buf::zeroed(((chunk_end - ready_end) * SECTOR) as usize);
        self.file().write(ready_end * SECTOR, zeros).await?;
        self.state.borrow_mut().space.set_ready_end(chunk_end);
        Ok(())
    }

    /// Reserves a step on the datastore when no reserved space is left. On a nearly full datastore it reserves less,
    /// and nothing `ahead` of need: the last space is for guests' writes.
    async fn reserve(&self, from: u64, end: u64, ahead: bool) -> Result<()> {
        if self.state.borrow().space.allocated_end() > from {
            return Ok(());
        }
        let least = (end - from).min(self.growth.chunk_sectors()).next_multiple_of(PAGE_SECTORS);
        let mut sectors = self.growth.step_sectors().max(least);
        while let Err(e) = self.file().allocate(from * SECTOR, sectors * SECTOR).await {
            match e.kind {
                ErrorKind::NoSpace if sectors > least && !ahead => {
                    sectors = (sectors / 2).next_multiple_of(PAGE_SECTORS).max(least);
                }
                // A file system without reservation: the write of zeros will allocate, or fail.
                ErrorKind::Unsupported => break,
                _ => return Err(e),
            }
        }
        let mut state = self.state.borrow_mut();
        state.space.set_allocated_end(from + sectors);
        state.file_bytes = state.file_bytes.max((from + sectors) * SECTOR);
        Ok(())
    }

    /// Marks the header as unclean before the first table of this session is written.
    pub(super) async fn mark_unclean(&self) -> Result<()> {
        if self.marked_unclean.get() {
            return Ok(());
        }
        let _turn = self.header_turn.lock().await;
        if !self.marked_unclean.get() {
            self.write_unclean_mark(true).await?;
            self.marked_unclean.set(true);
        }
        Ok(())
    }

    pub(super) async fn write_unclean_mark(&self, unclean: bool) -> Result<()> {
        let mark = unclean.then(|| self.log.begin());
        let (offset, bytes) = self.state.borrow().header.mark_write(mark);
        self.tables().write(offset, bytes).await?;
        self.file().flush().await?;
        if !unclean {
            self.log.end();
        }
        self.state.borrow_mut().header.set_mark(mark);
        Ok(())
    }

    /// Seals the delta. The free pointer is durable before the unclean mark is removed. Otherwise a crash in between
    /// could leave a clean header with an old pointer, and the space beyond it would be allocated twice. Space that was
    /// prepared ahead is returned.
    pub(super) async fn seal(&self) -> Result<()> {
        if !self.shape.writable {
            return Ok(());
        }
        self.growing_ahead.set(false);
        let _growth = self.growth_turn.lock().await;
        let _header = self.header_turn.lock().await;
        if !self.state.borrow().header.is_unclean() {
            return Ok(());
        }
        // From here on, a first write marks the header again before it continues.
        self.marked_unclean.set(false);
        self.state.borrow_mut().tables.drop_idle();
        let leaks = self.state.borrow().header.has_leaks();
        // A placement under way has taken grains that no table names yet.
        if leaks && !self.state.borrow().tables.is_pinned() {
            self.prepare_records(true).await?;
        }
        self.cut().await?;
        self.write_free_pointer().await?;
        self.write_unclean_mark(false).await
    }

    /// Returns unused space. The file is cut even if nothing was prepared ahead, because some file systems keep what a
    /// failed allocation got.
    pub(super) async fn give_back(&self) -> Result<()> {
        if !self.shape.writable {
            return Ok(());
        }
        self.growing_ahead.set(false);
        let _growth = self.growth_turn.lock().await;
        self.cut().await
    }

    /// Cuts the file after the allocated space. The caller has the turn, so nothing grows meanwhile.
    async fn cut(&self) -> Result<()> {
        let length = {
            let mut state = self.state.borrow_mut();
            state.space.forget_ahead().min(state.file_bytes)
        };
        self.file().set_len(length).await?;
        self.state.borrow_mut().file_bytes = length;
        Ok(())
    }

    /// Reads the records that only other programs read; `rebuild` corrects them first.
    pub(super) async fn prepare_records(&self, rebuild: bool) -> Result<()> {
        let reading = {
            let state = self.state.borrow();
            state.header.prepare(self.file(), &state.directory, state.space.free_sector(), rebuild)
        };
        let maps = reading.await?;
        self.state.borrow_mut().header.set_maps(maps);
        Ok(())
    }

    async fn write_free_pointer(&self) -> Result<()> {
        let write = {
            let mut state = self.state.borrow_mut();
            let free = state.space.free_sector();
            state.header.set_free_sector(free);
            state.header.free_write()
        };
        let Some((offset, buf)) = write else { return Ok(()) };
        self.tables().write(offset, buf).await?;
        self.file().flush().await
    }
}
