//! Formatting a store, and opening one: the last checkpoint, followed by the records of the journal.
//!
//! A record above `flushed_lsn` counts only if its data is there. A record without its data is durably declared aborted
//! before anything new happens. A later replay, which has a greater `flushed_lsn`, must not apply it.

use std::rc::Rc;

use blk::memory::{HostId, clients_may_live};
use blk::{Buf, Env, Error, ErrorKind, File, Result};

use super::catalogue::Catalogue;
use super::change::{Op, decode, encode};
use super::contents::{check_catalogue, read_nodes, read_summaries};
use super::journal::{
    Journal, MemoryTail, Position, Record, Replayed, SectorsRecord, Start, pages_max, replay,
};
use super::layout::{BLOCK, Extent, Geometry, HEADER_BLOCKS};
use super::replayed_records::{MissingSectors, ReplayedRecords};
use super::source::read_sources;
use super::space::{Growth, Space, groups_within};
use super::store::{Store, StoreOptions, StoreParts};
use super::superblock::{COUNTER_END, LEASED, REBUILDABLE, SECTOR_MASKS, SLOT_BLOCKS, Slots, Superblock};
use super::table::{PartialBlock, Redirect};
use super::tree::{MapCache, Nodes};
use crate::options::Defect;

/// Bytes of zeros written by one I/O.
const ZEROS_BYTES: u64 = 1 << 20;
/// Number of aborts that keeps a change well inside one record: 17 bytes each.
const ABORTS_PER_RECORD: usize = 1000;

/// Records repeated between two turns of the reactor: guests of other stores wait meanwhile.
const STEP_RECORDS: usize = 256;
/// Pages that an opening and the checkpoint that makes room may use up behind the aborts: rounds that confirm what was
/// flushed and name the checkpoint, two pages each.
const OPENING_PAGES: u64 = 16;

/// Layout of a new store.
#[derive(Debug, Clone, Copy)]
pub struct NewStore {
    /// Length of the journal's ring in blocks; at least [`super::journal::JOURNAL_PAGES_MIN`].
    pub journal_pages: u64,
    /// Blocks of a group, its two bitmap pages included.
    pub group_blocks: u64,
    /// A first write of some sectors of a block leaves the others where they are, if the device writes sectors of 512
    /// bytes.
    pub sector_masks: bool,
    /// The catalogue has two copies, and the store can be rebuilt from its map pages.
    pub rebuildable: bool,
}

impl NewStore {
    /// A journal of 64 MiB, groups of 126 MiB, and all features.
    pub const DEFAULT: NewStore = NewStore {
        journal_pages: 16 << 10,
        group_blocks: super::space::GROUP_BLOCKS_MAX,
        sector_masks: true,
        rebuildable: true,
    };
}

impl Default for NewStore {
    /// See `DEFAULT`.
    fn default() -> Self {
        NewStore::DEFAULT
    }
}

impl Store {
    /// Writes an empty store into `file`. It is durable when this resolves.
    pub async fn format(env: &Env, file: &File, new: NewStore) -> Result<()> {
        let geometry = Geometry {
            store_id: env.random() | 1,
            journal_pages: new.journal_pages,
            group_blocks: new.group_blocks,
        };
        let mut superblock = Superblock::first(&geometry, env.unix_us());
        superblock.features_incompat =
            if new.sector_masks { SECTOR_MASKS } else { 0 } | if new.rebuildable { REBUILDABLE } else { 0 };
        write_zeros(file, geometry.groups_start() * BLOCK).await?;
        superblock.write(file).await?;
        file.flush().await
    }

    /// Opens a store and finishes what a crash interrupted. `can_grow`: true for a file, false for a block device.
    pub async fn open(
        env: Env,
        file: File,
        options: StoreOptions,
        growth: Growth,
        can_grow: bool,
    ) -> Result<Rc<Store>> {
        let map_cache = MapCache::new(options.map_cache_bytes);
        Store::open_with_cache(env, file, options, growth, can_grow, &map_cache).await
    }

    /// Like `open`, with a cache of map pages that other stores of the core may share. The options' size of the cache
    /// is not used.
    pub async fn open_with_cache(
        env: Env,
        file: File,
        options: StoreOptions,
        growth: Growth,
        can_grow: bool,
        map_cache: &MapCache,
    ) -> Result<Rc<Store>> {
        Store::open_as(env, file, options, growth, can_grow, map_cache, None).await
    }

    /// Like `open`, to look at: nothing is written to the store, and it is served read-only.
    pub(super) async fn open_unchanged(env: Env, file: File) -> Result<Rc<Store>> {
        let options = StoreOptions::default();
        let map_cache = MapCache::new(options.map_cache_bytes);
        let reason = Error::refused(file.name(), "it was opened to be looked at");
        Store::open_as(env, file, options, Growth::default(), false, &map_cache, Some(reason)).await
    }

    /// Opens a store; read-only for the reason `unchanged`, if there is one.
    async fn open_as(
        env: Env,
        file: File,
        options: StoreOptions,
        growth: Growth,
        can_grow: bool,
        map_cache: &MapCache,
        unchanged: Option<Error>,
    ) -> Result<Rc<Store>> {
        let Slots { newest: superblock, other, .. } = Superblock::read(&file).await?;
        if unchanged.is_none() {
            superblock.check_writable(file.name())?;
        }
        let geometry = superblock.geometry();
        let groups = groups_in(&file, &superblock).await?;
        let catalogue = Catalogue::read(&file, &superblock).await?;
        let found = replay(&file, &geometry, superblock.begin()).await?;
        if let Some(other) = &other {
            exclude_newer(other, &found)?;
        }
        let (lost, hidden) = (found.lost.clone().or(unchanged.clone()), !found.unreadable.is_empty());
        let tail = RetainedTail::by(&env, &superblock, found.end, lost.is_some());
        let changes = ReplayedRecords::read(&file, found, &tail.records).await?;
        let epoch = superblock.epoch.max(changes.epoch) + 1;
        check_counters(&superblock, epoch).map_err(|cause| Error::damaged(file.name(), cause))?;
        let memory_tail = MemoryTail::new(&env, geometry.store_id, epoch);
        if tail.complete && unchanged.is_none() {
            // This comes before the epoch is durable: an opening after a later crash looks for the tail of this epoch.
            memory_tail.begin(&tail.records);
        }
        let opened = match lost {
            None => begin_epoch(&env, &file, &superblock, &changes, epoch, tail.clients_may_live).await?,
            Some(_) => OpenedStore { superblock, at: changes.end },
        };
        let journal = Journal::new(env.clone(), file.clone(), geometry, opened.start(), memory_tail);
        for (lsn, record) in &tail.records {
            let again = journal.append(record.clone());
            assert_eq!(again, *lsn, "a record of the tail gets its own number again");
        }
        let summaries = read_summaries(&catalogue, groups, &superblock, file.name())?;
        let ready_to = opened.superblock.ready_to;
        journal.gives_up.set(options.defects.has(Defect::DoubtFullDevice));
        let space = Space::open(env.clone(), file.clone(), geometry, summaries, ready_to, growth, can_grow);
        space.keep_bitmaps_within(options.bitmap_bytes);
        check_catalogue(&catalogue, &space, file.name())?;
        let (lineage, stored) = read_nodes(&catalogue, &superblock, file.name())?;
        let sources = read_sources(&catalogue.items, &superblock, file.name())?;
        let nodes = Nodes::new(file.clone(), geometry.store_id, map_cache);
        let nodes = nodes.losing(superblock.is_rebuildable());
        let parts = StoreParts {
            file,
            geometry,
            nodes,
            space,
            journal,
            lineage,
            catalogue,
            stored,
            superblock: opened.superblock,
            sources,
        };
        let damaged = parts.catalogue.damaged.clone();
        let store = Store::assemble(env, options, parts);
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

    /// Applies the journal's records, and makes durable what the store then shows. `hidden`: pages were unreadable, and
    /// taken for the journal's end.
    async fn continue_from(&self, changes: &ReplayedRecords, hidden: bool) -> Result<()> {
        self.repeat(changes).await?;
        self.damage.borrow_mut().extend(changes.unreadable.iter().cloned());
        if self.broken().is_some() {
            return Ok(());
        }
        if let Err(e) = self.abort_missing(changes) {
            // Reads show the state with the aborts, and nothing is written that a replay could confuse with them.
            self.fail_read_only(&e);
            return Ok(());
        }
        if hidden {
            // A flush first: such a page must not become readable later, with records that were left out now.
            self.flush().await?;
        }
        self.flush_without_doubt().await?;
        if self.superblock.get().is_rebuildable() && self.journal.free_pages() > OPENING_PAGES {
            // What the last checkpoint freed may be used from now on. If both superblocks are lost, this batch shows that
            // the catalogue before is stale.
            self.flush().await?;
        }
        Ok(())
    }

    /// Removes the tail that an earlier opening left in the host's memory. If it was not complete, the content
    /// generations are raised durably before a new tail begins, so that a crash in between finds it incomplete again.
    async fn end_previous_tail(&self, tail: &RetainedTail) -> Result<()> {
        if self.broken().is_some() {
            return Ok(());
        }
        if !tail.complete {
            if tail.clients_may_live {
                self.raise_generations().await?;
                self.boot.set(HostId::of(self.env.memory().as_deref()).boot);
            }
            self.journal.memory_tail.begin(&[]);
        }
        self.journal.memory_tail.forget_others();
        Ok(())
    }

    /// Applies the journal's records in their order. If the space contradicts them, the store becomes read-only.
    async fn repeat(&self, changes: &ReplayedRecords) -> Result<()> {
        if let Err(e) = self.space.load_for(changes.addresses()).await {
            self.fail_read_only(&e);
        }
        let mut missing = MissingSectors::default();
        for (count, (lsn, record)) in changes.records.iter().enumerate() {
            if count % STEP_RECORDS == STEP_RECORDS - 1 {
                self.env.next_turn().await;
            }
            let (lsn, counts) = (*lsn, changes.counts(*lsn));
            if let Record::Sectors(sectors) = record
                && !self.options.defects.has(Defect::CountMissingSectors)
            {
                missing.note(sectors, counts);
            }
            match record {
                _ if !counts => {}
                Record::Sectors(sectors) => {
                    self.repeat_sectors(sectors, &mut missing, lsn)
                        .map_err(|cause| self.wrong(lsn, &cause))?;
                }
                Record::Map { node, start, len, addr, birth, .. } => {
                    let extent = Extent { addr: *addr, len: u64::from(*len) };
                    self.note_space(self.space.replay_place(extent));
                    let redirect = Redirect { len: extent.len, addr: *addr, birth: *birth, lsn };
                    self.repeat_put(*node, *start, redirect, None)
                        .map_err(|cause| self.wrong(lsn, &cause))?;
                }
                Record::Unmap { node, start, len, birth } => {
                    let redirect = Redirect { len: *len, addr: 0, birth: *birth, lsn };
                    self.repeat_put(*node, *start, redirect, None)
                        .map_err(|cause| self.wrong(lsn, &cause))?;
                }
                Record::Change(bytes) => {
                    let place = format!("{}: record {lsn}", self.path());
                    self.apply(&decode(bytes, &place)?)?;
                }
            }
        }
        Ok(())
    }

    fn wrong(&self, lsn: u64, cause: &str) -> Error {
        Error::damaged(self.path(), format!("journal record {lsn}: {cause}"))
    }

    fn repeat_sectors(
        &self,
        record: &SectorsRecord,
        missing: &mut MissingSectors,
        lsn: u64,
    ) -> Result<(), String> {
        let SectorsRecord { node, block, addr, birth, backing: (backing_addr, backing_birth), .. } = *record;
        // A backing block was born before the last take of the node.
        if backing_birth >= birth || backing_addr == addr || !self.space.is_data(backing_addr) {
            return Err(format!(
                "the backing block {backing_addr} of block {addr} is of generation {backing_birth}, expected another \
                 block of data from before generation {birth}"
            ));
        }
        let is_placed_here = missing.places(record);
        if is_placed_here {
            self.note_space(self.space.replay_place(Extent { addr, len: 1 }));
        }
        let backing = record.backing_of(record.present & !missing.of(addr));
        let part = PartialBlock { backing, is_placed_here };
        self.repeat_put(node, block, Redirect { len: 1, addr, birth, lsn }, Some(part))
    }

    fn repeat_put(
        &self,
        node: u64,
        start: u64,
        redirect: Redirect,
        part: Option<PartialBlock>,
    ) -> Result<(), String> {
        let known = self.lineage.borrow().get(node).filter(|node| node.is_running());
        let node = known.ok_or_else(|| format!("blocks of node {node}, which does not run"))?;
        let now = self.generation.get();
        if redirect.birth != now {
            return Err(format!("birth is {}, expected {now}", redirect.birth));
        }
        let mut displaced = Vec::new();
        self.count(node.id, node.put(start, redirect, part, &mut displaced));
        for extent in displaced {
            self.note_space(self.space.replay_free(extent));
        }
        Ok(())
    }

    /// Makes the store read-only on an error of the space: reads need no space, so the disks are served.
    fn note_space(&self, result: Result<()>) {
        if let Err(e) = result
            && self.broken().is_none()
        {
            self.fail_read_only(&e);
        }
    }

    /// Records that the records without their data are aborted.
    ///
    /// # Errors
    /// `NoSpace`: the journal has no room for the aborts. Nothing was recorded, and the next opening compares the data
    /// again.
    fn abort_missing(&self, changes: &ReplayedRecords) -> Result<()> {
        if changes.missing.is_empty() || self.options.defects.has(Defect::ForgetAborts) {
            return Ok(());
        }
        let mut aborts: Vec<Op> = Vec::new();
        for lsn in &changes.missing {
            match aborts.last_mut() {
                Some(Op::Abort { last, .. }) if *last + 1 == *lsn => *last = *lsn,
                _ => aborts.push(Op::Abort { first: *lsn, last: *lsn }),
            }
        }
        let records: Vec<_> =
            aborts.chunks(ABORTS_PER_RECORD).map(|some| Record::Change(encode(some))).collect();
        let needed = records.iter().map(pages_max).sum::<u64>() + OPENING_PAGES;
        if self.journal.free_pages() < needed {
            let cause = format!(
                "the journal has {} pages left, and {needed} are needed to say that {} records never happened: \
                 their data \
                 was lost in a crash",
                self.journal.free_pages(),
                changes.missing.len()
            );
            return Err(Error::new(ErrorKind::NoSpace, self.path(), cause));
        }
        for record in records {
            self.journal.append(record);
        }
        Ok(())
    }

    /// Flushes until no replay will doubt the data of the remaining records. Nothing may be placed before, because the
    /// blocks that records displaced are free already.
    async fn flush_without_doubt(&self) -> Result<()> {
        while self.journal.durable_flushed_lsn() < self.journal.last_lsn() {
            self.journal.flush().await?;
        }
        Ok(())
    }
}

/// Writes zeros up to byte `end`: a journal must have its space even if the file system is full.
async fn write_zeros(file: &File, end: u64) -> Result<()> {
    let zeros = Buf::zeroed(ZEROS_BYTES as usize).freeze();
    let mut at = 0;
    while at < end {
        let len = ZEROS_BYTES.min(end - at);
        file.write(at, zeros.slice(0..len as usize)).await?;
        at += len;
    }
    Ok(())
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
struct RetainedTail {
    /// Records behind the journal's end, with their numbers.
    records: Vec<(u64, Record)>,
    /// The tail covers all writes that were acknowledged.
    complete: bool,
    /// Clients may still run whose acknowledged writes are missing.
    clients_may_live: bool,
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
