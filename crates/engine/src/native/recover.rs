//! Formatting a store, and opening one: the records of the journal are applied to the last checkpoint.
//!
//! A record above `flushed_lsn` counts only if its data is there. A record without its data is durably declared aborted
//! before anything new happens. A later replay, which has a greater `flushed_lsn`, must not apply it.

use std::rc::Rc;

use blk::memory::HostId;
use blk::{Buf, Env, Error, ErrorKind, File, Result};

use super::change::{Op, decode, encode};
use super::journal::{Record, SectorsRecord, pages_max};
use super::layout::{BLOCK, Extent, Geometry};
use super::opening::{Opening, RetainedTail};
use super::replayed_records::{MissingSectors, ReplayedRecords};
use super::space::Growth;
use super::store::{Store, StoreOptions};
use super::superblock::{REBUILDABLE, SECTOR_MASKS, Superblock};
use super::table::{PartialBlock, Redirect};
use super::tree::MapCache;
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
        Opening { env, file, options, growth, can_grow, map_cache, unchanged: None }.open().await
    }

    /// Like `open`, to look at: nothing is written to the store, and it is served read-only.
    pub(super) async fn open_unchanged(env: Env, file: File) -> Result<Rc<Store>> {
        let options = StoreOptions::default();
        let map_cache = MapCache::new(options.map_cache_bytes);
        let unchanged = Some(Error::refused(file.name(), "it was opened to be looked at"));
        let (growth, map_cache) = (Growth::default(), &map_cache);
        Opening { env, file, options, growth, can_grow: false, map_cache, unchanged }.open().await
    }

    /// Applies the journal's records, and makes durable what the store then shows. `hidden`: pages were unreadable, and
    /// taken for the journal's end.
    pub(super) async fn continue_from(&self, changes: &ReplayedRecords, hidden: bool) -> Result<()> {
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
    pub(super) async fn end_previous_tail(&self, tail: &RetainedTail) -> Result<()> {
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
