//! Walks over two trees side by side, compared with the trees' blocks.

use super::merge::{batches, updates};
use super::*;

/// Reclaims the last sealed tree piece by piece, while the running one changes. The blocks that `gone` reports and
/// those that the running tree's merges free must be exactly those to which no kept tree refers.
async fn reclaim(
    env: Env,
    base: Vec<(u64, u64, bool)>,
    later: Vec<Vec<(u64, u64, bool)>>,
    budgets: Vec<usize>,
) {
    let store = Store::new(create(&env).await, CACHE_BYTES);
    let mut kept = Vec::new();
    let mut root = None;
    for changes in [&base, &later[0]] {
        root = store.merge(root, &updates(&store, changes)).await.unwrap();
        kept.push(root);
        store.take();
    }
    let sealed = kept.pop().unwrap();
    for index in 0.. {
        let changes = later.get(index + 1).map_or(&[][..], Vec::as_slice);
        root = store.merge(root, &updates(&store, changes)).await.unwrap();
        let budget = budgets[index % budgets.len()];
        let mut visit = |gone: WalkItem| match gone {
            WalkItem::Data(run) if run.birth > store.sealed_before.get() => store.free(run.addr, run.len),
            WalkItem::Page { addr, birth, .. } if birth > store.sealed_before.get() => store.free(addr, 1),
            _ => {}
        };
        let from = store.cursor.get();
        let done = gone(&store.nodes, sealed.as_ref(), root.as_ref(), from, u64::MAX, budget, &mut visit);
        let done = done.await.unwrap();
        assert!(done > from && (done == u64::MAX || done % span(0) == 0), "{from} to {done}");
        store.cursor.set(done);
        if done == u64::MAX {
            break;
        }
    }
    kept.push(root);
    assert!(store.reachable(&kept).await == *store.used.borrow(), "in use is what a kept tree refers to");
}

fn changes() -> impl Strategy<Value = Vec<Vec<(u64, u64, bool)>>> {
    batches().prop_map(|batches| batches.into_iter().map(|batch| batch.changes).collect())
}

async fn all_differences(store: &Store, a: Option<Root>, b: Option<Root>, budget: usize) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let mut from = 0;
    while from < u64::MAX {
        let mut end = 0;
        let mut visit = |range: Range<u64>| {
            assert!(range.start >= from && (range.start > end || end == 0) && range.end > range.start);
            end = range.end;
            found.extend(range);
        };
        let (a, b) = (a.as_ref(), b.as_ref());
        from = differences(&store.nodes, a, b, from, u64::MAX, budget, &mut visit).await.unwrap();
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn dropping_a_tree_frees_its_exclusive_blocks_once(
        base in changes(), later in changes(), budgets in prop::collection::vec(0usize..12, 1..4),
    ) {
        in_world(async move |env| reclaim(env, base[0].clone(), later, budgets).await);
    }

    #[test]
    fn differences_are_the_blocks_with_other_addresses(a in changes(), b in changes(), budget in 0usize..40) {
        in_world(async move |env| {
            let store = Store::new(create(&env).await, CACHE_BYTES);
            let (mut model, mut root) = (Model::new(), None);
            let mut states = Vec::new();
            for all in [a, b] {
                for changes in all {
                    let updates = updates(&store, &changes);
                    root = store.merge(root, &updates).await.unwrap();
                    apply(&mut model, &updates);
                }
                states.push((root, model.clone()));
                store.take();
            }
            let blocks: BTreeSet<u64> = states[0].1.keys().chain(states[1].1.keys()).copied().collect();
            let differ = |block: &u64| states[0].1.get(block) != states[1].1.get(block);
            let expected: BTreeSet<u64> = blocks.into_iter().filter(differ).collect();
            for (one, other) in [(0, 1), (1, 0)] {
                let found = all_differences(&store, states[one].0, states[other].0, budget).await;
                assert!(found == expected, "{} blocks of {}", found.len(), expected.len());
            }
        });
    }
}

#[test]
fn a_range_is_reported_in_the_requested_pieces() {
    in_world(async |env| {
        let store = Store::new(create(&env).await, CACHE_BYTES);
        let a = store.merge(None, &[store.map(0, 3 * span(0))]).await.unwrap();
        store.take();
        let b = store.merge(a, &[store.map(100, 300)]).await.unwrap();
        let mut ranges = Vec::new();
        for (from, to) in [(0, 150), (150, 151), (151, u64::MAX)] {
            let mut visit = |range| ranges.push(range);
            let done = differences(&store.nodes, a.as_ref(), b.as_ref(), from, to, 100, &mut visit).await;
            assert_eq!(done.unwrap(), to);
        }
        assert_eq!(ranges, [100..150, 150..151, 151..400]);
        let mut nodes = Vec::new();
        for (from, to) in [(0, 252), (252, 300), (300, span(1) - 1), (span(1) - 1, u64::MAX)] {
            let mut visit = |gone| {
                if let WalkItem::Page { level, .. } = gone {
                    nodes.push((to, level));
                }
            };
            gone(&store.nodes, a.as_ref(), b.as_ref(), from, to, 100, &mut visit).await.unwrap();
        }
        assert_eq!(nodes, [(252, 0), (span(1) - 1, 0), (u64::MAX, 1)], "each where its end is reached");
    });
}

#[test]
fn shared_subtrees_are_not_read() {
    in_world(async |env| {
        let store = Store::new(create(&env).await, 1);
        let old = store.merge(None, &[store.map(0, 3 * span(1))]).await.unwrap();
        store.take();
        let new = store.merge(old, &[store.map(span(1) + 5, 1)]).await.unwrap();
        let nodes = Nodes::new(store.nodes.file.clone(), STORE, &MapCache::new(1));
        let mut found = Vec::new();
        let mut visit = |gone| found.push(gone);
        let done = gone(&nodes, old.as_ref(), new.as_ref(), 0, u64::MAX, 100, &mut visit).await;
        assert_eq!(done.unwrap(), u64::MAX);
        assert_eq!((nodes.loads(), found.len()), (6, 4), "3 pages a side; 1 block, 3 nodes");
        let before = store.nodes.loads();
        let mut visit = |gone: WalkItem| panic!("{gone:?}");
        let same = gone(&store.nodes, old.as_ref(), old.as_ref(), 0, u64::MAX, 0, &mut visit).await;
        assert_eq!((same.unwrap(), store.nodes.loads()), (u64::MAX, before));
    });
}

#[test]
fn a_survey_continues_behind_a_damaged_page() {
    in_world(async |env| {
        let file = create(&env).await;
        let store = Store::new(file.clone(), 1);
        let root = store.merge(None, &[store.map(0, 3 * span(0))]).await.unwrap();
        let mut leaves = Vec::new();
        let mut visit = |seen| {
            if let WalkItem::Page { addr, level: 0, .. } = seen {
                leaves.push(addr);
            }
        };
        survey(&store.nodes, root.as_ref(), None, 0..u64::MAX, usize::MAX, &mut visit).await.unwrap();
        file.write(leaves[1] * BLOCK + 512, blk::Buf::zeroed(512)).await.unwrap();
        let (mut blocks, mut pages, mut damage) = (0, 0, Vec::new());
        let mut visit = |seen| match seen {
            WalkItem::Data(run) => blocks += run.len,
            WalkItem::Page { .. } => pages += 1,
            other => damage.push(other),
        };
        let store = Store::new(file, CACHE_BYTES);
        survey(&store.nodes, root.as_ref(), None, 0..u64::MAX, usize::MAX, &mut visit).await.unwrap();
        assert_eq!((blocks, pages, damage.len()), (2 * span(0), 4, 1));
        let WalkItem::Damaged { addr, level, first, error } = &damage[0] else { panic!("{damage:?}") };
        assert_eq!((*addr, *level, *first), (leaves[1], 0, span(0)));
        assert!(error.cause.contains(&format!("block {}: checksum", leaves[1])), "{error}");
        for (addr, has) in [(leaves[1], true), (leaves[0], false)] {
            assert_eq!(has_page(&store.nodes, root.as_ref(), 0, span(0) + 3, addr).await, has);
        }
    });
}

#[test]
fn a_survey_over_a_damaged_base_reports_the_unknown_range() {
    in_world(async |env| {
        let file = create(&env).await;
        let store = Store::new(file.clone(), 1);
        let base = store.merge(None, &[store.map(0, 3 * span(0))]).await.unwrap();
        store.take();
        let root = store.merge(base, &[store.map(5, 1), store.map(span(0), 2)]).await.unwrap();
        let mut leaves = Vec::new();
        let mut visit = |seen| {
            if let WalkItem::Page { addr, level: 0, .. } = seen {
                leaves.push(addr);
            }
        };
        survey(&store.nodes, base.as_ref(), None, 0..u64::MAX, usize::MAX, &mut visit).await.unwrap();
        file.write(leaves[0] * BLOCK + 512, blk::Buf::zeroed(512)).await.unwrap();
        let mut met = Vec::new();
        let mut visit = |seen| met.push(seen);
        survey(&store.nodes, root.as_ref(), base.as_ref(), 0..u64::MAX, usize::MAX, &mut visit)
            .await
            .unwrap();
        assert_eq!(met[0], WalkItem::UnknownBase(0..span(0)));
        let data = |seen: &WalkItem| if let WalkItem::Data(run) = seen { run.len } else { 0 };
        assert_eq!(
            met.iter().map(data).sum::<u64>(),
            span(0) + 2,
            "the leaf whose base is not known, and two"
        );
    });
}
