//! An opening of a store: what it reads of the medium and of the host's memory, and the epoch that it begins. The records of
//! the journal are applied afterwards (`recover`).

use std::rc::Rc;

use blk::memory::{HostId, clients_may_live};
use blk::{Env, Error, File, Result};

use super::catalogue::Catalogue;
use super::contents::{check_catalogue, read_nodes, read_summaries};
use super::journal::{Journal, MemoryTail, Position, Record, Replayed, Start, replay};
use super::layout::HEADER_BLOCKS;
use super::replayed_records::ReplayedRecords;
use super::source::read_sources;
use super::space::{Growth, Space, groups_within};
use super::store::{Store, StoreOptions, StoreParts};
use super::superblock::{COUNTER_END, LEASED, SLOT_BLOCKS, Slots, Superblock};
use super::tree::{MapCache, Nodes};
use crate::options::Defect;

/// What a store is opened with.
pub(super) struct Opening<'a> {
    pub env: Env,
    pub file: File,
    pub options: StoreOptions,
    pub growth: Growth,
    pub can_grow: bool,
    pub map_cache: &'a MapCache,
    /// The reason for which nothing is written, and the store is served read-only.
    pub unchanged: Option<Error>,
}

/// The checkpoint from which an opening starts.
struct LastCheckpoint {
    superblock: Superblock,
    catalogue: Catalogue,
    /// Groups of the file; a device may have more than the checkpoint.
    groups: u64,
}

/// The last checkpoint, and what has happened since.
struct LastState {
    checkpoint: LastCheckpoint,
    changes: ReplayedRecords,
    tail: RetainedTail,
    /// Pages of the journal were unreadable, and taken for its end.
    hidden: bool,
    /// Why the store is read-only.
    lost: Option<Error>,
}

impl Opening<'_> {
    pub(super) async fn open(self) -> Result<Rc<Store>> {
        let last = self.read().await?;
        let (superblock, journal) = self.begin(&last).await?;
        let LastState { checkpoint, changes, tail, hidden, lost } = last;
        let parts = self.parts(checkpoint, &superblock, journal)?;
        let damaged = parts.catalogue.damaged.clone();
        let store = Store::assemble(self.env, self.options, parts);
        store.damage.borrow_mut().extend(damaged);
        if let Some(lost) = &lost {
            store.fail_read_only(lost);
        }
        store.continue_from(&changes, hidden).await?;
        store.set_reserve();
        store.maintain();
        store.stop_with_lease();
        store.end_previous_tail(&tail).await?;
        Ok(store)
    }

    /// Reads the last checkpoint, the journal, and the tail of it in the host's memory.
    async fn read(&self) -> Result<LastState> {
        let file = &self.file;
        let Slots { newest: superblock, other, .. } = Superblock::read(file).await?;
        if self.unchanged.is_none() {
            superblock.check_writable(file.name())?;
        }
        let groups = groups_in(file, &superblock).await?;
        let catalogue = Catalogue::read(file, &superblock).await?;
        let found = replay(file, &superblock.geometry(), superblock.begin()).await?;
        if let Some(other) = &other {
            exclude_newer(other, &found)?;
        }
        let (lost, hidden) = (found.lost.clone().or(self.unchanged.clone()), !found.unreadable.is_empty());
        let tail = RetainedTail::by(&self.env, &superblock, found.end, lost.is_some());
        let changes = ReplayedRecords::read(file, found, &tail.records).await?;
        let checkpoint = LastCheckpoint { superblock, catalogue, groups };
        Ok(LastState { checkpoint, changes, tail, hidden, lost })
    }

    /// Begins an epoch, which is durable when this resolves, and its journal. A read-only store stays in its epoch. Returns the
    /// superblock that counts from now on.
    async fn begin(&self, last: &LastState) -> Result<(Superblock, Rc<Journal>)> {
        let LastState { checkpoint: LastCheckpoint { superblock, .. }, changes, tail, .. } = last;
        let (env, file, geometry) = (&self.env, &self.file, superblock.geometry());
        let epoch = superblock.epoch.max(changes.epoch) + 1;
        check_counters(superblock, epoch).map_err(|cause| Error::damaged(file.name(), cause))?;
        let memory_tail = MemoryTail::new(env, geometry.store_id, epoch);
        if tail.complete && self.unchanged.is_none() {
            // This comes before the epoch is durable: an opening after a later crash looks for the tail of this epoch.
            memory_tail.begin(&tail.records);
        }
        let opened = match last.lost {
            None => begin_epoch(env, file, superblock, changes, epoch, tail.clients_may_live).await?,
            Some(_) => OpenedStore { superblock: *superblock, at: changes.end },
        };
        let journal = Journal::new(env.clone(), file.clone(), geometry, opened.start(), memory_tail);
        for (lsn, record) in &tail.records {
            let again = journal.append(record.clone());
            assert_eq!(again, *lsn, "a record of the tail gets its own number again");
        }
        journal.gives_up.set(self.options.defects.has(Defect::DoubtFullDevice));
        Ok((opened.superblock, journal))
    }

    /// Builds the parts of the store as of the last checkpoint. `superblock`: the opening's own.
    fn parts(
        &self,
        last: LastCheckpoint,
        superblock: &Superblock,
        journal: Rc<Journal>,
    ) -> Result<StoreParts> {
        let LastCheckpoint { superblock: read, catalogue, groups } = last;
        let (file, geometry, name) = (self.file.clone(), read.geometry(), self.file.name());
        let summaries = read_summaries(&catalogue, groups, &read, name)?;
        let space = Space::open(
            self.env.clone(),
            file.clone(),
            geometry,
            summaries,
            read.ready_to,
            self.growth,
            self.can_grow,
        );
        space.keep_bitmaps_within(self.options.bitmap_bytes);
        check_catalogue(&catalogue, &space, name)?;
        let (lineage, stored) = read_nodes(&catalogue, &read, name)?;
        let sources = read_sources(&catalogue.items, &read, name)?;
        let nodes = Nodes::new(file.clone(), geometry.store_id, self.map_cache);
        let nodes = nodes.losing(read.is_rebuildable());
        Ok(StoreParts {
            file,
            geometry,
            nodes,
            space,
            journal,
            lineage,
            catalogue,
            stored,
            superblock: *superblock,
            sources,
        })
    }
}

/// Returns the number of the file's groups.
async fn groups_in(file: &File, superblock: &Superblock) -> Result<u64> {
    let groups = groups_within(&superblock.geometry(), file.size().await?);
    if groups < superblock.groups {
        let cause = format!("its length holds {groups} groups, expected {}: it was cut", superblock.groups);
        return Err(Error::damaged(file.name(), format!("{cause}; restore the missing end of the file")));
    }
    Ok(groups)
}

/// The tail of the journal that the previous opening kept in the host's memory.
pub(super) struct RetainedTail {
    /// Records behind the journal's end, with their numbers.
    records: Vec<(u64, Record)>,
    /// The tail covers all writes that were acknowledged.
    pub complete: bool,
    /// Clients may still run whose acknowledged writes are missing.
    pub clients_may_live: bool,
}

impl RetainedTail {
    /// Reads the tail. `end` is the journal's end; a store that is `read_only` has no records behind it.
    fn by(env: &Env, superblock: &Superblock, end: Position, read_only: bool) -> RetainedTail {
        let found = match (superblock.clean, read_only) {
            (1, _) => Some(Vec::new()),
            (_, true) => None,
            (_, false) => MemoryTail::read(env, superblock.store_id, superblock.epoch, end.lsn),
        };
        let then = HostId { boot: superblock.boot, machine: superblock.machine };
        let clients_may_live = found.is_none() && clients_may_live(then, HostId::of(env.memory().as_deref()));
        RetainedTail { complete: found.is_some(), records: found.unwrap_or_default(), clients_may_live }
    }
}

/// Refuses a possibly stale superblock. If one slot holds no superblock, the other one may be stale: it counts only if
/// no batch of the journal names a newer checkpoint. `replay` has examined the readable ones.
fn exclude_newer(other: &Error, found: &Replayed) -> Result<()> {
    let Some(page) = found.unreadable.first() else { return Ok(()) };
    let cause = format!(
        "{}; and block {}, a page of the journal, cannot be read: it may say that a newer superblock was there, \
         and that \
         space of the older one has been used again; read the device again, or copy it with a program that tries again. \
         Only if the power went while both were written is nothing lost when zeros are written over that block",
        other.cause,
        HEADER_BLOCKS + page
    );
    Err(Error::damaged(&*other.place, cause))
}

/// A store whose new epoch is durable: batches that an earlier opening still writes are ignored from here on.
struct OpenedStore {
    superblock: Superblock,
    at: Position,
}

impl OpenedStore {
    fn start(&self) -> Start {
        Start {
            epoch: self.superblock.epoch,
            at: self.at,
            tail: self.superblock.journal.seq,
            // This is less than the superblock's number only if records are lost, and then the store is read-only.
            flushed_lsn: self.superblock.flushed_lsn.min(self.at.lsn - 1),
            checkpoint: self.superblock.checkpoint,
            catalogue_checkpoint: self.superblock.catalogue_checkpoint,
            named: 0,
        }
    }
}

/// Checks that both counters can be raised before the store is served: the checkpoint once for each slot.
fn check_counters(superblock: &Superblock, epoch: u64) -> Result<(), String> {
    let checkpoint = superblock.checkpoint.saturating_add(SLOT_BLOCKS.len() as u64);
    for (what, next) in [("epoch", epoch), ("number of a checkpoint", checkpoint)] {
        if next > COUNTER_END {
            return Err(format!("its next {what} is {next}, expected at most {COUNTER_END}"));
        }
    }
    Ok(())
}

async fn begin_epoch(
    env: &Env,
    file: &File,
    old: &Superblock,
    changes: &ReplayedRecords,
    epoch: u64,
    clients_may_live: bool,
) -> Result<OpenedStore> {
    // What was read may have been in the device's cache alone.
    file.flush().await?;
    let flushed_lsn = match changes.missing.is_empty() {
        true => changes.end.lsn - 1,
        false => changes.flushed_lsn,
    };
    let HostId { boot, machine } = HostId::of(env.memory().as_deref());
    // Bit 0 records that such clients may outlive this boot, until the content generations are raised.
    let boot = if clients_may_live { boot | 1 } else { boot };
    let leased = if file.fence().is_some() { LEASED } else { 0 };
    let features_ro_compat = old.features_ro_compat | leased;
    let mut superblock =
        Superblock { epoch, flushed_lsn, clean: 0, boot, machine, features_ro_compat, ..*old };
    if old.clean == 0 && old.is_rebuildable() {
        superblock.abandon_next();
    }
    // Both slots are written: records vouched for here may be overwritten in place from now on, and a replay from an
    // older superblock would compare them with their first data again.
    for _ in SLOT_BLOCKS {
        superblock.checkpoint += 1;
        superblock.write(file).await?;
        file.flush().await?;
    }
    Ok(OpenedStore { superblock, at: changes.end })
}
