use super::budget::TABLES_CACHED_MAX;
use super::*;
use crate::cowd::{Header, TABLE_BYTES, decode_entries};

const GIB_SECTORS: u64 = 1 << 21;

struct Bench {
    header: Header,
    directory: Directory,
    tables: Tables<Header>,
}

impl Bench {
    fn new() -> Self {
        let header = Header::create("x", GIB_SECTORS, 1).unwrap();
        let directory = Directory::empty(header.directory_entries() as u32);
        Self { header, directory, tables: Tables::default() }
    }

    fn place(&mut self, region: u32, table_sector: u32) {
        if !self.tables.contains(region) {
            self.tables.insert_unpublished(region, 0);
        }
        let table = self.tables.get(region).unwrap();
        table.position = table_sector;
        table.pins += 1;
    }

    fn publish(&mut self, region: u32, first: usize, count: usize, sector: u32) {
        self.tables.publish(&mut self.directory, region, first, count, sector, 1);
        self.tables.unpin(region);
    }

    fn stages(&mut self) -> Stages {
        self.tables.stages(&self.header, &self.directory)
    }
}

/// (offset, length) of each write.
type Writes = Vec<(u64, usize)>;

fn shape(stages: &Stages) -> (Writes, Vec<Writes>) {
    let list = |writes: &[TableWrite]| writes.iter().map(|w| (w.offset, w.data.len())).collect::<Writes>();
    (list(&stages.early), stages.late.iter().map(|batch| list(batch)).collect())
}

#[test]
fn a_new_table_goes_first_and_its_pointer_last() {
    let mut bench = Bench::new();
    bench.place(3, 64);
    bench.publish(3, 5, 2, 200);
    let stages = bench.stages();
    assert_eq!(shape(&stages), (vec![(64 * 512, TABLE_BYTES)], vec![vec![(2048, 512)]]));
    let pointers = decode_entries(&stages.late[0][0].data);
    assert_eq!(pointers[..5], [0, 0, 0, 64, 0]);
    bench.tables.settle(stages.ticket);
    assert!(bench.tables.is_clean());
    assert!(bench.stages().is_empty());
}

#[test]
fn a_linked_table_writes_the_pieces_that_changed() {
    let mut bench = Bench::new();
    bench.tables.insert_loaded(1, 64, vec![0; TABLE_ENTRIES]);
    bench.directory.set(1, 64);
    bench.place(1, 64);
    bench.publish(1, 1023, 2, 500);
    bench.place(1, 64);
    bench.publish(1, 4095, 1, 600);
    let stages = bench.stages();
    let base = 64 * 512;
    assert_eq!(shape(&stages), (vec![], vec![vec![(base, 8192), (base + 12288, 4096)]]));
    assert_eq!(decode_entries(&stages.late[0][0].data)[1022..1026], [0, 500, 501, 0]);
}

#[test]
fn entries_published_after_a_capture_wait_for_the_next_one() {
    let mut bench = Bench::new();
    bench.place(0, 64);
    bench.publish(0, 0, 1, 500);
    let first = bench.stages();
    bench.place(0, 64);
    bench.publish(0, 1, 1, 501);
    assert_eq!(decode_entries(&first.early[0].data)[..2], [500, 0]);
    bench.tables.settle(first.ticket);
    assert!(!bench.tables.is_clean());
    let second = bench.stages();
    assert_eq!(shape(&second), (vec![], vec![vec![(64 * 512, 4096)]]));
}

#[test]
fn after_a_failed_flush_nothing_is_written_early() {
    let mut bench = Bench::new();
    bench.place(0, 64);
    bench.publish(0, 0, 1, 500);
    let failed = bench.stages();
    bench.place(0, 64);
    bench.publish(0, 4000, 1, 501);
    let again = bench.stages();
    assert_eq!(shape(&again), (vec![], vec![vec![(64 * 512, TABLE_BYTES)], vec![(2048, 512)]]));
    bench.tables.settle(failed.ticket);
    assert!(!bench.tables.is_clean(), "an old ticket settles nothing");
    bench.tables.settle(again.ticket);
    assert!(bench.tables.is_clean());
}

#[test]
fn a_release_clears_the_pointer_and_drops_what_was_dirty() {
    let mut bench = Bench::new();
    bench.place(130, 64);
    bench.publish(130, 0, 1, 500);
    let first = bench.stages();
    bench.tables.settle(first.ticket);
    bench.place(130, 64);
    bench.publish(130, 1, 1, 501);
    bench.tables.release(&mut bench.directory, 130);
    let stages = bench.stages();
    assert_eq!(shape(&stages), (vec![], vec![vec![(2048 + 512, 512)]]));
    assert!(decode_entries(&stages.late[0][0].data).iter().all(|pointer| *pointer == 0));
    // The same region again, while the release is not durable: it gets a new table in a new place.
    bench.place(130, 128);
    bench.publish(130, 7, 1, 700);
    bench.tables.settle(stages.ticket);
    let next = bench.stages();
    assert_eq!(shape(&next), (vec![(128 * 512, TABLE_BYTES)], vec![vec![(2048 + 512, 512)]]));
}

#[test]
fn an_abandoned_table_is_dropped() {
    let mut bench = Bench::new();
    bench.place(0, 64);
    bench.tables.unpin(0);
    assert!(!bench.tables.contains(0));
    assert!(bench.stages().is_empty());
}

#[test]
fn the_cache_keeps_what_is_in_use() {
    let mut bench = Bench::new();
    bench.place(0, 64);
    bench.publish(0, 0, 1, 500);
    bench.place(1, 96);
    for region in 2..TABLES_CACHED_MAX as u32 + 10 {
        bench.tables.insert_loaded(region % 512 + 2, 1000, vec![0; TABLE_ENTRIES]);
        bench.tables.insert_loaded(region + 1000, 1000, vec![0; TABLE_ENTRIES]);
    }
    assert!(bench.tables.loaded.len() <= TABLES_CACHED_MAX);
    assert_eq!(bench.tables.loaded.len(), budget::loaded());
    assert!(bench.tables.contains(0) && bench.tables.contains(1));
}

#[test]
fn a_layer_that_is_only_read_caches_few_tables() {
    let (mut written, mut read) = (Bench::new(), Bench::new());
    written.place(0, 64);
    for region in 0..TABLES_CACHED_MAX as u32 + 10 {
        read.tables.insert_loaded(region, 1000, vec![0; TABLE_ENTRIES]);
        assert!(read.tables.loaded.len() <= TABLES_READ_MAX);
    }
    for region in 1..TABLES_CACHED_MAX as u32 + 10 {
        written.tables.insert_loaded(region, 1000, vec![0; TABLE_ENTRIES]);
    }
    assert!(written.tables.loaded.len() > TABLES_CACHED_MAX / 2);
    assert!(budget::loaded() <= TABLES_CACHED_MAX + TABLES_READ_MAX);
    drop((written, read));
    assert_eq!(budget::loaded(), 0);
}
