//! The media of a world: one plain device, or units of models with placed files.

use super::model::Model;
use super::place::{Piece, Place};
use super::plain::{Device, Lanes};
use super::server::{Access, LowerDevice, NEVER_NS, Request};
use crate::kind::OpKind;
use crate::rng::Rng;

/// Devices with positions, queues and caches, and the placement of files on them.
#[derive(Debug, Clone, PartialEq)]
pub struct Storage {
    /// At least one unit. The first one has the files without a placement.
    pub units: Vec<Unit>,
    pub places: Vec<Place>,
    /// Unit of allocation of files in bytes: a block of the file system.
    pub extent_bytes: u64,
}

/// One LUN.
#[derive(Debug, Clone, PartialEq)]
pub struct Unit {
    pub model: Model,
    pub calls: Calls,
}

/// Cost of operations on names, sizes, locks and space: a number of calls of a fixed duration, concurrent with
/// everything else. Synced directories and flushed files use the model as well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    pub call_ns: u64,
    pub open: u32,
    pub create: u32,
    pub lock: u32,
    /// Calls of renames, removals, growth, reservations, zeros and holes.
    pub change: u32,
    /// Calls of queries: sizes, lists, extents, space.
    pub ask: u32,
}

impl Storage {
    /// Returns one unit. Files are placed in extents of one MiB, in order of use.
    pub fn of(model: Model) -> Storage {
        let unit = Unit { model, calls: Calls::default() };
        Storage { units: vec![unit], places: Vec::new(), extent_bytes: 1 << 20 }
    }
}

impl Calls {
    fn ns(&self, kind: OpKind) -> u64 {
        let calls = match kind {
            OpKind::Open | OpKind::OpenDir => self.open,
            OpKind::Create => self.create,
            OpKind::Lock => self.lock,
            OpKind::Allocate | OpKind::Zero | OpKind::Punch | OpKind::GiveBack => self.change,
            OpKind::SetLen => self.change,
            OpKind::Rename | OpKind::Unlink | OpKind::RemoveDir | OpKind::Link => self.change,
            _ => self.ask,
        };
        u64::from(calls) * self.call_ns
    }
}

/// The units in operation.
pub(crate) struct Units {
    units: Vec<(LowerDevice, Calls)>,
    /// Earliest time of all units.
    next_ns: u64,
}

/// When an admitted request is done.
pub(crate) enum Admitted {
    At(u64),
    /// Number of completions with its tag.
    Parts(u32),
}

impl Units {
    fn new(storage: &Storage, rng: &mut Rng) -> Units {
        assert!(!storage.units.is_empty(), "storage has a unit at least");
        let known = |place: &Place| (place.unit as usize) < storage.units.len();
        assert!(storage.places.iter().all(known), "a place names a unit that is not there");
        let units = storage.units.iter().map(|unit| (LowerDevice::new(unit.model.server(rng)), unit.calls));
        Units { units: units.collect(), next_ns: NEVER_NS }
    }

    /// Submits a request, which may consist of several pieces.
    pub(crate) fn submit(&mut self, now_ns: u64, access: Access, pieces: &[Piece], tag: u32) -> Admitted {
        if let [piece] = pieces {
            let below = &mut self.units[piece.unit as usize].0;
            let request = Request { tag, access, at: piece.at, len: piece.len };
            let Some(done_ns) = below.submit_known(now_ns, request) else {
                self.next_ns = self.next_ns.min(below.next_ns());
                return Admitted::Parts(1);
            };
            return Admitted::At(done_ns);
        }
        for piece in pieces {
            let below = &mut self.units[piece.unit as usize].0;
            below.submit(now_ns, Request { tag, access, at: piece.at, len: piece.len });
            self.next_ns = self.next_ns.min(below.next_ns());
        }
        Admitted::Parts(pieces.len() as u32)
    }

    /// Returns the duration of an operation that moves no data.
    pub(crate) fn call_ns(&self, unit: u32, kind: OpKind) -> u64 {
        self.units[unit as usize].1.ns(kind)
    }

    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    pub(crate) fn advance(&mut self, now_ns: u64, done: &mut Vec<u32>) {
        let mut next_ns = NEVER_NS;
        for (below, _) in &mut self.units {
            if below.next_ns() <= now_ns {
                below.advance(now_ns, done);
            }
            next_ns = next_ns.min(below.next_ns());
        }
        self.next_ns = next_ns;
    }

    fn reset(&mut self) {
        self.units.iter_mut().for_each(|(below, _)| below.reset());
        self.next_ns = NEVER_NS;
    }
}

/// The media of one machine.
pub(crate) enum Media {
    Plain(Lanes),
    Placed(Box<Units>),
}

impl Media {
    pub(crate) fn new(device: Device, storage: Option<&Storage>, seed: u64) -> Media {
        match storage {
            // A separate random stream, so that the world's draws are the same on any storage.
            Some(storage) => Media::Placed(Box::new(Units::new(storage, &mut Rng::new(!seed)))),
            None => Media::Plain(Lanes::new(device)),
        }
    }

    /// Returns when the media must be advanced next.
    pub(crate) fn next_ns(&self) -> u64 {
        match self {
            Media::Plain(_) => NEVER_NS,
            Media::Placed(units) => units.next_ns(),
        }
    }

    pub(crate) fn reset(&mut self) {
        match self {
            Media::Plain(lanes) => lanes.reset(),
            Media::Placed(units) => units.reset(),
        }
    }
}
