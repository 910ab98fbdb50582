//! A copy-on-write file system like ZFS: writes gather in memory, and a transaction group puts them at new places every
//! few seconds, with the blocks of pointers above them.
//!
//! A snapshot costs no more than the end of a transaction group. What it costs later is space, and places: a disk that
//! was written at random is read at random.

mod changed;
mod group;
mod limits;
mod volume;

use std::rc::Rc;

use blk::{Buf, Local, Result, Slice};

use super::source::{declared, known};
use super::vm::{Disk, Vm};
use crate::run::Constant;
use limits::*;
use volume::Volume;

/// What the model leaves out, one sentence each.
pub(super) const LEFT_OUT: [&str; 8] = [
    "the cache of data (ARC): only metadata and what was not yet written is in memory (primarycache=metadata)",
    "compression, checksums and parity; blocks of pointers are as long as they are allocated",
    "space maps and metaslabs: freed space is used once all of the pool was written, in order",
    "the file system's own object sets, beyond four blocks for each transaction group",
    "a separate device for the intent log",
    "prefetching",
    "blocks of the intent log beside its data",
    "other file systems of the pool, which share the memory for what is not yet written",
];

pub(super) fn constants() -> Vec<Constant> {
    let tunable = |name: &str| format!("OpenZFS zfs(4), {name}");
    let memory = "OpenZFS zfs(4), zfs_dirty_data_max: a tenth of the memory, here of 4 GiB";
    vec![
        known("block", BLOCK_BYTES, "bytes", "OpenZFS zfsprops(7), volblocksize since 2.2"),
        known("block of pointers", POINTERS_BYTES, "bytes", "OpenZFS include/sys/dnode.h"),
        known("pointer", POINTER_BYTES, "bytes", "OpenZFS include/sys/spa.h"),
        known("copies of a block of pointers", POINTER_COPIES, "", "OpenZFS zfsprops(7), redundant_metadata"),
        declared("space", SPACE, "disks", "freed space is used once the pool was written once"),
        declared("blocks that end a group", END_BLOCKS, "", "dnode, object set, meta object set, uberblock"),
        known("transaction group", GROUP_S, "s", &tunable("zfs_txg_timeout")),
        declared("data not yet written", DIRTY_BYTES_MAX, "bytes", memory),
        known("end of a group from", SYNC_PERCENT, "%", &tunable("zfs_dirty_data_sync_percent")),
        known("delay of writes from", DELAY_PERCENT, "%", &tunable("zfs_delay_min_dirty_percent")),
        known("scale of the delay", DELAY_SCALE_NS, "ns", &tunable("zfs_delay_scale")),
        known("longest delay", DELAY_MAX_NS, "ns", "OpenZFS module/zfs/dsl_pool.c"),
        known("writes of a group", GROUP_WRITES as u64, "", &tunable("zfs_vdev_async_write_max_active")),
        known("joined write", JOINED_BYTES, "bytes", &tunable("zfs_vdev_aggregation_limit_non_rotating")),
        known("write in the log", IN_LOG_BYTES, "bytes", &tunable("zvol_immediate_write_sz: at most")),
        known("block of the log", LOG_BLOCK_BYTES, "bytes", &tunable("zil_maxblocksize")),
        known("groups until space is used again", DEFERRED_GROUPS as u64, "", "OpenZFS include/sys/txg.h"),
        declared("processor time of an I/O", CALL_US, "us", "one at a time; bounds what memory serves"),
    ]
}

pub(super) async fn create(vm: &Rc<Vm>, number: usize, size_bytes: u64) -> Result<Rc<dyn Disk>> {
    Ok(Rc::new(Zfs(Rc::new(Volume::create(vm, number, size_bytes).await?))))
}

struct Zfs(Rc<Volume>);

impl Disk for Zfs {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes
    }

    fn read(&self, offset: u64, buf: Buf) -> Local<'_, (Buf, Result<()>)> {
        Box::pin(async move {
            let volume = &self.0;
            volume.call().await;
            let find = |block| volume.versions.find(block);
            volume.read_blocks(offset, buf, |block| volume.in_memory(block), find).await
        })
    }

    fn write(&self, offset: u64, data: Slice) -> Local<'_, Result<()>> {
        Box::pin(self.0.write_blocks(offset, data))
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        Box::pin(self.0.write_log())
    }

    /// Ends the transaction group. The guest goes on: its writes enter the next group.
    fn take(&self) -> Local<'_, Result<()>> {
        Box::pin(async move { self.0.end_group(|volume| volume.versions.take()).await })
    }

    /// Destroys the snapshot, and waits until its space is free. `zfs destroy` does not wait for that.
    fn commit(&self, number: usize) -> Local<'_, Result<()>> {
        Box::pin(self.0.destroy(number))
    }

    fn read_frozen(&self, number: usize, offset: u64, buf: Buf) -> Local<'_, (Buf, Result<()>)> {
        Box::pin(async move {
            let volume = &self.0;
            volume.call().await;
            volume
                .read_blocks(offset, buf, |_| None, move |block| volume.versions.find_in(number, block))
                .await
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::peers::Kind;
    use crate::peers::tests::{commit, counted, read, write};

    #[test]
    fn writes_wait_in_memory_and_blocks_move() {
        counted(Kind::Zfs, |vm| async move {
            let whole = write(&vm, 0, 64 << 10).await;
            assert_eq!((whole.reads, whole.writes), (0, 0));
            let before = vm.counters().unwrap();
            vm.take("s").await.unwrap();
            let taken = vm.counters().unwrap().since(&before).unwrap();
            // Data, two copies of the blocks of pointers on two levels, four blocks of the end.
            assert_eq!((taken.writes, taken.table_writes, taken.flushes), (1 + 2 * 2 + 4, 8, 2));
            let part = write(&vm, 16 << 10, 4096).await;
            assert_eq!((part.reads, part.read_bytes, part.writes), (1, 16 << 10, 0), "the rest of the block");
            assert_eq!(read(&vm, 16 << 10, 4096).await.reads, 0, "it is in memory");
            vm.take("t").await.unwrap();
            let sequential = read(&vm, 0, 64 << 10).await;
            assert_eq!((sequential.reads, sequential.read_bytes), (3, 64 << 10), "a block has moved");
            let removed = commit(&vm, "s").await;
            assert_eq!(
                (removed.reads, removed.table_reads),
                (1, 1),
                "the list of dead blocks; no data moves"
            );
        });
    }

    #[test]
    fn a_flush_writes_the_log_alone() {
        counted(Kind::Zfs, |vm| async move {
            write(&vm, 0, 16 << 10).await;
            let before = vm.counters().unwrap();
            vm.disks().remove(0).flush().await.unwrap();
            let flushed = vm.counters().unwrap().since(&before).unwrap();
            assert_eq!((flushed.writes, flushed.written_bytes, flushed.flushes), (1, 16 << 10, 1));
        });
    }
}
