//! Lookups: runs of maximal length, and the cache.

use super::*;

#[test]
fn runs_are_maximal_and_nothing_before_them_is_touched() {
    in_world(async |env| {
        let store = Store::new(create(&env).await, CACHE_BYTES);
        let update = store.map(100, 3 * span(0));
        let root = store.merge(None, &[update]).await.unwrap();
        let end = update.end();
        let before = Mapped { start: 90, len: 5, addr: 0, birth: 0 };
        let hole = |start, len| Mapped { start, len, addr: 0, birth: 0 };
        let data = Mapped { start: 100, len: update.len, addr: update.addr, birth: update.birth };
        let mut out = vec![before];
        assert!(store.nodes.lookup_cached(root.as_ref(), 95..2 * span(3), &mut out));
        assert_eq!(out, [before, hole(95, 5), data, hole(end, 2 * span(3) - end)]);
        out.truncate(1);
        store.nodes.lookup(None, 95..100, &mut out).await.unwrap();
        assert_eq!(out, [before, hole(95, 5)]);
    });
}

#[test]
fn a_missing_page_is_read_once_and_then_cached() {
    in_world(async |env| {
        let file = create(&env).await;
        let store = Store::new(file.clone(), CACHE_BYTES);
        let update = store.map(0, 40 * span(0));
        let root = store.merge(None, &[update]).await.unwrap();
        let nodes = Nodes::new(file, STORE, &MapCache::new(CACHE_BYTES));
        let mut out = vec![Mapped { start: 0, len: 7, addr: update.addr, birth: update.birth }];
        assert!(!nodes.lookup_cached(root.as_ref(), 7..8, &mut out));
        assert_eq!((out.len(), nodes.loads()), (1, 0));
        nodes.lookup(root.as_ref(), 7..40 * span(0), &mut out).await.unwrap();
        assert_eq!((out.len(), nodes.loads()), (2, 41));
        assert!(nodes.lookup_cached(root.as_ref(), 7..40 * span(0), &mut out));
        assert_eq!(nodes.loads(), 41);
        nodes.forget(root.unwrap().pointer.addr);
        assert!(!nodes.lookup_cached(root.as_ref(), 7..8, &mut out));
    });
}

#[test]
fn the_cache_keeps_its_limit_and_the_pages_in_use() {
    in_world(async |env| {
        let store = Store::new(create(&env).await, CACHE_BYTES);
        // Every second block is mapped, so that leaves are kept dense.
        let updates: Vec<Update> = (0..30 * span(0)).step_by(2).map(|block| store.map(block, 1)).collect();
        let updates: Vec<Update> = updates.into_iter().map(|u| Update { addr: u.addr * 2, ..u }).collect();
        let root = store.merge(None, &updates).await.unwrap();
        let cap = 40 << 10;
        let nodes = Nodes::new(store.nodes.file.clone(), STORE, &MapCache::new(cap));
        let mut out = Vec::new();
        for block in (0..30 * span(0)).step_by(100) {
            nodes.lookup(root.as_ref(), block..block + 1, &mut out).await.unwrap();
            assert!(nodes.resident_bytes() <= cap, "{} bytes", nodes.resident_bytes());
        }
        assert!(nodes.loads() <= 33, "{} loads: the interior page mostly stays", nodes.loads());
        assert_eq!(out.len(), 76, "only every second block is mapped");
    });
}

#[test]
fn stores_that_share_a_cache_see_only_their_own_pages() {
    in_world(async |env| {
        let store = Store::new(create(&env).await, CACHE_BYTES);
        let updates: Vec<Update> = (0..4 * span(0)).step_by(2).map(|block| store.map(block, 1)).collect();
        let root = store.merge(None, &updates).await.unwrap();
        let cache = MapCache::new(CACHE_BYTES);
        let [one, other] = [(); 2].map(|()| Nodes::new(store.nodes.file.clone(), STORE, &cache));
        let mut out = Vec::new();
        one.lookup(root.as_ref(), 0..1, &mut out).await.unwrap();
        let bytes = one.resident_bytes();
        assert!(one.lookup_cached(root.as_ref(), 0..1, &mut out));
        assert!(
            !other.lookup_cached(root.as_ref(), 0..1, &mut out),
            "the page of one store is shown by another"
        );
        other.lookup(root.as_ref(), 0..1, &mut out).await.unwrap();
        assert_eq!(one.resident_bytes(), 2 * bytes);
        drop(other);
        assert_eq!(one.resident_bytes(), bytes);
        assert!(one.lookup_cached(root.as_ref(), 0..1, &mut out));
    });
}
