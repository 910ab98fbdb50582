//! An immutable state of a disk: tables of redirects over a tree, until a checkpoint has merged them into a tree of its
//! own.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::{Error, Result};

use super::backing::Backing;
use super::layout::{addr_of, device_of, has_space, is_lost, lost_word, place_of};
use super::table::{LookupRun, Table};
use super::tree::{Mapped, Nodes, Roots};

/// Most tables that a lookup in memory searches by recursion; deeper ones are searched step by step.
const DEPTH_CACHED_MAX: usize = 64;

/// Immutable content. Only its form changes, when a checkpoint merges it.
pub struct View {
    /// Generation of the nodes that a merge of its table makes: not later than that of any sealed state that shows
    /// them.
    pub stamp: u64,
    /// The parent of the node while the table was filled: blocks born after that one was sealed are replaced permanently.
    pub parent: u64,
    /// Pages that a merge of its table may write.
    pub pages: u64,
    /// The node that ran while the table was filled: the pages that a merge writes are tagged with it.
    pub node: u64,
    form: RefCell<Form>,
    /// The view is in the list of those that a checkpoint is to merge.
    pub listed: Cell<bool>,
}

/// The node whose table a merge writes, its parent, and the pages that the merge may write.
#[derive(Debug, Clone, Copy, Default)]
pub struct MergeOf {
    /// The node that runs.
    pub node: u64,
    /// See `View::parent`.
    pub parent: u64,
    /// See `View::pages`.
    pub pages: u64,
}

enum Form {
    Tree(Roots),
    Pending { table: Table, below: Rc<View> },
}

impl View {
    pub fn tree(roots: Roots, stamp: u64) -> Rc<View> {
        View::new(Form::Tree(roots), stamp, MergeOf::default())
    }

    /// Creates a view over `below`.
    pub fn pending(table: Table, below: Rc<View>, stamp: u64, merge: MergeOf) -> Rc<View> {
        View::new(Form::Pending { table, below }, stamp, merge)
    }

    fn new(form: Form, stamp: u64, merge: MergeOf) -> Rc<View> {
        let MergeOf { node, parent, pages } = merge;
        Rc::new(View { stamp, parent, pages, node, form: RefCell::new(form), listed: Cell::new(false) })
    }

    /// Returns the trees; None while the view is not merged.
    pub fn roots(&self) -> Option<Roots> {
        match &*self.form.borrow() {
            Form::Tree(roots) => Some(*roots),
            Form::Pending { .. } => None,
        }
    }

    /// Returns the nearest trees: the content without the tables over it.
    pub fn trees_below(&self) -> Roots {
        let mut below = self.below();
        while let Some(next) = below.as_ref().and_then(|view| view.below()) {
            below = Some(next);
        }
        below.map_or_else(|| self.roots(), |view| view.roots()).unwrap_or_default()
    }

    pub fn below(&self) -> Option<Rc<View>> {
        match &*self.form.borrow() {
            Form::Tree(_) => None,
            Form::Pending { below, .. } => Some(below.clone()),
        }
    }

    pub fn with_table<T>(&self, look: impl FnOnce(&Table) -> T) -> Option<T> {
        match &*self.form.borrow() {
            Form::Tree(_) => None,
            Form::Pending { table, .. } => Some(look(table)),
        }
    }

    /// Replaces the table by the trees that a checkpoint has written: the same content, elsewhere. Returns the table.
    pub fn merged(&self, roots: Roots) -> Option<Table> {
        match self.form.replace(Form::Tree(roots)) {
            Form::Tree(_) => None,
            Form::Pending { table, .. } => Some(table),
        }
    }

    /// Returns the number of tables over the nearest tree.
    pub fn depth(&self) -> usize {
        let mut depth = 0;
        let mut at = self.below();
        while let Some(view) = at {
            depth += 1;
            at = view.below();
        }
        depth
    }

    /// Appends the places of `blocks` from memory alone. Returns false when a page of the tree is missing there, or is
    /// too deep (`out` may then hold a part).
    pub fn find_cached(&self, nodes: &Nodes, blocks: Range<u64>, out: &mut Scratch) -> bool {
        self.find_within(DEPTH_CACHED_MAX, nodes, blocks, out)
    }

    fn find_within(&self, depth: usize, nodes: &Nodes, blocks: Range<u64>, out: &mut Scratch) -> bool {
        match &*self.form.borrow() {
            Form::Tree(roots) => out.find_in_cached(nodes, roots, blocks),
            Form::Pending { table, below } => find_over(table, blocks, out, |gap, out| {
                depth > 0 && below.find_within(depth - 1, nodes, gap, out)
            }),
        }
    }

    /// Like `find_cached`, but reads missing pages.
    pub async fn find(self: &Rc<Self>, nodes: &Nodes, blocks: Range<u64>, out: &mut Scratch) -> Result<()> {
        let mut open = vec![(self.clone(), blocks)];
        while let Some((view, blocks)) = open.pop() {
            let roots = match &*view.form.borrow() {
                Form::Tree(roots) => *roots,
                Form::Pending { table, below } => {
                    find_over(table, blocks, out, |gap, _| {
                        open.push((below.clone(), gap));
                        true
                    });
                    continue;
                }
            };
            out.find_in(nodes, &roots, blocks).await?;
        }
        Ok(())
    }
}

impl Drop for View {
    /// Drops the views one after the other: a chain may have thousands, too many for recursion on the stack.
    fn drop(&mut self) {
        let below = |form: &mut Form| match std::mem::replace(form, Form::Tree(Roots::default())) {
            Form::Tree(_) => None,
            Form::Pending { below, .. } => Some(below),
        };
        let mut next = below(self.form.get_mut());
        while let Some(mut view) = next.and_then(Rc::into_inner) {
            next = below(view.form.get_mut());
        }
    }
}

/// Looks up `blocks` in `table`, and calls `gap` for the parts that it does not have. Returns false as soon as `gap`
/// does.
pub(super) fn find_over(
    table: &Table,
    blocks: Range<u64>,
    out: &mut Scratch,
    mut gap: impl FnMut(Range<u64>, &mut Scratch) -> bool,
) -> bool {
    let mut at = blocks.start;
    while at < blocks.end {
        let (found, end) = table.next(&(at..blocks.end));
        match found {
            Some(found) => out.found.push(found),
            None if !gap(at..end, out) => return false,
            None => {}
        }
        at = end;
    }
    true
}

/// Most entries of results that are kept: 1 MiB of blocks, the largest piece of a request.
const SCRATCH_FOUND_MAX: usize = 256;

/// Buffers of lookups, reused so that the hot path allocates nothing.
#[derive(Default)]
pub struct Scratch {
    pub found: Vec<LookupRun>,
    mapped: Vec<Mapped>,
}

impl Scratch {
    pub fn clear(&mut self) {
        self.found.clear();
        self.mapped.clear();
    }

    /// Returns whether the buffers are small enough to keep: those of a large range are freed.
    pub fn is_small(&self) -> bool {
        self.found.capacity().max(self.mapped.capacity()) <= SCRATCH_FOUND_MAX
    }

    /// Appends what two trees have at `blocks`, from memory alone. Returns false when a page is missing there.
    fn find_in_cached(&mut self, nodes: &Nodes, roots: &Roots, blocks: Range<u64>) -> bool {
        self.mapped.clear();
        if !nodes.lookup_cached(roots.places.as_ref(), blocks.clone(), &mut self.mapped) {
            return false;
        }
        let first = self.take_mapped();
        let mut is_cached = true;
        if roots.backings.is_some() {
            is_cached = nodes.lookup_cached(roots.backings.as_ref(), blocks, &mut self.mapped);
            self.take_backings(first);
        }
        is_cached && self.is_sound(first)
    }

    /// Like `find_in_cached`, but reads missing pages.
    pub(super) async fn find_in(&mut self, nodes: &Nodes, roots: &Roots, blocks: Range<u64>) -> Result<()> {
        self.mapped.clear();
        nodes.lookup(roots.places.as_ref(), blocks.clone(), &mut self.mapped).await?;
        let first = self.take_mapped();
        if roots.backings.is_some() {
            nodes.lookup(roots.backings.as_ref(), blocks.clone(), &mut self.mapped).await?;
            self.take_backings(first);
        }
        match self.is_sound(first) {
            true => Ok(()),
            false => {
                let cause = format!(
                    "blocks {blocks:?} of a map: a place has flags, a block of a source another number, or a backing \
                     block no mask or no block of the store"
                );
                Err(Error::damaged(nodes.path(), cause))
            }
        }
    }

    /// Returns whether the runs from index `first` on are such as two trees of one state have.
    fn is_sound(&self, first: usize) -> bool {
        self.found[first..].iter().all(|run| {
            let (has_flags, backing) = (run.addr != place_of(run.addr), &run.backing);
            // A source's blocks have the numbers that they have in the disk.
            let place = device_of(run.addr) == 0 || addr_of(run.addr) == run.start;
            let backed = has_space(run.addr) && device_of(backing.place) == 0 && backing.present() != 0;
            !has_flags && place && (backing.is_none() || backed)
        })
    }

    /// Returns the index of the first run that was appended.
    fn take_mapped(&mut self) -> usize {
        let first = self.found.len();
        let found = |m: &Mapped| LookupRun {
            start: m.start,
            len: m.len,
            addr: m.addr,
            birth: m.birth,
            lsn: 0,
            backing: Backing::NONE,
        };
        self.found.extend(self.mapped.iter().map(found));
        self.mapped.clear();
        first
    }

    /// Adds the backing blocks found to the runs from index `first` on: each such block becomes a run of its own.
    fn take_backings(&mut self, first: usize) {
        if self.mapped.iter().any(|run| run.addr != 0) {
            let places = self.found.split_off(first);
            let mut backings = self.mapped.iter().filter(|run| run.addr != 0).peekable();
            for place in places {
                let mut at = place.start;
                while let Some(run) = backings.peek().filter(|run| run.start < place.end()) {
                    let block = run.start.max(at);
                    if at < block {
                        self.found.push(place.part(at..block));
                    }
                    let end = (run.start + run.len).min(place.end());
                    if is_lost(run.addr) {
                        // It is unknown which sectors are at the place.
                        let part = place.part(block..end);
                        let addr = if part.is_hole() { 0 } else { lost_word(block) };
                        let birth = if part.is_hole() { part.birth } else { 0 };
                        self.found.push(LookupRun { addr, birth, ..part });
                    }
                    for block in if is_lost(run.addr) { end } else { block }..end {
                        let backing = Backing { place: run.addr + (block - run.start), birth: run.birth };
                        self.found.push(LookupRun { backing, ..place.part(block..block + 1) });
                    }
                    at = end;
                    if run.start + run.len > end {
                        break;
                    }
                    backings.next();
                }
                if at < place.end() {
                    self.found.push(place.part(at..place.end()));
                }
            }
        }
        self.mapped.clear();
    }
}
