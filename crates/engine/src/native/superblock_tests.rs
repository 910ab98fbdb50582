use blk::reactor::OpenMode;
use blk::{Env, ErrorKind, Result};
use proptest::prelude::*;
use sim::{Cut, Options, SimWorld};

use super::*;
use crate::native::layout::put_u64;

fn sample(checkpoint: u64) -> Superblock {
    Superblock {
        store_id: 0xfeed_0000_0000_0001,
        version: VERSION,
        reserved: 0,
        features_compat: 1 << 40,
        features_ro_compat: 0,
        features_incompat: 0,
        epoch: 3,
        checkpoint,
        generation: 17,
        next_node: 9,
        journal_pages: 16384,
        group_blocks: GROUP_BLOCKS_MAX,
        groups: 2,
        ready_to: 20000,
        journal: Position { seq: 700, lsn: 12_345 },
        catalogue: CatalogueHead { addr: 16_500, bytes: 9000, checksum: 77 },
        flushed_lsn: 12_000,
        clean: 1,
        created_unix_us: -5,
        journal_epoch: 2,
        boot: 0x1234_5678_9abc_def1,
        machine: 0xfedc_ba98_7654_3210,
        ..Superblock::default()
    }
}

fn world() -> SimWorld {
    let world = SimWorld::new(1, Options::default());
    world.write_file("store", &[0; 16 * BLOCK as usize]);
    world
}

async fn open(env: &Env) -> File {
    env.open_root("/").unwrap().open("store", OpenMode::Write).await.unwrap()
}

fn put(world: &SimWorld, superblock: &Superblock, slot: usize) {
    world.write_at("store", SLOT_BLOCKS[slot] * BLOCK, &superblock.encode(slot));
}

fn read(world: &SimWorld) -> Result<(Superblock, usize)> {
    let read = world.run(|env| async move { Superblock::read(&open(&env).await).await });
    read.expect("no cut").map(|slots| (slots.newest, slots.slot))
}

#[test]
fn the_newest_whole_slot_wins() {
    let world = world();
    for checkpoint in 4..9 {
        let written = world.run(move |env| async move {
            let file = open(&env).await;
            sample(checkpoint).write(&file).await.unwrap();
            file.flush().await.unwrap();
        });
        written.expect("no cut is scheduled");
        assert_eq!(read(&world).unwrap(), (sample(checkpoint), (checkpoint % 2) as usize));
    }
    world.flip_bit("store", 60, 3);
    assert_eq!(read(&world).unwrap(), (sample(7), 1));
    world.flip_bit("store", 8 * BLOCK + 4000, 0);
    let error = read(&world).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Damaged);
    for part in
        ["superblock A (block 0): checksum", "superblock B (block 8): checksum", "`datastore rebuild`"]
    {
        assert!(error.cause.contains(part), "{error}");
    }
}

#[test]
fn a_file_that_is_no_store_is_not_reported_as_damaged() {
    assert_eq!(read(&world()).unwrap_err().kind, ErrorKind::Invalid);
    for bytes in [&b""[..], b"short"] {
        let world = SimWorld::new(1, Options::default());
        world.write_file("store", bytes);
        assert_eq!(read(&world).unwrap_err().kind, ErrorKind::Invalid);
    }
    let truncated = SimWorld::new(1, Options::default());
    truncated.write_file("store", &sample(2).encode(0));
    assert_eq!(read(&truncated).unwrap().1, 0);
    truncated.flip_bit("store", 100, 0);
    let error = read(&truncated).unwrap_err();
    assert!(error.kind == ErrorKind::Damaged && error.cause.contains("ends before it"), "{error}");
}

#[test]
fn slots_of_two_stores_and_in_the_wrong_place_are_refused() {
    let world = world();
    put(&world, &sample(2), 0);
    put(&world, &Superblock { store_id: 5, ..sample(1) }, 1);
    assert!(read(&world).unwrap_err().cause.contains("of store 0000000000000005"));
    let error = Superblock::decode(&sample(3).encode(1), 0, "x").unwrap_err();
    assert!(error.cause.contains("its own address is block 8, expected 0"), "{error}");
}

#[test]
fn unknown_features_and_versions_are_refused_or_read_only() {
    let incompat = Superblock { features_incompat: 1 << 5, ..sample(3) };
    let world = world();
    put(&world, &sample(2), 0);
    put(&world, &incompat, 1);
    let error = read(&world).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported, "an older superblock is no substitute");
    assert!(error.cause.contains("bit 5"), "{error}");

    put(&world, &Superblock { version: [2, 1], ..sample(3) }, 1);
    let error = read(&world).unwrap_err();
    assert!(error.kind == ErrorKind::Unsupported && error.cause.contains("2.1"), "{error}");

    put(&world, &Superblock { features_ro_compat: 1 << 63, ..sample(3) }, 1);
    let (superblock, _) = read(&world).unwrap();
    let error = superblock.check_writable("store").unwrap_err();
    assert!(error.kind == ErrorKind::Unsupported && error.cause.contains("bit 63"), "{error}");
    sample(3).check_writable("store").unwrap();
}

/// The offsets of `docs/formats/native.md`.
#[test]
fn every_field_is_at_its_documented_offset() {
    let superblock = sample(3);
    let page = superblock.encode(1);
    let lists = [
        (8, &[superblock.store_id, 8, page_checksum(&page), 1][..]),
        (40, &[1 << 40, 0, 0, 3, 3, 17, 9, 16384, GROUP_BLOCKS_MAX, 2, 20000, 700, 12_345]),
        (144, &[16_500, 9000, 77, 12_000, 1, -5i64 as u64, 2, superblock.boot, superblock.machine]),
    ];
    for (from, words) in lists {
        for (n, word) in words.iter().enumerate() {
            assert_eq!(get_u64(&page, from + n * 8), *word, "byte {}", from + n * 8);
        }
    }
    assert!(page[216..].iter().all(|byte| *byte == 0));
}

#[test]
fn invalid_fields_are_refused_by_name() {
    let base = sample(2);
    let cases = [
        (Superblock { journal_pages: 3, ..base }, "journal_pages is 3"),
        (Superblock { group_blocks: 1 << 20, ..base }, "group_blocks is 1048576"),
        (Superblock { groups: 1 << 40, ..base }, "groups is"),
        (Superblock { ready_to: 1 << 40, ..base }, "ready_to is"),
        (Superblock { generation: 1 << 47, ..base }, "generation is"),
        (Superblock { journal: Position { seq: 0, lsn: 0 }, ..base }, "record number is 0"),
        (
            Superblock { catalogue: CatalogueHead { addr: 5, ..base.catalogue }, ..base },
            "catalogue address is 5",
        ),
        (
            Superblock { catalogue: CatalogueHead { addr: 0, ..base.catalogue }, ..base },
            "at address 0 is 9000",
        ),
        (
            Superblock { catalogue: CatalogueHead { addr: 1 << 40, ..base.catalogue }, ..base },
            "catalogue address",
        ),
    ];
    for (superblock, cause) in cases {
        let error = Superblock::decode(&superblock.encode(0), 0, "store").unwrap_err();
        assert!(error.kind == ErrorKind::Damaged && error.cause.contains(cause), "{cause}: {error}");
    }
}

/// Whenever the power is lost, the last superblock that a flush covered is found, or the one being written.
#[test]
fn a_cut_inside_a_write_leaves_one_of_the_two() {
    for seed in 0..200 {
        let world = SimWorld::new(seed, Options::default());
        world.write_file("store", &[0; 16 * BLOCK as usize]);
        put(&world, &sample(1), 1);
        world.cut_at(Cut::Event(seed % 40 + 1));
        let durable = std::rc::Rc::new(std::cell::Cell::new(1));
        let known = durable.clone();
        let _cut = world.run(|env| async move {
            let file = open(&env).await;
            for checkpoint in 2..30 {
                sample(checkpoint).write(&file).await.unwrap();
                file.flush().await.unwrap();
                known.set(checkpoint);
            }
        });
        world.power_cut();
        let (found, _) = read(&world).unwrap();
        assert!((durable.get()..=durable.get() + 1).contains(&found.checkpoint), "seed {seed}");
    }
}

proptest! {
    #[test]
    fn every_flipped_bit_is_detected(bit in 0..BLOCK * 8) {
        let mut page = sample(2).encode(0);
        page[(bit / 8) as usize] ^= 1 << (bit % 8);
        prop_assert_eq!(Superblock::decode(&page, 0, "store").unwrap_err().kind, ErrorKind::Damaged);
    }

    #[test]
    fn hostile_fields_never_panic(patches in proptest::collection::vec((0..FIELD_BYTES / 8, any::<u64>(), 0u32..64), 0..6)) {
        let mut page = sample(2).encode(0);
        for (word, value, shift) in patches {
            put_u64(&mut page, HEAD_BYTES + word * 8, value >> shift);
        }
        seal_page(&mut page);
        if let Ok(superblock) = Superblock::decode(&page, 0, "store") {
            let geometry = superblock.geometry();
            prop_assert!(geometry.group_start(superblock.groups) <= FIELD_END);
            prop_assert!(superblock.catalogue.addr < geometry.group_start(superblock.groups));
        }
    }
}
