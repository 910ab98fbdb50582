//! Merges and look-ups against a plain map.

use super::*;

/// Blocks where something happens: around the ends of nodes of every level up to 4.
fn places() -> impl Strategy<Value = u64> {
    let edges = [0, span(0), 2 * span(0), span(1), 3 * span(1), span(2), span(3), 2 * span(3) + span(1)];
    (prop::sample::select(edges.to_vec()), 0u64..600)
        .prop_map(|(edge, near)| (edge + near).saturating_sub(300))
}

#[derive(Debug, Clone)]
struct Batch {
    /// Start, length, unmapped.
    changes: Vec<(u64, u64, bool)>,
    take: bool,
}

fn batches() -> impl Strategy<Value = Vec<Batch>> {
    let change = (places(), 1u64..400, prop::bool::weighted(0.3));
    let batch = (prop::collection::vec(change, 1..12), any::<bool>())
        .prop_map(|(changes, take)| Batch { changes, take });
    prop::collection::vec(batch, 1..8)
}

/// Sorted, without overlaps.
pub fn updates(store: &Store, changes: &[(u64, u64, bool)]) -> Vec<Update> {
    let mut sorted = changes.to_vec();
    sorted.sort_unstable();
    let mut out: Vec<Update> = Vec::new();
    for (start, len, unmapped) in sorted {
        if out.last().is_none_or(|last| last.end() <= start) {
            out.push(if unmapped { unmap(start, len) } else { store.map(start, len) });
        }
    }
    out
}

async fn check(store: &Store, root: Option<&Root>, model: &Model) {
    let edges = [0, span(1), 3 * span(1), span(2), span(3), 2 * span(3) + span(1)];
    let mut found = Model::new();
    for edge in edges {
        let blocks = edge.saturating_sub(400)..edge + 5 * span(0);
        let some = store.content(root, blocks.clone()).await.unwrap();
        assert_eq!(
            store.content(root, blocks.start + 7..blocks.start + 9).await.unwrap().len(),
            some.range(blocks.start + 7..blocks.start + 9).count()
        );
        found.extend(some);
    }
    assert!(&found == model, "found {} blocks of {}", found.len(), model.len());
    assert_eq!(root.map_or(0, |root| root.pointer.count), model.len() as u64);
}

async fn play(env: Env, batches: Vec<Batch>, cap_bytes: usize) {
    let store = Store::new(create(&env).await, cap_bytes);
    let (mut root, mut model) = (None, Model::new());
    let mut sealed = Vec::new();
    for batch in batches {
        let updates = updates(&store, &batch.changes);
        root = store.merge(root, &updates).await.unwrap();
        apply(&mut model, &updates);
        check(&store, root.as_ref(), &model).await;
        if batch.take {
            sealed.push((root, model.clone()));
            store.now.set(store.now.get() + 1);
        }
    }
    for (root, model) in &sealed {
        check(&store, root.as_ref(), model).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_tree_holds_what_was_merged_into_it(batches in batches(), tiny_cache in any::<bool>()) {
        in_world(async move |env| play(env, batches, if tiny_cache { 1 } else { CACHE_BYTES }).await);
    }
}
