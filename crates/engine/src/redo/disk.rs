//! A running redo disk: its chain, its map, and the guest's reads and flushes. Module `write` has the writes.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::file::FileCounters;
use blk::layer::Where;
use blk::sync::{Admission, RangeLock, Signal};
use blk::{Buf, Env, Error, ErrorKind, File, Result};
use futures_util::future::join_all;

use super::chain::{Chain, FoldRoute, Slots};
use super::link::Link;
use super::load::GuestLoad;
use super::map::{Lookup, Map, Piece, REGION_BYTES, ZERO_SLOT};
use crate::event::SpaceWaits;
use crate::join::all;
use crate::options::{Defect, Options};
use crate::stats::{DiskStats, LayerCounters};

/// Number of holds on a disk's writes, and the signal of their release.
#[derive(Default)]
pub(crate) struct WriteHolds {
    pub count: Cell<usize>,
    pub released: Signal,
}

/// One disk. One core owns all of it; code between two awaits is atomic.
pub struct Disk {
    /// The core that the disk was opened on.
    pub env: Env,
    /// Name for messages: `web/disk0`.
    pub name: String,
    /// See [`blk::manifest::DiskState::number`].
    pub number: u32,
    size_bytes: Cell<u64>,
    /// Changes fail with `Refused`.
    pub read_only: bool,
    /// The settings of its VM.
    pub options: Options,
    /// Requests since the disk was opened.
    pub stats: DiskStats,
    /// Sum of the counters of the layers that have left the chain.
    left: Cell<FileCounters>,
    pub(crate) load: GuestLoad,
    pub(crate) chain: RefCell<Rc<Chain>>,
    pub(crate) map: Map,
    pub(crate) slots: RefCell<Slots>,
    /// Ranges that a write or the mover works on: overlapping writes run one after the other, in one order.
    pub(crate) writes: RangeLock,
    pub(crate) write_gate: Rc<Admission>,
    pub(crate) read_gate: Rc<Admission>,
    pub(crate) flush_gate: Rc<Admission>,
    pub(crate) closing: Cell<bool>,
    pub(crate) holds: WriteHolds,
    pub(crate) space_waits: SpaceWaits,
    loads: Signal,
}

impl Disk {
    /// Creates a disk over `layers`, base first. The last layer is the writable top unless `read_only`.
    pub fn new(
        env: Env,
        name: String,
        number: u32,
        layers: Vec<Rc<dyn blk::layer::Layer>>,
        read_only: bool,
        options: Options,
    ) -> Result<Rc<Disk>> {
        let mut slots = Slots::default();
        let mut links = Vec::with_capacity(layers.len());
        for layer in layers {
            let slot = slots.reserve(layer.files().len(), layer.name())?;
            let link = Link::new(layer, slot, options.defects);
            slots.fill(&link);
            links.push(link);
        }
        let size_bytes = links.last().expect("a chain has a base").layer.shape().size_bytes;
        Ok(Rc::new(Disk {
            env,
            name,
            number,
            size_bytes: Cell::new(size_bytes),
            read_only,
            options,
            stats: DiskStats::default(),
            left: Cell::default(),
            load: GuestLoad::default(),
            chain: RefCell::new(Rc::new(Chain { links, fold: None })),
            map: Map::new(options.map_cap_bytes),
            slots: RefCell::new(slots),
            writes: RangeLock::default(),
            write_gate: Rc::default(),
            read_gate: Rc::default(),
            flush_gate: Rc::default(),
            closing: Cell::new(false),
            holds: WriteHolds::default(),
            space_waits: SpaceWaits::default(),
            loads: Signal::default(),
        }))
    }

    /// Returns the size of the disk.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.get()
    }

    /// Returns the chain that new requests use.
    pub fn chain(&self) -> Rc<Chain> {
        self.chain.borrow().clone()
    }

    pub(crate) fn top_name(&self) -> String {
        self.chain().top().layer.name().to_string()
    }

    pub(crate) fn link_named(&self, name: &str) -> Option<Rc<Link>> {
        self.chain().links.iter().find(|l| l.layer.name() == name).cloned()
    }

    pub(crate) fn file(&self, piece: &Piece) -> File {
        self.slots.borrow().file(piece.slot)
    }

    /// Returns the pieces of `range` at their present places, in order, and builds missing regions of the map.
    ///
    /// Pieces found before a wait are kept: a second look-up of them might never end when the map has room for less
    /// than the range. They stay valid: a write holds its range, so nothing in it moves; a read may return what was
    /// there when it began.
    pub(crate) async fn resolve(&self, range: Range<u64>) -> Result<Vec<Piece>> {
        let mut pieces = Vec::with_capacity(1);
        let mut at = range.start;
        loop {
            match self.map.lookup(at..range.end, &mut pieces) {
                Lookup::Yes => return Ok(pieces),
                Lookup::Missing(number) => {
                    at = at.max(number * REGION_BYTES);
                    self.load_region(number).await?;
                }
            }
        }
    }

    async fn load_region(&self, number: u64) -> Result<()> {
        if !self.map.begin_load(number) {
            while self.map.is_loading(number) {
                self.loads.wait().await;
            }
            return Ok(());
        }
        self.stats.map_loads.set(self.stats.map_loads.get() + 1);
        let start = number * REGION_BYTES;
        let chain = self.chain();
        let built = resolve_in(&chain.links, start..self.size_bytes().min(start + REGION_BYTES)).await;
        // A build that an update overtook is dropped; the caller looks up again.
        self.map.end_load(number, built.as_deref().ok());
        self.loads.notify();
        built.map(drop)
    }

    pub(crate) async fn read_range(&self, offset: u64, buf: Buf) -> (Buf, Result<()>) {
        let began_ns = self.env.now_ns();
        let _admitted = self.read_gate.enter();
        let (buf, result) = match self.resolve(offset..offset + buf.len() as u64).await {
            Ok(pieces) => self.read_pieces(&pieces, offset, buf).await,
            Err(e) => (buf, Err(e)),
        };
        let now_ns = self.env.now_ns();
        self.stats.read_done(buf.len(), now_ns - began_ns, result.is_ok());
        self.load.request_ended(now_ns, now_ns - began_ns, self.requests_under_way());
        (buf, result)
    }

    async fn read_pieces(&self, pieces: &[Piece], offset: u64, mut buf: Buf) -> (Buf, Result<()>) {
        if let [only] = pieces {
            if only.slot == ZERO_SLOT {
                buf.fill(0);
                return (buf, Ok(()));
            }
            return self.file(only).read(only.offset, buf).await;
        }
        let reads = pieces.iter().map(|p| async {
            if p.slot == ZERO_SLOT {
                return (Buf::zeroed(p.len as usize), Ok(()));
            }
            self.file(p).read(p.offset, Buf::alloc(p.len as usize)).await
        });
        let mut result = Ok(());
        for (piece, (part, outcome)) in pieces.iter().zip(join_all(reads).await) {
            let at = (piece.start - offset) as usize;
            buf[at..at + part.len()].copy_from_slice(&part);
            result = result.and(outcome);
        }
        (buf, result)
    }

    /// Makes every write that completed before this call durable, in every layer that it may have reached: after a
    /// take, until the parent is sealed, in the parent and the child; in a commit, in the delta and its target.
    pub async fn flush_all(&self) -> Result<()> {
        let began_ns = self.env.now_ns();
        // The flush is counted, so that an operation that gives the layers to another disk can wait for it.
        let _admitted = self.flush_gate.enter();
        let top = self.chain().top().clone();
        let top_only = self.options.defects.has(Defect::FlushTopOnly);
        let result = self.flush_links(|link| !top_only || Rc::ptr_eq(link, &top)).await;
        self.stats.flush_done(self.env.now_ns() - began_ns, result.is_ok());
        result
    }

    pub(crate) async fn flush_links(&self, wanted: impl Fn(&Rc<Link>) -> bool) -> Result<()> {
        let chain = self.chain();
        let flushes = chain.links.iter().filter(|link| wanted(link)).map(|link| link.flush());
        all(flushes).await
    }

    /// Makes `child` the writable top. It has no await: together with the other disks of the VM this is one instant.
    pub(crate) fn push_top(&self, child: &Rc<Link>) {
        let old = self.chain();
        if let Some(fold) = &old.fold {
            fold.skip_shadowed.set(false);
        }
        let mut links = old.links.clone();
        links.push(child.clone());
        self.slots.borrow_mut().fill(child);
        *self.chain.borrow_mut() = Rc::new(Chain { links, fold: old.fold.clone() });
    }

    /// Removes an empty layer from the chain. Its slots are free for others only after every request that may have
    /// looked them up before has ended. Returns how long the change itself took, in nanoseconds.
    pub(crate) async fn remove_link(&self, link: &Rc<Link>) -> u64 {
        let began_ns = self.env.now_ns();
        let old = self.chain();
        let links: Vec<_> = old.links.iter().filter(|l| !Rc::ptr_eq(l, link)).cloned().collect();
        assert_eq!(links.len() + 1, old.links.len(), "{} is in the chain", link.layer.name());
        for n in 0..link.layer.files().len() {
            assert!(!self.map.names_slot(link.slot + n as u16), "{} still holds data", link.layer.name());
        }
        *self.chain.borrow_mut() = Rc::new(Chain { links, fold: None });
        let took_ns = self.env.now_ns() - began_ns;
        let (reads, writes) = (self.read_gate.drain(), self.write_gate.drain());
        reads.await;
        writes.await;
        self.slots.borrow_mut().release(link);
        self.remember(link);
        took_ns
    }

    /// Installs `base`, the only layer, after it was reopened with a larger size. The caller holds the writes back. The
    /// map of the old size stays valid, because a base holds everything by position and `base` uses the old one's slot.
    pub(crate) fn grown(&self, base: &Rc<Link>) {
        let old_bytes = self.size_bytes();
        assert_eq!((base.slot, self.chain().links.len()), (self.chain().top().slot, 1));
        self.remember(self.chain().top());
        self.slots.borrow_mut().fill(base);
        *self.chain.borrow_mut() = Rc::new(Chain { links: vec![base.clone()], fold: None });
        self.size_bytes.set(base.layer.shape().size_bytes);
        // The region at the old end was built up to the old size.
        self.map.invalidate(old_bytes / REGION_BYTES * REGION_BYTES..self.size_bytes());
    }

    pub(crate) fn set_fold(&self, fold: Option<Rc<FoldRoute>>) {
        let links = self.chain().links.clone();
        *self.chain.borrow_mut() = Rc::new(Chain { links, fold });
    }

    /// Returns the number of guest requests under way.
    pub fn requests_under_way(&self) -> usize {
        self.read_gate.in_flight() + self.write_gate.in_flight()
    }

    /// Returns the I/O that reached the files of the chain, layers that have left it included.
    pub fn device_counters(&self) -> FileCounters {
        let mut sum = self.left.get();
        self.slots.borrow().links().for_each(|link| sum += link.counters());
        sum
    }

    /// Adds the counters of a link that has left the chain to the sum.
    fn remember(&self, link: &Link) {
        let mut left = self.left.get();
        left += link.counters();
        self.left.set(left);
    }

    /// Returns the same counters for each layer, base first.
    pub fn layer_counters(&self) -> Vec<LayerCounters> {
        let of_link = |link: &Rc<Link>| LayerCounters {
            name: link.layer.name().to_string(),
            counters: link.counters(),
        };
        self.chain().links.iter().map(of_link).collect()
    }

    /// Ends the steering of a fold that does not go on. A fold whose release may or may not be on the device stays:
    /// only reopening the disk shows which layer is valid there.
    pub(crate) fn forget_idle_fold(&self) {
        if self.chain().fold.as_ref().is_some_and(|f| f.moving.borrow().is_empty()) {
            self.set_fold(None);
        }
    }

    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        if offset.checked_add(len).is_none_or(|end| end > self.size_bytes()) {
            let cause = format!("{len} bytes at {offset} reach past the disk's {} bytes", self.size_bytes());
            return Err(Error::invalid(&self.name, cause));
        }
        Ok(())
    }

    pub(crate) fn refuse_when_closing(&self) -> Result<()> {
        if self.closing.get() {
            return Err(Error::new(ErrorKind::Cancelled, &self.name, "the disk is being closed"));
        }
        Ok(())
    }
}

/// Resolves `range` in the tables of `links` (base first), without the map.
pub(crate) async fn resolve_in(links: &[Rc<Link>], range: Range<u64>) -> Result<Vec<Piece>> {
    let mut found = Vec::new();
    let mut open = vec![range];
    for link in links.iter().rev() {
        if open.is_empty() {
            break;
        }
        let region_bytes = link.layer.shape().region_bytes;
        let mut still_open = Vec::new();
        for part in open {
            let regions = part.start / region_bytes..part.end.div_ceil(region_bytes);
            if !regions.clone().any(|r| link.layer.populated(r)) {
                still_open.push(part);
                continue;
            }
            for run in link.layer.lookup(part).await? {
                let (slot, offset) = match run.place {
                    Where::Parent => {
                        still_open.push(run.start..run.end());
                        continue;
                    }
                    Where::Zero => (ZERO_SLOT, 0),
                    Where::Data { file, offset } => (link.slot + file, offset),
                };
                found.push(Piece { start: run.start, len: run.len, slot, offset });
            }
        }
        open = still_open;
    }
    found.extend(open.into_iter().map(|r| Piece {
        start: r.start,
        len: r.end - r.start,
        slot: ZERO_SLOT,
        offset: 0,
    }));
    found.sort_unstable_by_key(|p| p.start);
    Ok(found)
}
