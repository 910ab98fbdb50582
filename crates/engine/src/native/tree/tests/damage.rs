//! Damaged pages: the result is an error that names the page and the field, never data, and never a panic.

use blk::{Buf, Error, ErrorKind};

use super::super::entry::{ENTRY_BYTES, HEADER_BYTES, Pointer, Spot, TreeKind};
use super::super::node::{Body, NO_ENTRIES, Node, PageMarks};
use super::*;
use crate::native::layout::{BLOCK, CHECKSUM_AT, page_checksum, put_u64};

const ADDR: u64 = 4711;
const BIRTH: u64 = 9;
const PLACES: PageMarks = PageMarks {
    kind: TreeKind::Places,
    paired: false,
    is_root: false,
    tag: PageTag { node: 7, checkpoint: 0x1234_5678_9abc },
};

fn sealed(level: u8, body: Body) -> (Spot, Buf) {
    let pointer = Pointer { addr: ADDR, birth: BIRTH, ..Pointer::default() };
    let (node, page) = Node::seal(STORE, PLACES, Spot { level, first: 5 * span(level), pointer }, body);
    (node.spot, page)
}

/// Returns a leaf kept as runs, a dense one, and an interior node.
fn pages() -> Vec<(Spot, Buf)> {
    let mut runs = NO_ENTRIES;
    let mut dense = NO_ENTRIES;
    let mut children = [Pointer::default(); 126];
    for index in 0..126 {
        runs[index + 50].addr = 1000 + index as u64;
        runs[index + 50].birth = 3;
        dense[index * 2].addr = 2000 + 7 * index as u64;
        dense[index * 2].birth = index as u64 % 10;
        children[index] =
            Pointer { addr: 3000 + index as u64, birth: 9, checksum: !0, count: 1 + index as u64 };
    }
    children[40] = Pointer::default();
    vec![sealed(0, Body::leaf(&runs)), sealed(0, Body::leaf(&dense)), sealed(1, Body::interior(&children))]
}

fn open(spot: &Spot, page: &[u8]) -> Result<Node> {
    Node::open(FILE, STORE, spot, page)
}

#[test]
fn a_page_is_read_as_it_was_made() {
    for (spot, page) in pages() {
        let node = open(&spot, &page).unwrap();
        let body =
            if spot.level == 0 { Body::leaf(&node.entries()) } else { Body::interior(node.children()) };
        let (again, bytes) = sealed(spot.level, body);
        assert!(again == spot && bytes[..] == page[..]);
    }
}

#[test]
fn every_flipped_bit_is_damage() {
    for (spot, mut page) in pages() {
        for bit in 0..page.len() * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            let error = open(&spot, &page).map(|node| node.spot).unwrap_err();
            assert!(error.kind == ErrorKind::Damaged && error.cause.contains("block 4711: "), "{error}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// Writes `value` at `at` with valid checksums, so that only the field is wrong.
fn forged(spot: &Spot, page: &[u8], at: usize, value: u64) -> Result<Node> {
    let mut page = Buf::copy_of(page);
    put_u64(&mut page, at, value);
    let mut spot = *spot;
    spot.pointer.checksum = page_checksum(&page);
    put_u64(&mut page, CHECKSUM_AT, spot.pointer.checksum);
    open(&spot, &page)
}

#[test]
fn a_page_with_a_wrong_field_is_damaged_and_the_field_is_named() {
    let pages = pages();
    let (entry, pointer) = (HEADER_BYTES + 50 * ENTRY_BYTES, HEADER_BYTES);
    let header = [
        (0, 1, "magic is 0x1"),
        (8, 1, "store id"),
        (16, 4712, "own address is 0x1268, expected 0x1267"),
        (32, 8, "birth is 0x8, expected 0x9"),
        (40, 0, "first block"),
        (48, 1, "count"),
        (56, 2, "level"),
        (32, 9 | 1 << 47, "birth"),
        (48, 126 | 1 << 47, "count"),
    ];
    let words = [
        (entry, 1000 | 1 << 48, "entry 50: birth on device 1 is 3, its flags 0x0, expected 0"),
        (entry, 1000 | 4 << 56, "entry 50: flags are 0x4"),
        (entry + 8, 3 | 1 << 60, "entry 50: reserved bits are 0x1000"),
        (entry + 8, 10, "birth of entry 50 is 10, expected at most 9"),
        (entry, 0, "entry 50: birth of a hole is 3"),
        (HEADER_BYTES, 77, "number of mapped blocks is 127, expected 126"),
    ];
    let pointers = [
        (pointer, 3000 | 1 << 50, "pointer 0: birth on device 4"),
        (pointer + 8, 10, "birth of pointer 0"),
        (pointer + 24, 253, "pointer 0: count is 253, expected at most 252"),
        (pointer + 24, u64::MAX, "pointer 0: count"),
        (pointer + 24, 2, "number of mapped blocks"),
        (pointer + 32 * 40 + 16, 1, "pointer 40: without a page there is a checksum"),
    ];
    let cases = [(0, &header[..]), (2, &header[..]), (0, &words[..]), (2, &pointers[..])];
    for (page, fields) in cases {
        for (at, value, message) in fields {
            let error =
                forged(&pages[page].0, &pages[page].1, *at, *value).map(|node| node.spot).unwrap_err();
            assert!(error.kind == ErrorKind::Damaged && error.cause.contains(message), "{message}: {error}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(
        which in 0usize..3, changes in prop::collection::vec((0usize..512, any::<u64>(), 0u32..64), 1..20),
    ) {
        let (mut spot, mut page) = pages().swap_remove(which);
        for (word, value, shift) in changes {
            put_u64(&mut page, word * 8, value >> shift);
        }
        prop_assert!(open(&spot, &page).is_err() || page_checksum(&page) == spot.pointer.checksum);
        spot.pointer.checksum = page_checksum(&page);
        put_u64(&mut page, CHECKSUM_AT, spot.pointer.checksum);
        if let Ok(node) = open(&spot, &page) {
            prop_assert!(node.spot == spot);
        }
    }

    #[test]
    fn any_root_is_read_without_panic(level in 0u64..12, words in any::<[u64; 4]>(), shift in 0u32..64) {
        let mut bytes = [0; Root::BYTES];
        put_u64(&mut bytes, 0, level);
        for (index, word) in words.iter().enumerate() {
            put_u64(&mut bytes, 8 + index * 8, word >> shift);
        }
        if let Ok(root) = Root::get(&bytes, FILE) {
            let mut again = [0; Root::BYTES];
            Root::put(root.as_ref(), &mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}

/// Makes a tree of one interior node over two leaves in two states: before and after a change of both leaves.
async fn two_states(store: &Store) -> (Root, Root) {
    let old = store.merge(None, &[store.map(0, 400)]).await.unwrap().unwrap();
    store.take();
    let new = store.merge(Some(old), &[store.map(100, 200)]).await.unwrap().unwrap();
    (old, new)
}

async fn page(file: &File, addr: u64) -> Buf {
    let (page, result) = file.read(addr * BLOCK, Buf::alloc(BLOCK as usize)).await;
    result.unwrap();
    page
}

async fn lookup_error(file: &File, root: &Root) -> Error {
    let nodes = Nodes::new(file.clone(), STORE, &MapCache::new(CACHE_BYTES));
    let before = Mapped { start: 0, len: 1, addr: 1, birth: 1 };
    let mut out = vec![before];
    let error = nodes.lookup(Some(root), 0..500, &mut out).await.unwrap_err();
    assert_eq!((error.kind, &out[..]), (ErrorKind::Damaged, &[before][..]), "{error}");
    assert!(!nodes.lookup_cached(Some(root), 0..500, &mut out), "nothing wrong is kept");
    error
}

#[test]
fn misdirected_stale_and_missing_pages_are_damage() {
    in_world(async |env| {
        let file = create(&env).await;
        let store = Store::new(file.clone(), CACHE_BYTES);
        let (old, new) = two_states(&store).await;
        let addr = new.pointer.addr;
        let good = page(&file, addr).await;
        let misdirected = page(&file, old.pointer.addr).await;
        file.write(addr * BLOCK, misdirected).await.unwrap();
        let error = lookup_error(&file, &new).await;
        assert!(error.cause.contains(&format!("map page at block {addr}: own address")), "{error}");

        // A lost write leaves an earlier, valid page at this address.
        let mut children = [Pointer::default(); 126];
        children[0] = Pointer { addr: 50, birth: 1, checksum: 1, count: 1 };
        let pointer = Pointer { addr, birth: 1, ..Pointer::default() };
        let (_, stale) =
            Node::seal(STORE, PLACES, Spot { level: 1, first: 0, pointer }, Body::interior(&children));
        file.write(addr * BLOCK, stale).await.unwrap();
        let error = lookup_error(&file, &new).await;
        assert!(error.cause.contains(&format!("block {addr}: checksum against its parent")), "{error}");

        file.write(addr * BLOCK, good).await.unwrap();
        file.set_len(addr * BLOCK + 512).await.unwrap();
        lookup_error(&file, &new).await;
        file.set_len(0).await.unwrap();
        lookup_error(&file, &new).await;
    });
}

#[test]
fn an_address_given_to_another_page_is_not_taken_from_the_cache() {
    in_world(async |env| {
        let file = create(&env).await;
        let store = Store::new(file.clone(), CACHE_BYTES);
        let (_, new) = two_states(&store).await;
        for change in [0, 1, 2] {
            let mut other = new;
            match change {
                0 => other.pointer.checksum ^= 1,
                1 => other.pointer.birth += 1,
                _ => other.level += 1,
            }
            let mut out = Vec::new();
            assert!(!store.nodes.lookup_cached(Some(&other), 0..10, &mut out));
            let error = store.nodes.lookup(Some(&other), 0..10, &mut out).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Damaged);
        }
    });
}

#[test]
fn a_merge_into_a_damaged_tree_changes_and_frees_nothing() {
    in_world(async |env| {
        let file = create(&env).await;
        let store = Store::new(file.clone(), CACHE_BYTES);
        let (_, new) = two_states(&store).await;
        file.write(new.pointer.addr * BLOCK, Buf::zeroed(512)).await.unwrap();
        store.nodes.forget(new.pointer.addr);
        let update = store.map(0, 1);
        let used = store.used.borrow().clone();
        let error = store.merge(Some(new), &[update]).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Damaged);
        assert!(used == *store.used.borrow());
    });
}
