use crate::peers::Kind;
use crate::peers::tests::{commit, counted, read, write};

const KIB: u64 = 1 << 10;

#[test]
fn a_first_write_copies_its_cluster_and_the_next_does_not() {
    counted(Kind::Qcow2, |vm| async move {
        assert_eq!(write(&vm, 0, 4096).await.written_bytes, 4096);
        vm.take("s").await.unwrap();
        // The first write makes the table.
        write(&vm, 0, 4096).await;
        let first = write(&vm, 100 * KIB, 4096).await;
        assert_eq!((first.reads, first.read_bytes), (1, 64 * KIB), "head and tail with one read");
        assert_eq!((first.writes, first.written_bytes, first.table_writes), (1, 64 * KIB, 0));
        let again = write(&vm, 104 * KIB, 4096).await;
        assert_eq!((again.reads, again.writes, again.written_bytes), (0, 1, 4096));
        let whole = write(&vm, 256 * KIB, 64 << 10).await;
        assert_eq!((whole.reads, whole.writes, whole.written_bytes), (0, 1, 64 * KIB));
        let wide = write(&vm, 330 * KIB, 24 << 10).await;
        assert_eq!((wide.reads, wide.read_bytes), (2, 40 * KIB), "longer data is not read over");
        assert_eq!(read(&vm, 1000 * KIB, 4096).await.reads, 1, "the cache holds all tables");
        let split = read(&vm, 48 * KIB, 32 << 10).await;
        assert_eq!((split.reads, split.read_bytes), (1, 32 * KIB), "clusters 0 and 1 follow each other");
    });
}

#[test]
fn a_subcluster_is_written_without_a_copy() {
    counted(Kind::Qcow2ExtendedL2, |vm| async move {
        vm.take("s").await.unwrap();
        write(&vm, 0, 4096).await;
        let first = write(&vm, 200 * KIB, 4096).await;
        assert_eq!((first.reads, first.writes, first.written_bytes), (0, 1, 4096));
        let part = write(&vm, 208 * KIB, 512).await;
        assert_eq!(
            (part.reads, part.read_bytes, part.written_bytes),
            (1, 3584, 4096),
            "only the tail is missing"
        );
        assert_eq!(read(&vm, 200 * KIB, 12 << 10).await.reads, 3, "one of them from below");
        let committed = commit(&vm, "s").await;
        assert_eq!(committed.commit_written_bytes, 2 * 64 * KIB, "chunks of the bitmap, with what is below");
    });
}

#[test]
fn a_flush_orders_reference_counts_before_tables() {
    counted(Kind::Qcow2, |vm| async move {
        vm.take("s").await.unwrap();
        write(&vm, 0, 4096).await;
        let before = vm.counters().unwrap();
        vm.disks().remove(0).flush().await.unwrap();
        let flushed = vm.counters().unwrap().since(&before).unwrap();
        assert_eq!((flushed.table_writes, flushed.flushes), (2, 2), "a refcount block, then a slice");
        assert_eq!(commit(&vm, "s").await.commit_read_bytes, 64 * KIB);
        assert_eq!(write(&vm, 0, 4096).await.writes, 1, "the raw file again");
    });
}
