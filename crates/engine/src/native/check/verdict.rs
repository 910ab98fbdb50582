//! Judgement of the walk's doubts: the fault of each, and the states that it affects.

use std::collections::BTreeMap;

use blk::{Env, Error, Result};

use super::report::{Fault, Hurt, Report};
use super::walk::{Doubt, Spot, Walk, for_all};
use crate::native::layout::{BLOCK, Extent};
use crate::native::stored::NodeItem;
use crate::native::tree::{Nodes, Seen, has_page, span};

/// Number of states or groups processed before other tasks get a turn.
const AT_ONCE: usize = 64;

/// A run of suspect blocks: how often it was met when ticked off already or free, and all references to it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Suspect {
    extent: Extent,
    hits: u64,
    uses: Vec<Spot>,
}

impl Walk<'_> {
    pub(super) async fn judge(mut self, env: &Env) -> Result<Report> {
        self.find_leaked(env).await;
        for doubt in std::mem::take(&mut self.doubts) {
            let Doubt { fault, error, extent, spot } = doubt;
            let hurt = self.showing(env, extent, spot).await;
            self.report.add(fault, error, Some(extent), hurt);
        }
        if !self.suspects.is_empty() {
            for suspect in self.users(env).await? {
                self.judge_suspect(env, suspect).await;
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
        let mut users: BTreeMap<u64, Vec<Spot>> = BTreeMap::new();
        let mut note = |start: u64, len: u64, spot: Spot| {
            for (addr, _) in self.suspects.range(start..start + len) {
                users.entry(*addr).or_default().push(Spot { block: spot.block + (addr - start), ..spot });
            }
        };
        for_all(self.committed, env, &mut |node, _, seen, blind_to| match seen {
            Seen::Data(run) if run.start >= blind_to => {
                note(run.addr, run.len, Spot { node, level: None, block: run.start });
            }
            Seen::Page { addr, level, first, .. } if first >= blind_to => {
                note(addr, 1, Spot { node, level: Some(level), block: first });
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

    async fn judge_suspect(&mut self, env: &Env, suspect: Suspect) {
        let Suspect { extent, hits, uses } = suspect;
        let catalogue =
            self.committed.catalogue.iter().any(|own| own.addr <= extent.addr && extent.addr < own.end());
        let count = uses.len() as u64 + u64::from(catalogue);
        let blocks = format!("blocks {}..{}", extent.addr, extent.end());
        let nodes: Vec<String> = uses.iter().map(|spot| format!("node {}", spot.node)).collect();
        let by = match catalogue {
            true => [&["the catalogue".to_string()], &nodes[..]].concat().join(", "),
            false => nodes.join(", "),
        };
        let mut hurt = Vec::new();
        for spot in &uses {
            hurt.extend(self.showing(env, extent, *spot).await);
        }
        let mut add = |fault: Fault, cause: String| {
            let error = Error::damaged(&self.committed.name, cause);
            self.report.add(fault, error, Some(extent), hurt.clone());
        };
        if count > 1 {
            add(Fault::Doubled, format!("{blocks} are used {count} times, expected once: by {by}"));
        }
        // Every reference met the block ticked off or free: the bitmap never had it in use.
        if hits >= count {
            add(Fault::Unmarked, format!("{blocks} are free by the bitmap, and used by {by}"));
        }
    }

    async fn showing(&self, env: &Env, extent: Extent, spot: Spot) -> Vec<Hurt> {
        match self.report.has_room() {
            true => showing(env, &self.committed.nodes, self.committed.kept(), extent, spot).await,
            false => Vec::new(),
        }
    }
}

/// Returns which of the `kept` states show an extent at a spot, with the bytes of their disks that it covers.
pub(super) async fn showing<'a>(
    env: &Env,
    nodes: &Nodes,
    kept: impl Iterator<Item = (u64, &'a NodeItem)>,
    extent: Extent,
    spot: Spot,
) -> Vec<Hurt> {
    let mut hurt = Vec::new();
    for (n, (node, item)) in kept.enumerate() {
        if n % AT_ONCE == 0 {
            env.sleep_us(0).await;
        }
        let root = item.root.as_ref();
        let shows = match spot.level {
            Some(level) => has_page(nodes, root, level, spot.block, extent.addr).await,
            None => {
                let mut found = Vec::new();
                let looked = nodes.lookup(root, spot.block..spot.block + 1, &mut found).await;
                looked.is_ok() && found.iter().any(|run| run.addr == extent.addr)
            }
        };
        let blocks = spot.level.map_or(extent.len, span);
        let end = spot.block.saturating_add(blocks).min(item.size_blocks);
        if shows && spot.block < end {
            hurt.push(Hurt { node, bytes: spot.block * BLOCK..end * BLOCK });
        }
    }
    hurt
}

impl Suspect {
    fn is_continued_by(&self, next: &Suspect) -> bool {
        let len = self.extent.len;
        let moved = |spot: &Spot| Spot { block: spot.block + len, ..*spot };
        self.extent.end() == next.extent.addr
            && self.hits == next.hits
            && self.uses.iter().all(|spot| spot.level.is_none())
            && self.uses.iter().map(moved).eq(next.uses.iter().copied())
    }
}
