//! The walk over every map of a committed state, page by page; each block is ticked off in the bitmaps.

use std::collections::{BTreeMap, BTreeSet};

use blk::{Env, Error, Result};

use super::capture::Committed;
use super::report::{Fault, Report};
use crate::native::ground::{Piece, pieces};
use crate::native::layout::Extent;
use crate::native::space::{Marks, Tick};
use crate::native::tree::{Mapped, Seen, survey};

/// Most suspect blocks, used but free by the bitmap, that are examined: 4096 of 100 bytes.
const SUSPECTS_MAX: usize = 4096;
/// Number of nodes visited before other tasks get a turn: a node that shares all with its ground needs no I/O.
const NODES_AT_ONCE: usize = 64;

/// A place in the states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    pub node: u64,
    /// None: data. Some: a page of that level.
    pub level: Option<u8>,
    pub block: u64,
}

/// A fault at one place; the states that it affects are determined after the walk.
pub(super) struct Doubt {
    pub fault: Fault,
    pub error: Error,
    pub extent: Extent,
    pub spot: Spot,
}

pub(super) struct Walk<'a> {
    pub committed: &'a Committed,
    pub marks: Marks,
    pub report: Report,
    /// Blocks met when they were ticked off already or free by the bitmap, with the number of times.
    pub suspects: BTreeMap<u64, u64>,
    pub doubts: Vec<Doubt>,
    /// Addresses of damaged pages: each is met once in every piece of its disk.
    pub damaged: BTreeSet<u64>,
}

/// Position of the walk.
struct At {
    node: u64,
    since: u64,
    /// Greatest birth that may occur here.
    until: u64,
    /// Before this block the ground is unknown.
    blind_to: u64,
}

impl<'a> Walk<'a> {
    pub(super) fn new(committed: &'a Committed, marks: Marks, report: Report) -> Walk<'a> {
        Walk {
            committed,
            marks,
            report,
            suspects: BTreeMap::new(),
            doubts: Vec::new(),
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
        for_all(committed, env, &mut |node, piece, seen, blind_to| {
            let item = &committed.items[&node];
            let until = if item.sealed == 0 { committed.superblock.generation } else { item.sealed };
            self.see(At { node, since: piece.since, until, blind_to }, seen);
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

    fn see(&mut self, at: At, seen: Seen) {
        match seen {
            Seen::Data(run) => self.see_data(&at, &run),
            Seen::Page { addr, birth, level, first } => {
                self.report.pages += 1;
                let spot = Spot { node: at.node, level: Some(level), block: first };
                self.check_birth(&at, Extent { addr, len: 1 }, birth, spot);
                let tick = self.tick(&at, addr, spot);
                self.check_place(tick, Extent { addr, len: 1 }, spot);
            }
            Seen::Damaged { addr, level, first, error } => {
                if self.damaged.insert(addr) {
                    let spot = Spot { node: at.node, level: Some(level), block: first };
                    self.doubt(Fault::Map, error, Extent { addr, len: 1 }, spot);
                }
            }
            Seen::Blind(_) => {}
        }
    }

    fn see_data(&mut self, at: &At, run: &Mapped) {
        self.report.data_blocks += run.len;
        let extent = Extent { addr: run.addr, len: run.len };
        let spot = Spot { node: at.node, level: None, block: run.start };
        self.check_birth(at, extent, run.birth, spot);
        let mut worst = Tick::First;
        for n in 0..run.len {
            let tick = self.tick(at, run.addr + n, Spot { block: run.start + n, ..spot });
            if matches!(tick, Tick::Outside | Tick::WrongKind) {
                worst = tick;
            }
        }
        self.check_place(worst, extent, spot);
    }

    fn tick(&mut self, at: &At, addr: u64, spot: Spot) -> Tick {
        let tick = self.marks.tick(addr, spot.level.is_some());
        if tick == Tick::Clear && spot.block >= at.blind_to {
            suspect(&mut self.suspects, &mut self.report, addr);
        }
        tick
    }

    fn check_place(&mut self, tick: Tick, extent: Extent, spot: Spot) {
        let kind = if spot.level.is_some() { "metadata" } else { "data" };
        let what = match tick {
            Tick::Outside => "is in no group",
            Tick::WrongKind => "is in a group of another kind",
            Tick::First | Tick::Clear | Tick::Unknown => return,
        };
        let Extent { addr, len } = extent;
        let cause =
            format!("node {} has {kind} in blocks {addr}..{}, part of which {what}", spot.node, addr + len);
        self.doubt(Fault::Place, Error::damaged(&self.committed.name, cause), extent, spot);
    }

    fn check_birth(&mut self, at: &At, extent: Extent, birth: u64, spot: Spot) {
        let since = if spot.block < at.blind_to { 0 } else { at.since };
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
        self.doubt(Fault::Birth, Error::damaged(&self.committed.name, cause), extent, spot);
    }

    fn doubt(&mut self, fault: Fault, error: Error, extent: Extent, spot: Spot) {
        if self.doubts.len() < super::report::FINDINGS_MAX {
            self.doubts.push(Doubt { fault, error, extent, spot });
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
/// ground is unknown.
pub(super) async fn for_all(
    committed: &Committed,
    env: &Env,
    visit: &mut dyn FnMut(u64, &Piece, Seen, u64),
) -> Result<()> {
    for (n, (id, item)) in committed.items.iter().enumerate() {
        if n % NODES_AT_ONCE == 0 {
            env.sleep_us(0).await;
        }
        for piece in pieces(*id, &|id| committed.items.get(&id).copied()) {
            let mut blind_to = 0;
            let mut see = |seen: Seen| {
                if let Seen::Blind(blocks) = &seen {
                    blind_to = blocks.end;
                }
                visit(*id, &piece, seen, blind_to);
            };
            let (root, ground) = (item.root.as_ref(), piece.ground.as_ref());
            survey(&committed.nodes, root, ground, piece.blocks(), usize::MAX, &mut see).await?;
        }
    }
    Ok(())
}
