//! Copy before write: before a chunk of the disk is changed for the first time after a snapshot, its old content is
//! copied into the snapshot's own store. LVM's classic snapshots do so, and QEMU's backups by fleecing.
//!
//! A snapshot costs nothing to remove: the disk itself is always current. A write pays once for each snapshot that does
//! not have the chunk yet.

mod snapshot;
mod store;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::{Buf, File, Local, Result, Slice};
use futures_util::future::join_all;

use super::source::{declared, known};
use super::vm::{Disk, Vm};
use crate::run::Constant;
use crate::vmware::host::Purpose;
use snapshot::Snapshot;
pub(super) use store::{FLEECING, LVM, Store};

/// What the model of LVM leaves out, one sentence each.
pub(super) const LVM_LEFT_OUT: [&str; 5] = [
    "processor time of the kernel, and the limit of 2,048 copies under way",
    "a snapshot's space that is full, which makes the snapshot invalid: it is always large enough",
    "merging of requests below the device mapper: each chunk is a request of its own while one of them is copied",
    "lvconvert --merge, which reverts the disk; a commit keeps the disk and removes the snapshot",
    "the physical volumes' other areas of LVM's metadata, and clusters of hosts",
];

/// What the model of fleecing leaves out, one sentence each.
pub(super) const FLEECING_LEFT_OUT: [&str; 4] = [
    "QEMU's processor time, its threads, and the export or device through which the guest reaches it",
    "joining of clusters in a row into one copy: each is copied by itself",
    "tables of the image that receives the copies: it is raw",
    "the backup job itself, which reads the snapshot; a backup step does that",
];

/// Length of one change of the volume manager's metadata, which is text of some KiB.
const RECORD_BYTES: u64 = 4096;
const RECORDS: &str = "records";

pub(super) fn constants(store: Store) -> Vec<Constant> {
    if !store.table {
        return vec![known("copied unit", store.chunk_bytes, "bytes", "QEMU block/block-copy.c")];
    }
    vec![
        known("chunk", store.chunk_bytes, "bytes", "lvcreate(8): default of --chunksize"),
        known(
            "entry of the exception table",
            snapshot::ENTRY_BYTES,
            "bytes",
            "Linux drivers/md/dm-snap-persistent.c: two numbers; an area of one chunk is written at a time",
        ),
        declared(
            "change of LVM's metadata",
            RECORD_BYTES,
            "bytes",
            "text of some KiB; one before, one within a suspension",
        ),
    ]
}

pub(super) async fn create(
    vm: &Rc<Vm>,
    number: usize,
    size_bytes: u64,
    store: Store,
) -> Result<Rc<dyn Disk>> {
    let origin = vm.create_file(&format!("disk{number}")).await?;
    origin.set_len(size_bytes).await?;
    let records = match store.records {
        true => Some(vm.create_file(&format!("{RECORDS}{number}")).await?),
        false => None,
    };
    let (snapshots, made) = (RefCell::default(), Cell::new(0));
    Ok(Rc::new(Origin {
        vm: vm.clone(),
        number,
        size_bytes,
        store,
        origin,
        records,
        snapshots,
        next: RefCell::default(),
        made,
    }))
}

struct Origin {
    vm: Rc<Vm>,
    number: usize,
    size_bytes: u64,
    store: Store,
    origin: File,
    records: Option<File>,
    /// Oldest first.
    snapshots: RefCell<Vec<Rc<Snapshot>>>,
    next: RefCell<Option<Rc<Snapshot>>>,
    made: Cell<u64>,
}

impl Origin {
    fn chunks(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.store.chunk_bytes..range.end.div_ceil(self.store.chunk_bytes)
    }

    async fn write_record(&self) -> Result<()> {
        let Some(records) = &self.records else { return Ok(()) };
        let data = Buf::zeroed(RECORD_BYTES as usize).freeze();
        self.vm.host.write(records, 0, data, Purpose::Table).await?;
        self.vm.host.flush(records).await
    }

    async fn write_origin(&self, offset: u64, data: Slice) -> Result<()> {
        let snapshots = self.snapshots.borrow().clone();
        let range = offset..offset + data.len() as u64;
        let has_all = |snapshot: &Rc<Snapshot>| self.chunks(&range).all(|chunk| snapshot.has(chunk));
        if snapshots.iter().all(has_all) {
            return self.vm.host.write(&self.origin, offset, data, Purpose::Guest).await;
        }
        let writes = self.chunks(&range).map(|chunk| {
            let start = range.start.max(chunk * self.store.chunk_bytes);
            let end = range.end.min((chunk + 1) * self.store.chunk_bytes);
            let part = data.slice((start - offset) as usize..(end - offset) as usize);
            self.write_chunk(&snapshots, chunk, start, part)
        });
        join_all(writes).await.into_iter().collect()
    }

    /// Copies the chunk into every snapshot that lacks it, then writes.
    async fn write_chunk(
        &self,
        snapshots: &[Rc<Snapshot>],
        chunk: u64,
        offset: u64,
        data: Slice,
    ) -> Result<()> {
        let copies = snapshots.iter().map(|snapshot| snapshot.copy(&self.vm, &self.origin, chunk));
        for copied in join_all(copies).await {
            copied?;
        }
        self.vm.host.write(&self.origin, offset, data, Purpose::Guest).await
    }
}

impl Disk for Origin {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&self, offset: u64, buf: Buf) -> Local<'_, (Buf, Result<()>)> {
        Box::pin(self.vm.host.read(&self.origin, offset, buf, Purpose::Guest))
    }

    fn write(&self, offset: u64, data: Slice) -> Local<'_, Result<()>> {
        Box::pin(self.write_origin(offset, data))
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        Box::pin(self.vm.host.flush(&self.origin))
    }

    fn prepare(&self) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.made.set(self.made.get() + 1);
            let name = format!("disk{}-{}.cow", self.number, self.made.get());
            let file = self.vm.create_file(&name).await?;
            let snapshot = Snapshot::create(&self.vm, name, file, self.store, self.size_bytes).await?;
            *self.next.borrow_mut() = Some(Rc::new(snapshot));
            self.write_record().await
        })
    }

    /// Adds the snapshot. LVM commits its metadata while the volume is suspended (`lib/metadata`,
    /// lv_update_and_reload).
    fn take(&self) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.write_record().await?;
            self.snapshots.borrow_mut().extend(self.next.take());
            Ok(())
        })
    }

    fn commit(&self, number: usize) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.write_record().await?;
            let removed = self.vm.stunned("commit", async {
                self.write_record().await?;
                Ok(self.snapshots.borrow_mut().remove(number))
            });
            let removed = removed.await?;
            self.vm.remove_file(&removed.name).await
        })
    }

    fn read_frozen(&self, number: usize, offset: u64, buf: Buf) -> Local<'_, (Buf, Result<()>)> {
        let snapshot = self.snapshots.borrow()[number].clone();
        Box::pin(async move { snapshot.read(&self.vm, &self.origin, offset, buf).await })
    }
}

#[cfg(test)]
mod tests {
    use crate::peers::Kind;
    use crate::peers::tests::{commit, counted, read, write};

    #[test]
    fn a_first_write_waits_for_its_chunk_and_the_table() {
        counted(Kind::Lvm, |vm| async move {
            vm.take("s").await.unwrap();
            let first = write(&vm, 8192, 4096).await;
            assert_eq!((first.reads, first.read_bytes), (1, 4096));
            assert_eq!((first.writes, first.table_writes, first.flushes), (3, 1, 1), "chunk, table, data");
            let again = write(&vm, 8192, 4096).await;
            assert_eq!((again.reads, again.writes), (0, 1));
            vm.take("t").await.unwrap();
            let both = write(&vm, 0, 4096).await;
            assert_eq!((both.reads, both.writes, both.flushes), (2, 5, 2), "each snapshot has its copy");
            let wide = write(&vm, 1 << 20, 64 << 10).await;
            assert_eq!((wide.reads, wide.table_writes), (32, 2), "the table is written once for all of them");
            assert_eq!(read(&vm, 0, 4096).await.reads, 1, "the disk is not redirected");
            assert_eq!(commit(&vm, "s").await.read_bytes, 0, "no data moves");
        });
    }

    #[test]
    fn a_full_area_of_the_table_is_written_and_the_next_is_cleared() {
        counted(Kind::Lvm, |vm| async move {
            vm.take("s").await.unwrap();
            let wide = write(&vm, 0, 257 * 4096).await;
            assert_eq!(wide.table_writes, 3, "the first area, the zeros of the next, then its only entry");
        });
    }

    #[test]
    fn fleecing_copies_larger_units_and_writes_no_table() {
        counted(Kind::Fleecing, |vm| async move {
            vm.take("s").await.unwrap();
            let first = write(&vm, 8192, 4096).await;
            assert_eq!((first.reads, first.read_bytes), (1, 64 << 10));
            assert_eq!((first.writes, first.table_writes, first.flushes), (2, 0, 0));
        });
    }
}
