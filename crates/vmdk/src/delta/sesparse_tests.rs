//! SEsparse deltas that are written: as their own reader, the free bitmap and the back map show them.

use blk::layer::Layer;
use blk::reactor::OpenMode;
use blk::{Env, ErrorKind, SECTOR};
use proptest::prelude::*;
use sim::{Options, SimWorld, View};

use super::*;
use crate::sesparse::{self, testing};
use crate::testing::{PARENT, flush, read, root, sectors, write};

const FILE: &str = "web-000001-sesparse.vmdk";
/// A region has 32,768 sectors; the last grain is cut by the end of the disk.
const CAPACITY: u64 = 32768 * 3 + 5;
const REGION: u64 = sectors_of(32768);

const fn sectors_of(count: u64) -> u64 {
    count * SECTOR
}

fn facts() -> DeltaParams<'static> {
    let growth = Growth { step_bytes: 64 << 10, chunk_bytes: 16 << 10 };
    DeltaParams { name: "web-000001.vmdk", capacity_sectors: CAPACITY, writable: true, growth }
}

async fn create(env: &Env) -> SeSparse {
    let file = root(env).create_new(FILE).await.unwrap();
    root(env).sync().await.unwrap();
    SeSparse::create(env.clone(), file, facts(), 8).await.unwrap()
}

async fn reopen(env: &Env) -> Result<SeSparse> {
    SeSparse::open(env.clone(), root(env).open(FILE, OpenMode::Write).await.unwrap(), facts()).await
}

/// Returns the file as the reader of the format shows it, without a finding of its check.
async fn reader(env: &Env) -> sesparse::SeSparse {
    let file = root(env).open(FILE, OpenMode::Read).await.unwrap();
    let facts = sesparse::DeltaParams { name: "web-000001.vmdk", capacity_sectors: CAPACITY };
    let reader = sesparse::SeSparse::open(file, facts).await.unwrap();
    let findings = reader.cross_check().await.unwrap();
    assert!(
        findings.is_empty(),
        "{}",
        findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    );
    reader
}

fn in_world(test: impl AsyncFnOnce(Env) + 'static) -> SimWorld {
    let world = SimWorld::new(1, Options::default());
    assert!(world.run(async move |env| test(env).await).is_some());
    world
}

#[test]
fn the_reader_and_its_check_accept_what_is_written() {
    let world = in_world(async |env| {
        let delta = create(&env).await;
        reader(&env).await;
        let edges = [(0, 1), (32767, 2), (CAPACITY - 1, 1), (65000, 3000), (65000, 1), (8, 8), (70000, 700)];
        for (index, (at, count)) in edges.into_iter().enumerate() {
            write(&delta, sectors(at), &vec![index as u8; sectors(count) as usize]).await.unwrap();
        }
        flush(&delta).await.unwrap();
        delta.seal().await.unwrap();
        let expected = read(&delta, 0..sectors(CAPACITY)).await.unwrap();
        let shown = read(&reader(&env).await, 0..sectors(CAPACITY)).await.unwrap();
        assert!(shown == expected && expected[512] == PARENT && expected[sectors(8) as usize] == 5);
        let again = reopen(&env).await.unwrap();
        assert_eq!(again.usage(), delta.usage());
        // The grain after the last one of the earlier session shares its byte of the bitmap.
        write(&again, sectors(40000), &[9; 512]).await.unwrap();
        flush(&again).await.unwrap();
        reader(&env).await;
    });
    let file = world.read_file(FILE, View::Durable).unwrap();
    let first = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    assert_eq!((first(0), first(512), first(1024)), (0xCAFE_BABE, 0xCAFE_CAFE, 0xDEAF_C0DE));
    assert_eq!((first(192) * SECTOR) % (1 << 20), 0, "the grains begin on 1 MiB");
    assert_eq!(first(520), 4, "freeGTNumber");
}

#[test]
fn released_grains_are_free_once_the_delta_is_closed() {
    in_world(async |env| {
        let delta = create(&env).await;
        write(&delta, 0, &vec![1; REGION as usize]).await.unwrap();
        write(&delta, REGION, &vec![2; 1 << 20]).await.unwrap();
        flush(&delta).await.unwrap();
        delta.release(0);
        flush(&delta).await.unwrap();
        assert_eq!(delta.usage().held_bytes, 1 << 20);
        // The region's former slot is free again, as its pointer is durably gone.
        write(&delta, sectors(16), &[3; 4096]).await.unwrap();
        flush(&delta).await.unwrap();
        delta.seal().await.unwrap();
        let content = read(&reader(&env).await, 0..REGION + 4096).await.unwrap();
        assert_eq!((content[0], content[sectors(16) as usize], content[REGION as usize]), (PARENT, 3, 2));
    });
}

#[test]
fn a_region_that_is_written_before_its_release_is_durable_gets_another_slot() {
    in_world(async |env| {
        let delta = create(&env).await;
        write(&delta, 0, &[1; 4096]).await.unwrap();
        flush(&delta).await.unwrap();
        delta.release(0);
        write(&delta, 4096, &[2; 4096]).await.unwrap();
        flush(&delta).await.unwrap();
        delta.seal().await.unwrap();
        let content = read(&reader(&env).await, 0..8192).await.unwrap();
        assert_eq!((content[0], content[4096]), (PARENT, 2));
    });
}

#[test]
fn a_killed_process_loses_no_write_and_its_records_are_complete() {
    in_world(async |env| {
        let delta = create(&env).await;
        write(&delta, 0, &[1; 4096]).await.unwrap();
        flush(&delta).await.unwrap();
        write(&delta, REGION, &[2; 8192]).await.unwrap();
        drop(delta);
        let again = reopen(&env).await.unwrap();
        assert!(!again.has_lost_writes());
        let content = read(&again, 0..REGION + 8192).await.unwrap();
        assert_eq!((content[0], content[REGION as usize + 4096]), (1, 2));
        reader(&env).await;
    });
}

/// Writes an image of another program in place of the file.
async fn place(env: &Env, image: &testing::Image) {
    let file = root(env).create_new(FILE).await.unwrap();
    root(env).sync().await.unwrap();
    file.write(0, blk::Buf::copy_of(&image.bytes())).await.unwrap();
    file.flush().await.unwrap();
}

#[test]
fn a_delta_of_esxi_is_continued_as_esxi_would() {
    in_world(async |env| {
        let mut image = testing::Image::new(CAPACITY, 1 << 20).in_order_of_use();
        image.data(4096 * 2 + 7, 0xAA).data(3, 0xBB);
        place(&env, &image).await;
        let file = root(&env).open(FILE, OpenMode::Write).await.unwrap();
        assert!(!WritableHeader::is_ours(&file).await.unwrap());
        let delta = reopen(&env).await.unwrap();
        write(&delta, REGION, &[1; 4096]).await.unwrap();
        write(&delta, sectors(8), &[2; 4096]).await.unwrap();
        flush(&delta).await.unwrap();
        delta.seal().await.unwrap();
        assert!(WritableHeader::is_ours(&file).await.unwrap());
        let content = read(&reader(&env).await, 0..sectors(CAPACITY)).await.unwrap();
        assert_eq!((content[3 * 4096], content[2 * REGION as usize + 7 * 4096]), (0xBB, 0xAA));
        assert_eq!((content[REGION as usize], content[sectors(8) as usize]), (1, 2));
    });
}

#[test]
fn a_delta_that_esxi_has_continued_is_no_longer_ours() {
    in_world(async |env| {
        let delta = create(&env).await;
        write(&delta, 0, &[1; 4096]).await.unwrap();
        flush(&delta).await.unwrap();
        delta.seal().await.unwrap();
        let file = root(&env).open(FILE, OpenMode::Write).await.unwrap();
        assert!(WritableHeader::is_ours(&file).await.unwrap());
        // nextTxnSeqNumber in both headers, as after a transaction of ESXi.
        for at in [SECTOR + 16, 2 * SECTOR + 8] {
            file.write(at, blk::Buf::copy_of(&1_u64.to_le_bytes())).await.unwrap();
        }
        assert!(!WritableHeader::is_ours(&file).await.unwrap());
    });
}

#[test]
fn a_delta_with_unmapped_grains_is_not_written() {
    in_world(async |env| {
        let mut image = testing::Image::new(CAPACITY, 1 << 20);
        image.data(3, 0xBB).unmap(4);
        place(&env, &image).await;
        let error = reopen(&env).await.err().unwrap();
        assert_eq!(error.kind, ErrorKind::Unsupported);
        assert!(
            error.cause.contains("entry 4 of grain table 0") && error.cause.contains("unmapped"),
            "{error}"
        );
    });
}

proptest! {
    #[test]
    fn hostile_files_are_opened_for_writing_or_refused(
        patches in proptest::collection::vec((0u64..64 << 10, any::<u64>(), 0u8..4), 1..6),
        in_headers in any::<bool>(),
        keep in proptest::option::of(0usize..4 << 20),
    ) {
        in_world(async move |env| {
            let delta = create(&env).await;
            write(&delta, 0, &[1; 8192]).await.unwrap();
            write(&delta, REGION, &[2; 8192]).await.unwrap();
            flush(&delta).await.unwrap();
            delta.seal().await.unwrap();
            drop(delta);
            let file = root(&env).open(FILE, OpenMode::Write).await.unwrap();
            for (at, value, kind) in patches {
                // Mostly whole fields, often with meaningful values, in the headers or in the first areas.
                let value = match kind { 0 => value, 1 => value % 256, 2 => (3 << 60) | (value % 16), _ => (1 << 60) | (value % 4) };
                let at = if in_headers { at % 2048 } else { (2 << 20) + at * 64 % (4 << 20) };
                file.write(at / 8 * 8, blk::Buf::copy_of(&value.to_le_bytes())).await.unwrap();
            }
            if let Some(keep) = keep {
                file.set_len(keep as u64).await.unwrap();
            }
            let _ = WritableHeader::is_ours(&file).await;
            if let Ok(delta) = reopen(&env).await {
                let _ = write(&delta, 2 * REGION, &[3; 4096]).await;
                let _ = flush(&delta).await;
                let _ = delta.seal().await;
            }
        });
    }
}
