//! A snapshot's own store: the chunks that were copied, and the table of them.

use std::cell::{Cell, RefCell};

use blk::sync::{RangeLock, Signal};
use blk::{Buf, File, Result};

use super::store::Store;
use crate::peers::sparse::Sparse;
use crate::peers::vm::Vm;
use crate::vmware::fifo_lock::FifoLock;
use crate::vmware::host::Purpose;

/// An entry of the table: the chunk's numbers on the disk and in the store. Source: Linux
/// `drivers/md/dm-snap-persistent.c`, disk_exception.
pub(super) const ENTRY_BYTES: u64 = 16;
/// Chunks before the first copy: the header and the first area of the table. Source: as above.
const FIRST_CHUNKS: u64 = 2;

pub(super) struct Snapshot {
    pub name: String,
    file: File,
    store: Store,
    disk_bytes: u64,
    /// Chunk of the store for each chunk of the disk that was copied.
    copied: RefCell<Sparse>,
    next_chunk: Cell<u64>,
    /// Chunks that are being copied. A writer to one of them waits.
    copying: RangeLock,
    /// Chunks that are read from the disk for the snapshot. Their first write waits.
    reading: RangeLock,
    table: Table,
}

/// Entries are committed in the order in which their copies began, and written together.
#[derive(Default)]
struct Table {
    /// Copies that have begun, and those whose entry was added.
    begun: Cell<u64>,
    added: Cell<u64>,
    turn: Signal,
    /// Held while entries are written: the kernel adds no others meanwhile.
    thread: FifoLock,
    /// Entries of the present area.
    in_area: Cell<u64>,
    /// Groups of entries that were written.
    written: Cell<u64>,
    group_done: Signal,
}

impl Snapshot {
    pub(super) async fn create(
        vm: &Vm,
        name: String,
        file: File,
        store: Store,
        disk_bytes: u64,
    ) -> Result<Snapshot> {
        let snapshot = Snapshot {
            name,
            file,
            store,
            disk_bytes,
            copied: RefCell::default(),
            next_chunk: Cell::new(if store.table { FIRST_CHUNKS } else { 0 }),
            copying: RangeLock::default(),
            reading: RangeLock::default(),
            table: Table::default(),
        };
        for chunk in 0..snapshot.next_chunk.get() {
            snapshot.write_table(vm, chunk).await?;
        }
        Ok(snapshot)
    }

    async fn write_table(&self, vm: &Vm, chunk: u64) -> Result<()> {
        let bytes = self.store.chunk_bytes;
        let data = Buf::zeroed(bytes as usize).freeze();
        vm.host.write(&self.file, chunk * bytes, data, Purpose::Table).await
    }

    fn entries_of_area(&self) -> u64 {
        self.store.chunk_bytes / ENTRY_BYTES
    }

    pub(super) fn has(&self, chunk: u64) -> bool {
        self.copied.borrow().get(chunk) != 0
    }

    /// Returns the next chunk of the store, leaving out the areas of the table.
    fn allocate(&self) -> u64 {
        let chunk = self.next_chunk.get();
        let mut next = chunk + 1;
        if self.store.table && next % (self.entries_of_area() + 1) == 1 {
            next += 1;
        }
        self.next_chunk.set(next);
        chunk
    }

    /// Copies a chunk of the disk, unless the snapshot has it. Resolves when the disk's may be changed.
    pub(super) async fn copy(&self, vm: &Vm, origin: &File, chunk: u64) -> Result<()> {
        if self.has(chunk) {
            return Ok(());
        }
        let _alone = self.copying.lock(chunk..chunk + 1).await;
        if self.has(chunk) {
            return Ok(());
        }
        let (at, number) = (self.allocate(), self.table.begun.get());
        self.table.begun.set(number + 1);
        let moved = self.move_chunk(vm, origin, chunk, at).await;
        if self.store.table {
            self.add_entry(vm, number).await?;
        }
        moved?;
        let _unread = self.reading.lock(chunk..chunk + 1).await;
        // 0 means that there is no copy.
        self.copied.borrow_mut().set(chunk, at + 1);
        Ok(())
    }

    async fn move_chunk(&self, vm: &Vm, origin: &File, chunk: u64, at: u64) -> Result<()> {
        let bytes = self.store.chunk_bytes;
        // The disk may end within a chunk.
        let len = bytes.min(self.disk_bytes - chunk * bytes);
        let buf = Buf::alloc(len as usize);
        let (buf, result) = vm.host.read(origin, chunk * bytes, buf, Purpose::Guest).await;
        result?;
        vm.host.write(&self.file, at * bytes, buf.freeze(), Purpose::Guest).await
    }

    /// Adds the entry of copy `number` in its turn. Resolves when the entry is on disk: it is written when no other copy
    /// is under way, or when its area is full.
    async fn add_entry(&self, vm: &Vm, number: u64) -> Result<()> {
        let table = &self.table;
        while table.added.get() != number {
            table.turn.wait().await;
        }
        let thread = table.thread.lock().await;
        let group = table.written.get();
        table.added.set(number + 1);
        table.turn.notify();
        let in_area = table.in_area.get() + 1;
        table.in_area.set(in_area);
        let is_full = in_area == self.entries_of_area();
        if table.added.get() != table.begun.get() && !is_full {
            drop(thread);
            while table.written.get() == group {
                table.group_done.wait().await;
            }
            return Ok(());
        }
        let area = 1 + number / self.entries_of_area() * (self.entries_of_area() + 1);
        let result = self.write_area(vm, area, is_full).await;
        if is_full {
            table.in_area.set(0);
        }
        table.written.set(group + 1);
        table.group_done.notify();
        result
    }

    async fn write_area(&self, vm: &Vm, area: u64, is_full: bool) -> Result<()> {
        if is_full {
            self.write_table(vm, area + self.entries_of_area() + 1).await?;
        }
        vm.host.flush(&self.file).await?;
        self.write_table(vm, area).await
    }

    /// Reads the snapshot: chunks that were copied from the store, others from the disk.
    pub(super) async fn read(&self, vm: &Vm, origin: &File, offset: u64, mut buf: Buf) -> (Buf, Result<()>) {
        let (bytes, end) = (self.store.chunk_bytes, offset + buf.len() as u64);
        let _unchanged = self.reading.lock(offset / bytes..end.div_ceil(bytes)).await;
        let place = |chunk: u64| self.copied.borrow().get(chunk).checked_sub(1);
        let mut start = offset;
        while start < end {
            let (chunk, first) = (start / bytes, place(start / bytes));
            let follows = |n: &u64| place(chunk + n) == first.map(|at| at + n);
            let count = (1..=(end - 1) / bytes - chunk).take_while(follows).count() as u64 + 1;
            let part_end = ((chunk + count) * bytes).min(end);
            let part = Buf::alloc((part_end - start) as usize);
            let (part, result) = match first {
                Some(at) => vm.host.read(&self.file, at * bytes + start % bytes, part, Purpose::Guest).await,
                None => vm.host.read(origin, start, part, Purpose::Guest).await,
            };
            if result.is_err() {
                return (buf, result);
            }
            let inside = (start - offset) as usize;
            buf[inside..inside + part.len()].copy_from_slice(&part);
            start = part_end;
        }
        (buf, Ok(()))
    }
}
