//! Cache of tree nodes: each is read once, verified once, and evicted by second chance.

use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use blk::{Buf, Error, ErrorKind, File, Result};
use futures_util::stream::{self, StreamExt};

use super::entry::Spot;
use super::node::{Node, Seat};
use super::{IOS_AT_ONCE, PAGES_PER_IO};
use crate::native::layout::BLOCK;

/// A cache of map pages of bounded size, which several stores of a core may share.
#[derive(Clone)]
pub struct MapCache(Rc<RefCell<Cache>>);

impl MapCache {
    /// Creates an empty cache. `cap_bytes` bounds what it keeps, not what is in use.
    pub fn new(cap_bytes: usize) -> MapCache {
        MapCache(Rc::new(RefCell::new(Cache { cap_bytes, ..Cache::default() })))
    }
}

/// The pages of one store's maps, behind a cache.
pub struct Nodes {
    pub(super) file: File,
    pub(super) store_id: u64,
    cache: MapCache,
    /// Distinguishes the pages of this store in the cache.
    owner: u32,
    loads: Cell<u64>,
    /// The blocks below a damaged page are lost; otherwise such a page is an error.
    loses: bool,
    /// Damaged pages whose blocks are lost, by address.
    lost: RefCell<BTreeMap<u64, Error>>,
}

/// Most damaged pages that are listed.
const LOST_PAGES_MAX: usize = 1000;

impl Nodes {
    /// Reads pages of `file` through `cache`, which forgets them when this is dropped.
    pub fn new(file: File, store_id: u64, cache: &MapCache) -> Nodes {
        let owner = cache.0.borrow_mut().new_owner();
        let (cache, loads, lost) = (cache.clone(), Cell::new(0), RefCell::default());
        Nodes { file: file.tables(), store_id, cache, owner, loads, loses: false, lost }
    }

    /// Makes the blocks below damaged pages lost, if `loses`: a read of them fails, and a write makes them good.
    pub fn losing(mut self, loses: bool) -> Nodes {
        self.loses = loses;
        self
    }

    /// Returns the damage of pages whose blocks are lost.
    pub fn lost(&self) -> Vec<Error> {
        self.lost.borrow().values().cloned().collect()
    }

    /// Returns the node in the place of a damaged page.
    fn lose(&self, spot: &Spot, error: Error) -> Result<Rc<Node>> {
        let lost = (self.loses && error.kind == ErrorKind::Damaged).then(|| Node::lost(spot)).flatten();
        let Some(node) = lost else { return Err(error) };
        let mut noted = self.lost.borrow_mut();
        if noted.len() < LOST_PAGES_MAX {
            noted.insert(spot.pointer.addr, error);
        }
        Ok(Rc::new(node))
    }

    /// Returns this store's pages that are in memory.
    pub(super) fn cached(&self) -> CachedPages<'_> {
        CachedPages { cache: self.cache.0.borrow(), owner: self.owner }
    }

    /// Returns the path of the store's file, for messages.
    pub fn path(&self) -> &str {
        self.file.name()
    }

    /// Drops the page at `addr`, which is free from now on.
    pub fn forget(&self, addr: u64) {
        self.cache.0.borrow_mut().remove((self.owner, addr));
    }

    /// Returns the bytes of all pages in the cache.
    #[cfg(test)]
    pub fn resident_bytes(&self) -> usize {
        self.cache.0.borrow().bytes
    }

    /// Returns the number of pages read so far.
    pub fn loads(&self) -> u64 {
        self.loads.get()
    }

    /// Returns the verified node at a place that is not a hole, or one whose blocks are lost if the page is damaged.
    pub(super) async fn load(&self, spot: &Spot) -> Result<Rc<Node>> {
        match self.load_whole(spot).await {
            Ok(node) => Ok(node),
            Err(error) => self.lose(spot, error),
        }
    }

    /// Like `load`, but a damaged page is an error.
    pub(super) async fn load_whole(&self, spot: &Spot) -> Result<Rc<Node>> {
        if let Some(node) = self.cached().get(spot) {
            return Ok(node.clone());
        }
        self.loads.set(self.loads.get() + 1);
        let (page, read) = self.file.read(spot.pointer.addr * BLOCK, Buf::alloc(BLOCK as usize)).await;
        read?;
        let node = Rc::new(Node::open(self.file.name(), self.store_id, spot, &page)?);
        self.keep(node.clone());
        Ok(node)
    }

    /// Returns several nodes; None where there is no page. Those that are not in the cache are read in the order of their addresses,
    /// many at once, neighbours by one I/O. The cache keeps leaves only if `keeps_leaves`: a merge replaces them.
    pub(super) async fn load_all(&self, spots: &[Spot], keeps_leaves: bool) -> Result<Vec<Option<Rc<Node>>>> {
        let mut loaded: Vec<Option<Rc<Node>>> =
            spots.iter().map(|spot| self.cached().get(spot).cloned()).collect();
        let mut missing: Vec<usize> = (0..spots.len()).filter(|n| loaded[*n].is_none()).collect();
        missing.retain(|n| spots[*n].pointer.is_page());
        missing.sort_unstable_by_key(|n| spots[*n].pointer.addr);
        let runs = adjacent(&missing, |n| spots[*n].pointer.addr);
        let mut reads = stream::iter(runs.map(async |run| (run, self.read_run(spots, run).await)))
            .buffer_unordered(IOS_AT_ONCE);
        while let Some((run, nodes)) = reads.next().await {
            for (n, node) in run.iter().zip(nodes?) {
                if (keeps_leaves || node.spot.level > 0) && !node.is_lost {
                    self.keep(node.clone());
                }
                loaded[*n] = Some(node);
            }
        }
        Ok(loaded)
    }

    /// Reads the pages of `run`, which are near each other, by one I/O; by one for each page if that fails, because the
    /// pages between them may be unreadable.
    async fn read_run(&self, spots: &[Spot], run: &[usize]) -> Result<Vec<Rc<Node>>> {
        let first = spots[run[0]].pointer.addr;
        let last = spots[run[run.len() - 1]].pointer.addr;
        let buf = Buf::alloc(((last - first + 1) * BLOCK) as usize);
        let (pages, read) = self.file.read(first * BLOCK, buf).await;
        if read.is_err() && run.len() > 1 {
            let mut nodes = Vec::with_capacity(run.len());
            for n in run {
                nodes.push(self.load(&spots[*n]).await?);
            }
            return Ok(nodes);
        }
        read?;
        self.loads.set(self.loads.get() + run.len() as u64);
        let open = |n: &usize| {
            let at = ((spots[*n].pointer.addr - first) * BLOCK) as usize;
            let page = &pages[at..at + BLOCK as usize];
            let opened = Node::open(self.file.name(), self.store_id, &spots[*n], page);
            opened.map(Rc::new).or_else(|error| self.lose(&spots[*n], error))
        };
        run.iter().map(open).collect()
    }

    pub(super) fn keep(&self, node: Rc<Node>) {
        self.cache.0.borrow_mut().insert(self.owner, node);
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.cache.0.borrow_mut().remove_all(self.owner);
    }
}

/// Most pages between two needed ones that are read with them: 16 KiB take a disk 0.2 ms, and flash less than another
/// I/O.
const GAP_PAGES_MAX: u64 = 4;

/// Divides items that are sorted by address into runs that one I/O reads.
fn adjacent<T>(items: &[T], addr: impl Fn(&T) -> u64) -> impl Iterator<Item = &[T]> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let first = addr(rest.first()?);
        let fits = |pair: &&[T]| {
            let (one, next) = (addr(&pair[0]), addr(&pair[1]));
            next - one <= GAP_PAGES_MAX + 1 && next - first < PAGES_PER_IO as u64
        };
        let (run, behind) = rest.split_at(1 + rest.windows(2).take_while(fits).count());
        rest = behind;
        Some(run)
    })
}

/// Hashes the keys of pages. Addresses are dense: one multiplication spreads them, and the order is the same in every
/// run.
#[derive(Default, Clone, Copy)]
pub(super) struct AddrHasher(u64);

impl Hasher for AddrHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only owners and addresses are hashed")
    }
    fn write_u32(&mut self, owner: u32) {
        self.0 = u64::from(owner);
    }
    fn write_u64(&mut self, addr: u64) {
        self.0 = (addr ^ self.0.rotate_right(16)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 29;
    }
}

/// Owner and address of a page.
type PageKey = (u32, u64);

type Index = HashMap<PageKey, Rc<Node>, BuildHasherDefault<AddrHasher>>;

/// Nodes by owner and address. A node is returned only for exactly the pointer against which it was verified, so a page
/// is never mistaken for a later one at the same address.
#[derive(Default)]
struct Cache {
    index: Index,
    /// The same nodes; each has the index of its seat.
    ring: Vec<Rc<Node>>,
    hand: usize,
    bytes: usize,
    cap_bytes: usize,
    last_owner: u32,
}

/// The pages of one owner in the cache.
pub(super) struct CachedPages<'a> {
    cache: Ref<'a, Cache>,
    owner: u32,
}

impl CachedPages<'_> {
    pub(super) fn get(&self, spot: &Spot) -> Option<&Rc<Node>> {
        let key = (self.owner, spot.pointer.addr);
        let node = self.cache.index.get(&key).filter(|node| node.spot == *spot)?;
        node.used.set(true);
        Some(node)
    }
}

fn key_of(node: &Node) -> PageKey {
    (node.seat.get().owner, node.spot.pointer.addr)
}

impl Cache {
    /// Returns a number that no present page has as its owner.
    fn new_owner(&mut self) -> u32 {
        self.last_owner = self.last_owner.wrapping_add(1);
        self.remove_all(self.last_owner);
        self.last_owner
    }

    fn insert(&mut self, owner: u32, node: Rc<Node>) {
        let key = (owner, node.spot.pointer.addr);
        self.remove(key);
        node.used.set(false);
        node.seat.set(Seat { owner, index: self.ring.len() as u32 });
        self.bytes += node.bytes();
        self.ring.push(node.clone());
        self.index.insert(key, node);
        self.evict(key);
    }

    fn remove(&mut self, key: PageKey) {
        let Some(node) = self.index.remove(&key) else { return };
        self.bytes -= node.bytes();
        let seat = node.seat.get();
        self.ring.swap_remove(seat.index as usize);
        if let Some(moved) = self.ring.get(seat.index as usize) {
            moved.seat.set(Seat { index: seat.index, ..moved.seat.get() });
        }
    }

    fn remove_all(&mut self, owner: u32) {
        let owned = self.ring.iter().map(|node| key_of(node)).filter(|key| key.0 == owner);
        let owned: Vec<PageKey> = owned.collect();
        owned.into_iter().for_each(|key| self.remove(key));
    }

    /// Evicts nodes over the cap, except for the newest one and, once, those used again since the hand last passed
    /// them.
    fn evict(&mut self, newest: PageKey) {
        while self.bytes > self.cap_bytes && self.ring.len() > 1 {
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            let node = &self.ring[self.hand];
            let key = key_of(node);
            // The last node of the ring takes the seat of the evicted one; the hand passes it too.
            self.hand += 1;
            if !node.used.replace(false) && key != newest {
                self.remove(key);
            }
        }
    }
}
