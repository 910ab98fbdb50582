use blk::layer::Layer;
use blk::reactor::OpenMode;
use blk::{Env, Errno, ErrorKind, SECTOR};
use proptest::prelude::*;
use sim::{Action, Fault, OpKind, Options, SimWorld, View};

use super::*;
use crate::cowd::{HEADER_BYTES, Header};
use crate::testing::{PARENT, flush, read, root, sectors, write};

const FILE: &str = "web-000001-delta.vmdk";
/// Not a multiple of a table's 2 MiB, nor of 4 KiB.
const CAPACITY: u64 = 4096 * 3 + 5;
const SMALL: Growth = Growth { step_bytes: 64 << 10, chunk_bytes: 16 << 10 };

fn facts(writable: bool) -> DeltaParams<'static> {
    DeltaParams { name: "web-000001.vmdk", capacity_sectors: CAPACITY, writable, growth: SMALL }
}

async fn create(env: &Env) -> VmfsSparse {
    let file = root(env).create_new(FILE).await.unwrap();
    root(env).sync().await.unwrap();
    VmfsSparse::create(env.clone(), file, facts(true), 1).await.unwrap()
}

async fn reopen(env: &Env, writable: bool) -> Result<VmfsSparse> {
    let mode = if writable { OpenMode::Write } else { OpenMode::Read };
    VmfsSparse::open(env.clone(), root(env).open(FILE, mode).await.unwrap(), facts(writable)).await
}

fn in_world(test: impl AsyncFnOnce(Env) + 'static) -> SimWorld {
    let world = SimWorld::new(1, Options::default());
    assert!(world.run(async move |env| test(env).await).is_some());
    world
}

#[test]
fn what_is_written_is_read_back_after_reopening() {
    let world = in_world(async |env| {
        let delta = create(&env).await;
        assert_eq!(delta.usage().held_bytes, 0);
        let edges = [(0, 1), (4095, 2), (8190, 8), (CAPACITY - 1, 1), (5000, 3000), (5000, 1)];
        for (index, (at, count)) in edges.into_iter().enumerate() {
            write(&delta, sectors(at), &vec![index as u8; sectors(count) as usize]).await.unwrap();
        }
        flush(&delta).await.unwrap();
        delta.seal().await.unwrap();
        let expected = read(&delta, 0..sectors(CAPACITY)).await.unwrap();
        for writable in [false, true] {
            let again = reopen(&env, writable).await.unwrap();
            assert_eq!(read(&again, 0..sectors(CAPACITY)).await.unwrap(), expected);
            assert_eq!(again.check().await.unwrap(), Vec::<String>::new());
            assert_eq!(again.usage().held_bytes, sectors(3012));
            assert_eq!(again.usage().file_bytes, delta.usage().file_bytes);
        }
        assert_eq!((expected[0], expected[512]), (0, PARENT));
        assert_eq!((expected[sectors(5000) as usize], expected[sectors(5001) as usize]), (5, 4));
    });
    let file = world.read_file(FILE, View::Durable).unwrap();
    let header = Header::decode(FILE, &file[..HEADER_BYTES], file.len() as u64).unwrap();
    assert!(!header.is_unclean());
    assert_eq!(u64::from(header.free_sector()).next_multiple_of(8) * SECTOR, file.len() as u64);
}

#[test]
fn pages_lie_on_pages_and_one_region_costs_one_table() {
    in_world(async |env| {
        let delta = create(&env).await;
        for at in [0, 3, 16, 17, 64, 4096, 4104] {
            let count = if at % 8 == 0 { 8 } else { 1 };
            write(&delta, sectors(at), &vec![1; sectors(count) as usize])
                .await
                .unwrap_or_else(|e| panic!("{at}: {e}"));
        }
        for at in [0, 16, 64, 4096, 4104] {
            let runs = delta.lookup(sectors(at)..sectors(at + 8)).await.unwrap();
            let Where::Data { offset, .. } = runs[0].place else { panic!("{runs:?}") };
            assert_eq!(offset % 4096, 0, "sector {at}");
        }
        assert!(delta.populated(0) && delta.populated(1) && !delta.populated(2));
        let runs = delta.lookup(sectors(4096)..sectors(4112)).await.unwrap();
        assert_eq!(runs.len(), 1, "two neighbours written in turn are one run: {runs:?}");
    });
}

#[test]
fn a_flush_costs_two_for_first_writes_and_one_for_overwrites() {
    in_world(async |env| {
        let delta = create(&env).await;
        write(&delta, 0, &[1; 4096]).await.unwrap();
        let before = delta.files()[0].counters().flushes;
        flush(&delta).await.unwrap();
        assert_eq!(delta.files()[0].counters().flushes - before, 2);
        write(&delta, 0, &[2; 4096]).await.unwrap();
        flush(&delta).await.unwrap();
        assert_eq!(delta.files()[0].counters().flushes - before, 3);
    });
}

/// Returns the reads and writes of tables during `work`.
async fn table_cost(delta: &VmfsSparse, work: impl Future<Output = ()>) -> (u64, u64) {
    let before = delta.files()[0].counters();
    work.await;
    let after = delta.files()[0].counters();
    (after.table_reads - before.table_reads, after.table_writes - before.table_writes)
}

#[test]
fn reads_and_writes_of_tables_are_counted_apart_from_data() {
    in_world(async |env| {
        let delta = create(&env).await;
        let write_one = async |delta: &VmfsSparse, at| {
            write(delta, sectors(at), &[1; 512]).await.unwrap();
            flush(delta).await.unwrap();
        };
        assert_eq!(table_cost(&delta, write_one(&delta, 0)).await, (0, 2), "a table, and the pointer to it");
        assert_eq!(table_cost(&delta, write_one(&delta, 0)).await, (0, 0), "an overwrite");
        assert_eq!(table_cost(&delta, write_one(&delta, 9)).await, (0, 1), "a piece of the table");
        assert_eq!(table_cost(&delta, async { delta.seal().await.unwrap() }).await, (0, 2), "two marks");
        let again = reopen(&env, true).await.unwrap();
        assert_eq!(again.files()[0].counters().table_reads, 2, "header and directory");
        let read_one = async || drop(read(&again, sectors(9)..sectors(10)).await.unwrap());
        assert_eq!(table_cost(&again, read_one()).await, (1, 0), "the table");
        assert_eq!(table_cost(&again, read_one()).await, (0, 0), "it is in memory");
        // The header is marked "unclean" first.
        assert_eq!(table_cost(&again, write_one(&again, 17)).await, (0, 2), "a mark and a piece");
        let counters = again.files()[0].counters();
        assert_eq!((counters.reads, counters.writes > counters.table_writes), (2 + 1 + 2, true));
    });
}

#[test]
fn a_release_shows_the_parent_again() {
    in_world(async |env| {
        let delta = create(&env).await;
        write(&delta, 0, &vec![1; sectors(4096 * 2) as usize]).await.unwrap();
        flush(&delta).await.unwrap();
        delta.release(0);
        assert!(!delta.populated(0));
        assert_eq!(delta.usage().held_bytes, sectors(4096));
        flush(&delta).await.unwrap();
        delta.seal().await.unwrap();
        let again = reopen(&env, true).await.unwrap();
        let content = read(&again, 0..sectors(8192)).await.unwrap();
        assert!(content[..sectors(4096) as usize].iter().all(|b| *b == PARENT));
        assert!(content[sectors(4096) as usize..].iter().all(|b| *b == 1));
        again.release(1);
        flush(&again).await.unwrap();
        assert_eq!(again.usage().held_bytes, 0);
        assert_eq!(again.check().await.unwrap(), Vec::<String>::new());
    });
}

#[test]
fn a_sealed_delta_is_marked_before_it_is_written_again() {
    let world = in_world(async |env| {
        let delta = create(&env).await;
        write(&delta, 0, &[1; 512]).await.unwrap();
        flush(&delta).await.unwrap();
        delta.seal().await.unwrap();
        write(&delta, 512, &[2; 512]).await.unwrap();
        flush(&delta).await.unwrap();
    });
    let unclean = |world: &SimWorld| {
        let file = world.read_file(FILE, View::Durable).unwrap();
        Header::decode(FILE, &file[..HEADER_BYTES], file.len() as u64).unwrap().is_unclean()
    };
    assert!(unclean(&world));
    world.run(async |env| {
        let delta = reopen(&env, true).await.unwrap();
        assert_eq!(delta.usage().held_bytes, 1024);
        delta.seal().await.unwrap();
        assert_eq!(read(&delta, 0..1024).await.unwrap()[512], 2);
    });
    assert!(!unclean(&world));
}

#[test]
fn larger_grains_are_filled_round_the_write() {
    in_world(async |env| {
        let file = root(&env).create_new(FILE).await.unwrap();
        let delta = VmfsSparse::create(env.clone(), file, facts(true), 8).await.unwrap();
        assert_eq!(delta.shape().grain_bytes, 4096);
        let placement = delta.place(sectors(9)..sectors(18)).await.unwrap();
        assert_eq!((placement.runs[0].start, placement.runs[0].len), (sectors(8), sectors(16)));
        assert_eq!(placement.fills, [sectors(8)..sectors(9), sectors(18)..sectors(24)]);
        delta.abandon(&placement);
        assert!(!delta.populated(0));
        write(&delta, sectors(CAPACITY - 1), &[7; 512]).await.unwrap();
        write(&delta, sectors(3), &[8; 512]).await.unwrap();
        flush(&delta).await.unwrap();
        let again = reopen(&env, true).await.unwrap();
        assert_eq!(read(&again, sectors(CAPACITY - 1)..sectors(CAPACITY)).await.unwrap(), [7; 512]);
        assert_eq!(read(&again, sectors(3)..sectors(5)).await.unwrap()[511..513], [8, PARENT]);
        assert_eq!(again.check().await.unwrap(), Vec::<String>::new());
    });
}

#[test]
fn a_full_datastore_changes_nothing_and_what_is_reserved_is_usable() {
    let world = SimWorld::new(1, Options { capacity_bytes: Some(400 << 10), ..Options::default() });
    world.run(async |env| {
        let delta = create(&env).await;
        let mut written = 0;
        let error = loop {
            match write(&delta, sectors(written), &[3; 4096]).await {
                Ok(()) => written += 8,
                Err(e) => break e,
            }
        };
        assert_eq!(error.kind, ErrorKind::NoSpace);
        assert!(written * SECTOR > 300 << 10, "{written} sectors fitted");
        flush(&delta).await.unwrap();
        let before = delta.usage();
        assert!(delta.place(sectors(8000)..sectors(8001)).await.is_err());
        assert_eq!(delta.usage(), before);
        assert_eq!(read(&delta, 0..sectors(written)).await.unwrap(), vec![3; sectors(written) as usize]);
        delta.seal().await.unwrap();
    });
    world.set_capacity(None);
    world.run(async |env| {
        let delta = reopen(&env, true).await.unwrap();
        write(&delta, sectors(8000), &[4; 512]).await.unwrap();
        assert_eq!(delta.check().await.unwrap(), Vec::<String>::new());
    });
}

#[test]
fn cut_files_are_refused_at_open_or_when_read() {
    let world = in_world(async |env| {
        let delta = create(&env).await;
        for region in 0..3 {
            write(&delta, sectors(region * 4096), &[5; 8192]).await.unwrap();
        }
        flush(&delta).await.unwrap();
        delta.seal().await.unwrap();
    });
    let whole = world.read_file(FILE, View::Durable).unwrap();
    for keep in (0..whole.len()).step_by(512) {
        world.write_file(FILE, &whole[..keep]);
        let outcome = world.run(async move |env| {
            let delta = reopen(&env, false).await?;
            read(&delta, 0..sectors(CAPACITY)).await
        });
        let error = outcome.unwrap().expect_err("a cut file never reads");
        assert_eq!(error.kind, ErrorKind::Damaged, "{keep} bytes: {error}");
    }
}

#[test]
fn damage_is_reported_and_never_read() {
    let world = in_world(async |env| {
        let delta = create(&env).await;
        write(&delta, 0, &[5; 8192]).await.unwrap();
        write(&delta, sectors(4096), &[6; 512]).await.unwrap();
        flush(&delta).await.unwrap();
        delta.seal().await.unwrap();
    });
    let entry_of = |file: &[u8], at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let whole = world.read_file(FILE, View::Durable).unwrap();
    let first_table = entry_of(&whole, HEADER_BYTES) as usize * 512;
    let second_table = entry_of(&whole, HEADER_BYTES + 4) as usize * 512;
    let cases = [
        (HEADER_BYTES, 1u32, "grain directory entry 0 is 1"),
        (HEADER_BYTES + 4, entry_of(&whole, HEADER_BYTES), "grain directory entry 1"),
        (first_table, 1, "entry 0 of grain table 0 is 1"),
        (first_table, u32::MAX, "entry 0 of grain table 0 is 4294967295"),
        (second_table, (first_table / 512) as u32, "outside the table of region 0"),
    ];
    for (at, value, message) in cases {
        world.write_file(FILE, &whole);
        world.write_at(FILE, at as u64, &value.to_le_bytes());
        let outcome = world.run(async move |env| {
            let delta = reopen(&env, false).await?;
            read(&delta, 0..sectors(CAPACITY)).await
        });
        let error = outcome.unwrap().unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
    // Two tables that name one sector; each is sound on its own.
    world.write_file(FILE, &whole);
    world.write_at(FILE, second_table as u64, &entry_of(&whole, first_table).to_le_bytes());
    let findings = world.run(async |env| reopen(&env, false).await.unwrap().check().await.unwrap()).unwrap();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].contains("expected each sector once"), "{findings:?}");
}

#[test]
fn a_free_pointer_that_another_program_did_not_keep_is_not_written_over() {
    let world = in_world(async |env| {
        let delta = create(&env).await;
        write(&delta, 0, &[5; 4096]).await.unwrap();
        flush(&delta).await.unwrap();
        delta.seal().await.unwrap();
    });
    world.write_at(FILE, 28, &40u32.to_le_bytes());
    world.run(async |env| {
        let reading = reopen(&env, false).await.unwrap();
        assert_eq!(read(&reading, 0..4096).await.unwrap(), [5; 4096]);
        let writing = reopen(&env, true).await.unwrap();
        let error = writing.place(sectors(100)..sectors(101)).await.unwrap_err();
        assert!(error.to_string().contains("below freeSector 40"), "{error}");
    });
}

#[test]
fn a_capacity_that_differs_from_the_descriptor_is_refused() {
    in_world(async |env| {
        create(&env).await;
        let file = root(&env).open(FILE, OpenMode::Read).await.unwrap();
        let other = DeltaParams { capacity_sectors: CAPACITY - 1, ..facts(false) };
        let error = VmfsSparse::open(env.clone(), file, other).await.err().unwrap();
        assert!(error.to_string().contains("numSectors is 12293, expected 12292"), "{error}");
    });
}

#[test]
fn a_flush_that_found_no_space_is_repeated_in_a_safe_order() {
    let world = SimWorld::new(3, Options::default());
    let faults = world.clone();
    world.run(async move |env| {
        let delta = create(&env).await;
        write(&delta, 0, &[1; 4096]).await.unwrap();
        faults.add_fault(Fault::nth(2, Action::Fail(Errno::ENOSPC)).of(OpKind::Write).named(FILE));
        assert_eq!(flush(&delta).await.unwrap_err().kind, ErrorKind::NoSpace);
        write(&delta, 4096, &[2; 4096]).await.unwrap();
        flush(&delta).await.unwrap();
        let again = reopen(&env, true).await.unwrap();
        assert_eq!(read(&again, 0..8192).await.unwrap(), [[1; 4096], [2; 4096]].concat());
    });
}

#[test]
fn overlapping_first_writes_of_one_region_share_its_table() {
    in_world(async |env| {
        let delta = create(&env).await;
        let (a, b) = (delta.place(0..512).await.unwrap(), delta.place(512..1024).await.unwrap());
        assert!(!delta.populated(0));
        delta.publish(&b);
        assert!(delta.populated(0));
        assert_eq!(delta.lookup(0..1024).await.unwrap()[0].place, Where::Parent);
        delta.abandon(&a);
        assert_eq!(delta.usage().held_bytes, 512);
        assert_eq!(delta.check().await.unwrap(), Vec::<String>::new());
    });
}

/// Returns a sound delta with two tables, which tests damage.
fn sound_file() -> Vec<u8> {
    let world = in_world(async |env| {
        let delta = create(&env).await;
        write(&delta, sectors(4090), &[5; 8192]).await.unwrap();
        flush(&delta).await.unwrap();
        delta.seal().await.unwrap();
    });
    world.read_file(FILE, View::Durable).unwrap()
}

/// Uses any bytes as a delta. The result is an error or a location inside the file, never a panic.
async fn use_hostile(env: Env, file_bytes: u64, writable: bool) {
    let Ok(delta) = reopen(&env, writable).await else { return };
    let _ = delta.check().await;
    for start in [0, sectors(4000), sectors(CAPACITY - 5)] {
        let Ok(runs) = delta.lookup(start..sectors(CAPACITY).min(start + sectors(4096))).await else {
            continue;
        };
        for run in runs {
            let Where::Data { offset, .. } = run.place else { continue };
            assert!(offset + run.len <= file_bytes, "{run:?} in a file of {file_bytes} bytes");
        }
    }
    if let Ok(placement) = delta.place(sectors(100)..sectors(101)).await {
        delta.publish(&placement);
        flush(&delta).await.unwrap();
        delta.seal().await.unwrap();
    }
}

proptest! {
    #[test]
    fn hostile_cowd_files_never_panic(
        patches in proptest::collection::vec((0usize..24 << 10, any::<u32>(), any::<bool>()), 1..6),
        keep in proptest::option::of(0usize..40 << 10),
        writable in any::<bool>(),
    ) {
        let mut file = sound_file();
        for (at, value, small) in patches {
            // Mostly whole fields, often with meaningful values.
            let (at, value) = (at / 4 * 4, if small { value % 128 } else { value });
            file[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        file.truncate(keep.unwrap_or(file.len()));
        let world = SimWorld::new(1, Options::default());
        world.write_file(FILE, &file);
        let file_bytes = file.len() as u64;
        prop_assert!(world.run(move |env| use_hostile(env, file_bytes, writable)).is_some());
    }
}
