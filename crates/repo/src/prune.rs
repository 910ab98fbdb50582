//! Reclaims the space of what no backup names: decided by one entry of the log, then removed from the store.

use std::collections::{BTreeMap, BTreeSet};

use blk::Result;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::event::{Backup, Event};
use crate::names::{self, PackName};
use crate::repository::Repository;
use crate::session::read_table;
use crate::state::State;

/// Requests to remove objects at once.
const REQUESTS: usize = 16;

/// What a prune reclaimed, or would.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Backups that cannot be taken back any more.
    pub backups: usize,
    /// Sessions that were declared dead.
    pub sessions: usize,
    /// Packs, and their bytes.
    pub packs: usize,
    /// See `packs`.
    pub bytes: u64,
    /// Bytes of the packs that stay.
    pub kept_bytes: u64,
}

/// Times before which a prune reclaims nothing.
#[derive(Debug, Clone, Copy)]
pub struct Grace {
    /// Time since a backup was given up.
    pub forgotten_us: u64,
    /// Time since a session began that has not ended.
    pub open_us: u64,
}

impl Grace {
    /// All that can be reclaimed is.
    pub const NONE: Grace = Grace { forgotten_us: 0, open_us: 0 };
}

/// Reclaims the packs that no backup names, except of what is younger than `grace`. `dry_run` changes nothing.
///
/// A writer that appends to the log after the sweep has read the sweep, and names none of its packs. The entries of writers
/// that appended before were read here. So packs can be removed as soon as the sweep is durable, at any time and by any
/// process.
pub async fn prune(repository: &mut Repository, grace: Grace, dry_run: bool, now_us: u64) -> Result<Pruned> {
    repository.refresh().await?;
    let mut listed: BTreeMap<PackName, u64> = BTreeMap::new();
    for object in repository.objects.list(names::PACKS).await? {
        if let Some((epoch, number)) = names::parse_pair(names::PACKS, &object.name) {
            listed.insert(PackName { epoch, number }, object.bytes);
        }
    }
    let mut tables = BTreeMap::new();
    loop {
        let plan = plan(repository, &listed, &mut tables, (grace, now_us)).await?;
        let pruned = plan.pruned(&listed);
        if dry_run {
            return Ok(pruned);
        }
        if !plan.is_empty() {
            let appended = repository.append(plan.event(), now_us).await?;
            if appended.is_none() {
                continue;
            }
        }
        remove(repository, &listed).await?;
        return Ok(pruned);
    }
}

struct Plan {
    gone: Vec<u32>,
    fenced: Vec<u32>,
    /// Packs that the next sweep names.
    dead: BTreeSet<PackName>,
    /// Packs that an earlier sweep named and that are still there.
    swept: BTreeSet<PackName>,
}

impl Plan {
    fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.fenced.is_empty() && self.dead.is_empty()
    }

    fn event(&self) -> Event {
        let mut packs: Vec<(u32, u32, u32)> = Vec::new();
        for pack in &self.dead {
            match packs.last_mut() {
                Some((epoch, first, count)) if *epoch == pack.epoch && *first + *count == pack.number => {
                    *count += 1;
                }
                _ => packs.push((pack.epoch, pack.number, 1)),
            }
        }
        Event::Sweep { gone: self.gone.clone(), fenced: self.fenced.clone(), packs }
    }

    fn pruned(&self, listed: &BTreeMap<PackName, u64>) -> Pruned {
        let removed = || self.dead.iter().chain(&self.swept);
        let bytes = removed().map(|pack| listed[pack]).sum();
        Pruned {
            backups: self.gone.len(),
            sessions: self.fenced.len(),
            packs: removed().count(),
            bytes,
            kept_bytes: listed.values().sum::<u64>() - bytes,
        }
    }
}

/// Decides what the next sweep names. `tables` has the packs of the backups that were read already.
async fn plan(
    repository: &Repository,
    listed: &BTreeMap<PackName, u64>,
    tables: &mut BTreeMap<u32, BTreeSet<PackName>>,
    (grace, now_us): (Grace, u64),
) -> Result<Plan> {
    let state = &repository.state;
    let is_older = |time_us: u64, than_us: u64| time_us <= now_us.saturating_sub(than_us);
    let forgotten = || state.forgotten.iter();
    let gone: Vec<_> = forgotten()
        .filter(|(_, one)| is_older(one.forgotten_us, grace.forgotten_us))
        .map(|(number, _)| *number)
        .collect();
    let kept =
        forgotten().filter(|(number, _)| !gone.contains(number)).map(|(number, one)| (*number, &one.backup));
    let backups: Vec<_> =
        state.backups.iter().map(|(number, backup)| (*number, backup)).chain(kept).collect();
    let unread: Vec<_> = backups.iter().filter(|(number, _)| !tables.contains_key(number)).copied().collect();
    let read = unread.into_iter().map(|(number, backup)| async move {
        Ok::<_, blk::Error>((number, named(repository, backup).await?))
    });
    let mut read = stream::iter(read).buffer_unordered(REQUESTS);
    while let Some((number, packs)) = read.try_next().await? {
        tables.insert(number, packs);
    }
    let live: BTreeSet<_> = backups.iter().flat_map(|(number, _)| &tables[number]).copied().collect();
    let fenced: Vec<_> = state
        .open
        .iter()
        .filter(|(_, begun_us)| is_older(**begun_us, grace.open_us))
        .map(|(epoch, _)| *epoch)
        .collect();
    let may_be_named = |pack: &PackName, state: &State| {
        live.contains(pack)
            || pack.epoch > state.number
            || state.open.contains_key(&pack.epoch) && !fenced.contains(&pack.epoch)
    };
    let unnamed = listed.keys().filter(|pack| !may_be_named(pack, state)).copied();
    let (swept, dead) = unnamed.partition(|pack| state.is_swept(*pack));
    Ok(Plan { gone, fenced, dead, swept })
}

/// Returns the packs that a backup names.
async fn named(repository: &Repository, backup: &Backup) -> Result<BTreeSet<PackName>> {
    let mut packs = BTreeSet::new();
    for disk in &backup.disks {
        packs.extend(disk.packs.iter().map(|part| part.pack));
        packs.extend(read_table(&*repository.objects, &repository.keys, disk).await?.into_keys());
    }
    Ok(packs)
}

/// Removes the listed packs that a sweep has named, and the lists of chunks of sessions of which nothing is left.
async fn remove(repository: &Repository, listed: &BTreeMap<PackName, u64>) -> Result<()> {
    let state = &repository.state;
    let swept = listed.keys().filter(|pack| state.is_swept(**pack)).map(|pack| names::pack(*pack));
    let mut unwanted: Vec<_> = swept.collect();
    let left: BTreeSet<_> =
        listed.keys().filter(|pack| !state.is_swept(**pack)).map(|pack| pack.epoch).collect();
    let emptied = state.epochs_swept();
    for object in repository.objects.list(names::INDEX).await? {
        let epoch = names::parse_pair(names::INDEX, &object.name).map(|(epoch, _)| epoch);
        if epoch.is_some_and(|epoch| emptied.contains(&epoch) && !left.contains(&epoch)) {
            unwanted.push(object.name);
        }
    }
    let removals = unwanted.iter().map(|name| repository.objects.delete(name));
    stream::iter(removals).buffer_unordered(REQUESTS).try_collect::<Vec<()>>().await.map(drop)
}
