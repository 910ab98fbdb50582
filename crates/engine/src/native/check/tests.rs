//! A sound store has no findings after any work; planted damage is found and named.

use std::cell::Cell;
use std::rc::Rc;

use blk::{Buf, Env};
use proptest::prelude::*;
use sim::SimWorld;

use super::*;
use crate::native::change::Op;
use crate::native::layout::{BLOCK, Extent};
use crate::native::store::Store;
use crate::native::table::Redirect;
use crate::native::tests::{disk, fill, open_store, open_store_with, run};
use crate::native::tree::{WalkItem, survey};
use crate::native::{NewStore, StoreOptions};
use crate::options::{Defect, Defects};

const SIZE_BLOCKS: u64 = 100_000;

fn in_world(test: impl AsyncFnOnce(Env) + 'static) {
    let world = SimWorld::new(1, sim::Options::default());
    run(&world, |env| async move { test(env).await });
}

/// Node 1 is a child of node 2, and node 3 is a branch of node 2.
async fn family(env: &Env) -> Rc<Store> {
    let store = open_store(env).await.unwrap();
    store.change(&[Op::Create { node: 1, size_blocks: SIZE_BLOCKS }]).unwrap();
    let base = disk(&store, 1);
    for n in 0..20 {
        fill(&base, n * 300, 3, 1).await;
    }
    store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
    fill(&base, 0, 1, 2).await;
    store.change(&[Op::Branch { from: 2, node: 3 }]).unwrap();
    fill(&disk(&store, 3), 900, 1, 3).await;
    let report = store.check().await.unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!((report.data_blocks, report.states.len()), (62, 3));
    store
}

/// Puts an entry into a node's table that no write would make.
async fn plant(store: &Rc<Store>, node: u64, start: u64, held: Redirect) -> Report {
    let grown = store.node(node).unwrap().put(start, held, None, &mut Vec::new());
    store.count(node, grown);
    store.check().await.unwrap()
}

/// Returns what a node refers to within its first leaf.
async fn first_leaf(store: &Store, node: u64) -> Vec<WalkItem> {
    let mut met = Vec::new();
    let root = store.node(node).unwrap().roots().unwrap().places;
    survey(&store.nodes, root.as_ref(), None, 0..252, usize::MAX, &mut |seen| met.push(seen)).await.unwrap();
    met
}

async fn data_at(store: &Store, node: u64) -> u64 {
    match first_leaf(store, node).await[0] {
        WalkItem::Data(run) => run.addr,
        ref other => panic!("{other:?}"),
    }
}

async fn flip(store: &Store, addr: u64, at: usize) {
    let (mut page, result) = store.file.read(addr * BLOCK, Buf::alloc(BLOCK as usize)).await;
    result.unwrap();
    page[at] ^= 1;
    store.file.write(addr * BLOCK, page.freeze()).await.unwrap();
}

fn faults(report: &Report) -> Vec<Fault> {
    report.findings.iter().map(|finding| finding.fault).collect()
}

fn affected(report: &Report) -> (Vec<u64>, Vec<u64>) {
    (report.affected.iter().copied().collect(), report.whole().collect())
}

#[test]
fn a_damaged_map_page_is_reported_with_all_affected_states() {
    in_world(async |env| {
        let store = family(&env).await;
        let shared = first_leaf(&store, 3).await;
        let WalkItem::Page { addr, .. } = shared[shared.len() - 1] else { panic!("{shared:?}") };
        flip(&store, addr, 100).await;
        let report = store.check().await.unwrap();
        assert_eq!(faults(&report), [Fault::Map], "no leaks where maps are missing: {report:?}");
        let finding = &report.findings[0];
        assert_eq!(finding.extent, Some(Extent { addr, len: 1 }));
        assert!(finding.to_string().contains(&format!("map page at block {addr}: checksum")), "{finding}");
        assert_eq!(affected(&report), (vec![2, 3], vec![1]), "node 1 has a leaf of its own there");
        assert_eq!(finding.affected[0], AffectedRange { node: 2, bytes: 0..252 * BLOCK });
    });
}

#[test]
fn a_store_that_is_read_only_is_checked_as_it_was() {
    in_world(async |env| {
        // Without the feature of lost blocks.
        let dir = env.open_root("/").unwrap();
        let file = dir.create_new("store").await.unwrap();
        let new =
            NewStore { journal_pages: 1024, group_blocks: 512, rebuildable: false, ..NewStore::DEFAULT };
        Store::format(&env, &file, new).await.unwrap();
        dir.sync().await.unwrap();
        drop(file);
        let store = family(&env).await;
        let own = first_leaf(&store, 1).await;
        let WalkItem::Page { addr, .. } = own[own.len() - 1] else { panic!("{own:?}") };
        // The merge needs this page.
        fill(&disk(&store, 1), 7, 1, 4).await;
        flip(&store, addr, 100).await;
        store.nodes.forget(addr);
        let report = store.check().await.unwrap();
        assert!(report.behind.is_some() && store.broken().is_some());
        assert_eq!(faults(&report), [Fault::Map], "{report:?}");
        assert_eq!(affected(&report), (vec![1], vec![2, 3]));
        let again = store.check().await.unwrap();
        assert!(again.behind.is_some() && again.findings == report.findings);
    });
}

#[test]
fn damaged_bitmaps_catalogues_and_superblocks_affect_no_state() {
    in_world(async |env| {
        let store = family(&env).await;
        let superblock = store.superblock.get();
        let (page, group) = (0..superblock.groups)
            .find_map(|group| {
                let summary = store.space.summaries()[group as usize];
                let page = store.geometry.group_start(group) + u64::from(summary.slot);
                (summary.version > 0 && !summary.meta).then_some((page, group))
            })
            .unwrap();
        flip(&store, page, 200).await;
        flip(&store, superblock.catalogue.addr, 3000).await;
        flip(&store, 8, 77).await;
        let report = store.check_committed().await.unwrap();
        assert_eq!(faults(&report), [Fault::Superblock, Fault::Catalogue, Fault::Bitmap]);
        assert!(report.findings[0].to_string().contains("superblock B (block 8): checksum"));
        let catalogue = format!("block {}: checksum", superblock.catalogue.addr);
        assert!(report.findings[1].to_string().contains(&catalogue), "{}", report.findings[1]);
        assert!(report.findings[2].to_string().contains(&format!("bitmap page of group {group}")));
        assert_eq!(affected(&report), (vec![], vec![1, 2, 3]));
    });
}

#[test]
fn blocks_without_references_are_reported_as_leaked() {
    in_world(async |env| {
        let store = family(&env).await;
        let meta = store.space.place_meta(1).await.unwrap();
        let data = store.space.place(1, None).await.unwrap();
        fill(&disk(&store, 1), 0, 1, 9).await;
        store.checkpoint().await.unwrap();
        let report = store.check_committed().await.unwrap();
        let leaked: Vec<_> = report.findings.iter().map(|f| (f.fault, f.extent.unwrap())).collect();
        let mut expected = [(Fault::Leaked, meta), (Fault::Leaked, data)];
        expected.sort();
        assert_eq!(leaked, expected);
        assert_eq!(affected(&report), (vec![], vec![1, 2, 3]));
    });
}

#[test]
fn blocks_used_twice_and_blocks_missing_from_the_bitmap_are_reported() {
    in_world(async |env| {
        let store = family(&env).await;
        let birth = store.generation.get();
        let addr = data_at(&store, 2).await + 1;
        let report = plant(&store, 1, 5000, Redirect { len: 2, addr, birth, lsn: 0 }).await;
        assert_eq!(faults(&report), [Fault::Doubled]);
        let finding = &report.findings[0];
        assert_eq!(finding.extent, Some(Extent { addr, len: 2 }));
        assert!(finding.to_string().contains("used 2 times, expected once: by node 1, node 2"), "{finding}");
        assert!(finding.affected.contains(&AffectedRange { node: 1, bytes: 5000 * BLOCK..5002 * BLOCK }));
        assert!(finding.affected.contains(&AffectedRange { node: 3, bytes: BLOCK..3 * BLOCK }), "{finding}");

        let free = store.space.place(1, None).await.unwrap();
        store.space.unplace(free);
        let report = plant(&store, 3, 7000, Redirect { len: 1, addr: free.addr, birth, lsn: 0 }).await;
        assert_eq!(faults(&report), [Fault::Doubled, Fault::Unmarked]);
        assert_eq!(report.findings[1].extent, Some(free));
        assert_eq!(
            report.findings[1].affected,
            [AffectedRange { node: 3, bytes: 7000 * BLOCK..7001 * BLOCK }]
        );
    });
}

#[test]
fn invalid_addresses_and_births_are_reported() {
    in_world(async |env| {
        let store = family(&env).await;
        let birth = store.generation.get();
        let report = plant(&store, 1, 5000, Redirect { len: 1, addr: 3, birth, lsn: 0 }).await;
        assert_eq!(faults(&report), [Fault::Place]);
        assert_eq!(
            report.findings[0].affected,
            [AffectedRange { node: 1, bytes: 5000 * BLOCK..5001 * BLOCK }]
        );
        let placed = store.space.place(1, None).await.unwrap();
        let report = plant(&store, 3, 6000, Redirect { len: 1, addr: placed.addr, birth: 1, lsn: 0 }).await;
        assert_eq!(faults(&report), [Fault::Place, Fault::Birth]);
        assert!(
            report.findings[1].to_string().contains("born in generation 1, expected 2 to 2"),
            "{report:?}"
        );
    });
}

#[test]
fn blocks_under_a_check_are_not_reused() {
    in_world(async |env| {
        let store = family(&env).await;
        let before = store.space.totals();
        let retained = store.space.retain(store.work.clone());
        store.change(&[Op::Drop { node: 3 }]).unwrap();
        while !store.dropped_nodes().is_empty() {
            store.progress.wait().await;
        }
        store.checkpoint().await.unwrap();
        assert!(store.space.totals().waiting > 0);
        drop(retained);
        store.checkpoint().await.unwrap();
        while store.space.totals().waiting > 0 {
            store.progress.wait().await;
        }
        assert!(store.space.totals().used <= before.used);
    });
}

/// Drops a state between two others, and gives its space back with the defect planted.
async fn give_back_wrongly(env: &Env, defect: Defect) -> Report {
    let defects = Defects::only(defect);
    let options = StoreOptions { reserve_blocks: 64, defects, ..StoreOptions::default() };
    let store = open_store_with(env, options).await.unwrap();
    store.change(&[Op::Create { node: 1, size_blocks: SIZE_BLOCKS }]).unwrap();
    let base = disk(&store, 1);
    fill(&base, 0, 100, 1).await;
    store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
    fill(&base, 0, 40, 2).await;
    store.change(&[Op::Take { running: 1, sealed: 3 }]).unwrap();
    fill(&base, 45, 15, 3).await;
    assert!(store.check().await.unwrap().is_sound());
    store.change(&[Op::Drop { node: 3 }]).unwrap();
    while store.has_to_reclaim() {
        store.progress.wait().await;
    }
    store.check().await.unwrap()
}

#[test]
fn wrongly_freed_space_is_reported_with_its_states() {
    in_world(async |env| {
        let report = give_back_wrongly(&env, Defect::WrongBirth).await;
        assert!(faults(&report).contains(&Fault::Unmarked), "{report:#?}");
        assert_eq!(affected(&report), (vec![2], vec![1]));
    });
    in_world(async |env| {
        let report = give_back_wrongly(&env, Defect::IgnoreSuccessor).await;
        assert!(faults(&report).contains(&Fault::Unmarked), "{report:#?}");
        assert_eq!(affected(&report), (vec![1], vec![2]));
    });
}

/// Makes one random change of a few disks; the lineage keeps at most a dozen nodes.
async fn step(store: &Rc<Store>, kind: u8, at: u64, which: usize) {
    let nodes: Vec<_> = {
        let lineage = store.lineage.borrow();
        lineage.all().filter(|node| !node.dropped.get()).cloned().collect()
    };
    let (running, sealed): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| node.is_running());
    let pick =
        |from: &[&Rc<crate::native::lineage::Node>]| (!from.is_empty()).then(|| from[which % from.len()].id);
    match (kind, pick(&running), pick(&sealed)) {
        (0..8, Some(node), _) => fill(&disk(store, node), at * 61 % 9000, 1 + (at % 7) as usize, 1).await,
        (8, Some(node), _) => {
            let node = store.node(node).unwrap();
            store.unmap_mapped(&node, at * 61 % 9000..at * 61 % 9000 + at).await.unwrap();
        }
        (9 | 10, Some(running), _) if nodes.len() < 12 => {
            let sealed = store.new_node_id();
            store.change(&[Op::Take { running, sealed }]).unwrap();
        }
        (11, _, Some(from)) if nodes.len() < 12 => {
            let node = store.new_node_id();
            store.change(&[Op::Branch { from, node }]).unwrap();
        }
        (12 | 13, _, Some(node)) => {
            store.change(&[Op::Drop { node }]).unwrap();
        }
        (14, Some(node), _) if running.len() > 1 => {
            store.change(&[Op::Drop { node }]).unwrap();
        }
        _ => store.checkpoint().await.unwrap(),
    }
}

/// Runs guests that write, takes, drops and checkpoints, until `ends` is set.
async fn work(store: Rc<Store>, ends: Rc<Cell<bool>>) {
    let mut at = 1;
    while !ends.get() {
        for kind in [0, 1, 9, 2, 12, 8, 11, 3, 14, 15] {
            at = (at * 5 + 3) % 199;
            step(&store, kind, at, at as usize).await;
        }
    }
}

#[test]
fn a_check_of_a_store_in_use_finds_nothing() {
    let world = SimWorld::new(1, sim::Options::default());
    let capacity = world.clone();
    run(&world, |env| async move {
        let options = StoreOptions { reserve_blocks: 64, reclaim_pages: 4, ..StoreOptions::default() };
        let store = open_store_with(&env, options).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: SIZE_BLOCKS }]).unwrap();
        fill(&disk(&store, 1), 0, 1500, 1).await;
        store.checkpoint().await.unwrap();
        // There is little room: freed space is soon used again.
        capacity.set_capacity(Some(capacity.used_bytes() + (16 << 20)));
        let ends = Rc::new(Cell::new(false));
        let guests = env.spawn(work(store.clone(), ends.clone()));
        let before = store.checkpoints.get();
        for _ in 0..60 {
            let report = store.check_committed().await.unwrap();
            assert!(report.is_sound(), "{report:#?}");
        }
        assert!(
            store.checkpoints.get() > before + 60,
            "{} checkpoints meanwhile",
            store.checkpoints.get() - before
        );
        ends.set(true);
        guests.join().await;
        store.close().await.unwrap();
    });
}

/// Each snapshot has one write, all over the disk.
#[test]
fn a_check_of_ten_thousand_snapshots_reads_only_their_differences() {
    in_world(async |env| {
        let store = open_store(&env).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: SIZE_BLOCKS }]).unwrap();
        fill(&disk(&store, 1), 0, 2000, 1).await;
        for sealed in 10..10_010 {
            fill(&disk(&store, 1), sealed * 7919 % SIZE_BLOCKS, 1, 2).await;
            store.change(&[Op::Take { running: 1, sealed }]).unwrap();
        }
        store.checkpoint().await.unwrap();
        let before = store.file.counters().reads;
        let report = store.check_committed().await.unwrap();
        assert!(report.is_sound(), "{:?}", report.findings);
        let reads = store.file.counters().reads - before;
        // Each snapshot has a leaf of its own and two or three pages over it, which are read for it and for the one
        // after it.
        assert!(
            report.pages < 42_000 && reads < 2 * report.pages + 1000,
            "{} pages, {reads} reads",
            report.pages
        );
        store.close().await.unwrap();
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_sound_store_has_no_findings(
        steps in proptest::collection::vec((0u8..16, 0u64..200, 0usize..8, any::<bool>()), 1..120),
        reclaim_pages in 1usize..6,
    ) {
        in_world(async move |env| {
            let options = StoreOptions { reserve_blocks: 64, reclaim_pages, ..StoreOptions::default() };
            let store = open_store_with(&env, options).await.unwrap();
            store.change(&[Op::Create { node: 1, size_blocks: SIZE_BLOCKS }]).unwrap();
            for (kind, at, which, looks) in steps {
                step(&store, kind, at, which).await;
                if looks {
                    let report = store.check().await.unwrap();
                    assert!(report.is_sound() && report.behind.is_none(), "{report:#?}");
                }
            }
            store.close().await.unwrap();
        });
    }
}
