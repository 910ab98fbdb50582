use blk::reactor::OpenMode;
use blk::{Buf, Env, Errno, ErrorKind, File};
use proptest::prelude::*;
use sim::{Action, Fault, OpKind, Options, Rng, SimWorld};

use super::super::layout::{CHECKSUM_AT, get_u64, page_checksum, put_u64};
use super::*;

pub(super) const GEOMETRY: Geometry =
    Geometry { store_id: 0x1234_5678_9abc_def0, journal_pages: JOURNAL_PAGES_MIN, group_blocks: 256 };

pub(super) const BEGIN: Position = Position { seq: 0, lsn: 1 };
pub(super) const START: Start =
    Start { epoch: 1, at: BEGIN, tail: 0, flushed_lsn: 0, checkpoint: 1, catalogue_checkpoint: 1, named: 1 };

pub(super) async fn open(env: &Env) -> File {
    let root = env.open_root("/").expect("the root exists");
    root.open("store", OpenMode::Write).await.expect("the fixture made it")
}

pub(super) fn world() -> SimWorld {
    let world = SimWorld::new(7, Options::default());
    world.write_file("store", &vec![0; (GEOMETRY.groups_start() * BLOCK) as usize]);
    world
}

pub(super) fn in_world<T: 'static>(world: &SimWorld, test: impl AsyncFnOnce(Env) -> T + 'static) -> T {
    world.run(async move |env| test(env).await).expect("no cut is scheduled")
}

pub(super) async fn journal(env: &Env, start: Start) -> Rc<Journal> {
    Journal::new(env.clone(), open(env).await, GEOMETRY, start, MemoryTail::new(env, 1, 1))
}

async fn read(env: &Env, from: Position, epoch: u64, checkpoint: u64) -> blk::Result<Replayed> {
    let begin = Begin { at: from, epoch, checkpoint, flushed_lsn: 0 };
    replay(&open(env).await, &GEOMETRY, begin).await
}

pub(super) fn map(n: u64) -> Record {
    Record::Map { node: n + 1, start: n, len: 1, addr: n + 9, birth: n + 1, checksum: !n }
}

fn change(len: usize) -> Record {
    Record::Change((0..len).map(|n| (n % 251) as u8).collect())
}

pub(super) async fn flushed(journal: &Rc<Journal>, records: impl IntoIterator<Item = Record>) {
    for record in records {
        journal.append(record);
    }
    journal.flush().await.unwrap();
}

pub(super) fn numbers(found: &Replayed) -> Vec<u64> {
    found.records.iter().map(|(lsn, _)| *lsn).collect()
}

#[test]
fn records_of_all_kinds_come_back_in_order() {
    in_world(&world(), async |env| {
        let journal = journal(&env, START).await;
        let unmap = Record::Unmap { node: 3, start: 0, len: 1 << 47, birth: 9 };
        let records = [map(0), change(0), unmap, change(CHANGE_BYTES_MAX), change(13), map(77)];
        let lsns: Vec<u64> = records.iter().map(|record| journal.append(record.clone())).collect();
        assert_eq!((lsns, journal.unflushed_bytes()), (vec![1, 2, 3, 4, 5, 6], 2 * BLOCK));
        journal.flush().await.unwrap();
        let found = read(&env, BEGIN, 1, 1).await.unwrap();
        assert_eq!(found.records, (1..).zip(records).collect::<Vec<_>>());
        assert_eq!((found.end, found.flushed_lsn, found.epoch), (Position { seq: 33, lsn: 7 }, 0, 1));
        assert_eq!((journal.used_pages(), journal.unflushed_bytes()), (33, 0));
    });
}

#[test]
fn a_flush_is_one_device_flush_and_the_steady_state_writes_nothing() {
    in_world(&world(), async |env| {
        let journal = journal(&env, START).await;
        let cost = async || {
            let before = journal.file.counters();
            journal.flush().await.unwrap();
            let after = journal.file.counters();
            (after.writes - before.writes, after.flushes - before.flushes)
        };
        assert_eq!(cost().await, (0, 1), "nothing was appended");
        journal.append(map(1));
        assert_eq!((cost().await, journal.flushed_lsn(), journal.durable_flushed_lsn()), ((1, 1), 1, 0));
        assert_eq!((cost().await, journal.flushed_lsn(), journal.durable_flushed_lsn()), ((1, 1), 1, 1));
        assert_eq!(cost().await, (0, 1));
        journal.append(map(2));
        assert_eq!((cost().await, journal.durable_flushed_lsn()), ((1, 1), 1));
        journal.append(map(3));
        assert_eq!((cost().await, journal.durable_flushed_lsn()), ((1, 1), 2), "records carry it along");
        assert_eq!((cost().await, cost().await), ((1, 1), (0, 1)));
        assert_eq!(read(&env, BEGIN, 1, 1).await.unwrap().flushed_lsn, 3);
    });
}

#[test]
fn callers_before_a_round_share_it_and_callers_during_it_share_the_next() {
    in_world(&world(), async |env| {
        let journal = journal(&env, START).await;
        let callers = |count: u64| -> Vec<_> {
            let each = (0..count).map(|n| {
                let journal = journal.clone();
                env.spawn(async move {
                    let lsn = journal.append(map(n));
                    journal.flush().await.unwrap();
                    assert!(journal.flushed_lsn() >= lsn);
                })
            });
            each.collect()
        };
        let first = callers(10);
        journal.written.wait().await;
        assert_eq!(journal.flushed_lsn(), 0, "the round is under way");
        for caller in callers(10).into_iter().chain(first) {
            caller.join().await;
        }
        assert_eq!((journal.file.counters().flushes, journal.flushed_lsn()), (2, 20));
    });
}

#[test]
fn full_batches_are_written_without_a_flush() {
    in_world(&world(), async |env| {
        let journal = journal(&env, START).await;
        for _ in 0..3 {
            journal.append(change(CHANGE_BYTES_MAX));
        }
        journal.written.wait().await;
        // Two changes of the greatest length do not fit one batch; the third record is in the open one.
        assert_eq!((journal.file.counters().writes, journal.file.counters().flushes), (2, 0));
        let position = journal.cut();
        assert_eq!(position, Position { seq: 99, lsn: 4 });
        assert_eq!(journal.cut(), position);
    });
}

#[test]
fn the_ring_wraps_and_every_lap_is_read() {
    in_world(&world(), async |env| {
        let journal = journal(&env, START).await;
        let mut rng = Rng::new(3);
        let (mut tail, mut checkpoint) = (BEGIN, 1);
        while tail.seq < 40 * GEOMETRY.journal_pages {
            let first = tail.lsn;
            while journal.has_room() {
                let len = if rng.below(20) == 0 { CHANGE_BYTES_MAX } else { rng.below(9000) as usize };
                journal.append(change(len));
                if rng.below(3) == 0 {
                    journal.flush().await.unwrap();
                }
            }
            journal.flush().await.unwrap();
            let found = read(&env, tail, 1, checkpoint).await.unwrap();
            assert_eq!(numbers(&found), (first..=journal.last_lsn()).collect::<Vec<_>>());
            tail = journal.cut();
            checkpoint += 1;
            journal.trim(tail.seq, checkpoint);
            assert!(read(&env, tail, 1, checkpoint).await.unwrap().records.is_empty());
        }
    });
}

/// Changes use the reserve, followed by everything that was admitted before, at every position of the ring's end.
#[test]
fn the_reserve_holds_what_it_promises() {
    for offset in (0..GEOMETRY.journal_pages).step_by(29) {
        in_world(&world(), async move |env| {
            let at = Position { seq: 10 * GEOMETRY.journal_pages + offset, lsn: 5 };
            let journal = journal(&env, Start { at, tail: at.seq, flushed_lsn: 4, ..START }).await;
            while journal.has_room() {
                journal.append(map(1));
            }
            let mut changes = 0;
            while journal.has_room_for_change() {
                flushed(&journal, [change(CHANGE_BYTES_MAX)]).await;
                journal.flush().await.unwrap();
                changes += 1;
            }
            assert!(changes >= 4, "{changes} changes");
            for _ in 0..64 {
                flushed(&journal, [map(2)]).await;
                journal.flush().await.unwrap();
            }
            flushed(&journal, (0..1600).map(map)).await;
        });
    }
}

#[test]
#[should_panic(expected = "the oldest would be overwritten")]
fn a_full_ring_is_never_overwritten() {
    in_world(&world(), async |env| {
        let journal = journal(&env, START).await;
        for _ in 0..GEOMETRY.journal_pages {
            journal.append(change(5000));
        }
    });
}

#[test]
fn a_failed_write_or_flush_fails_every_later_call() {
    for kind in [OpKind::Write, OpKind::Flush] {
        let world = world();
        world.add_fault(Fault::nth(2, Action::Fail(Errno::EIO)).of(kind));
        in_world(&world, async move |env| {
            let journal = journal(&env, START).await;
            flushed(&journal, [map(1)]).await;
            let waiting: Vec<_> = (0..4)
                .map(|n| {
                    let journal = journal.clone();
                    journal.append(map(n));
                    env.spawn(async move { journal.flush().await })
                })
                .collect();
            let first = journal.flush().await.unwrap_err();
            assert_eq!(first.kind, ErrorKind::Io);
            for caller in waiting {
                assert_eq!(caller.join().await, Err(first.clone()));
            }
            let writes = journal.file.counters().writes;
            journal.append(change(CHANGE_BYTES_MAX));
            assert_eq!(journal.flush().await, Err(first.clone()));
            assert_eq!((journal.failed(), journal.file.counters().writes), (Some(first), writes));
            assert_eq!(journal.flushed_lsn(), 1);
        });
    }
}

#[test]
fn leftovers_of_an_earlier_epoch_are_never_read() {
    in_world(&world(), async |env| {
        let old = journal(&env, START).await;
        for n in 0..5 {
            flushed(&old, [map(n)]).await;
        }
        // Recovery read two batches only, as if the third had been lost; the new batch has the length of the lost one.
        let at = Position { seq: 2, lsn: 3 };
        let start =
            Start { epoch: 2, at, tail: 2, flushed_lsn: 2, checkpoint: 2, catalogue_checkpoint: 2, named: 2 };
        let found = read(&env, at, 2, 2).await.unwrap();
        assert_eq!((found.records.len(), found.end, found.epoch), (0, at, 2));
        flushed(&journal(&env, start).await, [map(100)]).await;
        let found = read(&env, at, 2, 2).await.unwrap();
        assert_eq!(found.records, [(3, map(100))]);
        assert_eq!(found.end, Position { seq: 3, lsn: 4 });
    });
}

/// A batch is the next one only if its first record's number and the end of its previous batch match.
#[test]
fn whole_batches_that_do_not_follow_are_no_part_of_the_journal() {
    in_world(&world(), async |env| {
        let last = Position { seq: GEOMETRY.journal_pages - 1, lsn: 1 };
        let journal = journal(&env, Start { at: last, tail: last.seq, ..START }).await;
        flushed(&journal, [map(1)]).await;
        journal.flush().await.unwrap();
        let found = read(&env, last, 1, 1).await.unwrap();
        assert_eq!((numbers(&found), found.end, found.flushed_lsn), (vec![1], journal.cut(), 1));
        // The batch at the ring's end holds record 1; the one behind it, on the next lap, begins with record 2.
        let from = Position { lsn: 2, ..last };
        assert_eq!(read(&env, from, 1, 1).await.unwrap().end, from);
        let from = Position { seq: last.seq - 1, lsn: 2 };
        assert_eq!(read(&env, from, 1, 1).await.unwrap().end, from);
        let from = Position { seq: last.seq + 1, lsn: 1 };
        let error = read(&env, from, 1, 1).await.unwrap_err();
        assert!(error.cause.contains("records up to 1 were durable"), "{error}");
    });
}

#[test]
fn a_stale_superblock_is_detected() {
    in_world(&world(), async |env| {
        let journal = journal(&env, START).await;
        flushed(&journal, (0..300).map(map)).await;
        let position = journal.cut();
        journal.trim(position.seq, 2);
        assert!(read(&env, BEGIN, 1, 1).await.is_ok(), "nothing was written since");
        flushed(&journal, [map(1)]).await;
        let error = read(&env, BEGIN, 1, 1).await.unwrap_err();
        assert!(error.kind == ErrorKind::Damaged && error.cause.contains("checkpoint 2"), "{error}");
        assert_eq!(read(&env, position, 1, 2).await.unwrap().records.len(), 1);
    });
}

/// Writes zeros over journal page `seq`, as if its write had been lost.
fn lose(world: &SimWorld, seq: u64) {
    world.write_at("store", (HEADER_BLOCKS + seq) * BLOCK, &[0; BLOCK as usize]);
}

#[test]
fn a_lost_batch_ends_the_journal_and_is_damage_once_it_was_flushed() {
    let world = world();
    in_world(&world, async |env| {
        let journal = journal(&env, START).await;
        flushed(&journal, [map(1)]).await;
        for n in 2..5 {
            journal.append(map(n));
            journal.cut();
        }
        journal.flush().await.unwrap();
    });
    lose(&world, 2);
    let found = in_world(&world, async |env| read(&env, BEGIN, 1, 1).await.unwrap());
    assert_eq!((numbers(&found), found.flushed_lsn), (vec![1, 2], 1));
    lose(&world, 0);
    let error = in_world(&world, async |env| read(&env, BEGIN, 1, 1).await.unwrap_err());
    assert!(error.kind == ErrorKind::Damaged && error.place.contains("page 0"), "{error}");
}

/// Builds a batch whose records are `body`, with a valid checksum.
fn forged(body: &[u8], records: u32, bytes: u32) -> Buf {
    let draft = OpenBatch::open(GEOMETRY.journal_pages, 0, 1, body.len());
    let stamp = Stamp {
        store_id: GEOMETRY.store_id,
        epoch: 1,
        checkpoint: 1,
        catalogue_checkpoint: 1,
        flushed_lsn: 0,
    };
    let mut batch = Buf::copy_of(&draft.seal(stamp));
    batch[batch::HEADER_BYTES..batch::HEADER_BYTES + body.len()].copy_from_slice(body);
    batch[72..76].copy_from_slice(&records.to_le_bytes());
    batch[76..80].copy_from_slice(&bytes.to_le_bytes());
    let checksum = page_checksum(&batch);
    put_u64(&mut batch, CHECKSUM_AT, checksum);
    batch
}

/// The offsets of `docs/formats/native.md`.
#[test]
fn every_field_of_a_header_is_at_its_documented_offset() {
    let mut draft = OpenBatch::open(GEOMETRY.journal_pages, 5, 6, 0);
    draft.push(&change(16));
    let batch =
        draft.seal(Stamp { store_id: 1, epoch: 2, checkpoint: 3, catalogue_checkpoint: 7, flushed_lsn: 4 });
    let words: Vec<u64> = (8..96).step_by(8).map(|at| get_u64(&batch, at)).collect();
    let (records, bytes, pages) = (1, 24, 1);
    assert_eq!(words, [1, 5, page_checksum(&batch), 2, 3, 6, 4, 5, records | bytes << 32, pages, 7]);
}

#[test]
fn a_bad_record_under_a_right_checksum_is_named() {
    let encoded = |record: Record| {
        let mut bytes = vec![0; record.encoded_len()];
        record.encode(&mut bytes);
        bytes
    };
    let patched = |at: usize, value: u8| {
        let mut bytes = [encoded(map(1)), encoded(map(2))].concat();
        bytes[48 + at] = value;
        bytes
    };
    let cases = [
        (patched(0, 9), 96, "record 2: kind is 9"),
        (patched(2, 1), 96, "record 2: reserved bits"),
        (patched(4, 0), 96, "record 2: guest blocks"),
        (patched(8, 0), 96, "record 2: node is 0"),
        (patched(24, 0), 96, "record 2: address is 0"),
        (patched(30, 1), 96, "record 2: address begin"),
        (patched(38, 1), 96, "record 2: birth"),
        (patched(0, 1), 88, "record 2: 48 bytes long"),
        (patched(0, 1), 104, "8 bytes lie behind"),
        (patched(0, 1), 5000, "5000 bytes of records"),
    ];
    for (body, bytes, cause) in cases {
        let world = world();
        world.write_at("store", HEADER_BLOCKS * BLOCK, &forged(&body, 2, bytes));
        let error = in_world(&world, async |env| read(&env, BEGIN, 1, 1).await.unwrap_err());
        assert!(error.kind == ErrorKind::Damaged && error.cause.contains(cause), "{cause}: {error}");
    }
}

/// Writes 20 flushed batches of all sizes, and a tail that no later batch confirms.
fn written() -> (SimWorld, Vec<(u64, Record)>) {
    let world = world();
    let records = in_world(&world, async |env| {
        let journal = journal(&env, START).await;
        let mut rng = Rng::new(5);
        let sizes: Vec<usize> = (0..60).map(|_| rng.below(9000) as usize).collect();
        for group in sizes.chunks(3) {
            flushed(&journal, group.iter().map(|&len| change(len))).await;
        }
        read(&env, BEGIN, 1, 1).await.unwrap().records
    });
    (world, records)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_flipped_bit_ends_the_journal_or_is_damage(flips in proptest::collection::vec((0.0..1.0f64, 0u8..8), 1..20)) {
        let (world, records) = written();
        let end = in_world(&world, async |env| read(&env, BEGIN, 1, 1).await.unwrap().end);
        for (part, bit) in flips {
            let offset = HEADER_BLOCKS * BLOCK + (part * (end.seq * BLOCK) as f64) as u64;
            world.flip_bit("store", offset, bit);
            match in_world(&world, async |env| read(&env, BEGIN, 1, 1).await) {
                Ok(found) => {
                    prop_assert!(records.starts_with(&found.records));
                    prop_assert!(found.flushed_lsn < found.end.lsn);
                    prop_assert!(found.records.len() + 3 >= records.len(), "a confirmed batch may not vanish");
                }
                Err(error) => prop_assert_eq!(error.kind, ErrorKind::Damaged),
            }
            world.flip_bit("store", offset, bit);
        }
    }

    #[test]
    fn hostile_batches_never_panic(body in proptest::collection::vec(any::<u8>(), 0..300), words in any::<bool>(), records in 0u32..9, bytes in 0u32..400) {
        let mut body = body;
        if words {
            body.iter_mut().step_by(8).for_each(|kind| *kind %= 4);
            body.chunks_mut(8).for_each(|word| word[1..].fill(0));
        }
        let world = world();
        world.write_at("store", HEADER_BLOCKS * BLOCK, &forged(&body, records, bytes));
        if let Err(error) = in_world(&world, async |env| read(&env, BEGIN, 1, 1).await) {
            prop_assert_eq!(error.kind, ErrorKind::Damaged);
        }
    }
}
