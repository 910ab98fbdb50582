//! Merges and lookups, compared with a plain map.

use blk::ErrorKind;

use super::*;
use crate::native::layout::device_word;

/// Blocks that change: around the ends of nodes of every level up to 4.
fn places() -> impl Strategy<Value = u64> {
    let edges = [0, span(0), 2 * span(0), span(1), 3 * span(1), span(2), span(3), 2 * span(3) + span(1)];
    (prop::sample::select(edges.to_vec()), 0u64..600)
        .prop_map(|(edge, near)| (edge + near).saturating_sub(300))
}

#[derive(Debug, Clone)]
pub(super) struct Batch {
    /// Start, length, whether it is unmapped.
    pub changes: Vec<(u64, u64, bool)>,
    pub take: bool,
}

pub(super) fn batches() -> impl Strategy<Value = Vec<Batch>> {
    // Few changes span more leaves than are changed at once.
    let len = prop_oneof![15 => 1u64..400, 1 => 4000u64..6000];
    let change = (places(), len, prop::bool::weighted(0.3));
    let batch = (prop::collection::vec(change, 1..12), any::<bool>())
        .prop_map(|(changes, take)| Batch { changes, take });
    prop::collection::vec(batch, 1..8)
}

/// Returns sorted updates without overlaps.
pub(super) fn updates(store: &Store, changes: &[(u64, u64, bool)]) -> Vec<Update> {
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

pub(super) async fn check(store: &Store, root: Option<&Root>, model: &Model) {
    let edges = [0, span(1), 3 * span(1), span(2), span(3), 2 * span(3) + span(1)];
    let mut found = Model::new();
    for edge in edges {
        let blocks = edge.saturating_sub(400)..edge + 40 * span(0);
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
    let mut kept = Vec::new();
    for batch in batches {
        let updates = updates(&store, &batch.changes);
        root = store.merge(root, &updates).await.unwrap();
        apply(&mut model, &updates);
        check(&store, root.as_ref(), &model).await;
        assert_eq!(store.merge(root, &updates).await.unwrap(), root, "the same again changes nothing");
        if batch.take {
            kept.push((root, model.clone()));
            store.take();
        }
    }
    kept.push((root, model));
    for (root, model) in &kept {
        check(&store, root.as_ref(), model).await;
    }
    let roots: Vec<Option<Root>> = kept.iter().map(|(root, _)| *root).collect();
    assert!(store.reachable(&roots).await == *store.used.borrow(), "in use is what a kept tree refers to");
}

/// The device of the trees that are over one.
const DEVICE: u8 = 3;

/// Checks what a tree over a device has around the edges of its nodes: what was written, holes where blocks were
/// unmapped, and the device elsewhere.
async fn check_over(store: &Store, root: Option<&Root>, written: &Model, holes: &BTreeSet<u64>) {
    for edge in [0, span(1), 3 * span(1), span(2), span(3), 2 * span(3) + span(1)] {
        let blocks = edge.saturating_sub(400)..edge + 40 * span(0);
        let below = |block: u64| {
            let is_device = block < span(3) && !holes.contains(&block);
            is_device.then_some((device_word(DEVICE, block), 0))
        };
        let expected = |block| Some((block, written.get(&block).copied().or_else(|| below(block))?));
        let expected: Model = blocks.clone().filter_map(expected).collect();
        assert!(store.content(root, blocks).await.unwrap() == expected, "around block {edge}");
    }
}

/// Merges into a tree over a device, of which takes keep earlier states.
async fn play_over(env: Env, batches: Vec<Batch>, cap_bytes: usize) {
    let store = Store::new(create(&env).await, cap_bytes);
    let (mut written, mut holes) = (Model::new(), BTreeSet::new());
    let mut root = Root::of_device(device_word(DEVICE, 0), span(3));
    let mut kept = Vec::new();
    for batch in batches {
        let updates = updates(&store, &batch.changes);
        root = store.merge(root, &updates).await.unwrap();
        apply(&mut written, &updates);
        for update in &updates {
            let blocks = update.start..update.end();
            match update.addr {
                0 => holes.extend(blocks),
                _ => holes.retain(|block| !blocks.contains(block)),
            }
        }
        check_over(&store, root.as_ref(), &written, &holes).await;
        assert_eq!(store.merge(root, &updates).await.unwrap(), root, "the same again changes nothing");
        assert_eq!(root.map_or(0, |root| root.pointer.count), written.len() as u64);
        if batch.take {
            kept.push((root, written.clone(), holes.clone()));
            store.take();
        }
    }
    kept.push((root, written, holes));
    for (root, written, holes) in &kept {
        check_over(&store, root.as_ref(), written, holes).await;
    }
    let roots: Vec<Option<Root>> = kept.iter().map(|(root, ..)| *root).collect();
    assert!(store.reachable(&roots).await == *store.used.borrow(), "in use is what a kept tree refers to");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn trees_over_a_device_hold_what_was_merged(batches in batches(), tiny_cache in any::<bool>()) {
        in_world(async move |env| play_over(env, batches, if tiny_cache { 1 } else { CACHE_BYTES }).await);
    }

    #[test]
    fn trees_hold_what_was_merged_and_free_the_rest_once(batches in batches(), tiny_cache in any::<bool>()) {
        in_world(async move |env| play(env, batches, if tiny_cache { 1 } else { CACHE_BYTES }).await);
    }

    #[test]
    fn a_failed_merge_changes_nothing(batches in batches(), room in 0u64..6) {
        in_world(async move |env| {
            let store = Store::new(create(&env).await, CACHE_BYTES);
            let (mut root, mut model) = (None, Model::new());
            for batch in batches {
                let updates = updates(&store, &batch.changes);
                let used = store.used.borrow().clone();
                store.node_space.set(room);
                let result = store.merge(root, &updates).await;
                store.node_space.set(u64::MAX);
                match result {
                    Ok(new) => {
                        root = new;
                        apply(&mut model, &updates);
                    }
                    Err(error) => {
                        assert!(error.is_no_space(), "{error}");
                        assert!(used == *store.used.borrow(), "nothing was freed, nothing is left");
                    }
                }
                check(&store, root.as_ref(), &model).await;
            }
        });
    }
}

#[test]
fn distant_changes_are_merged_window_by_window() {
    in_world(async |env| {
        let store = Store::new(create(&env).await, 1);
        let (mut root, mut model, mut kept) = (None, Model::new(), Vec::new());
        for (step, len) in [(span(1) / 3, 5), (span(1) / 7, 2), (span(0) / 2, 1)] {
            let changes: Vec<(u64, u64, bool)> = (0..150).map(|n| (n * step, len, n % 5 == 4)).collect();
            let updates = updates(&store, &changes);
            root = store.merge(root, &updates).await.unwrap();
            apply(&mut model, &updates);
            assert!(store.content(root.as_ref(), 0..span(2)).await.unwrap() == model);
            kept.push(root);
            store.take();
        }
        assert!(store.reachable(&kept).await == *store.used.borrow());
    });
}

#[test]
fn a_tree_grows_to_the_level_it_needs_and_is_removed_when_empty() {
    in_world(async |env| {
        let store = Store::new(create(&env).await, CACHE_BYTES);
        let mut root = None;
        for level in 0..5 {
            let block = if level == 0 { 0 } else { span(level - 1) };
            root = store.merge(root, &[store.map(block, 1)]).await.unwrap();
            assert_eq!(root.map(|root| root.level), Some(level));
        }
        let far = [unmap(span(5), 1 << 40)];
        assert_eq!(store.merge(root, &far).await.unwrap(), root, "an unmap never makes a tree grow");
        assert_eq!(store.merge(root, &[unmap(0, 1 << 50)]).await.unwrap(), None);
        assert_eq!(*store.used.borrow(), BTreeSet::new());
        let beyond = store.merge(None, &[store.map(span(LEVEL_MAX) - 1, 2)]).await.unwrap_err();
        assert_eq!(beyond.kind, ErrorKind::Invalid);
    });
}

#[test]
fn dropped_and_replaced_pages_are_read_only_to_free_their_blocks() {
    in_world(async |env| {
        let store = Store::new(create(&env).await, 1);
        let all = [store.map(0, 20 * span(0))];
        let root = store.merge(None, &all).await.unwrap();
        store.take();
        let loads = store.nodes.loads();
        assert_eq!(store.merge(root, &[unmap(0, 20 * span(0))]).await.unwrap(), None);
        let after_drop = store.nodes.loads();
        assert!(after_drop - loads <= 4, "{} pages read to drop shared ones", after_drop - loads);
        let new = store.merge(root, &[store.map(0, 20 * span(0))]).await.unwrap();
        let reads = store.nodes.loads() - after_drop;
        assert!(reads <= 4, "{reads} pages read to replace shared ones");
        let reads = store.nodes.loads();
        assert_eq!(store.merge(new, &[unmap(0, 20 * span(0))]).await.unwrap(), None);
        assert!(store.nodes.loads() - reads >= 20, "exclusive entries are found by reading");
        assert!(store.reachable(&[root]).await == *store.used.borrow());
    });
}

#[test]
fn adjacent_pages_are_written_together_and_guests_run_between() {
    in_world(async |env| {
        let file = create(&env).await;
        let store = Store::new(file.clone(), CACHE_BYTES);
        let pace = CountedPace::default();
        let updates = [store.map(0, 256 * span(0))];
        merge(&store.nodes, Roots::default(), &updates, store.now(), &store, &pace).await.unwrap();
        // Three of 64 pages or less in two I/Os, two of 65 pages in three, and the last two interior pages.
        assert_eq!((file.counters().writes, file.counters().reads), (2 * 2 + 2 * 3 + 1, 0));
        assert_eq!((pace.turns.get(), pace.merged.get()), (256 / 8 + 4, 1));
    });
}

#[derive(Default)]
struct CountedPace {
    turns: Cell<usize>,
    merged: Cell<usize>,
}

impl MergePace for CountedPace {
    fn merged(&self, updates: usize) -> Local<'_, ()> {
        self.turns.update(|turns| turns + 1);
        self.merged.update(|merged| merged + updates);
        Box::pin(ready(()))
    }
}

#[test]
fn blocks_of_a_device_have_no_pages_and_a_tree_without_them_is_removed() {
    in_world(async |env| {
        let store = Store::new(create(&env).await, CACHE_BYTES);
        let whole = Root::of_device(device_word(DEVICE, 0), span(2));
        assert_eq!((whole.unwrap().level, Root::of_device(device_word(DEVICE, 0), 0)), (2, None));
        let root = store.merge(whole, &[store.map(span(1) + 5, 1)]).await.unwrap();
        assert_eq!(store.used.borrow().len(), 4, "a block, and its path of three pages");
        let root = store.merge(root, &[unmap(0, span(1))]).await.unwrap();
        assert_eq!(store.used.borrow().len(), 4, "a page of holes does not exist either");
        assert_eq!(store.merge(root, &[unmap(0, span(2))]).await.unwrap(), None);
        assert_eq!(*store.used.borrow(), BTreeSet::new());
    });
}
