//! Pace of the mover of a commit: it has as many pieces under way as the guest bears. The guest keeps most of the
//! device, and the commit ends under any load.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::Env;

use super::disk::Disk;
use super::load::Load;
use crate::options::FoldOptions;

/// Longest pause between two pieces, so that a slow device does not stop the mover for minutes.
const REST_US_MAX: u64 = 50_000;
/// A window has at least this many requests and this length, or fewer requests where they take seconds. Chance changes
/// the mean of 256 latencies by some 6 %, of 32 by some 18 %.
const JUDGED_REQUESTS: u64 = 256;
const JUDGED_NS: u64 = 50_000_000;
const JUDGED_REQUESTS_MIN: u64 = 32;
const JUDGED_NS_MAX: u64 = 1_000_000_000;
/// A window with a faster guest has a weight of 1/8, so that chance errors do not add up.
const RAISED_BY: u64 = 8;
/// A window with fewer requests of a disk tells nothing about its guest.
const STRANGE_REQUESTS: u64 = 16;

/// The mover's share of the device, from the guests' latency and rate.
pub(super) struct Pace {
    env: Env,
    /// All disks of the VM: the mover yields to their guests.
    pub disks: Vec<Rc<Disk>>,
    options: FoldOptions,
    /// Guest requests completed at the last check, and the time of the last check that found new ones (initially the
    /// start).
    requests: Cell<u64>,
    heard_ns: Cell<u64>,
    /// Pieces under way that the guest has been found to bear; 0 is one piece with pauses.
    borne: Cell<usize>,
    guests: RefCell<Vec<Guest>>,
    window_began_ns: Cell<u64>,
}

/// Load of the guest of one disk, in the order of `disks`.
struct Guest {
    /// Its load while nothing is moved; no requests until that is known.
    before: Load,
    /// Total load when the window began.
    at_begin: Load,
}

impl Pace {
    pub(super) fn new(env: Env, disks: Vec<Rc<Disk>>, options: FoldOptions) -> Pace {
        let guest = |disk: &Rc<Disk>| {
            disk.load.disturb(true);
            Guest { before: known(disk.load.baseline()), at_begin: disk.load.total() }
        };
        Pace {
            requests: Cell::new(requests(&disks)),
            heard_ns: Cell::new(env.now_ns()),
            borne: Cell::new(0),
            guests: RefCell::new(disks.iter().map(guest).collect()),
            window_began_ns: Cell::new(env.now_ns()),
            env,
            disks,
            options,
        }
    }

    /// Returns how many pieces may be under way now, at least one; all of them when the guest is idle.
    pub(super) fn share(&self) -> usize {
        let depth = self.options.depth.max(1);
        if self.is_near() { self.borne.get().clamp(1, depth) } else { depth }
    }

    /// Returns the pause after a piece that took `piece_ns`, in microseconds; 0 while the guest bears more than one
    /// piece, or is idle.
    pub(super) fn pause_us(&self, piece_ns: u64) -> u64 {
        let (seen, now_ns) = (requests(&self.disks), self.env.now_ns());
        if self.requests.replace(seen) != seen {
            self.heard_ns.set(now_ns);
            self.judge(now_ns);
        }
        let is_eased = self.borne.get() > 0 || !self.is_near();
        if is_eased { 0 } else { (self.options.yield_factor * piece_ns / 1000).min(REST_US_MAX) }
    }

    /// Judges a window that is long enough: one piece more while the guest bears the load, half of them when it does
    /// not. On a device with a cache the cost of one piece too many shows late.
    fn judge(&self, now_ns: u64) {
        let mut guests = self.guests.borrow_mut();
        let windows: Vec<_> = self
            .disks
            .iter()
            .zip(&*guests)
            .map(|(disk, guest)| disk.load.total().since(guest.at_begin))
            .collect();
        if !is_enough(windows.iter().map(|window| window.requests).sum(), now_ns - self.window_began_ns.get())
        {
            return;
        }
        self.window_began_ns.set(now_ns);
        let borne = self.borne.get();
        let is_strange = guests.iter().zip(&windows).any(|(guest, window)| guest.is_strange(*window));
        self.borne.set(match is_strange {
            true => 0,
            false if bears(&guests, &windows) => (borne + 1).min(self.options.depth),
            false => borne / 2,
        });
        for ((disk, guest), window) in self.disks.iter().zip(&mut *guests).zip(windows) {
            guest.learn(window, borne == 0);
            guest.at_begin = disk.load.total();
        }
    }

    fn is_near(&self) -> bool {
        self.env.now_ns() < self.heard_ns.get() + self.options.near_us * 1000
            || self.disks.iter().any(|disk| disk.requests_under_way() > 0)
    }
}

impl Guest {
    /// Returns whether there is nothing to compare this window with: the guest's earlier load is unknown, or the guest
    /// has far fewer requests under way now and may be used to a much lower latency.
    fn is_strange(&self, window: Load) -> bool {
        window.requests >= STRANGE_REQUESTS
            && (self.before.requests == 0 || window.is_shallower_than(self.before))
    }

    /// Updates the load before. A strange guest's window replaces it if only one piece with pauses was moved. A guest
    /// that is faster now than before raises it.
    fn learn(&mut self, window: Load, is_eased: bool) {
        if self.is_strange(window) {
            if is_eased {
                self.before = window;
            }
        } else if window.requests >= STRANGE_REQUESTS && window.is_faster_than(self.before) {
            let old = self.before.scaled(RAISED_BY - 1, RAISED_BY);
            self.before = old.plus(window.scaled(self.before.requests, RAISED_BY * window.requests));
        }
    }
}

/// Returns whether the guests bear the load: in the time of five earlier I/Os the device still completes four of
/// theirs, and their mean latency has not doubled.
fn bears(guests: &[Guest], windows: &[Load]) -> bool {
    let known = || guests.iter().zip(windows).filter(|(guest, _)| guest.before.requests > 0);
    let sum =
        |ns: fn(Load, Load) -> u64| known().map(|(guest, window)| ns(*window, guest.before)).sum::<u64>();
    let now_ns = sum(|window, _| window.latency_ns);
    let at_rate_ns = sum(Load::latency_at_rate_of_ns);
    let as_before_ns = sum(|window, before| before.scaled(window.requests, before.requests).latency_ns);
    4 * now_ns <= 5 * at_rate_ns && now_ns <= 2 * as_before_ns
}

/// Returns whether a window is long enough to tell load from chance.
fn is_enough(requests: u64, window_ns: u64) -> bool {
    let in_time = requests >= JUDGED_REQUESTS && window_ns >= JUDGED_NS;
    in_time || (requests >= JUDGED_REQUESTS_MIN && window_ns >= JUDGED_NS_MAX)
}

fn known(baseline: Load) -> Load {
    if baseline.requests < JUDGED_REQUESTS_MIN { Load::default() } else { baseline }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.disks.iter().for_each(|disk| disk.load.disturb(false));
    }
}

/// Returns the number of guest requests completed so far.
fn requests(disks: &[Rc<Disk>]) -> u64 {
    disks.iter().map(|d| d.stats.requests()).sum()
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
