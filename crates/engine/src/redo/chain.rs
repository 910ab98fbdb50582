//! Layers of a disk at one moment, and the layer that takes new writes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use blk::layer::{Run, Where};
use blk::{Error, File, Result, SECTOR};

use super::link::Link;
use super::map::{Slot, ZERO_SLOT};

/// One version of a disk's chain. A request uses the version it was admitted under until it ends.
pub struct Chain {
    /// Base first; the last is the writable top.
    pub links: Vec<Rc<Link>>,
    pub fold: Option<Rc<FoldRoute>>,
}

impl Chain {
    pub fn top(&self) -> &Rc<Link> {
        self.links.last().expect("a chain has at least its base")
    }

    /// Returns the fold that steers guest writes: only that of the top. The fold of a lower link affects no guest
    /// write.
    pub fn steering(&self) -> Option<&Rc<FoldRoute>> {
        self.fold.as_ref().filter(|f| Rc::ptr_eq(&f.source, self.top()))
    }

    pub fn position(&self, link: &Rc<Link>) -> Option<usize> {
        self.links.iter().position(|l| Rc::ptr_eq(l, link))
    }

    /// `range` rounded out to whole grains of every layer: they are powers of two, so the largest aligns to all.
    pub fn whole_grains(&self, range: &Range<u64>) -> Range<u64> {
        let shapes = self.links.iter().map(|link| link.layer.shape());
        let grain = shapes.filter(|shape| !shape.flat).map(|shape| shape.grain_bytes).max().unwrap_or(SECTOR);
        range.start / grain * grain..range.end.next_multiple_of(grain)
    }
}

/// The route of a commit under way, as the write path sees it: `source` drains into `target`, the layer below it.
pub struct FoldRoute {
    pub source: Rc<Link>,
    pub target: Rc<Link>,
    /// Source regions between "copying begins" and "the release is durable": what the source holds there. Writes in
    /// them go to both layers. The runs are pinned here because the source forgets them at the release.
    pub moving: RefCell<BTreeMap<u64, Rc<Vec<Run>>>>,
    /// The regions in `moving` are released in the source's memory, and perhaps not on the device. Until a flush of the
    /// source succeeds, or the disk is opened again, either layer may hold the valid data after a crash. So writes go
    /// to both, the map names the source, and no fold of the disk begins or ends.
    pub releasing: Cell<bool>,
    /// Only the running top depends on the source: data that a higher layer shadows need not be copied. A take ends
    /// that, because the frozen state depends on the source too.
    pub skip_shadowed: Cell<bool>,
}

impl FoldRoute {
    pub fn new(source: Rc<Link>, target: Rc<Link>, skip_shadowed: bool) -> Rc<FoldRoute> {
        Rc::new(FoldRoute {
            source,
            target,
            moving: RefCell::default(),
            releasing: Cell::new(false),
            skip_shadowed: Cell::new(skip_shadowed),
        })
    }

    pub fn region_bytes(&self) -> u64 {
        self.source.layer.shape().region_bytes
    }

    pub fn moving_at(&self, offset: u64) -> Option<Rc<Vec<Run>>> {
        self.moving.borrow().get(&(offset / self.region_bytes())).cloned()
    }
}

/// Slot numbers of a disk's open files. A number is reused only when no map names it.
#[derive(Default)]
pub(crate) struct Slots {
    entries: Vec<Option<Rc<Link>>>,
}

impl Slots {
    /// Reserves `count` consecutive numbers, above `ZERO_SLOT`.
    pub(crate) fn reserve(&mut self, count: usize, place: &str) -> Result<Slot> {
        if self.entries.is_empty() {
            self.entries.push(None);
        }
        let free = |at: &usize| self.entries[*at..].iter().take(count).all(Option::is_none);
        let at = (1..self.entries.len()).find(free).unwrap_or(self.entries.len());
        let slot = Slot::try_from(at + count).map_err(|_| {
            Error::refused(place, format!("{at} files open in one chain; at most {} can be", Slot::MAX))
        })? - count as Slot;
        if self.entries.len() < at + count {
            self.entries.resize(at + count, None);
        }
        Ok(slot)
    }

    pub(crate) fn fill(&mut self, link: &Rc<Link>) {
        for n in 0..link.layer.files().len() {
            self.entries[usize::from(link.slot) + n] = Some(link.clone());
        }
    }

    pub(crate) fn release(&mut self, link: &Rc<Link>) {
        for entry in &mut self.entries {
            if entry.as_ref().is_some_and(|l| Rc::ptr_eq(l, link)) {
                *entry = None;
            }
        }
    }

    pub(crate) fn link(&self, slot: Slot) -> Rc<Link> {
        self.entries[usize::from(slot)].clone().expect("a slot in the map is open")
    }

    /// Returns each link once, by its first slot.
    pub(crate) fn links(&self) -> impl Iterator<Item = &Rc<Link>> {
        let first = |(n, entry)| Option::as_ref(entry).filter(|link: &&Rc<Link>| usize::from(link.slot) == n);
        self.entries.iter().enumerate().filter_map(first)
    }

    pub(crate) fn file(&self, slot: Slot) -> File {
        assert_ne!(slot, ZERO_SLOT);
        self.link(slot).file(slot).clone()
    }
}

/// Returns the data runs of a list: those that the layer itself holds.
pub(super) fn held(runs: &[Run]) -> impl Iterator<Item = (&Run, u16, u64)> {
    runs.iter().filter_map(|run| match run.place {
        Where::Data { file, offset } => Some((run, file, offset)),
        _ => None,
    })
}
