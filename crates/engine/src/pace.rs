//! How much of the device the mover of a commit takes: a share of what the guest has, so that the guest keeps most of it and
//! the commit ends whatever the guest asks for.

use std::cell::Cell;
use std::rc::Rc;

use blk::Env;

use crate::disk::Disk;
use crate::options::FoldOptions;
use crate::stats::{LATENCY_SHIFT, average};

/// Longest rest between two pieces, so that a slow device does not park the mover for minutes.
const REST_US_MAX: u64 = 50_000;
/// The mover has one piece under way for so many I/Os of the guest's; on a slow device at most one command carried out for so
/// many. A piece is a read, then a write, and the guest's own writes are doubled where a region is being moved.
const GUEST_PER_MOVER: usize = 8;
/// Commands of a piece: a read and a write.
const PIECE_COMMANDS: u64 = 2;
/// A device that takes longer than this for each of the guest's I/Os is on its way to the data most of that time: a
/// piece of 64 KiB, 0.25 ms at 256 MB/s, costs it little more than one of them.
const SLOW_NS: u64 = 250_000;
/// The guest's moving means are judged again when they have forgotten most of what was before.
const JUDGED_REQUESTS: u64 = 1 << LATENCY_SHIFT;
/// Of the moving mean of pieces: a new one weighs 1/16.
const PIECES_SHIFT: u32 = 4;
/// A guest that was heard of within this time may ask for something at any moment: on a slow device it would wait for as
/// many pieces as are under way.
const NEAR_NS: u64 = 200_000_000;

pub struct Pace {
    env: Env,
    /// Of the VM: their guests are yielded to.
    pub disks: Vec<Rc<Disk>>,
    options: FoldOptions,
    /// Guest requests completed at the last look, and when that was more than the time before; at first, the begin.
    requests: Cell<u64>,
    heard_ns: Cell<u64>,
    /// Moving mean of the time from a piece's begin to its end.
    piece_ns: Cell<u64>,
    /// The guest now, with its latency when nothing was moved yet.
    before: Cell<Guest>,
    /// On a slow device: pieces under way that the guest has been found to bear; 0 is none without a rest.
    borne: Cell<usize>,
    /// Guest requests completed when that was found.
    judged: Cell<u64>,
}

/// What the guest keeps under way.
#[derive(Clone, Copy)]
struct Guest {
    under_way: usize,
    /// Moving mean of the disk where it takes longest.
    latency_ns: u64,
}

impl Pace {
    pub fn new(env: Env, disks: Vec<Rc<Disk>>, options: FoldOptions) -> Pace {
        let requests = requests(&disks);
        disks.iter().for_each(|d| d.stats.disturbed.set(true));
        Pace {
            before: Cell::new(Guest::of(&disks, |d| d.stats.calm_latency_ns.get())),
            heard_ns: Cell::new(env.now_ns()),
            env,
            disks,
            options,
            requests: Cell::new(requests),
            piece_ns: Cell::new(0),
            borne: Cell::new(0),
            judged: Cell::new(requests),
        }
    }

    /// Pieces that may be under way now, at least one; all when the guest is idle.
    pub fn share(&self) -> usize {
        let depth = self.options.depth.max(1);
        let pieces = match self.guest().under_way {
            0 if self.is_slow() && self.is_near() => 1,
            0 => depth,
            under_way => self.borne.get().max(under_way / GUEST_PER_MOVER),
        };
        pieces.clamp(1, depth)
    }

    /// A piece that took so long has ended: the rest that follows it, microseconds; 0 while the guest is idle.
    pub fn rest_us(&self, piece_ns: u64) -> u64 {
        average(&self.piece_ns, piece_ns, PIECES_SHIFT);
        let seen = requests(&self.disks);
        if self.requests.replace(seen) == seen {
            return 0;
        }
        self.heard_ns.set(self.env.now_ns());
        let guest = self.guest();
        if seen >= self.judged.get() + JUDGED_REQUESTS {
            self.judged.set(seen);
            self.judge(guest);
        }
        (self.rest_ns(guest, piece_ns) / 1000).min(REST_US_MAX)
    }

    /// Takes a piece more on a slow device while the guest bears it, up to an even share, and one less when it does not.
    fn judge(&self, guest: Guest) {
        if self.before.get().latency_ns == 0 {
            self.before.set(guest);
        }
        if !self.is_slow() || guest.under_way == 0 {
            return;
        }
        let borne = match guest.bears(self.before.get()) {
            true => (self.borne.get() + 1).min(guest.even_share(self.piece_ns.get())),
            false => self.borne.get().saturating_sub(1),
        };
        self.borne.set(borne.min(self.options.depth));
    }

    /// As long as the piece took, or `yield_factor` times that where a share is not fine enough: one piece against a guest
    /// with few I/Os. None where the guest bears it.
    fn rest_ns(&self, guest: Guest, piece_ns: u64) -> u64 {
        let idle = guest.under_way == 0 && self.is_slow();
        match self.share() {
            _ if idle || self.borne.get() > 0 => 0,
            1 => self.options.yield_factor * piece_ns,
            _ => piece_ns,
        }
    }

    fn guest(&self) -> Guest {
        Guest::of(&self.disks, |d| d.stats.latency_ns.get())
    }

    /// Before the commit: what it does itself must not make a device look slow.
    fn is_slow(&self) -> bool {
        let before = self.before.get();
        before.latency_ns > SLOW_NS * before.under_way.max(1) as u64
    }

    fn is_near(&self) -> bool {
        self.env.now_ns() < self.heard_ns.get() + NEAR_NS
    }
}

impl Guest {
    fn of(disks: &[Rc<Disk>], latency_ns: impl Fn(&Disk) -> u64) -> Guest {
        let under_way = disks.iter().map(|d| d.requests_under_way()).sum();
        let busy = disks.iter().filter(|d| under_way == 0 || d.requests_under_way() > 0);
        Guest { under_way, latency_ns: busy.map(|d| latency_ns(d)).max().unwrap_or(0) }
    }

    /// The device still does at least four I/Os for it in the time of five before.
    fn bears(self, before: Guest) -> bool {
        let (now, then) = (self.under_way.max(1) as u64, before.under_way.max(1) as u64);
        self.latency_ns * then * 4 <= before.latency_ns * now.max(then) * 5
    }

    /// Pieces under way with which the device carries out one of the mover's commands for `GUEST_PER_MOVER` of the
    /// guest's. It takes more of them where the device lets the mover's wait longer: a disk prefers what is near its
    /// head, and a commit writes far from where the guest reads.
    fn even_share(self, piece_ns: u64) -> usize {
        let command_ns = (piece_ns / PIECE_COMMANDS).max(self.latency_ns);
        let pieces = self.under_way as u64 * command_ns / (GUEST_PER_MOVER as u64 * self.latency_ns.max(1));
        usize::try_from(pieces).unwrap_or(usize::MAX)
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.disks.iter().for_each(|d| d.stats.disturbed.set(false));
    }
}

/// Guest requests completed so far.
fn requests(disks: &[Rc<Disk>]) -> u64 {
    disks.iter().map(|d| d.stats.requests()).sum()
}
