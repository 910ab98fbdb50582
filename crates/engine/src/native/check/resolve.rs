//! Judgement of the walk's doubts: the fault of each, and the states that it affects.

use std::collections::BTreeMap;
use std::ops::Range;

use blk::{Env, Error, Result};

use super::report::{AffectedRange, Fault, Report};
use super::walk::{Location, UnresolvedFault, Walk, for_all};
use crate::native::layout::{BLOCK, Extent, addr_of, device_of};
use crate::native::stored::NodeItem;
use crate::native::tree::{Nodes, WalkItem, has_page, span};

/// Number of states or groups processed before other tasks get a turn.
const AT_ONCE: usize = 64;

/// A run of suspect blocks: how often it was met when ticked off already or free, and all references to it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Suspect {
    extent: Extent,
    hits: u64,
    uses: Vec<Location>,
}

impl Walk<'_> {
    pub(super) async fn resolve(mut self, env: &Env) -> Result<Report> {
        self.find_leaked(env).await;
        for unresolved in std::mem::take(&mut self.unresolved) {
            let UnresolvedFault { fault, error, extent, location } = unresolved;
            let affected = self.showing(env, extent, location).await;
            self.report.add(fault, error, Some(extent), affected);
        }
        if !self.suspects.is_empty() {
            for suspect in self.users(env).await? {
                self.resolve_suspect(env, suspect).await;
            }
        }
        Ok(self.report)
    }

    /// Finds blocks without references. They are lost only if all maps could be read.
    async fn find_leaked(&mut self, env: &Env) {
        if self.committed.lacks_nodes || !self.damaged.is_empty() {
            return;
        }
        for group in 0..self.marks.groups() {
            if group % AT_ONCE == 0 {
                env.sleep_us(0).await;
            }
            for extent in self.marks.left(group) {
                let Extent { addr, len } = extent;
                let cause = format!(
                    "blocks {addr}..{} are in use by the bitmap, and nothing refers to them",
                    addr + len
                );
                let error = Error::damaged(&self.committed.name, cause);
                self.report.add(Fault::Leaked, error, Some(extent), Vec::new());
            }
        }
    }

    /// Returns all references to suspect blocks, in runs.
    async fn users(&self, env: &Env) -> Result<Vec<Suspect>> {
        let mut users: BTreeMap<u64, Vec<Location>> = BTreeMap::new();
        let mut note = |start: u64, len: u64, location: Location| {
            for (addr, _) in self.suspects.range(start..start + len) {
                users
                    .entry(*addr)
                    .or_default()
                    .push(Location { block: location.block + (addr - start), ..location });
            }
        };
        for_all(self.committed, env, &mut |node, _, seen, unknown_to| match seen {
            WalkItem::Data(run) if run.start >= unknown_to => {
                note(run.addr, run.len, Location { node, level: None, block: run.start });
            }
            WalkItem::Page { addr, level, first, .. } if first >= unknown_to => {
                note(addr, 1, Location { node, level: Some(level), block: first });
            }
            _ => {}
        })
        .await?;
        let mut runs: Vec<Suspect> = Vec::new();
        for (addr, hits) in &self.suspects {
            let uses = users.remove(addr).unwrap_or_default();
            let next = Suspect { extent: Extent { addr: *addr, len: 1 }, hits: *hits, uses };
            match runs.last_mut() {
                Some(last) if last.is_continued_by(&next) => last.extent.len += 1,
                _ => runs.push(next),
            }
        }
        Ok(runs)
    }

    async fn resolve_suspect(&mut self, env: &Env, suspect: Suspect) {
        let Suspect { extent, hits, uses } = suspect;
        let catalogue =
            self.committed.catalogue.iter().any(|own| own.addr <= extent.addr && extent.addr < own.end());
        let count = uses.len() as u64 + u64::from(catalogue);
        let blocks = format!("blocks {}..{}", extent.addr, extent.end());
        let nodes: Vec<String> = uses.iter().map(|location| format!("node {}", location.node)).collect();
        let by = match catalogue {
            true => [&["the catalogue".to_string()], &nodes[..]].concat().join(", "),
            false => nodes.join(", "),
        };
        let mut affected = Vec::new();
        for location in &uses {
            affected.extend(self.showing(env, extent, *location).await);
        }
        let mut add = |fault: Fault, cause: String| {
            let error = Error::damaged(&self.committed.name, cause);
            self.report.add(fault, error, Some(extent), affected.clone());
        };
        if count > 1 {
            add(Fault::Doubled, format!("{blocks} are used {count} times, expected once: by {by}"));
        }
        // Every reference met the block ticked off or free: the bitmap never had it in use.
        if hits >= count {
            add(Fault::Unmarked, format!("{blocks} are free by the bitmap, and used by {by}"));
        }
    }

    async fn showing(&self, env: &Env, extent: Extent, location: Location) -> Vec<AffectedRange> {
        match self.report.has_room() {
            true => {
                let committed = self.committed;
                let source = committed.landing.get(&location.node).copied();
                showing(env, &committed.nodes, committed.kept(), source, extent, location).await
            }
            false => Vec::new(),
        }
    }
}

/// Returns which of the `kept` states show an extent at a spot, with the bytes of their disks that it covers. `source`:
/// the spot is in the landing map of this one, so states show it where their blocks are the source's.
pub(super) async fn showing<'a>(
    env: &Env,
    nodes: &Nodes,
    kept: impl Iterator<Item = (u64, &'a NodeItem)>,
    source: Option<u8>,
    extent: Extent,
    location: Location,
) -> Vec<AffectedRange> {
    let mut affected = Vec::new();
    for (n, (node, item)) in kept.enumerate() {
        if n % AT_ONCE == 0 {
            env.sleep_us(0).await;
        }
        let blocks = location.level.map_or(extent.len, span);
        let end = location.block.saturating_add(blocks).min(item.size_blocks);
        let shows = match source {
            None => shows(nodes, item, extent, location).await,
            Some(source) => item.device == source && has_blocks_of(nodes, item, location.block..end).await,
        };
        if shows && location.block < end {
            affected.push(AffectedRange { node, bytes: location.block * BLOCK..end * BLOCK });
        }
    }
    affected
}

async fn shows(nodes: &Nodes, item: &NodeItem, extent: Extent, location: Location) -> bool {
    let mut shows = false;
    for root in [item.roots.places.as_ref(), item.roots.backings.as_ref()] {
        shows |= match location.level {
            Some(level) => has_page(nodes, root, level, location.block, extent.addr).await,
            None => {
                let mut found = Vec::new();
                let looked = nodes.lookup(root, location.block..location.block + 1, &mut found).await;
                looked.is_ok() && found.iter().any(|run| addr_of(run.addr) == extent.addr)
            }
        };
    }
    shows
}

/// Returns whether a state that is over a source may have blocks of it in this range: many are not looked at.
async fn has_blocks_of(nodes: &Nodes, item: &NodeItem, blocks: Range<u64>) -> bool {
    if blocks.is_empty() || blocks.end - blocks.start > span(0) {
        return !blocks.is_empty();
    }
    let mut found = Vec::new();
    let looked = nodes.lookup(item.roots.places.as_ref(), blocks, &mut found).await;
    looked.is_err() || found.iter().any(|run| device_of(run.addr) != 0)
}

impl Suspect {
    fn is_continued_by(&self, next: &Suspect) -> bool {
        let len = self.extent.len;
        let moved = |location: &Location| Location { block: location.block + len, ..*location };
        self.extent.end() == next.extent.addr
            && self.hits == next.hits
            && self.uses.iter().all(|location| location.level.is_none())
            && self.uses.iter().map(moved).eq(next.uses.iter().copied())
    }
}
