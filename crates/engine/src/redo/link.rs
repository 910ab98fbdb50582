//! One layer of an open chain, and the order in which its data and tables become durable.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};

use blk::file::FileCounters;
use blk::layer::{Layer, Placement, Stages, TableWrite};
use blk::sync::{RangeGuard, RangeLock, TaskMutex};
use blk::{Error, ErrorKind, File, Result};
use futures_util::{StreamExt, stream};

use super::map::Slot;
use super::unwritten::UnwrittenTables;
use crate::join::all;
use crate::options::{Defect, Defects};

/// Most table writes under way at once. A round may have thousands, each a seek of a hard disk: all at once they would
/// delay the guest's I/Os for seconds. Eight of 16 KiB keep flash busy.
const TABLES_UNDER_WAY_MAX: usize = 8;

/// A layer, shared by the running disk and the sealed views that read it.
pub struct Link {
    /// Weak reference to itself, for the list of links with unwritten tables.
    pub(crate) this: Weak<Link>,
    pub layer: Rc<dyn Layer>,
    /// Slot of the layer's file 0 in the maps of this VM's disks; file n has `slot + n`.
    pub slot: Slot,
    defects: Defects,
    /// Grains for which a writer has taken space that is not published yet.
    placing: RangeLock,
    /// A write has completed that no flush round covers yet.
    dirty: Cell<bool>,
    pub(crate) unwritten: UnwrittenTables,
    rounds: TaskMutex,
    started: Cell<u64>,
    completed: Cell<u64>,
    last_error: RefCell<Option<Error>>,
}

/// The right to take space in whole grains of a layer. No other writer places in them while it exists.
pub(crate) struct GrainGuard {
    range: Range<u64>,
    /// None where nothing is ever placed.
    _turn: Option<RangeGuard>,
}

impl Link {
    pub fn new(layer: Rc<dyn Layer>, slot: Slot, defects: Defects) -> Rc<Link> {
        Rc::new_cyclic(|this| Link {
            this: this.clone(),
            layer,
            slot,
            defects,
            placing: RangeLock::default(),
            dirty: Cell::new(false),
            unwritten: UnwrittenTables::default(),
            rounds: TaskMutex::default(),
            started: Cell::new(0),
            completed: Cell::new(0),
            last_error: RefCell::new(None),
        })
    }

    pub fn file(&self, slot: Slot) -> &File {
        &self.layer.files()[usize::from(slot - self.slot)]
    }

    /// Returns the I/O that reached the layer's files, tables included.
    pub fn counters(&self) -> FileCounters {
        let mut sum = FileCounters::default();
        self.layer.files().iter().for_each(|file| sum += file.counters());
        sum
    }

    /// Waits until no other writer takes space in the grains that `range` touches, and keeps others out of them. The
    /// caller has to look up what the layer holds there after this call: an earlier result may be out of date.
    pub(crate) async fn hold_grains(&self, range: &Range<u64>) -> GrainGuard {
        let shape = self.layer.shape();
        let grain = shape.grain_bytes;
        let range = range.start / grain * grain..range.end.next_multiple_of(grain);
        let is_shared = !shape.flat && !self.defects.has(Defect::PlaceWithoutGrains);
        let turn = match is_shared {
            true => Some(self.placing.lock(range.clone()).await),
            false => None,
        };
        GrainGuard { range, _turn: turn }
    }

    /// Takes space for `range`, which is inside of `grains` and which the layer does not hold.
    pub(crate) async fn place(&self, grains: &GrainGuard, range: Range<u64>) -> Result<Placement> {
        let is_inside = grains.range.start <= range.start && range.end <= grains.range.end;
        assert!(is_inside, "{}: {range:?} is outside of the grains {:?}", self.layer.name(), grains.range);
        self.layer.place(range).await
    }

    pub fn owns(&self, slot: Slot) -> bool {
        slot >= self.slot && usize::from(slot - self.slot) < self.layer.files().len()
    }

    /// Notes that a write to this layer has completed: the next flush must cover it.
    pub fn note_write(&self) {
        self.dirty.set(true);
    }

    /// Makes every write that completed before this call durable, with its tables. Callers that arrive during a round
    /// share the next one.
    pub async fn flush(&self) -> Result<()> {
        // A link that is not dirty is covered by a round that has begun, but may not have ended.
        let wanted = self.started.get() + u64::from(self.dirty.get());
        if self.completed.get() >= wanted {
            return self.outcome();
        }
        let _turn = self.rounds.lock().await;
        if self.completed.get() >= wanted {
            return self.outcome();
        }
        self.round().await
    }

    fn outcome(&self) -> Result<()> {
        self.last_error.borrow().clone().map_or(Ok(()), Err)
    }

    async fn round(&self) -> Result<()> {
        self.started.set(self.started.get() + 1);
        self.dirty.set(false);
        let result = self.make_durable().await;
        self.count_unwritten();
        if let Err(e) = &result {
            self.dirty.set(true);
            // Tables that found no space are written by a later round, and nothing is in doubt.
            if !e.is_no_space() || self.defects.has(Defect::DoubtFullDevice) {
                self.layer.end_log();
            }
        }
        *self.last_error.borrow_mut() = result.clone().err();
        self.completed.set(self.started.get());
        result
    }

    async fn make_durable(&self) -> Result<()> {
        let mut stages = self.layer.stages();
        self.write_tables(&stages.early).await?;
        if self.defects.has(Defect::TablesBeforeData) {
            self.write_late(&stages).await?;
        }
        self.flush_files().await?;
        if self.defects.has(Defect::StagesAfterFlush) {
            stages = self.layer.stages();
            self.write_tables(&stages.early).await?;
        }
        if self.defects.has(Defect::NoTableFlush) {
            return Ok(());
        }
        self.write_late(&stages).await?;
        self.layer.settle(stages.ticket);
        Ok(())
    }

    async fn write_late(&self, stages: &Stages) -> Result<()> {
        for batch in stages.late.iter().filter(|b| !b.is_empty()) {
            self.write_tables(batch).await?;
            self.flush_files().await?;
        }
        Ok(())
    }

    async fn write_tables(&self, writes: &[TableWrite]) -> Result<()> {
        let files = self.layer.files();
        let each = writes.iter().map(|w| {
            let file = files[usize::from(w.file)].tables();
            async move { file.write(w.offset, w.data.clone()).await }
        });
        // All of them end before an error is returned.
        let results: Vec<_> = stream::iter(each).buffer_unordered(TABLES_UNDER_WAY_MAX).collect().await;
        results.into_iter().collect()
    }

    async fn flush_files(&self) -> Result<()> {
        // A file whose flush failed is latched: no later flush of it succeeds.
        let flushed = all(self.layer.files().iter().map(File::flush)).await;
        match flushed {
            Err(e) if e.kind == ErrorKind::Latched && self.defects.has(Defect::FlushRetried) => Ok(()),
            flushed => flushed,
        }
    }

    /// Flushes the layer, then writes a header that marks it clean and complete.
    pub async fn seal(&self) -> Result<()> {
        let _turn = self.rounds.lock().await;
        self.round().await?;
        self.layer.seal().await
    }
}
