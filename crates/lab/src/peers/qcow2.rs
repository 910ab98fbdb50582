//! QEMU's qcow2: external snapshots as overlays over a raw file, and their active commit.

mod commit;
mod dirty;
mod disk;
mod image;
mod layout;
mod slices;

use std::rc::Rc;

use blk::Result;

use super::source::{declared, known};
use super::vm::{Disk, Vm};
use crate::run::Constant;
pub(super) use layout::Layout;

/// What the model leaves out, one sentence each.
pub(super) const LEFT_OUT: [&str; 6] = [
    "QEMU's processor time, its threads, and the export or device through which the guest reaches it",
    "reference counts beyond their first block: all of them are written at one place",
    "internal snapshots, compression, encryption, zero clusters and discards",
    "data of clusters that read as zeros below: they are read and written like others",
    "the workers of one request: its parts are under way at a time, however many there are",
    "what the file system of the host does as an image grows",
];

pub(super) async fn create(
    vm: &Rc<Vm>,
    number: usize,
    size_bytes: u64,
    layout: Layout,
) -> Result<Rc<dyn Disk>> {
    Ok(Rc::new(disk::Qcow2Disk::create(vm.clone(), number, layout, size_bytes).await?))
}

pub(super) fn constants(layout: Layout) -> Vec<Constant> {
    let Layout { cluster_bytes, subclusters, entry_bytes, cache_max_bytes } = layout;
    let cache = "QEMU docs/qcow2-cache.txt";
    let format = "QEMU docs/interop/qcow2.txt";
    let mirror = "QEMU block/mirror.c";
    vec![
        known("cluster", cluster_bytes, "bytes", format),
        known("subclusters of a cluster", subclusters, "", format),
        known("L2 entry", entry_bytes, "bytes", format),
        known("L2 cache", cache_max_bytes, "bytes", "QEMU docs/qcow2-cache.txt: at most, and of each image"),
        known(
            "L2 slice",
            layout::SLICE_BYTES,
            "bytes",
            "QEMU docs/qcow2-cache.txt: where the cache does not cover the disk",
        ),
        known("cache-clean-interval", slices::CLEAN_INTERVAL_S, "s", cache),
        known(
            "merged read",
            disk::MERGED_READ_BYTES,
            "bytes",
            "QEMU block/qcow2-cluster.c, perform_cow: longest data between head and tail",
        ),
        known(
            "dirty bitmap",
            dirty::CHUNK_BYTES,
            "bytes",
            "QEMU block/dirty-bitmap.c: the target is a raw file",
        ),
        known("longest copy", dirty::COPY_BYTES_MAX, "bytes", mirror),
        known("copies at once", commit::COPIES_MAX as u64, "", mirror),
        known(
            "copy of a lower image",
            commit::LOWER_COPY_BYTES,
            "bytes",
            "QEMU block/commit.c, one at a time",
        ),
        declared(
            "check for a ready commit",
            commit::READY_CHECK_US,
            "us",
            "interval of this lab on real QEMU",
        ),
    ]
}

#[cfg(test)]
mod tests;
