//! The walk over every map of a committed state, page by page; each block is ticked off in the bitmaps.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use blk::{Env, Error, Result};

use super::capture::Committed;
use super::report::{Fault, Report};
use crate::native::diff_base::{DiffRange, diff_ranges};
use crate::native::layout::Extent;
use crate::native::space::{Marks, Tick};
use crate::native::tree::{Mapped, WalkItem, survey};

/// Most suspect blocks, used but free by the bitmap, that are examined: 4096 of 100 bytes.
const SUSPECTS_MAX: usize = 4096;
/// Number of nodes visited before other tasks get a turn: a node that shares all with its base needs no I/O.
const NODES_AT_ONCE: usize = 64;

/// A place in the states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Location {
    pub node: u64,
    /// None: data. Some: a page of that level.
    pub level: Option<u8>,
    pub block: u64,
}

/// A fault at one place; the states that it affects are determined after the walk.
pub(super) struct UnresolvedFault {
    pub fault: Fault,
    pub error: Error,
    pub extent: Extent,
    pub location: Location,
}

pub(super) struct Walk<'a> {
    pub committed: &'a Committed,
    pub marks: Marks,
    pub report: Report,
    /// Blocks met when they were ticked off already or free by the bitmap, with the number of times.
    pub suspects: BTreeMap<u64, u64>,
    pub unresolved: Vec<UnresolvedFault>,
    /// Addresses of damaged pages: each is met once in every piece of its disk.
    pub damaged: BTreeSet<u64>,
}

/// Position of the walk.
struct WalkPosition {
    node: u64,
    since: u64,
    /// Greatest birth that may occur here.
    until: u64,
    /// Before this block the base is unknown.
    unknown_to: u64,
}

impl<'a> Walk<'a> {
    pub(super) fn new(committed: &'a Committed, marks: Marks, report: Report) -> Walk<'a> {
        Walk {
            committed,
            marks,
            report,
            suspects: BTreeMap::new(),
            unresolved: Vec::new(),
            damaged: BTreeSet::new(),
        }
    }

    pub(super) async fn all(&mut self, env: &Env) -> Result<()> {
        for extent in &self.committed.catalogue {
            for addr in extent.addr..extent.addr.saturating_add(extent.len) {
                self.see_catalogue(addr);
            }
        }
        let committed = self.committed;
        for_all(committed, env, &mut |node, range, seen, unknown_to| {
            let item = &committed.items[&node];
            let until = if item.sealed == 0 { committed.superblock.generation } else { item.sealed };
            self.see(WalkPosition { node, since: range.since, until, unknown_to }, seen);
        })
        .await
    }

    fn see_catalogue(&mut self, addr: u64) {
        match self.marks.tick(addr, true) {
            Tick::First | Tick::Unknown => {}
            Tick::Clear => suspect(&mut self.suspects, &mut self.report, addr),
            Tick::Outside | Tick::WrongKind => {
                let cause = format!("the catalogue is in block {addr}, which is no metadata of a group");
                let error = Error::damaged(&self.committed.name, cause);
                self.report.add(Fault::Catalogue, error, Some(Extent { addr, len: 1 }), Vec::new());
            }
        }
    }

    fn see(&mut self, at: WalkPosition, seen: WalkItem) {
        match seen {
            WalkItem::Data(run) => self.see_data(&at, &run),
            WalkItem::Page { addr, birth, level, first } => {
                self.report.pages += 1;
                let location = Location { node: at.node, level: Some(level), block: first };
                self.check_birth(&at, Extent { addr, len: 1 }, birth, location);
                let tick = self.tick(&at, addr, location);
                self.check_place(tick, Extent { addr, len: 1 }, location);
            }
            WalkItem::Damaged { addr, level, first, error } => {
                if self.damaged.insert(addr) {
                    let location = Location { node: at.node, level: Some(level), block: first };
                    self.add_fault(Fault::Map, error, Extent { addr, len: 1 }, location);
                }
            }
            WalkItem::UnknownBase(_) => {}
        }
    }

    fn see_data(&mut self, at: &WalkPosition, run: &Mapped) {
        self.report.data_blocks += run.len;
        let extent = Extent { addr: run.addr, len: run.len };
        let location = Location { node: at.node, level: None, block: run.start };
        self.check_birth(at, extent, run.birth, location);
        let mut worst = Tick::First;
        for n in 0..run.len {
            let tick = self.tick(at, run.addr + n, Location { block: run.start + n, ..location });
            if matches!(tick, Tick::Outside | Tick::WrongKind) {
                worst = tick;
            }
        }
        self.check_place(worst, extent, location);
    }

    fn tick(&mut self, at: &WalkPosition, addr: u64, location: Location) -> Tick {
        let tick = self.marks.tick(addr, location.level.is_some());
        if tick == Tick::Clear && location.block >= at.unknown_to {
            suspect(&mut self.suspects, &mut self.report, addr);
        }
        tick
    }

    fn check_place(&mut self, tick: Tick, extent: Extent, location: Location) {
        let kind = if location.level.is_some() { "metadata" } else { "data" };
        let what = match tick {
            Tick::Outside => "is in no group",
            Tick::WrongKind => "is in a group of another kind",
            Tick::First | Tick::Clear | Tick::Unknown => return,
        };
        let Extent { addr, len } = extent;
        let cause = format!(
            "node {} has {kind} in blocks {addr}..{}, part of which {what}",
            location.node,
            addr + len
        );
        self.add_fault(Fault::Place, Error::damaged(&self.committed.name, cause), extent, location);
    }

    fn check_birth(&mut self, at: &WalkPosition, extent: Extent, birth: u64, location: Location) {
        let since = if location.block < at.unknown_to { 0 } else { at.since };
        if birth <= at.until && birth > since {
            return;
        }
        let cause = format!(
            "block {}, which node {} has of its own, was born in generation {birth}, expected {} to {}",
            extent.addr,
            at.node,
            since + 1,
            at.until
        );
        self.add_fault(Fault::Birth, Error::damaged(&self.committed.name, cause), extent, location);
    }

    fn add_fault(&mut self, fault: Fault, error: Error, extent: Extent, location: Location) {
        if self.unresolved.len() < super::report::FINDINGS_MAX {
            self.unresolved.push(UnresolvedFault { fault, error, extent, location });
        } else {
            self.report.more += 1;
        }
    }
}

fn suspect(suspects: &mut BTreeMap<u64, u64>, report: &mut Report, addr: u64) {
    if suspects.len() < SUSPECTS_MAX || suspects.contains_key(&addr) {
        *suspects.entry(addr).or_default() += 1;
    } else {
        report.more += 1;
    }
}

/// Visits everything that the states refer to, each with its node and the piece of it, and the block before which the
/// base is unknown.
pub(super) async fn for_all(
    committed: &Committed,
    env: &Env,
    visit: &mut dyn FnMut(u64, &DiffRange, WalkItem, u64),
) -> Result<()> {
    for (n, (id, item)) in committed.items.iter().enumerate() {
        if n % NODES_AT_ONCE == 0 {
            env.sleep_us(0).await;
        }
        for range in diff_ranges(*id, &|id| committed.items.get(&id).copied()) {
            let mut unknown: Vec<Range<u64>> = Vec::new();
            let mut see = |seen: WalkItem| {
                if let WalkItem::UnknownBase(blocks) = &seen {
                    unknown.push(blocks.clone());
                }
                visit(*id, &range, seen, unknown.last().map_or(0, |blocks| blocks.end));
            };
            let (root, base) = (item.roots.places.as_ref(), range.base.places.as_ref());
            survey(&committed.nodes, root, base, range.blocks(), usize::MAX, &mut see).await?;
            // An older backing block is a place of an ancestor, with which it was visited, unless that one has lost it.
            let is_unknown = |block: u64| {
                let before = unknown.partition_point(|blocks| blocks.end <= block);
                unknown.get(before).is_some_and(|blocks| blocks.start <= block)
            };
            let mut unknown_to = 0;
            let mut see = |seen: WalkItem| {
                if let WalkItem::UnknownBase(blocks) = &seen {
                    unknown_to = blocks.end;
                }
                let was_visited = |run: &Mapped| run.birth <= range.since && !is_unknown(run.start);
                if let WalkItem::Data(run) = &seen
                    && is_unknown(run.start)
                {
                    unknown_to = unknown_to.max(run.start + run.len);
                }
                if !matches!(&seen, WalkItem::Data(run) if was_visited(run)) {
                    visit(*id, &range, seen, unknown_to);
                }
            };
            let (root, base) = (item.roots.backings.as_ref(), range.base.backings.as_ref());
            survey(&committed.nodes, root, base, range.blocks(), usize::MAX, &mut see).await?;
        }
    }
    Ok(())
}
