use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::ops::Range;

use blk::{Env, File, Local, Result};
use proptest::prelude::*;
use sim::{Options, SimWorld};

use super::*;
use crate::native::backing::Backing;
use crate::native::layout::{BLOCK, HEADER_BLOCKS};

mod damage;
mod lookup;
mod merge;
mod walk;

const STORE: u64 = 0x5709_E1D0;
const FILE: &str = "store";
const CACHE_BYTES: usize = 1 << 20;

/// Content of a test's trees by block: address and birth.
type Model = BTreeMap<u64, (u64, u64)>;

fn in_world(test: impl AsyncFnOnce(Env) + 'static) -> SimWorld {
    let world = SimWorld::new(1, Options::default());
    assert!(world.run(async move |env| test(env).await).is_some());
    world
}

async fn create(env: &Env) -> File {
    env.open_root("/").unwrap().create_new(FILE).await.unwrap()
}

/// The rest of a store, for one lineage: places blocks, never twice, and records which are in use.
struct Store {
    nodes: Nodes,
    next: Cell<u64>,
    /// Generation of the last take; blocks born later are exclusive.
    sealed: Cell<u64>,
    /// Generation of the take before it. It counts for blocks that end at or before `cursor`, where the last one has
    /// been reclaimed.
    sealed_before: Cell<u64>,
    cursor: Cell<u64>,
    used: RefCell<BTreeSet<u64>>,
    node_space: Cell<u64>,
}

impl Store {
    fn new(file: File, cap_bytes: usize) -> Store {
        Store {
            nodes: Nodes::new(file, STORE, &MapCache::new(cap_bytes)),
            next: Cell::new(HEADER_BLOCKS),
            sealed: Cell::new(0),
            sealed_before: Cell::new(0),
            cursor: Cell::new(0),
            used: RefCell::default(),
            node_space: Cell::new(u64::MAX),
        }
    }

    fn now(&self) -> u64 {
        self.sealed.get() + 1
    }

    fn take(&self) {
        self.sealed_before.set(self.sealed.get());
        self.sealed.set(self.now());
    }

    fn place(&self, len: u64) -> u64 {
        let addr = self.next.replace(self.next.get() + len);
        self.used.borrow_mut().extend(addr..addr + len);
        addr
    }

    async fn merge(&self, root: Option<Root>, updates: &[Update]) -> Result<Option<Root>> {
        let roots = Roots { places: root, backings: None };
        merge(&self.nodes, roots, updates, self.now(), self, self).await.map(|roots| roots.places)
    }

    fn map(&self, start: u64, len: u64) -> Update {
        Update { start, len, addr: self.place(len), birth: self.now(), backing: Backing::NONE }
    }

    /// Returns every block to which these trees refer, after a check that it is in use.
    async fn reachable(&self, roots: &[Option<Root>]) -> BTreeSet<u64> {
        let mut all = BTreeSet::new();
        for root in roots {
            let mut visit = |seen: WalkItem| match seen {
                WalkItem::Data(run) => all.extend(run.addr..run.addr + run.len),
                WalkItem::Page { addr, .. } => {
                    all.insert(addr);
                }
                damage => panic!("{damage:?}"),
            };
            survey(&self.nodes, root.as_ref(), None, 0..u64::MAX, usize::MAX, &mut visit).await.unwrap();
        }
        all
    }

    /// Returns the mapped blocks in `blocks`.
    async fn content(&self, root: Option<&Root>, blocks: Range<u64>) -> Result<Model> {
        let mut runs = Vec::new();
        self.nodes.lookup(root, blocks.clone(), &mut runs).await?;
        let mut at = blocks.start;
        let mut model = Model::new();
        for run in runs {
            assert_eq!(run.start, at, "runs follow each other");
            at += run.len;
            if run.addr != 0 {
                model.extend((0..run.len).map(|n| (run.start + n, (run.addr + n, run.birth))));
            }
        }
        assert_eq!(at, blocks.end, "runs cover the range");
        Ok(model)
    }
}

impl MergePace for Store {
    fn merged(&self, _: usize) -> Local<'_, ()> {
        Box::pin(ready(()))
    }
}

impl MergeSpace for Store {
    fn is_exclusive(&self, birth: u64, blocks: &Range<u64>) -> bool {
        let sealed = if blocks.end <= self.cursor.get() { &self.sealed_before } else { &self.sealed };
        birth > sealed.get()
    }

    fn place_node(&self) -> Local<'_, Result<u64>> {
        let left = self.node_space.get();
        if left == 0 {
            return Box::pin(ready(Err(blk::Error::new(blk::ErrorKind::NoSpace, FILE, "full"))));
        }
        self.node_space.set(left - 1);
        Box::pin(ready(Ok(self.place(1))))
    }

    fn tag(&self) -> PageTag {
        PageTag::default()
    }

    fn unplace_node(&self, addr: u64) {
        self.free(addr, 1);
    }

    fn free(&self, addr: u64, len: u64) {
        for block in addr..addr + len {
            assert!(self.used.borrow_mut().remove(&block), "block {block} is freed twice");
        }
    }
}

fn unmap(start: u64, len: u64) -> Update {
    Update { start, len, addr: 0, birth: 0, backing: Backing::NONE }
}

fn apply(model: &mut Model, updates: &[Update]) {
    for update in updates {
        for block in update.start..update.end().min(update.start + 6000) {
            model.remove(&block);
        }
        if update.addr != 0 {
            model.extend((0..update.len).map(|n| (update.start + n, (update.addr + n, update.birth))));
        }
    }
}
